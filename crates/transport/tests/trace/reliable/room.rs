//! What the ends remember and have room for.

use super::*;

#[test]
fn a_number_that_was_forgotten_is_given_up() {
    let mut world = World::new(1);
    world.post_record(0, UNIT);
    let first = world.sends();
    world.settle();
    // Others of the source close meanwhile: more than are remembered.
    for id in 1..40u32 {
        let mut packet = first[0].clone();
        packet.bytes[36..40].copy_from_slice(&id.to_be_bytes());
        world.arrives(&packet).unwrap();
        let records = &mut world.targets[0].records;
        let handle = records.poll_record().unwrap();
        records.free(handle);
    }
    let answer = world.arrives(&first[0]).unwrap();
    assert_eq!(answer.answer, RecordAnswer::Ended);
    world.answered(0, &answer);
    assert_eq!(world.host.completed, [(0, Status::RemoteOperationError)]);
}

#[test]
fn numbers_under_way_stay_within_what_is_remembered() {
    let mut world = World::new(1);
    for _ in 0..100 {
        world.post_record(0, UNIT);
    }
    // The first message is lost again and again.
    let mut highest = 0;
    for _ in 0..20 {
        for packet in world.sends() {
            let (id, ..) = packet.told();
            highest = highest.max(id);
            if id == 0 {
                continue;
            }
            if let Some(answer) = world.arrives(&packet) {
                let records = &mut world.targets[0].records;
                while let Some(handle) = records.poll_record() {
                    records.free(handle);
                }
                world.answered(0, &answer);
            }
        }
        world.times_out();
    }
    assert_eq!(highest, 31);
    assert_eq!(world.host.completed.len(), 31);
    while world.host.completed.len() < 100 {
        world.settle_and_free();
        if world.host.completed.len() < 100 {
            world.times_out();
        }
    }
    let all_arrived = |&(_, status): &(u64, Status)| status == Status::Success;
    assert!(world.host.completed.iter().all(all_arrived));
}

#[test]
fn a_source_that_is_remembered_gives_no_place_away() {
    let records = RecordConfig {
        open_max: 1,
        closed_max: 1,
        sources_max: 8,
        ..RecordConfig::default()
    };
    let mut world = World::with(1, ReliableConfig::default(), records);
    for _ in 0..3 {
        world.targets[0].host.post(10);
    }
    let packet = |world: &mut World, qpn: u8| {
        world.post_send(0, b"abc");
        let mut packet = world.sends().remove(0);
        packet.bytes[19] = qpn;
        packet
    };
    let first = packet(&mut world, 1);
    world.arrives(&first).unwrap();
    let second = packet(&mut world, 2);
    world.arrives(&second).unwrap();
    let third = packet(&mut world, 3);
    let answer = world.arrives(&third).unwrap();
    assert_eq!(answer.answer, RecordAnswer::NotReady);
    assert_eq!(
        world.arrives(&first).unwrap().answer,
        RecordAnswer::Whole,
        "it is not delivered again"
    );
    world.now = world.now + Duration::from_secs(10);
    let answer = world.arrives(&third).unwrap();
    assert_eq!(answer.answer, RecordAnswer::Whole);
    assert_eq!(world.targets[0].host.completed.len(), 3);
}

#[test]
fn a_target_that_is_full_delays_and_displaces_nothing() {
    let records = RecordConfig {
        open_max: 2,
        closed_max: 2,
        sources_max: 8,
        ..RecordConfig::default()
    };
    let mut world = World::with(1, ReliableConfig::default(), records);
    for _ in 0..4 {
        world.post_record(0, 2 * UNIT);
    }
    world.settle();
    assert_eq!(world.host.completed.len(), 2, "half of four entries");
    while world.host.completed.len() < 4 {
        let records = &mut world.targets[0].records;
        let handle = records.poll_record().unwrap();
        assert_eq!(records.record(handle).unwrap().ended, Some(Ended::Whole));
        records.free(handle);
        world.times_out();
        world.settle();
    }
    let all_arrived = |&(_, status): &(u64, Status)| status == Status::Success;
    assert!(world.host.completed.iter().all(all_arrived));
}

#[test]
fn requests_wait_for_room_in_the_order_of_posting() {
    let config = ReliableConfig {
        messages_max: 2,
        share_max: 1,
        destinations_max: 2,
        ..ReliableConfig::default()
    };
    let mut world = World::with(2, config, RecordConfig::default());
    for to in [0, 0, 1, 1] {
        world.post_record(to, UNIT);
    }
    let first = world.sends();
    assert_eq!(first.len(), 1, "the second one waits, and those behind it");
    let answer = world.arrives(&first[0]).unwrap();
    world.answered(0, &answer);
    world.settle();
    let completed: Vec<_> = world.host.completed.iter().map(|&(id, _)| id).collect();
    assert_eq!(completed, [0, 1, 2, 3]);
}

#[test]
fn others_of_the_queue_pair_are_not_held_back() {
    let mut world = World::new(1);
    world.post_record(0, 64 * UNIT);
    let slot = Slot(1);
    world.host.messages.push(b"plain".to_vec());
    let request = SendRequest {
        slot,
        wr_id: 1,
        operation: Operation::Send,
        length: 5,
        signalled: true,
        solicited: false,
        fence: false,
        datagram: Some(Datagram {
            path: Path::default(),
            qpn: Qpn::new(9),
            qkey: QKEY,
        }),
        reliable: false,
        srqn: 0,
    };
    world.qp.post_send(request, &mut world.host);
    let packets = world.sends();
    assert_eq!(packets.len(), 17, "a window, and the datagram");
    assert_eq!(world.host.completed, [(1, Status::Success)]);
}

#[test]
fn a_long_message_keeps_within_its_map_and_its_window() {
    let mut world = World::new(1);
    world.post_record(0, 0x1000);
    let mut in_flight = 0;
    let mut most = 0;
    loop {
        let packets = world.sends();
        if packets.is_empty() {
            break;
        }
        in_flight += packets.len();
        most = most.max(in_flight);
        for packet in packets {
            in_flight -= 1;
            if let Some(answer) = world.arrives(&packet) {
                world.answered(0, &answer);
            }
        }
    }
    assert_eq!(world.host.completed, [(0, Status::Success)]);
    assert_eq!(most, 16);
}
