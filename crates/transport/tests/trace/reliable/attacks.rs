//! Reliable datagrams among hosts that lie.

use super::*;

impl World {
    /// A packet of a message of two units to the first target, which asks for an answer.
    fn half_a_record(&mut self) -> Flying {
        self.post_record(0, 2 * UNIT);
        self.sends().remove(1)
    }

    /// A packet from another address arrives at the first target.
    fn arrives_from(&mut self, source: Neighbour, packet: &Flying) -> RecordAnswer {
        let Target { qp, records, host } = &mut self.targets[packet.to];
        let arrival = arrival(source, address(packet.to));
        match qp.handle_record(self.now, &arrival, &packet.record(), records, host) {
            Some(RecordAnswerOwed::Ack(answer)) => answer.answer,
            other => panic!("{other:?}"),
        }
    }
}

const OTHER: [u8; 4] = [10, 0, 0, 2];

#[test]
fn a_target_that_answers_and_takes_nothing_is_given_up() {
    let mut world = World::new(2);
    world.post_record(0, 4 * UNIT);
    world.post_record(1, 4 * UNIT);
    let start = world.now;
    while world.host.completed.len() < 2 {
        for packet in world.sends() {
            let Some(mut answer) = world.arrives(&packet) else {
                continue;
            };
            if packet.to == 0 {
                answer.answer = RecordAnswer::Arrives;
                (answer.base, answer.map) = (0, 0);
            }
            world.answered(packet.to, &answer);
        }
        let waited = world.now.duration_since(start);
        assert!(waited < Duration::from_secs(3), "it goes on for ever");
        world.now = world.now + MS;
        world.qp.handle_timeout(world.now, &mut world.host);
    }
    let expected = [(1, Status::Success), (0, Status::RetryExceeded)];
    assert_eq!(world.host.completed, expected);
}

#[test]
fn to_be_not_ready_now_and_then_is_no_way_to_be_so_for_ever() {
    let mut world = World::new(1);
    world.post_record(0, 4 * UNIT);
    let (start, mut says) = (world.now, 0);
    while world.host.completed.is_empty() {
        for packet in world.sends() {
            let Some(mut answer) = world.arrives(&packet) else {
                continue;
            };
            says += 1;
            answer.answer = match says % 2 {
                0 => RecordAnswer::NotReady,
                _ => RecordAnswer::Arrives,
            };
            (answer.base, answer.map) = (0, 0);
            world.answered(packet.to, &answer);
        }
        let waited = world.now.duration_since(start);
        assert!(waited < Duration::from_secs(3), "it goes on for ever");
        world.now = world.now + MS;
        world.qp.handle_timeout(world.now, &mut world.host);
    }
    assert_eq!(world.host.completed, [(0, Status::RnrRetryExceeded)]);
}

#[test]
fn one_address_leaves_room_for_messages_of_others() {
    let mut world = World::new(1);
    let packet = world.half_a_record();
    let mut taken = 0;
    for qpn in 1..=64 {
        let mut packet = packet.clone();
        packet.bytes[19] = qpn;
        taken += usize::from(world.arrives_from(SENDER.into(), &packet) == RecordAnswer::Arrives);
    }
    assert_eq!(taken, 16, "half of half of the open messages");
    let answer = world.arrives_from(OTHER.into(), &packet);
    assert_eq!(answer, RecordAnswer::Arrives);
    // With the time of its messages its places are free.
    world.now = world.now + Duration::from_secs(5);
    let Target { records, host, .. } = &mut world.targets[0];
    records.handle_timeout(world.now, host);
    let mut late = packet.clone();
    late.bytes[19] = 100;
    let answer = world.arrives_from(SENDER.into(), &late);
    assert_eq!(answer, RecordAnswer::Arrives);
}

#[test]
fn one_address_leaves_numbers_of_others_to_be_remembered() {
    let records = RecordConfig {
        open_max: 32,
        closed_max: 32,
        sources_max: 64,
        ..RecordConfig::default()
    };
    let mut world = World::with(1, ReliableConfig::default(), records);
    for _ in 0..200 {
        world.targets[0].host.post(10);
    }
    world.post_send(0, b"abc");
    let packet = world.sends().remove(0);
    let mut taken = 0;
    for qpn in 1..=128 {
        let mut packet = packet.clone();
        packet.bytes[19] = qpn;
        taken += usize::from(world.arrives_from(SENDER.into(), &packet) == RecordAnswer::Whole);
    }
    assert_eq!(taken, 16, "half of half of the sources");
    let answer = world.arrives_from(OTHER.into(), &packet);
    assert_eq!(answer, RecordAnswer::Whole);
    let mut first = packet.clone();
    first.bytes[19] = 1;
    let answer = world.arrives_from(SENDER.into(), &first);
    assert_eq!(answer, RecordAnswer::Whole, "it is remembered");
    assert_eq!(world.targets[0].host.completed.len(), 17, "and not again");
}

#[test]
fn sources_that_are_remembered_leave_room_for_records() {
    let records = RecordConfig {
        open_max: 32,
        closed_max: 32,
        sources_max: 64,
        ..RecordConfig::default()
    };
    let mut world = World::with(1, ReliableConfig::default(), records);
    for _ in 0..200 {
        world.targets[0].host.post(10);
    }
    world.post_send(0, b"abc");
    let packet = world.sends().remove(0);
    for host in 1..=128 {
        world.arrives_from([10, 9, 9, host].into(), &packet);
    }
    world.post_record(0, UNIT);
    let mut record = world.sends().remove(0).record().headers;
    record.token = None;
    let payload = [7; UNIT];
    let record = RecordPacket {
        headers: record,
        payload: &payload,
    };
    let Target { qp, records, host } = &mut world.targets[0];
    let arrival = arrival(OTHER.into(), address(0));
    qp.handle_record(world.now, &arrival, &record, records, host);
    let handle = records.poll_record().expect("a record");
    assert_eq!(records.record(handle).unwrap().ended, Some(Ended::Whole));
}
