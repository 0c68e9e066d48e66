//! UDP source ports of a connection's packets.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::{UdpConfig, UdpPort};
use airdma_wire::{Bth, HEADERS_LEN_MAX, Headers, IpPseudo, Opcode, ROCE_PORT, Reth};
use common::*;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

const VICTIM: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 30);
const PEER: Ipv4Addr = Ipv4Addr::new(127, 0, 9, 31);
const PEER_QPN: Qpn = Qpn::new(0x4321);

/// A queue pair, and what its peer's host can send.
struct Scene {
    end: End,
    psn: Psn,
}

impl Scene {
    fn new() -> Scene {
        let config = UdpConfig {
            port: ROCE_PORT,
            ..UdpConfig::default()
        };
        let port = UdpPort::bind(&[VICTIM.into()], 1, config).unwrap();
        let device = Device::with_port(info("victim", VICTIM.into()), Box::new(port)).unwrap();
        let end = End::new(&device, QpType::Rc, 64);
        let path = Path {
            gid: Gid::from(std::net::IpAddr::from(PEER)),
            ..Path::default()
        };
        connect(&end.qp, PEER_QPN, path);
        Scene { end, psn: PSN }
    }

    /// Writes one byte from a port; as the next packet of the connection, whatever its sender.
    fn write(&self, from: &UdpSocket, byte: u8) {
        let headers = Headers {
            reth: Some(Reth {
                va: self.end.memory.address(),
                rkey: self.end.memory.mr.rkey(),
                length: 4,
            }),
            ..Headers::new(Bth::new(
                Opcode::RcWriteOnly,
                self.end.qp.number(),
                self.psn,
            ))
        };
        let mut bytes = vec![0; HEADERS_LEN_MAX];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend([byte; 4]);
        let ip = IpPseudo::V4 {
            src: PEER,
            dst: VICTIM,
            id: 0,
            dont_fragment: true,
        };
        let port = from.local_addr().unwrap().port();
        let icrc = airdma_wire::icrc(&ip, port, ROCE_PORT, &bytes);
        bytes.extend(icrc.to_le_bytes());
        from.send_to(&bytes, (VICTIM, ROCE_PORT)).unwrap();
    }

    fn poll(&self) {
        self.end.cq.poll(0, |_| ()).unwrap();
    }

    fn is_taken(&mut self, from: &UdpSocket, byte: u8) {
        self.write(from, byte);
        wait_until("the write", || {
            self.poll();
            self.end.memory.bytes(0, 4) == [byte; 4]
        });
        self.psn = self.psn.add(1);
    }

    fn is_dropped(&self, from: &UdpSocket) {
        let before = self.end.memory.bytes(0, 4);
        let dropped = counter(&self.end.device, "drop_bad_source");
        self.write(from, 0xee);
        wait_until("the drop", || {
            self.poll();
            counter(&self.end.device, "drop_bad_source") == dropped + 1
        });
        assert_eq!(self.end.memory.bytes(0, 4), before);
    }
}

#[test]
fn a_peer_at_the_port_of_roce_sends_from_no_other() {
    isolated("a_peer_at_the_port_of_roce_sends_from_no_other", "", || {
        let mut scene = Scene::new();
        let peer = UdpSocket::bind((PEER, ROCE_PORT)).unwrap();
        let other_program = UdpSocket::bind((PEER, 0)).unwrap();
        scene.is_taken(&peer, 1);
        scene.is_dropped(&other_program);
        std::thread::sleep(Duration::from_millis(700));
        // However long the peer is silent.
        scene.is_dropped(&other_program);
        scene.is_taken(&peer, 2);
        scene.is_taken(&peer, 3);
    });
}

#[test]
fn what_is_not_good_makes_no_port_the_connections() {
    isolated("what_is_not_good_makes_no_port_the_connections", "", || {
        let mut scene = Scene::new();
        let peer = UdpSocket::bind((PEER, 50_000)).unwrap();
        let other_program = UdpSocket::bind((PEER, ROCE_PORT)).unwrap();
        // It has to guess the sequence number.
        scene.psn = PSN.add(1_000);
        scene.write(&other_program, 0xee);
        scene.psn = PSN;
        scene.is_taken(&peer, 1);
        scene.is_dropped(&other_program);
    });
}

/// As after the flow label of its path was changed.
#[test]
fn a_peer_at_another_port_may_change_it_when_it_is_not_heard() {
    isolated(
        "a_peer_at_another_port_may_change_it_when_it_is_not_heard",
        "",
        || {
            let mut scene = Scene::new();
            let before = UdpSocket::bind((PEER, 50_000)).unwrap();
            let after = UdpSocket::bind((PEER, 60_000)).unwrap();
            scene.is_taken(&before, 1);
            scene.is_dropped(&after);
            scene.is_taken(&before, 2);
            scene.is_dropped(&after);
            std::thread::sleep(Duration::from_millis(700));
            scene.is_taken(&after, 3);
            scene.is_taken(&after, 4);
            scene.is_dropped(&before);
        },
    );
}

/// What makes the difference is the peer's, right behind a stranger's.
#[test]
fn what_the_peer_sends_makes_no_other_port_the_connections() {
    isolated(
        "what_the_peer_sends_makes_no_other_port_the_connections",
        "",
        || {
            let mut scene = Scene::new();
            let peer = UdpSocket::bind((PEER, 50_000)).unwrap();
            let other_program = UdpSocket::bind((PEER, ROCE_PORT)).unwrap();
            scene.is_taken(&peer, 1);
            scene.is_dropped(&other_program);
            std::thread::sleep(Duration::from_millis(700));
            let expected = scene.psn;
            scene.psn = expected.add(1_000);
            scene.write(&other_program, 0xee);
            scene.psn = expected;
            scene.is_taken(&peer, 2);
            scene.is_taken(&peer, 3);
        },
    );
}
