//! Thirty-two senders, one receiver, one switch.

use airdma_sim::{Link, Marking, Network, Node, gbit};
use airdma_transport::Time;

use crate::scene::{CE, OVERHEAD, frame, ns, us};

const SENDERS: usize = 32;
const LEN: usize = 4096 + 16;
const QUEUE: u64 = 512 * 1024;
const MARK: u64 = 128 * 1024;

/// All hosts but the first send to it as fast as they can, for a millisecond.
fn incast(down: impl Fn() -> Link) -> (Network, Vec<u64>, u64) {
    let mut network = Network::star(
        3,
        SENDERS + 1,
        // Without jitter the senders stay in step, and one of them is always the first to find room
        // (Floyd and Jacobson 1992, on phase effects).
        |_| Link::new().rate(gbit(100)).delay(us(1)).jitter(ns(700)),
        |_| down(),
    );
    let mut bytes = vec![0; SENDERS];
    let mut marked = 0;
    let mut now = Time::ZERO;
    let end = Time::ZERO + us(1000);
    let mut take = |network: &mut Network, now| {
        network.deliver(now, &mut |delivery| {
            assert_eq!(delivery.to, 0);
            bytes[usize::from(delivery.frame.bytes[0]) - 1] += LEN as u64;
            marked += u64::from(delivery.frame.tos == CE);
        });
    };
    while now < end {
        take(&mut network, now);
        for sender in 1..=SENDERS {
            while network.ready_at(sender) <= now {
                let frame = frame(&network, sender, 0, LEN);
                network.send(now, sender, frame);
            }
        }
        let ready = (1..=SENDERS).map(|sender| network.ready_at(sender));
        now = ready.chain(network.next_event()).min().unwrap();
    }
    while let Some(at) = network.next_event() {
        take(&mut network, at);
    }
    (network, bytes, marked)
}

#[test]
fn the_queue_fills_marks_drops_and_is_fair() {
    let (network, bytes, marked) = incast(|| {
        Link::new()
            .marking_bottleneck(gbit(100), QUEUE, Marking::Above(MARK))
            .delay(us(1))
    });
    let counters = network.counters(Node::Switch(0), Node::Host(0));
    let frame = (LEN + OVERHEAD) as u64;
    assert!((QUEUE - frame..=QUEUE).contains(&counters.queue_longest_bytes));
    // One in 32 passes; but for the first, all that do find the queue above the threshold.
    let passed = counters.entered - counters.overflowed;
    assert_eq!(passed, counters.left);
    let share = passed as f64 / counters.entered as f64;
    assert!((0.03..0.045).contains(&share), "{share}");
    assert_eq!(marked, counters.marked);
    let unmarked = passed - marked;
    let expected = MARK / frame;
    assert!((expected..=expected + 3).contains(&unmarked), "{unmarked}");
    // The line was never idle: a millisecond of it, and what the queue held then.
    let total: u64 = bytes.iter().sum();
    let on_line = total / LEN as u64 * frame;
    let expected = 100_000_000_000 / 8 / 1000 + QUEUE;
    assert!(on_line.abs_diff(expected) < 50 * frame, "{on_line}");
    assert_eq!(
        counters.overflowed,
        (1..=SENDERS).map(|s| network.path(s, 0).lost).sum::<u64>()
    );
    // Jain's index: 1 if all got the same, 1/32 if one got all.
    let squares: u64 = bytes.iter().map(|bytes| bytes * bytes).sum();
    let fairness = (total * total) as f64 / (SENDERS as u64 * squares) as f64;
    assert!(fairness > 0.97, "{fairness} {bytes:?}");
}

#[test]
fn without_a_queue_worth_the_name_nearly_all_is_lost() {
    let (network, ..) = incast(|| Link::new().bottleneck(gbit(10), 10_000));
    let counters = network.counters(Node::Switch(0), Node::Host(0));
    assert!(counters.overflowed * 100 > counters.entered * 99);
    assert_eq!(counters.marked, 0);
}
