#![allow(clippy::unwrap_used)]

use super::*;
use crate::progress::wait::{Descriptors, Waited};
use airdma_port::sim;
use airdma_wire::{Gid, PathMtu};
use std::net::IpAddr;

const ADDRESS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));

/// A device without a port yet.
fn core() -> Core {
    let info = DeviceInfo {
        name: "airdma_test".into(),
        interface: "test".into(),
        interface_index: 1,
        mtu: 1500,
        mac: [2, 0, 0, 0, 0, 1],
        guid: 1,
        gids: vec![GidEntry {
            gid: Gid::from(ADDRESS),
            address: ADDRESS,
        }],
        path_mtu: PathMtu::M1024,
        up: true,
        speed_mbps: None,
    };
    Core::new(
        info,
        DeviceConfig::default(),
        Clock::running(),
        Random::kernel(),
    )
    .unwrap()
}

fn is_ready(descriptors: &mut Descriptors) -> bool {
    descriptors.wait(Some(Duration::ZERO)).unwrap() == Waited::Ready
}

/// It keeps the progress thread away, so no other thread would notice packets at the port.
#[test]
fn a_thread_that_waits_already_hears_of_the_port_that_is_bound() {
    let core = core();
    let event = EventFd::nonblocking().unwrap();
    let mut descriptors = Descriptors::default();
    assert_eq!(
        core.fall_asleep(&mut descriptors, event.fd(), None),
        Some(None)
    );
    assert!(!is_ready(&mut descriptors));
    let (port, _peer) = sim::pair(&[ADDRESS], &[ADDRESS]).unwrap();
    core.bind_port(Box::new(port));
    assert!(is_ready(&mut descriptors));
}
