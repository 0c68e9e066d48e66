//! The same over real sockets, on two addresses of the loopback interface.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::udp::{UdpConfig, UdpPort};
use airdma_wire::ip::IpPseudo;
use airdma_wire::{Bth, HEADERS_LEN_MAX, Headers, ICRC_LEN, Opcode, Reth, icrc};
use common::*;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

#[test]
fn data_goes_through_sockets_whole() {
    let (left, right) = sockets("127.0.0.21", "127.0.0.22");
    let length = 1 << 20;
    let (left, right) = pair_on(&left, &right, length);
    for seed in 0..10 {
        let data = pattern(length, seed);
        left.memory.fill(0, &data);
        left.qp.post_send(&left.write(&right, 0, length)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, length), data);
        left.memory.fill(0, &vec![0; length]);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        left.send(Operation::Read { va, rkey }, 0, length);
        left.ok();
        assert_eq!(left.memory.bytes(0, length), data);
    }
    assert!(counter(&left.device, "tx_segmented_sends") > 0);
}

#[test]
fn messages_bounce_between_two_threads_that_wait_for_events() {
    let (left, right) = sockets("127.0.0.23", "127.0.0.24");
    let (left, right) = pair_on(&left, &right, 64);
    let bounce = |end: &End, starts: bool| {
        end.recv(0, 0, 8);
        if starts {
            end.send(Operation::Send, 8, 8);
        }
        let (mut received, mut sent) = (0, u64::from(starts));
        while received < 1000 {
            end.cq.arm(false).unwrap();
            let mut found = 0;
            end.cq
                .poll(16, |completion| {
                    assert_eq!(completion.status, Status::Success);
                    found += u64::from(completion.opcode == CompletionOpcode::Receive);
                })
                .unwrap();
            if found == 0 {
                end.channel.wait_event().unwrap();
            }
            for _ in 0..found {
                received += 1;
                end.recv(received, 0, 8);
                if sent < 1000 {
                    end.send(Operation::Send, 8, 8);
                    sent += 1;
                }
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| bounce(&right, false));
        bounce(&left, true);
    });
}

#[test]
fn datagrams_go_through_sockets() {
    let (left, right) = sockets("127.0.0.25", "127.0.0.26");
    let (left, right) = (
        End::new(&left, QpType::Ud, 2048),
        End::new(&right, QpType::Ud, 2048),
    );
    datagram_to_rts(&left.qp, Qkey(1));
    datagram_to_rts(&right.qp, Qkey(1));
    for round in 0..100 {
        right.recv(round, 0, 1064);
        left.memory.fill(0, &pattern(1024, round as u8));
        let datagram = Datagram {
            path: right.path(),
            qpn: right.qp.number(),
            qkey: Qkey(1),
        };
        let wr = SendWr {
            datagram: Some(datagram),
            ..signalled(Operation::Send, left.memory.sge(0, 1024))
        };
        left.qp.post_send(&wr).unwrap();
        left.ok();
        assert_eq!(right.ok().byte_len, 1064);
        assert_eq!(right.memory.bytes(40, 1024), pattern(1024, round as u8));
    }
}

/// The kernel delivers the packets of a segmented send in one buffer.
#[test]
fn a_damaged_packet_in_the_middle_of_a_run_places_no_byte() {
    const PART: usize = 1024;
    const DAMAGED: usize = 3;
    let (address, port) = bind("127.0.0.27");
    let peer = Ipv4Addr::new(127, 0, 0, 28);
    let device = Device::plain_with_port(info("victim", address), port).unwrap();
    let end = End::new(&device, QpType::Rc, 10 * PART);
    let path = Path {
        gid: Gid::from(IpAddr::from(peer)),
        ..Path::default()
    };
    connect(&end.qp, Qpn::new(0x4321), path);
    let socket = UdpSocket::bind((peer, PORT)).unwrap();
    socket.connect((address, PORT)).unwrap();
    let data = pattern(10 * PART, 7);
    let packet = |number: usize, id: u16| {
        let opcode = match number {
            0 => Opcode::RcWriteFirst,
            _ => Opcode::RcWriteMiddle,
        };
        let bth = Bth::new(opcode, end.qp.number(), PSN.add(number as u32));
        let mut headers = Headers::new(bth);
        headers.reth = (number == 0).then_some(Reth {
            va: end.memory.address(),
            rkey: end.memory.mr.rkey(),
            length: 10 * PART as u32,
        });
        let mut bytes = vec![0; HEADERS_LEN_MAX];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(&data[number * PART..][..PART]);
        let IpAddr::V4(dst) = address else { panic!() };
        let (src, dont_fragment) = (peer, true);
        let ip = IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment,
        };
        let icrc = icrc(&ip, PORT, PORT, &bytes);
        bytes.extend(icrc.to_le_bytes());
        bytes
    };
    socket.send(&packet(0, 0)).unwrap();
    let mut run: Vec<_> = (1..9)
        .map(|number| packet(number, number as u16 - 1))
        .collect();
    run[DAMAGED][Bth::LEN + 100] ^= 1;
    let segment = (Bth::LEN + PART + ICRC_LEN) as libc::c_int;
    // SAFETY: the option is an int.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_UDP,
            libc::UDP_SEGMENT,
            (&raw const segment).cast(),
            size_of_val(&segment) as libc::socklen_t,
        )
    };
    assert_eq!(set, 0);
    socket.send(&run.concat()).unwrap();
    // What comes before it, and nothing else.
    let placed = (1 + DAMAGED) * PART;
    let last = &data[placed - PART..placed];
    wait_until("the packets before", || {
        end.try_complete();
        end.memory.bytes(placed - PART, PART) == last
    });
    wait_until("the packets behind", || {
        end.try_complete();
        counter(&device, "drop_bad_icrc") == 1
    });
    assert_eq!(end.memory.bytes(0, placed), data[..placed]);
    assert!(
        end.memory
            .bytes(placed, 9 * PART - placed + PART)
            .iter()
            .all(|byte| *byte == 0)
    );
}

/// The queue pair opens the packets of a buffer one after the other.
#[test]
fn a_damaged_packet_among_sealed_ones_costs_itself() {
    let open = |name, address: &str| {
        let address: IpAddr = address.parse().unwrap();
        let config = UdpConfig {
            port: PORT,
            ..UdpConfig::default()
        };
        let port = UdpPort::bind(&[address], 1, config).unwrap();
        let port = Impaired::new(port, "corrupt=1%,seed=3".parse().unwrap());
        let device = Device::with_port(info(name, address), Box::new(port)).unwrap();
        device.share_secret(&[7; 32]).unwrap();
        device
    };
    let (left, right) = (open("left", "127.0.0.29"), open("right", "127.0.0.30"));
    let length = 1 << 18;
    let (left, right) = pair_on(&left, &right, length);
    for seed in 0..4 {
        let data = pattern(length, seed);
        left.memory.fill(0, &data);
        left.qp.post_send(&left.write(&right, 0, length)).unwrap();
        left.ok();
        assert_eq!(right.memory.bytes(0, length), data);
        left.memory.fill(0, &vec![0; length]);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        left.send(Operation::Read { va, rkey }, 0, length);
        left.ok();
        assert_eq!(left.memory.bytes(0, length), data);
    }
    for end in [&left, &right] {
        let seen = |name| counter(&end.device, name);
        assert!(seen("tx_segmented_sends") > 0 && seen("seals_agreed") > 0);
        // Those whose first byte is damaged do not claim to be sealed.
        assert!(seen("drop_unsealed") > seen("drop_bad_icrc"));
    }
}
