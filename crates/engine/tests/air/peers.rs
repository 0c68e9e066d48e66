//! Identity of peers: several addresses, and ends that go away.

use crate::common::*;
use crate::fragile::Fragile;
use crate::wires::{Wires, reset};
use crate::{is_middle, rate};
use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::sim::carried;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const LEN: usize = 64 * 1024;

#[test]
fn a_process_with_two_addresses_is_agreed_with_at_each() {
    let mut wires = Wires::new([true, true], LEN);
    let (left, right) = wires.pair_at_second_address(LEN);
    wires.quietly(5 * MS);
    let write = left.write(&right, 0, LEN);
    left.qp.post_send(&write).unwrap();
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let mut middle = 0;
    // One queue pair each: the turns of both are longer.
    wires.pass(100 * MS, &mut |from, bytes| {
        is_middle(from, bytes) && {
            middle += 1;
            middle == 5 || middle == 70
        }
    });
    left.ok();
    wires.ends[0].ok();
    assert_eq!(wires.hosts[0].count("retransmits"), 2);
    assert_eq!(wires.hosts[1].count("acks_sent"), 0);
    assert_eq!(wires.hosts[0].count("drop_air"), 0);
}

#[test]
fn a_port_that_breaks_with_a_report_due_leaves_the_device_idle() {
    let address = IpAddr::from(LEFT);
    let (port, _carrier) = carried(&[address]).unwrap();
    let broken = Arc::new(AtomicBool::new(false));
    let port = Fragile {
        port,
        broken: Arc::clone(&broken),
    };
    let device = Simulated::open(info("a", address), Box::new(port), 7).unwrap();
    device.offer_air(RateControl::Buffers);
    let end = End::new(device.device(), QpType::Rc, 64);
    end.connect(&end);
    device.run(MS);
    assert!(device.deadline().is_some(), "it asks again");
    broken.store(true, Ordering::Relaxed);
    device.run(2 * MS);
    device.run(1000 * MS);
    assert_eq!(device.deadline(), None);
}

#[test]
fn a_peer_that_leaves_delays_no_waiting_queue_pair() {
    let mut wires = rate::wires(RateControl::Buffers, rate::line(true));
    let pairs = [0, 1, 2].map(|_| rate::pair(&wires));
    let ends: Vec<_> = pairs.iter().map(|(left, right)| (left, right)).collect();
    rate::saturate(&mut wires, &ends, 50 * MS);
    for gone in [0, 1] {
        reset(ends[gone].0);
    }
    let used = rate::saturate(&mut wires, &ends[2..], 300 * MS);
    assert!(used > 0.9, "{used}");
}
