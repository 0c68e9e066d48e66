//! The work for one peer does not depend on the number of peers.

use crate::common::*;
use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::sim::{Carrier, carried};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const SMALL: QpCaps = QpCaps {
    max_send_wr: 1,
    max_recv_wr: 1,
    max_send_sge: 1,
    max_recv_sge: 1,
    max_inline: 0,
};
/// Each peer is asked, and is plain for its silence.
const HELLOS: usize = 4;

/// CPU time of this thread.
fn cpu_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `time` is valid for the call.
    let rc = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(rc, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A host with queue pairs that are connected to other hosts, none of which answers.
struct Crowd {
    host: Simulated,
    carrier: Carrier,
    qps: Vec<Arc<Qp>>,
    now: Duration,
}

fn address(number: usize) -> IpAddr {
    let [_, b, c, d] = (number as u32).to_be_bytes();
    IpAddr::from([10, b, c, d])
}

impl Crowd {
    fn new() -> Self {
        let here = IpAddr::from(LEFT);
        let (port, carrier) = carried(&[here]).unwrap();
        let host = Simulated::open(info("left", here), Box::new(port), 7).unwrap();
        host.offer_air(RateControl::Buffers);
        Crowd {
            host,
            carrier,
            qps: Vec::new(),
            now: Duration::ZERO,
        }
    }

    fn connect(&mut self, peers: impl Iterator<Item = IpAddr>) {
        let pd = self.host.device().alloc_pd().unwrap();
        let cq = self.host.device().create_cq(16, None).unwrap();
        for peer in peers {
            let qp = create_qp(&pd, &cq, QpType::Rc, SMALL);
            let path = Path {
                gid: GidEntry::from(peer).gid,
                hop_limit: 64,
                ..Path::default()
            };
            connect(&qp, Qpn::new(0x77_7777), path);
            self.qps.push(qp);
        }
    }

    /// Runs the host as long as it has something to do. Returns the number of packets.
    fn run_to_rest(&mut self) -> usize {
        let mut packets = 0;
        let mut due = Some(self.now);
        while let Some(at) = due {
            self.now = at.max(self.now);
            self.host.run(self.now);
            while self.carrier.take().is_some() {
                packets += 1;
                self.host.run(self.now);
            }
            due = self.host.deadline();
        }
        packets
    }
}

/// CPU time that each of this many silent peers costs, from its connection to its end.
fn cost_of_each(peers: usize) -> Duration {
    let mut crowd = Crowd::new();
    crowd.connect((0..1).map(address));
    let begun = cpu_time();
    crowd.connect((1..peers).map(address));
    assert_eq!(crowd.run_to_rest(), HELLOS * peers);
    crowd.qps.clear();
    (cpu_time() - begun) / peers as u32
}

#[test]
fn a_silent_peer_costs_the_same_among_a_thousand() {
    cost_of_each(250);
    let [few, many] = [250, 4_000].map(cost_of_each);
    assert!(many < 3 * few, "{few:?} among 250, {many:?} among 4,000");
}
