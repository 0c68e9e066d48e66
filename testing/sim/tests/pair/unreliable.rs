//! Unreliable connections: messages arrive whole or are lost, without a notification.

use core::time::Duration;

use airdma_sim::{Link, Pair, Random, Region, SendWr, Setup, Side};
use airdma_transport::{
    Access, AttrMask, Completion, CompletionOpcode, Counter, Operation, QpAttributes, QpState,
    QpType, Status,
};
use airdma_wire::PathMtu;

use crate::scene::{
    assert_untroubled, bad, clean, count, open_region, outcomes, pattern, post, receives, sends,
    state, write_to,
};

const UC: [QpType; 2] = [QpType::Uc; 2];

/// Messages of one random program.
const MESSAGES: u32 = 60;

/// Room for the longest of them.
const ROOM: u32 = 7 * 1024;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Send,
    SendImm,
    Write,
    WriteImm,
}

#[derive(Debug)]
struct Message {
    kind: Kind,
    data: Vec<u8>,
}

/// Messages that begin with their number.
fn draw_messages(random: &mut Random, mtu: PathMtu) -> Vec<Message> {
    let kinds = [Kind::Send, Kind::SendImm, Kind::Write, Kind::WriteImm];
    let mtu = u64::from(mtu.bytes());
    (0..MESSAGES)
        .map(|number| {
            let edge = mtu * random.between(1, 6);
            let short = random.between(4, 2 * mtu);
            let length = random.pick(&[4, short, edge, edge + 1]);
            let mut data = random.bytes(length as usize);
            data[..4].copy_from_slice(&number.to_be_bytes());
            Message {
                kind: random.pick(&kinds),
                data,
            }
        })
        .collect()
}

struct Run {
    pair: Pair,
    qp: usize,
    messages: Vec<Message>,
    inbox: Region,
    target: Region,
}

impl Run {
    fn new(seed: u64, mut link: impl FnMut() -> Link) -> Run {
        let mut random = Random::new(seed);
        let mtu = random.pick(&[PathMtu::M256, PathMtu::M512, PathMtu::M1024]);
        let messages = draw_messages(&mut random, mtu);
        let mut pair = Pair::new(seed, link(), link());
        let setup = Setup {
            mtu,
            ..Setup::default()
        };
        let qp = pair.connect_as(UC, &setup);
        let inbox = open_region(&mut pair, Side::B, (2 * MESSAGES * ROOM) as usize);
        let target = open_region(&mut pair, Side::B, (MESSAGES * ROOM) as usize);
        let mut source = vec![0; (MESSAGES * ROOM) as usize];
        for (number, message) in messages.iter().enumerate() {
            source[number * ROOM as usize..][..message.data.len()].copy_from_slice(&message.data);
        }
        let source = pair[Side::A].register(&source, Access::empty());
        for number in 0..2 * MESSAGES {
            let room = inbox.part(number * ROOM..(number + 1) * ROOM);
            pair[Side::B].post_receive(qp, u64::from(number), vec![room]);
        }
        for (number, message) in (0..).zip(&messages) {
            let at = number * ROOM;
            let (va, rkey) = (target.va + u64::from(at), target.rkey());
            let imm = number.to_be_bytes();
            let operation = match message.kind {
                Kind::Send => Operation::Send,
                Kind::SendImm => Operation::SendImm(imm),
                Kind::Write => Operation::Write { va, rkey },
                Kind::WriteImm => Operation::WriteImm { va, rkey, imm },
            };
            let part = source.part(at..at + message.data.len() as u32);
            let wr = SendWr::new(u64::from(number), operation, vec![part]);
            pair[Side::A].post_send(qp, wr.signalled_if(random.chance(0.5)));
            pair.run_for(Duration::from_nanos(random.below(40_000)));
        }
        pair.run_until_idle();
        let run = Run {
            pair,
            qp,
            messages,
            inbox,
            target,
        };
        run.check();
        run
    }

    /// Checks the invariants that hold whatever the link did.
    fn check(&self) {
        self.pair.assert_nothing_left();
        assert_eq!(self.pair[Side::B].port_counters().sent, 0);
        let own = self.pair[Side::A].rings(self.qp);
        let done = own.send_completions.len() as u64 + own.unsignalled;
        assert_eq!(done, u64::from(MESSAGES));
        assert!(
            own.send_completions
                .iter()
                .all(|c| c.status == Status::Success)
        );
        let received = receives(&self.pair, Side::B, self.qp);
        for (next, completion) in (0..).zip(received) {
            assert_eq!(completion.wr_id, next, "no receive is skipped");
            self.check_received(completion);
        }
        let bytes = self.pair[Side::B].bytes(&self.target);
        for (number, message) in self.messages.iter().enumerate() {
            let room = &bytes[number * ROOM as usize..][..ROOM as usize];
            let (here, behind) = room.split_at(message.data.len());
            assert!(
                here.iter()
                    .zip(&message.data)
                    .all(|(a, b)| a == b || *a == 0)
            );
            assert!(behind.iter().all(|byte| *byte == 0));
        }
    }

    fn number_of(&self, completion: &Completion) -> usize {
        let placed =
            &self.pair[Side::B].bytes(&self.inbox)[completion.wr_id as usize * ROOM as usize..];
        let number = completion
            .imm
            .unwrap_or_else(|| placed[..4].try_into().unwrap());
        u32::from_be_bytes(number) as usize
    }

    fn check_received(&self, completion: &Completion) {
        assert_eq!(completion.status, Status::Success);
        let number = self.number_of(completion);
        let message = &self.messages[number];
        assert_eq!(completion.byte_len as usize, message.data.len());
        let (opcode, region, at) = match message.kind {
            Kind::Send | Kind::SendImm => (
                CompletionOpcode::Receive,
                &self.inbox,
                completion.wr_id as usize,
            ),
            Kind::WriteImm => (CompletionOpcode::ReceiveWriteImm, &self.target, number),
            Kind::Write => panic!("a write without immediate data completes nothing"),
        };
        assert_eq!(completion.opcode, opcode);
        let has_imm = message.kind != Kind::Send;
        assert_eq!(completion.imm.is_some(), has_imm);
        let bytes = &self.pair[Side::B].bytes(region)[at * ROOM as usize..];
        assert!(
            bytes[..message.data.len()] == message.data,
            "message {number}"
        );
    }

    fn numbers(&self) -> Vec<usize> {
        let received = receives(&self.pair, Side::B, self.qp).iter();
        received
            .map(|completion| self.number_of(completion))
            .collect()
    }
}

#[test]
fn on_a_clean_link_every_message_arrives_in_order() {
    for seed in 0..40 {
        let run = Run::new(seed, clean);
        let expected: Vec<usize> = (0..MESSAGES as usize)
            .filter(|number| run.messages[*number].kind != Kind::Write)
            .collect();
        assert_eq!(run.numbers(), expected);
        assert_untroubled(&run.pair, run.qp);
        let bytes = run.pair[Side::B].bytes(&run.target);
        for (number, message) in run.messages.iter().enumerate() {
            if message.kind == Kind::Write {
                let here = &bytes[number * ROOM as usize..][..message.data.len()];
                assert!(here == message.data);
            }
        }
    }
}

#[test]
fn what_a_link_loses_stays_lost_and_the_rest_is_in_order() {
    let mut delivered = 0;
    for seed in 0..40 {
        let run = Run::new(seed, || clean().drop(0.05).corrupt(0.05));
        let numbers = run.numbers();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
        delivered += numbers.len();
    }
    assert!((300..1700).contains(&delivered), "{delivered}");
}

#[test]
fn whatever_a_link_does_no_message_is_put_together_wrongly() {
    for seed in 0..200 {
        Run::new(seed, || bad(0.1));
    }
}

#[test]
fn the_largest_messages_arrive_and_count_against_no_window() {
    let mut pair = Pair::new(1, clean(), clean());
    let qp = pair.connect_as(UC, &Setup::default());
    let data = pattern(3_000_001, 1);
    let source = pair[Side::A].register(&data, Access::empty());
    let target = open_region(&mut pair, Side::B, data.len());
    pair[Side::A].window_bytes = 1;
    post(&mut pair, qp, 1, write_to(&target), &source);
    pair.run_until_idle();
    pair.assert_nothing_left();
    assert!(pair[Side::B].bytes(&target) == data);
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), [(1, Status::Success)]);
    assert_untroubled(&pair, qp);
}

#[test]
fn a_restarted_send_queue_is_invisible_to_the_peer() {
    let mut pair = Pair::new(1, clean(), clean());
    let qp = pair.connect_as(UC, &Setup::default());
    let near = open_region(&mut pair, Side::A, 3000);
    let far = open_region(&mut pair, Side::B, 3000);
    pair[Side::B].post_receive(qp, 5, vec![far.all()]);
    let read = Operation::Read {
        va: far.va,
        rkey: far.rkey(),
    };
    post(&mut pair, qp, 1, read, &near);
    post(&mut pair, qp, 2, Operation::Send, &near);
    pair.run_until_idle();
    let expected = [
        (1, Status::LocalQpOperationError),
        (2, Status::WrFlushError),
    ];
    assert_eq!(outcomes(sends(&pair, Side::A, qp)), expected);
    assert_eq!(state(&pair, Side::A, qp), QpState::SendQueueError);
    let attributes = QpAttributes {
        state: QpState::ReadyToSend,
        ..QpAttributes::default()
    };
    let moved = pair[Side::A].modify(qp, &attributes, AttrMask::STATE);
    moved.unwrap();
    post(&mut pair, qp, 3, Operation::Send, &near);
    pair.run_until_idle();
    let received = receives(&pair, Side::B, qp);
    assert_eq!(outcomes(received), [(5, Status::Success)]);
    assert_eq!(received[0].byte_len, 3000);
    assert_eq!(count(&pair, Side::B, qp, Counter::OutOfOrder), 0);
}
