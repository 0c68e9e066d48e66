//! Packets that no conforming peer sends: dropped or refused, counted, and never executed.

use airdma_sim::{Pair, Region, Setup, Side};
use airdma_transport::{Counter, Operation, QpEvent, QpState, Status};
use airdma_wire::{
    Aeth, AtomicEth, Bth, Feth, Headers, NakCode, Opcode, Psn, Qpn, Reth, Rkey, Syndrome, XrcEth,
};

use crate::scene::{
    assert_untroubled, connected, count, open_region, outcomes, post, receives, sends, state, us,
    write_to,
};

/// First PSN of B's requests with the default setup.
const FIRST: Psn = Psn::new(0x00ab_cdef);

struct Scene {
    pair: Pair,
    qp: usize,
    memory: Region,
}

impl Scene {
    fn new() -> Self {
        let (mut pair, qp) = connected(&Setup::default());
        let memory = open_region(&mut pair, Side::A, 4096);
        pair[Side::A].post_receive(qp, 50, vec![memory.part(0..2000)]);
        Scene { pair, qp, memory }
    }

    /// A packet from B that A expects next, but for what the test changes.
    fn packet(&self, opcode: Opcode) -> Headers {
        let qpn = self.pair[Side::A].queue_pair(self.qp).qpn();
        let mut headers = Headers::new(Bth::new(opcode, qpn, FIRST));
        headers.xrceth = opcode.has_xrceth().then_some(XrcEth { srqn: 1 });
        if opcode.has_feth() {
            headers.feth = Some(Feth {
                placement: Feth::GLOBAL,
                selectivity: Feth::RANGE,
            });
        }
        if opcode.has_reth() {
            headers.reth = Some(self.reth(64));
        }
        if opcode.has_atomic_eth() {
            headers.atomic_eth = Some(AtomicEth {
                va: self.memory.va,
                rkey: self.memory.rkey(),
                swap_add: 1,
                compare: 0,
            });
        }
        if opcode.has_aeth() {
            headers.aeth = Some(Aeth {
                syndrome: Syndrome::Ack { credits: 31 },
                msn: 0,
            });
        }
        headers.atomic_ack = opcode.has_atomic_ack().then_some(0);
        headers.imm = opcode.has_imm().then_some([0; 4]);
        headers.ieth = opcode.has_ieth().then_some(Rkey(1));
        headers
    }

    fn reth(&self, length: u32) -> Reth {
        Reth {
            va: self.memory.va,
            rkey: self.memory.rkey(),
            length,
        }
    }

    fn inject(&mut self, mut headers: Headers, len: usize) {
        headers.bth.pad = (len.next_multiple_of(4) - len) as u8;
        self.pair.inject(Side::B, &headers, &vec![0xee; len]);
        self.pair.run_until_idle();
    }

    fn count(&self, counter: Counter) -> u64 {
        count(&self.pair, Side::A, self.qp, counter)
    }

    fn assert_memory_untouched(&self) {
        let bytes = self.pair[Side::A].bytes(&self.memory);
        assert!(bytes.iter().all(|byte| *byte == 0), "memory was touched");
    }

    /// Asserts that A dropped it: only the counter changed, and the connection continues.
    fn assert_dropped(&mut self, counter: Counter) {
        assert_eq!(self.count(counter), 1, "{counter:?}");
        self.assert_memory_untouched();
        assert_eq!(state(&self.pair, Side::A, self.qp), QpState::ReadyToSend);
        assert_eq!(self.pair[Side::A].port_counters().sent, 0);
        let near = open_region(&mut self.pair, Side::B, 2000);
        let wr = airdma_sim::SendWr::new(1, Operation::Send, vec![near.all()]);
        self.pair[Side::B].post_send(self.qp, wr);
        self.pair.run_until_idle();
        let done = receives(&self.pair, Side::A, self.qp);
        assert_eq!(outcomes(done), [(50, Status::Success)]);
    }

    /// Asserts that A refused it with a NAK and stopped.
    fn assert_refused(&self, code: NakCode, event: QpEvent) {
        assert_eq!(state(&self.pair, Side::A, self.qp), QpState::Error);
        assert_eq!(self.pair[Side::A].rings(self.qp).events, [event]);
        assert_eq!(self.count(Counter::NaksSent), 1);
        let naks = self.pair.trace().count(|record| {
            record.from == Side::A
                && record.fate == airdma_sim::Fate::Sent
                && record.headers.is_some_and(|headers| {
                    headers.bth.psn == FIRST
                        && headers.aeth.map(|aeth| aeth.syndrome) == Some(Syndrome::Nak(code))
                })
        });
        assert_eq!(naks, 1);
        assert_eq!(receives(&self.pair, Side::A, self.qp).len(), 1);
    }
}

#[test]
fn packets_for_nobody_are_dropped() {
    let mut scene = Scene::new();
    let mut headers = scene.packet(Opcode::RcSendOnly);
    headers.bth.dest_qpn = Qpn::new(0x7777);
    scene.inject(headers, 4);
    assert_eq!(scene.pair[Side::A].port_counters().no_queue_pair, 1);
    scene.assert_memory_untouched();
}

#[test]
fn a_foreign_partition_is_dropped() {
    let mut scene = Scene::new();
    let mut headers = scene.packet(Opcode::RcSendOnly);
    headers.bth.pkey = 0x8001;
    scene.inject(headers, 4);
    scene.assert_dropped(Counter::DropBadPkey);
}

#[test]
fn packets_of_other_services_are_dropped() {
    for opcode in [Opcode::UcSendOnly, Opcode::UcWriteOnly] {
        let mut scene = Scene::new();
        let headers = scene.packet(opcode);
        scene.inject(headers, 64);
        scene.assert_dropped(Counter::DropMalformed);
    }
}

#[test]
fn answers_to_nothing_are_dropped() {
    for opcode in [
        Opcode::RcAcknowledge,
        Opcode::RcReadResponseOnly,
        Opcode::RcReadResponseMiddle,
        Opcode::RcAtomicAcknowledge,
    ] {
        let mut scene = Scene::new();
        let mut headers = scene.packet(opcode);
        headers.bth.psn = Psn::new(0x10);
        let payload = if opcode.is_read_response() { 64 } else { 0 };
        scene.inject(headers, payload);
        scene.assert_dropped(Counter::DropGhost);
    }
}

#[test]
fn a_congestion_notification_is_counted() {
    let mut scene = Scene::new();
    let headers = scene.packet(Opcode::Cnp);
    scene.inject(headers, 16);
    scene.assert_dropped(Counter::CnpsReceived);
}

#[test]
fn a_reserved_syndrome_ends_nothing() {
    let reserved = [
        Syndrome::Reserved(0x80),
        Syndrome::Nak(NakCode::Reserved(9)),
        Syndrome::Nak(NakCode::InvalidRdRequest),
    ];
    for syndrome in reserved {
        let (mut pair, qp) = connected(&Setup::default());
        let near = open_region(&mut pair, Side::A, 64);
        let far = open_region(&mut pair, Side::B, 64);
        post(&mut pair, qp, 1, write_to(&far), &near);
        pair.run_for(us(1));
        let qpn = pair[Side::A].queue_pair(qp).qpn();
        let bth = Bth::new(Opcode::RcAcknowledge, qpn, Psn::new(0x10));
        let mut headers = Headers::new(bth);
        headers.aeth = Some(Aeth { syndrome, msn: 0 });
        pair.inject(Side::B, &headers, &[]);
        pair.run_until_idle();
        pair.assert_nothing_left();
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
        assert_eq!(count(&pair, Side::A, qp, Counter::DropMalformed), 1);
    }
}

#[test]
fn a_message_without_its_beginning_is_invalid() {
    for opcode in [
        Opcode::RcSendMiddle,
        Opcode::RcSendLast,
        Opcode::RcSendLastInvalidate,
        Opcode::RcWriteMiddle,
        Opcode::RcWriteLast,
        Opcode::RcWriteLastImm,
    ] {
        let mut scene = Scene::new();
        let headers = scene.packet(opcode);
        scene.inject(headers, 1024);
        scene.assert_refused(NakCode::InvalidRequest, QpEvent::RequestError);
        scene.assert_memory_untouched();
    }
}

#[test]
fn a_payload_of_the_wrong_size_is_invalid() {
    for (opcode, len) in [
        (Opcode::RcSendFirst, 1023),
        (Opcode::RcSendFirst, 1025),
        (Opcode::RcSendOnly, 1025),
        (Opcode::RcSendFirst, 0),
        (Opcode::RcWriteFirst, 64),
        (Opcode::RcReadRequest, 4),
        (Opcode::RcFetchAdd, 4),
    ] {
        let mut scene = Scene::new();
        let headers = scene.packet(opcode);
        scene.inject(headers, len);
        scene.assert_refused(NakCode::InvalidRequest, QpEvent::RequestError);
        scene.assert_memory_untouched();
    }
}

#[test]
fn a_write_must_carry_what_its_header_announces() {
    for len in [0, 63, 65] {
        let mut scene = Scene::new();
        let headers = scene.packet(Opcode::RcWriteOnly);
        scene.inject(headers, len);
        scene.assert_refused(NakCode::InvalidRequest, QpEvent::RequestError);
        scene.assert_memory_untouched();
    }
}

#[test]
fn a_write_longer_than_a_message_may_be_is_invalid() {
    let mut scene = Scene::new();
    let mut headers = scene.packet(Opcode::RcWriteFirst);
    headers.reth = Some(scene.reth(u32::MAX));
    scene.inject(headers, 1024);
    scene.assert_refused(NakCode::InvalidRequest, QpEvent::RequestError);
    scene.assert_memory_untouched();
}

#[test]
fn a_write_beyond_its_region_is_refused_at_its_first_packet() {
    let mut scene = Scene::new();
    let mut headers = scene.packet(Opcode::RcWriteFirst);
    headers.reth = Some(scene.reth(4097));
    scene.inject(headers, 1024);
    scene.assert_refused(NakCode::RemoteAccessError, QpEvent::AccessError);
    scene.assert_memory_untouched();
}

#[test]
fn a_new_message_inside_another_is_invalid() {
    for opcode in [
        Opcode::RcSendOnly,
        Opcode::RcSendFirst,
        Opcode::RcWriteMiddle,
        Opcode::RcReadRequest,
        Opcode::RcFetchAdd,
    ] {
        let mut scene = Scene::new();
        let first = scene.packet(Opcode::RcSendFirst);
        scene.inject(first, 1024);
        let mut headers = scene.packet(opcode);
        headers.bth.psn = FIRST.add(1);
        let len = if opcode.has_reth() || opcode.has_atomic_eth() {
            0
        } else {
            1024
        };
        scene.inject(headers, len);
        assert_eq!(state(&scene.pair, Side::A, scene.qp), QpState::Error);
        assert_eq!(scene.count(Counter::InvalidRequests), 1);
        let done = receives(&scene.pair, Side::A, scene.qp);
        assert_eq!(outcomes(done), [(50, Status::WrFlushError)]);
    }
}

#[test]
fn a_repeated_read_is_answered_only_within_what_was_granted() {
    let mut scene = Scene::new();
    let read = scene.packet(Opcode::RcReadRequest);
    scene.inject(read, 0);
    let answered = scene.pair[Side::A].port_counters().sent;
    assert_eq!(answered, 1);
    let mut longer = read;
    longer.reth = Some(scene.reth(65));
    let mut elsewhere = read;
    elsewhere.reth = Some(Reth {
        va: scene.memory.va + 64,
        ..scene.reth(64)
    });
    let mut older = read;
    older.bth.psn = FIRST.add(0x00ff_ffff);
    let mut atomic = scene.packet(Opcode::RcFetchAdd);
    atomic.bth.psn = FIRST;
    for headers in [longer, elsewhere, older, atomic] {
        scene.inject(headers, 0);
        assert_eq!(scene.pair[Side::A].port_counters().sent, answered);
    }
    scene.inject(read, 0);
    assert_eq!(scene.pair[Side::A].port_counters().sent, answered + 1);
    assert_eq!(state(&scene.pair, Side::A, scene.qp), QpState::ReadyToSend);
    scene.assert_memory_untouched();
}

/// Each repetition begins one packet before the last one, and all of them arrive at once.
#[test]
fn repetitions_of_one_read_do_not_pile_up() {
    let (mut pair, qp) = connected(&Setup::default());
    let packets = 100;
    let shelf = open_region(&mut pair, Side::A, packets * 1024);
    let qpn = pair[Side::A].queue_pair(qp).qpn();
    let read_from_packet = |index: u32| {
        let psn = FIRST.add(index);
        let mut headers = Headers::new(Bth::new(Opcode::RcReadRequest, qpn, psn));
        let offset = index * 1024;
        headers.reth = Some(Reth {
            va: shelf.va + u64::from(offset),
            rkey: shelf.rkey(),
            length: shelf.length - offset,
        });
        headers
    };
    pair.inject(Side::B, &read_from_packet(0), &[]);
    pair.run_until_idle();
    assert_eq!(pair[Side::A].port_counters().sent, packets as u64);
    for index in (0..packets as u32).rev() {
        pair.inject(Side::B, &read_from_packet(index), &[]);
    }
    pair.run_until_idle();
    let again = pair[Side::A].port_counters().sent - packets as u64;
    assert!(again <= 2 * packets as u64, "{again} packets were sent");
}

#[test]
fn a_response_that_does_not_fit_the_request_ends_the_connection() {
    for (opcode, len) in [
        (Opcode::RcReadResponseOnly, 64),
        (Opcode::RcAtomicAcknowledge, 0),
    ] {
        let (mut pair, qp) = connected(&Setup::default());
        let near = open_region(&mut pair, Side::A, 64);
        let far = open_region(&mut pair, Side::B, 64);
        post(&mut pair, qp, 1, write_to(&far), &near);
        pair.run_for(us(1));
        let scene = Scene::new();
        let mut headers = scene.packet(opcode);
        headers.bth.psn = Psn::new(0x10);
        pair.inject(Side::B, &headers, &vec![0xee; len]);
        pair.run_until_idle();
        let expected = [(1, Status::BadResponse)];
        assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
        assert_eq!(pair[Side::A].bytes(&near), [0; 64]);
    }
}

#[test]
fn random_packets_with_a_right_icrc_touch_nothing() {
    let mut random = airdma_sim::Random::new(11);
    let mut refused = 0;
    for _ in 0..2000 {
        let mut scene = Scene::new();
        let opcode = random.pick(Opcode::ALL);
        let mut headers = scene.packet(opcode);
        headers.bth.psn = random.pick(&[FIRST, FIRST.add(1), Psn::new(0x10), Psn::new(7)]);
        headers.bth.ack_request = random.chance(0.5);
        headers.reth = opcode.has_reth().then_some(Reth {
            va: random.next_u64(),
            rkey: Rkey(random.pick(&[scene.memory.key, 1])),
            length: random.pick(&[1, 64, 1024, 1025, 4097, u32::MAX]),
        });
        headers.atomic_eth = opcode.has_atomic_eth().then_some(AtomicEth {
            va: random.next_u64(),
            rkey: Rkey(random.pick(&[scene.memory.key, 1])),
            swap_add: random.next_u64(),
            compare: 0,
        });
        headers.deth = opcode.has_deth().then_some(airdma_wire::Deth {
            qkey: airdma_wire::Qkey(1),
            src_qpn: Qpn::new(3),
        });
        let len = random.pick(&[0, 1, 64, 1023, 1024, 1025, 4096]);
        scene.inject(headers, len);
        let granted = opcode.is_send() && headers.bth.psn == FIRST;
        if !granted {
            scene.assert_memory_untouched();
        }
        let outside = &scene.pair[Side::A].bytes(&scene.memory)[2000..];
        assert!(outside.iter().all(|byte| *byte == 0));
        refused += u64::from(state(&scene.pair, Side::A, scene.qp) == QpState::Error);
    }
    assert!(refused > 100);
}

#[test]
fn an_honest_connection_counts_none_of_this() {
    let (mut pair, qp) = connected(&Setup::default());
    let near = open_region(&mut pair, Side::A, 5000);
    let far = open_region(&mut pair, Side::B, 5000);
    post(&mut pair, qp, 1, write_to(&far), &near);
    pair.run_until_idle();
    assert_untroubled(&pair, qp);
}
