//! An ACK that waits for the program's reply, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::time::Duration;

/// Lengths of an ACK, plain and between hosts that agreed on SACK, and of a SEND of 64 bytes, BTH
/// to ICRC.
const PLAIN_ACK: usize = 20;
const ACK: usize = 24;
const SEND: usize = 80;

/// The longest that an ACK waits.
const WAIT: Duration = Duration::from_micros(25);

/// Two connected hosts, which have had enough exchanges for a reply to be expected.
struct PingPong {
    a: Host,
    b: Host,
    left: End,
    right: End,
    now: Duration,
}

impl PingPong {
    /// Hosts that agreed on nothing.
    fn plain() -> Self {
        let (a, b) = (host("a", LEFT), host("b", RIGHT));
        let left = End::new(a.device.device(), QpType::Rc, 4096);
        let right = End::new(b.device.device(), QpType::Rc, 4096);
        left.connect(&right);
        right.connect(&left);
        PingPong {
            a,
            b,
            left,
            right,
            now: Duration::ZERO,
        }
    }

    /// Hosts that agreed on SACK.
    fn new() -> Self {
        let mut pair = Self::plain();
        for host in [&pair.a, &pair.b] {
            host.device.offer_sack();
        }
        for (end, peer) in [(&pair.left, &pair.right), (&pair.right, &pair.left)] {
            set_state(end, QpState::Reset);
            end.connect(peer);
        }
        while carry(&pair.a, &pair.b).len() + carry(&pair.b, &pair.a).len() > 0 {
            pair.pass(Duration::ZERO);
        }
        pair
    }

    fn after_exchanges(count: usize) -> Self {
        Self::new().exchange(count)
    }

    fn exchange(mut self, count: usize) -> Self {
        for _ in 0..count {
            self.ping();
            self.pong();
        }
        self
    }

    /// A SEND from left to right, which takes its completion; returns what right sends at once.
    fn ping(&mut self) -> Vec<usize> {
        self.right.recv(0, 0, 64);
        self.left.send(Operation::Send, 0, 64);
        // Posts wait for a round while a packet is in flight.
        self.a.device.run(self.now);
        assert!(!carry(&self.a, &self.b).is_empty());
        self.b.device.run(self.now);
        assert_eq!(receives(&self.right), 1);
        carry(&self.b, &self.a)
    }

    /// The reply; returns what right sends for it.
    fn pong(&mut self) -> Vec<usize> {
        self.left.recv(0, 0, 64);
        self.right.send(Operation::Send, 0, 64);
        let sent = carry(&self.b, &self.a);
        self.a.device.run(self.now);
        assert_eq!(receives(&self.left), 1);
        carry(&self.a, &self.b);
        self.b.device.run(self.now);
        sent
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.a.device.run(self.now);
        self.b.device.run(self.now);
    }
}

fn set_state(end: &End, state: QpState) {
    let attributes = QpAttributes {
        state,
        ..QpAttributes::default()
    };
    end.qp.modify(&attributes, AttrMask::STATE).unwrap();
}

/// Delivers the packets of `from`, and returns their lengths.
fn carry(from: &Host, to: &Host) -> Vec<usize> {
    let frames: Vec<_> = std::iter::from_fn(|| from.carrier.take()).collect();
    let lengths = frames.iter().map(|frame| frame.bytes.len()).collect();
    frames.into_iter().for_each(|frame| to.carrier.give(frame));
    lengths
}

/// Takes all completions, and counts those of receives.
fn receives(end: &End) -> usize {
    take(end, CompletionOpcode::Receive)
}

/// Takes all completions, and counts those of SENDs.
fn sends(end: &End) -> usize {
    take(end, CompletionOpcode::Send)
}

fn take(end: &End, opcode: CompletionOpcode) -> usize {
    let mut count = 0;
    let mut look = |completion: Completion| {
        assert_eq!(completion.status, Status::Success);
        count += usize::from(completion.opcode == opcode);
    };
    end.cq.poll(16, &mut look).unwrap();
    count
}

#[test]
fn in_a_ping_pong_the_ack_leaves_behind_the_reply() {
    let mut pair = PingPong::after_exchanges(4);
    assert_eq!(pair.ping(), [0; 0]);
    assert_eq!(pair.b.device.deadline(), Some(pair.now + WAIT));
    assert_eq!(pair.pong(), [SEND, ACK]);
    // The peer has learned the same, and its ACK waits for the next ping.
    assert_eq!(pair.a.device.deadline(), Some(pair.now + WAIT));
}

#[test]
fn an_ack_leaves_at_once_unless_a_reply_is_likely() {
    assert_eq!(PingPong::after_exchanges(3).ping(), [ACK]);
    let mut pair = PingPong::new();
    for _ in 0..20 {
        assert_eq!(pair.ping(), [ACK]);
        pair.a.device.run(pair.now);
        assert_eq!(sends(&pair.left), 1);
    }
}

/// They are separate packets to other peers, and a program may see the reply before the end of its
/// request, for which it has no room then.
#[test]
fn the_ack_to_a_peer_that_agreed_on_nothing_leaves_first() {
    let mut pair = PingPong::plain().exchange(5);
    assert_eq!(pair.ping(), [PLAIN_ACK]);
    assert_eq!(pair.pong(), [SEND]);
}

/// Such a program sleeps, and so may that of the peer, with a completion queue of one entry.
#[test]
fn the_ack_of_a_message_that_raises_an_event_leaves_first() {
    let mut pair = PingPong::after_exchanges(5);
    pair.right.cq.arm(false).unwrap();
    assert_eq!(pair.ping(), [ACK]);
    assert_eq!(pair.pong(), [SEND]);
    assert_eq!(pair.ping(), [0; 0], "no event was asked for");
}

#[test]
fn an_ack_waits_for_its_time_and_the_next_ones_do_not_wait() {
    let mut pair = PingPong::after_exchanges(5);
    assert_eq!(pair.ping(), [0; 0]);
    pair.pass(WAIT - Duration::from_nanos(1));
    assert_eq!(carry(&pair.b, &pair.a), [0; 0]);
    pair.pass(Duration::from_nanos(1));
    assert_eq!(carry(&pair.b, &pair.a), [ACK]);
    pair.a.device.run(pair.now);
    assert_eq!(sends(&pair.left), 1);
    assert_eq!(pair.ping(), [ACK]);
}

#[test]
fn a_reply_that_takes_long_is_not_waited_for_again() {
    let mut pair = PingPong::after_exchanges(5);
    pair.ping();
    pair.pass(WAIT);
    carry(&pair.b, &pair.a);
    pair.pong();
    for _ in 0..3 {
        assert_eq!(pair.ping(), [ACK]);
        assert_eq!(pair.pong(), [SEND]);
    }
}

#[test]
fn the_ack_of_a_second_message_before_the_reply_waits_no_longer() {
    let mut pair = PingPong::after_exchanges(5);
    assert_eq!(pair.ping(), [0; 0]);
    assert_eq!(pair.ping(), [ACK], "of both");
    pair.a.device.run(pair.now);
    assert_eq!(sends(&pair.left), 2);
}

/// A program that has its last message disconnects, destroys, or takes its queue pair back.
#[test]
fn an_ack_that_waits_leaves_before_the_connection_ends() {
    let in_state = |state| move |pair: &PingPong| set_state(&pair.right, state);
    let ends: [&dyn Fn(&PingPong); 3] = [
        &in_state(QpState::Error),
        &in_state(QpState::Reset),
        &|pair| pair.right.qp.destroy().unwrap(),
    ];
    for end in ends {
        let mut pair = PingPong::after_exchanges(5);
        assert_eq!(pair.ping(), [0; 0]);
        end(&pair);
        assert!(carry(&pair.b, &pair.a).contains(&ACK));
        pair.a.device.run(pair.now);
        assert_eq!(sends(&pair.left), 1);
        pair.pass(WAIT * 2);
        assert_eq!(carry(&pair.b, &pair.a), [0; 0]);
    }
}

#[test]
fn one_queue_pair_at_a_time_waits_with_its_ack() {
    let mut pair = PingPong::after_exchanges(5);
    let (left, right) = (
        End::new(pair.a.device.device(), QpType::Rc, 4096),
        End::new(pair.b.device.device(), QpType::Rc, 4096),
    );
    left.connect(&right);
    right.connect(&left);
    let first = (
        std::mem::replace(&mut pair.left, left),
        std::mem::replace(&mut pair.right, right),
    );
    for _ in 0..5 {
        pair.ping();
        pair.pong();
    }
    assert_eq!(pair.ping(), [0; 0]);
    // The others have had exchanges, too.
    let _second = (
        std::mem::replace(&mut pair.left, first.0),
        std::mem::replace(&mut pair.right, first.1),
    );
    assert_eq!(pair.ping(), [ACK]);
}
