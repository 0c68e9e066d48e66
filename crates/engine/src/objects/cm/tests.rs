#![allow(clippy::unwrap_used)]

use super::*;
use crate::CmNews;
use crate::simulated::{Simulated, interface};
use airdma_cm::Event;
use airdma_cm::{OrphanNotice, Route};
use airdma_port::sim;
use airdma_wire::Qpn;
use airdma_wire::cm::{IpAddressing, PortSpace};
use std::net::IpAddr;
use std::sync::mpsc;

const LEFT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const RIGHT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 2));
const SERVICE: ServiceId = ServiceId::of_port(PortSpace::UDP, 7471);
const NOBODY: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 3));

fn from_left(to: IpAddr) -> Route {
    Route {
        local: Gid::from(LEFT),
        remote: Gid::from(to),
        traffic_class: 0,
    }
}

/// Gives a device a connection that is ending, to a peer that never answers.
fn connect_to_silent_peer(device: &Device) {
    device.core().control(|worker, now| {
        let notice = OrphanNotice {
            route: from_left(NOBODY),
            local_id: 77,
            remote_id: 78,
            remote_qpn: Qpn::new(79),
            is_proven: true,
        };
        worker
            .state
            .gsi
            .as_mut()
            .unwrap()
            .send_orphan_notices(now, &[notice]);
    });
}

fn retransmits(device: &Device) -> u64 {
    let counters = device.counters();
    let found = counters.iter().find(|(name, _)| *name == "cm_retransmits");
    found.unwrap().1
}

#[test]
fn nobody_answers_in_a_time_that_does_not_pass() {
    let (port, _far) = sim::pair(&[LEFT], &[RIGHT]).unwrap();
    let info = interface("left", 1, LEFT);
    let simulated = Simulated::open(info, Box::new(port), 1).unwrap();
    let device = simulated.device();
    device.cm_open().unwrap();
    connect_to_silent_peer(device);
    device.core().linger();
    assert_eq!(retransmits(device), 0);
}

/// As by a signal's handler that calls `exit(3)` in `rdma_get_cm_event`.
#[test]
fn exit_while_fetching_an_event_does_not_deadlock() {
    let (port, far) = sim::pair(&[LEFT], &[RIGHT]).unwrap();
    let left = Device::with_port(interface("left", 1, LEFT), Box::new(port)).unwrap();
    let right = Device::with_port(interface("right", 2, RIGHT), Box::new(far)).unwrap();
    let (asks, hears) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    right
        .cm_listen(SERVICE, Takes::Datagrams, None, 8, &hears, 1)
        .unwrap();
    let wanted = Resolve {
        route: from_left(RIGHT),
        service_id: SERVICE,
        addressing: IpAddressing::new(LEFT, 4711, RIGHT),
        private_data: &[],
    };
    left.cm_resolve(&wanted, &asks, 2).unwrap();
    let request = loop {
        match hears.pop() {
            Some((_, CmNews::Event(Event::SidrRequest(request)))) => break request,
            Some(other) => panic!("{other:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    connect_to_silent_peer(&left);
    // Otherwise the progress thread would wait.
    left.core().progress_thread.standby.enter();
    left.core().progress_thread.wake();
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        let _interrupted = asks.events.interrupted();
        ended.send(false).unwrap();
        left.cm_exit();
        ended.send(true).unwrap();
    });
    assert_eq!(end.recv(), Ok(false));
    std::thread::sleep(Duration::from_millis(20));
    right.cm_forget(request.id);
    assert_eq!(end.recv_timeout(Duration::from_secs(20)), Ok(true));
}
