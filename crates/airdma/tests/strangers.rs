//! Datagrams of strangers, and peers that disappear: a listener goes on.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::{Device, Endpoint};
use airdma_engine::cm_protocol::{
    Config, Connect, IpAddressing, Manager, PortSpace, Route, ServiceId, Time, TransportService,
};
use airdma_engine::{Gid, PathMtu, Psn, Qpn};
use common::*;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::{Duration, Instant};

/// Longer than a round trip, shorter than a request that has to be repeated (4.3 s).
const SOON: Duration = Duration::from_secs(2);

const VICTIM: Ipv4Addr = Ipv4Addr::LOCALHOST;
const ROCE: u16 = 4791;

/// A host that sends arbitrary datagrams.
struct Stranger {
    address: Ipv4Addr,
    socket: UdpSocket,
    manager: Manager,
}

impl Stranger {
    /// A stranger; each number gives another address.
    fn new(number: u16) -> Stranger {
        let [high, low] = number.to_be_bytes();
        let address = Ipv4Addr::new(127, 1, high, low);
        Stranger {
            address,
            socket: UdpSocket::bind((address, 0)).unwrap(),
            manager: Manager::new(Config::new(u64::from(number), 1)),
        }
    }

    fn wanted(&self) -> Connect<'static> {
        Connect {
            route: Route {
                local: Gid::from(std::net::IpAddr::from(self.address)),
                remote: Gid::from(std::net::IpAddr::from(VICTIM)),
                traffic_class: 0,
            },
            service_id: ServiceId::of_port(PortSpace::TCP, PORT),
            transport: TransportService::Rc,
            qpn: Qpn::new(0x22),
            psn: Psn::new(1),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 14,
            flow_label: 0,
            addressing: IpAddressing::new(self.address.into(), 99, VICTIM.into()),
            private_data: &[],
        }
    }

    /// Sends the datagrams of its connection manager.
    fn send(&mut self) {
        while let Some((_, mad)) = self.manager.poll_transmit() {
            self.send_mad(&mad);
        }
    }

    fn send_mad(&self, mad: &[u8]) {
        // BTH: UD SEND Only, to queue pair 1. DETH: its key, from queue pair 1.
        let mut packet = vec![0x64, 0x40, 0xff, 0xff, 0, 0, 0, 1, 0, 0, 0, 0];
        packet.extend([0x80, 1, 0, 0, 0, 0, 0, 1]);
        packet.extend(mad);
        let port = self.socket.local_addr().unwrap().port();
        let icrc = icrc(self.address, port, &packet);
        packet.extend(icrc.to_le_bytes());
        self.socket.send_to(&packet, (VICTIM, ROCE)).unwrap();
    }

    fn asks(&mut self) {
        let wanted = self.wanted();
        self.manager.connect(Time::ZERO, &wanted).unwrap();
        self.send();
    }
}

/// The ICRC of IBTA annex A17.3.2: fields that routers change count as ones.
fn icrc(source: Ipv4Addr, port: u16, packet: &[u8]) -> u32 {
    let length = (20 + 8 + packet.len() + 4) as u16;
    let mut bytes = vec![0xff; 8];
    bytes.extend([0x45, 0xff]);
    bytes.extend(length.to_be_bytes());
    // Identification 0, do not fragment.
    bytes.extend([0, 0, 0x40, 0, 0xff, 17, 0xff, 0xff]);
    bytes.extend(source.octets());
    bytes.extend(VICTIM.octets());
    bytes.extend(port.to_be_bytes());
    bytes.extend(ROCE.to_be_bytes());
    bytes.extend((length - 20).to_be_bytes());
    bytes.extend([0xff, 0xff]);
    let start = bytes.len();
    bytes.extend(packet);
    bytes[start + 4] = 0xff;
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            let poly = if crc & 1 != 0 { 0xedb8_8320 } else { 0 };
            crc = crc >> 1 ^ poly;
        }
    }
    !crc
}

/// Connects within a time that allows no repetition.
fn connects() -> (Device, Endpoint) {
    let here = Device::open("127.0.0.1").unwrap();
    let since = Instant::now();
    let end = here.connect(("127.0.0.1", PORT)).wait().unwrap();
    let took = since.elapsed();
    assert!(took < SOON, "{took:?}");
    (here, end)
}

/// 49 KB of such requests blocked a listener for 80 seconds.
#[test]
fn forged_requests_do_not_keep_a_listener_busy() {
    isolated("forged_requests_do_not_keep_a_listener_busy", "", || {
        let there = Device::open("127.0.0.1").unwrap();
        let listener = there.listen(PORT).unwrap();
        let accepting = std::thread::spawn(move || {
            let accepted = (0..2).map(|_| listener.accept().wait().unwrap());
            accepted.collect::<Vec<_>>()
        });
        std::thread::sleep(Duration::from_millis(100));
        for number in 1..=160 {
            Stranger::new(number).asks();
        }
        std::thread::sleep(Duration::from_millis(100));
        let first = connects();
        // Then 16 a second.
        let end = Instant::now() + Duration::from_secs(2);
        let mut number = 160;
        while Instant::now() < end {
            number += 1;
            Stranger::new(number).asks();
            std::thread::sleep(Duration::from_millis(60));
        }
        let second = connects();
        let accepted = accepting.join().unwrap();
        drop((first, second, accepted));
    });
}

#[test]
fn forged_requests_that_wait_for_a_program_leave_room() {
    isolated(
        "forged_requests_that_wait_for_a_program_leave_room",
        "",
        || {
            let there = Device::open("127.0.0.1").unwrap();
            let listener = there.listen(PORT).unwrap();
            for number in 1..=700 {
                Stranger::new(number).asks();
                if number % 100 == 0 {
                    std::thread::sleep(Duration::from_millis(20));
                }
            }
            let connecting = std::thread::spawn(connects);
            std::thread::sleep(Duration::from_millis(200));
            let accepted = listener.accept().wait().unwrap();
            drop((connecting.join().unwrap(), accepted));
        },
    );
}

#[test]
fn one_forged_request_is_answered_four_times_at_most() {
    let name = "one_forged_request_is_answered_four_times_at_most";
    isolated(name, "", || is_answered_four_times_at_most(|device| device));
}

/// A peer that has not proven its address is offered no key.
#[test]
fn nor_is_one_to_who_seals_its_connections() {
    let name = "nor_is_one_to_who_seals_its_connections";
    isolated(name, "", || is_answered_four_times_at_most(Device::sealed));
}

fn is_answered_four_times_at_most(with: impl FnOnce(Device) -> Device) {
    let there = with(Device::open("127.0.0.1").unwrap());
    let listener = there.listen(PORT).unwrap();
    // The forged address's own host would listen here.
    let mirror = UdpSocket::bind((Ipv4Addr::new(127, 1, 0, 1), ROCE)).unwrap();
    let timeout = Duration::from_millis(2_500);
    mirror.set_read_timeout(Some(timeout)).unwrap();
    std::thread::spawn(move || drop(listener.accept().wait()));
    Stranger::new(1).asks();
    let (mut datagrams, mut bytes) = (0, 0);
    let mut buffer = [0; 4096];
    while let Ok(length) = mirror.recv(&mut buffer) {
        datagrams += 1;
        bytes += length;
    }
    // A REQ is 280 bytes of UDP payload, as is each answer.
    assert_eq!((datagrams, bytes), (4, 4 * 280));
}

/// It requests a connection and gives up before the answer, or requests the impossible.
#[test]
fn nothing_that_a_peer_does_makes_accept_fail() {
    isolated("nothing_that_a_peer_does_makes_accept_fail", "", || {
        let small = std::process::Command::new("ip")
            .args(["link", "set", "lo", "mtu", "1500"])
            .status();
        assert!(small.unwrap().success());
        let there = Device::open("127.0.0.1").unwrap();
        let listener = there.listen(PORT).unwrap();
        // Another listener gets the request meanwhile.
        let other = there.listen(PORT + 1).unwrap();
        std::thread::spawn(move || drop(other.accept().wait()));
        let now = Time::ZERO;
        let mut gives_up = Stranger::new(1);
        let wanted = gives_up.wanted();
        let id = gives_up.manager.connect(now, &wanted).unwrap();
        gives_up.send();
        std::thread::sleep(Duration::from_millis(200));
        gives_up.manager.destroy(now, id);
        gives_up.send();
        let mut impossible = Stranger::new(2);
        let wanted = Connect {
            path_mtu: PathMtu::M4096,
            qpn: Qpn::new(0),
            ..impossible.wanted()
        };
        impossible.manager.connect(now, &wanted).unwrap();
        impossible.send();
        std::thread::sleep(Duration::from_millis(200));
        let connecting = std::thread::spawn(connects);
        let accepted = listener.accept().wait().unwrap();
        drop((connecting.join().unwrap(), accepted));
        // In the other order: it leaves after the answer.
        let accepting = std::thread::spawn(move || listener.accept().wait().unwrap());
        std::thread::sleep(Duration::from_millis(100));
        let mut goes = Stranger::new(3);
        let wanted = goes.wanted();
        let id = goes.manager.connect(now, &wanted).unwrap();
        goes.send();
        std::thread::sleep(Duration::from_millis(100));
        goes.manager.destroy(now, id);
        goes.send();
        let end = connects();
        drop((end, accepting.join().unwrap()));
    });
}
