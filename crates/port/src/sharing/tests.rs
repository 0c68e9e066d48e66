#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Port, SharedPort, UdpConfig, UdpPort};
use airdma_wire::Neighbour;
use std::sync::Mutex;
use std::time::{Duration, Instant};

const SECRET: u64 = 0x0123_4567_89ab_cdef;

#[derive(Default)]
struct Heard(Mutex<Vec<(IpAddr, u16, u64)>>);

impl Sharing for Heard {
    fn secret(&self) -> u64 {
        SECRET
    }

    fn probed(&self, local: IpAddr, place: u16, epoch: u64) {
        self.0.lock().unwrap().push((local, place, epoch));
    }
}

fn messenger(port: u16) -> Messenger {
    Messenger::new(MessengerSockets::open().unwrap().into(), 1, port)
}

struct Member {
    port: UdpPort,
    heard: Arc<Heard>,
}

impl Member {
    fn new(address: IpAddr, port: u16) -> Self {
        let config = UdpConfig {
            port,
            share: true,
            ..UdpConfig::default()
        };
        let mut port = UdpPort::bind(&[address], 1, config).unwrap();
        let heard = Arc::new(Heard::default());
        port.set_sharing(Arc::clone(&heard) as _);
        Member { port, heard }
    }

    /// The packets that wait, with their sources.
    fn receive(&mut self) -> Vec<(Neighbour, bool, Vec<u8>)> {
        let mut found = Vec::new();
        let mut take = |received: Received<'_>| {
            found.push((received.source, received.forwarded, received.bytes.to_vec()));
        };
        self.port.receive(64, &mut take).unwrap();
        found
    }

    /// Takes messages, and no packets, until it is so: a busy kernel delivers what was sent to this
    /// host a moment later.
    fn until(&mut self, is_so: impl Fn(&Member) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "it never came");
            assert!(self.receive().is_empty());
        }
    }

    fn heard(&self) -> usize {
        self.heard.0.lock().unwrap().len()
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

/// Messages go to the place that they name, all else to the first.
fn program() -> Vec<libc::sock_filter> {
    let step = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    vec![
        step(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            0,
            0,
            MARK_AT as u32,
        ),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, 0, 0xff),
        step(libc::BPF_RET | libc::BPF_K, 0, 0, 0),
        step(
            libc::BPF_LD | libc::BPF_H | libc::BPF_ABS,
            0,
            0,
            PLACE_AT as u32,
        ),
        step(libc::BPF_RET | libc::BPF_A, 0, 0, 0),
    ]
}

fn members(address: IpAddr) -> Vec<Member> {
    let first = Member::new(address, 0);
    let port = first.port.port();
    let mut members = vec![
        first,
        Member::new(address, port),
        Member::new(address, port),
    ];
    assert!(!members[0].port.has_company(0));
    assert!(members[1].port.has_company(0) && members[2].port.has_company(0));
    members[2].port.attach_steering(0, &program()).unwrap();
    members
}

#[test]
fn a_probe_reaches_the_place_it_names() {
    for address in ["127.0.0.41", "::1"] {
        let address: IpAddr = address.parse().unwrap();
        let mut members = members(address);
        let messenger = messenger(members[0].port.port());
        for place in 0..3 {
            messenger.probe(address, place, 77, SECRET);
        }
        messenger.probe(address, 1, 78, SECRET ^ 1);
        for (place, member) in (0..).zip(&mut members) {
            member.until(|member| member.heard() > 0);
            assert_eq!(*member.heard.0.lock().unwrap(), [(address, place, 77)]);
        }
        members[1].until(|member| member.port.counters().rx_bad_icrc == 1);
        // The last takes the place of one that leaves: once no child of another test, which forks,
        // has a copy of its socket.
        members.remove(0);
        members[1].until(|member| {
            messenger.probe(address, 0, 79, SECRET);
            member.heard() > 1
        });
        assert!(members[0].receive().is_empty());
        assert_eq!(members[0].heard(), 1);
        assert_eq!(
            members[1].heard.0.lock().unwrap().last(),
            Some(&(address, 0, 79))
        );
    }
}

#[test]
fn a_packet_that_is_handed_on_arrives_as_it_came() {
    let address: IpAddr = "127.0.0.42".parse().unwrap();
    let mut members = members(address);
    let messenger = messenger(members[0].port.port());
    let bytes = [0x64, 0, 0xff, 0xff, 0, 1, 2, 3, 0, 0, 0, 1, 9, 9, 9, 9];
    for (source, bundled) in [("192.0.2.9", true), ("2001:db8::9", false)] {
        let packet = Received {
            source: source.parse::<IpAddr>().unwrap().into(),
            source_port: 0xc123,
            destination: address.into(),
            tos: 2,
            ttl: 63,
            flow_label: 0x12345,
            forwarded: false,
            bundled,
            bytes: &bytes,
            following: None,
        };
        messenger.forward(&packet, 1, SECRET);
        messenger.forward(&packet, 2, SECRET ^ 1);
        let mut count = 0;
        let mut take = |received: Received<'_>| {
            count += 1;
            let expected = Received {
                forwarded: true,
                ..packet
            };
            assert_eq!(format!("{received:?}"), format!("{expected:?}"));
        };
        let begun = Instant::now();
        while members[1].port.receive(64, &mut take).unwrap() == 0 {
            assert!(begun.elapsed() < PATIENCE, "it never came");
        }
        assert_eq!(count, 1);
        assert!(members[0].receive().is_empty() && members[2].receive().is_empty());
    }
    assert_eq!(members[1].port.counters().rx_forwarded, 2);
}

#[test]
fn nobody_joins_who_is_not_let_in() {
    let address: IpAddr = "127.0.0.43".parse().unwrap();
    let alone = UdpPort::bind(
        &[address],
        1,
        UdpConfig {
            port: 0,
            ..UdpConfig::default()
        },
    )
    .unwrap();
    let config = UdpConfig {
        port: alone.port(),
        share: true,
        ..UdpConfig::default()
    };
    let error = UdpPort::bind(&[address], 1, config.clone()).err().unwrap();
    assert_eq!(error.errno(), libc::EADDRINUSE);
    drop(alone);
    let shared = UdpPort::bind(&[address], 1, config.clone()).unwrap();
    let config = UdpConfig {
        share: false,
        ..config
    };
    let error = UdpPort::bind(&[address], 1, config).err().unwrap();
    assert_eq!(error.errno(), libc::EADDRINUSE);
    drop(shared);
}

#[test]
fn damaged_messages_are_no_messages() {
    let good = head(KIND_PACKET, 3, SECRET);
    let mut datagram = [good.as_slice(), &[0; PACKET_LEN_MIN]].concat();
    assert!(Message::parse(&datagram, SECRET).is_some());
    for len in 0..datagram.len() {
        assert!(Message::parse(&datagram[..len], SECRET).is_none(), "{len}");
    }
    for at in [0, 1, 2, 8, 15] {
        datagram[at] ^= 0x40;
        assert!(Message::parse(&datagram, SECRET).is_none(), "{at}");
        datagram[at] ^= 0x40;
    }
}
