//! A shared medium: a toy that serves packets of all stations one after the other.

use std::collections::VecDeque;

use airdma_sim::{Fate, Link, Medium, Node, Passed, Topology, gbit};
use airdma_transport::Time;

use crate::scene::{deliveries, frame, us};

/// Each packet takes 10 us, and every fifth is lost.
#[derive(Default)]
struct Turns {
    waiting: VecDeque<u64>,
    done_at: Time,
    served: u64,
}

impl Medium for Turns {
    fn enqueue(&mut self, now: Time, _from: usize, _to: usize, _bytes: usize, token: u64) {
        if self.waiting.is_empty() {
            self.done_at = now + us(10);
        }
        self.waiting.push_back(token);
    }

    fn poll_at(&self) -> Option<Time> {
        (!self.waiting.is_empty()).then_some(self.done_at)
    }

    fn advance(&mut self, now: Time, each: &mut dyn FnMut(Passed)) {
        while self.done_at <= now
            && let Some(token) = self.waiting.pop_front()
        {
            self.served += 1;
            each(Passed {
                token,
                at: self.done_at,
                dropped: self.served.is_multiple_of(5).then_some(Fate::Lost),
            });
            self.done_at = self.done_at + us(10);
        }
    }

    fn sentence(&self) -> String {
        "turns()".to_string()
    }
}

#[test]
fn stations_take_turns_and_reach_each_other_and_the_world() {
    let mut network = Topology::new()
        .hosts(3)
        .switches(1)
        .share(
            Turns::default(),
            &[Node::Switch(0), Node::Host(0), Node::Host(1)],
        )
        .join(Node::Switch(0), Node::Host(2), || Link::new().rate(gbit(1)))
        .network(1);
    network.start_trace();
    for (from, to) in [(0, 2), (2, 1), (0, 1), (1, 0), (0, 2)] {
        let frame = frame(&network, from, to, 934);
        network.send(Time::ZERO, from, frame);
    }
    let arrived = deliveries(&mut network);
    let seen: Vec<_> = arrived
        .iter()
        .map(|d| (d.to, d.at.as_nanos() / 1000))
        .collect();
    // Four enter the air at once; that of host 2 comes 8 us later and is served fifth, and lost.
    // Those between stations take two turns.
    assert_eq!(seen, [(2, 18), (2, 48), (1, 60), (0, 70)]);
    let counters = network.counters(Node::Switch(0), Node::Host(1));
    assert_eq!((counters.entered, counters.left, counters.lost), (2, 1, 1));
    assert_eq!(network.path(2, 1).lost, 1);
    assert!(format!("{network:?}").contains(".line(Host(0), Switch(0), turns())"));
}
