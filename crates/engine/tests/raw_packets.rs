//! Queue pairs that send whole Ethernet frames.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};

const SETUP: &str = "ip link add veth0 type veth peer name veth1\n\
                     ip link set veth1 up\n\
                     ip link set veth0 up\n\
                     ip address add 10.9.0.1/32 dev veth0\n\
                     ip address add 10.9.1.1/32 dev veth1";

/// An Ethernet type for experiments (IEEE 802).
const TYPE: u16 = 0x88b5;

/// Receives frames of that Ethernet type at an interface.
fn listen(interface_index: u32) -> OwnedFd {
    let protocol = TYPE.to_be();
    // SAFETY: plain integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW, i32::from(protocol)) };
    assert!(fd >= 0);
    // SAFETY: just opened.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: integers.
    let mut name: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    name.sll_family = libc::AF_PACKET as u16;
    name.sll_protocol = protocol;
    name.sll_ifindex = interface_index as i32;
    let len = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: a socket address of that length.
    let bound = unsafe { libc::bind(fd, (&raw const name).cast(), len) };
    assert_eq!(bound, 0);
    socket
}

fn frame(payload: usize, seed: u8) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9]);
    frame.extend(TYPE.to_be_bytes());
    frame.extend(pattern(payload, seed));
    frame
}

fn to_rts(qp: &Qp) {
    for (state, mask) in [
        (QpState::Init, AttrMask::PORT),
        (QpState::ReadyToReceive, AttrMask::empty()),
        (QpState::ReadyToSend, AttrMask::empty()),
    ] {
        let attributes = QpAttributes {
            state,
            port: 1,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | mask).unwrap();
    }
}

#[test]
fn frames_leave_as_they_are_and_none_arrive() {
    isolated("frames_leave_as_they_are_and_none_arrive", SETUP, || {
        let found = devices().unwrap();
        let of = |name: &str| found.iter().find(|info| info.interface == name).unwrap();
        let left = Device::open(of("veth0")).unwrap();
        let right = Device::open(of("veth1")).unwrap();
        let socket = listen(of("veth1").interface_index);
        let end = End::new(&left, QpType::RawPacket, 1 << 17);
        let peer = End::new(&right, QpType::RawPacket, 4096);
        to_rts(&end.qp);
        to_rts(&peer.qp);
        peer.recv(9, 0, 4096);
        for (payload, seed) in [(46, 1), (1000, 2), (1500, 3)] {
            let sent = frame(payload, seed);
            end.memory.fill(0, &sent);
            end.send(Operation::Send, 0, sent.len());
            assert_eq!(end.ok().byte_len as usize, sent.len());
            let mut seen = vec![0; 2000];
            // SAFETY: this number of bytes may be written.
            let got =
                unsafe { libc::recv(socket.as_raw_fd(), seen.as_mut_ptr().cast(), seen.len(), 0) };
            assert_eq!(seen[..got as usize], sent);
        }
        // Raw queue pairs only send frames.
        let write = signalled(
            Operation::Write {
                va: 0,
                rkey: Rkey(0),
            },
            end.memory.sge(0, 8),
        );
        assert_eq!(end.qp.post_send(&write).unwrap_err().errno(), libc::EINVAL);
        // One that no link accepts is an error, which flushes those that follow.
        end.send(Operation::Send, 0, 1 << 17);
        end.send(Operation::Send, 0, 64);
        let statuses = [end.complete().status, end.complete().status];
        assert_eq!(statuses, [Status::LocalLengthError, Status::WrFlushError]);
        assert_eq!(end.qp.state(), QpState::Error);
        // Without a flow nothing was received; the end of the queue pair gives the receive back.
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        peer.qp.modify(&error, AttrMask::STATE).unwrap();
        let flushed = peer.complete();
        assert_eq!((flushed.wr_id, flushed.status), (9, Status::WrFlushError));
    });
}

#[test]
fn without_the_capability_it_is_eperm() {
    let setup = "exec setpriv --bounding-set=-net_raw --inh-caps=-net_raw \
                 timeout 120 \"$0\" --exact \"$1\" --nocapture";
    let possible = std::process::Command::new("setpriv").arg("--help").output();
    if possible.is_err() {
        skipped("no setpriv");
        return;
    }
    isolated("without_the_capability_it_is_eperm", setup, || {
        let (left, _right) = wired();
        let pd = left.alloc_pd().unwrap();
        let cq = left.create_cq(16, None).unwrap();
        let created = pd.create_qp(QpInit {
            qp_type: QpType::RawPacket,
            send_cq: std::sync::Arc::clone(&cq),
            recv_cq: std::sync::Arc::clone(&cq),
            srq: None,
            caps: CAPS,
            signal_all: false,
        });
        assert_eq!(created.err().unwrap().errno(), libc::EPERM);
        // Its receive was returned.
        cq.destroy().unwrap();
        pd.destroy().unwrap();
    });
}

#[test]
fn frames_leave_no_faster_than_the_rate_limit() {
    isolated("frames_leave_no_faster_than_the_rate_limit", SETUP, || {
        let found = devices().unwrap();
        let of = |name: &str| found.iter().find(|info| info.interface == name).unwrap();
        let left = Device::open(of("veth0")).unwrap();
        let end = End::new(&left, QpType::RawPacket, 1 << 17);
        to_rts(&end.qp);
        let sent = frame(1000, 2);
        end.memory.fill(0, &sent);
        // A megabyte each second; a burst of 4,200 bytes leaves at once.
        end.qp.limit_rate(8_000, 0).unwrap();
        let start = Instant::now();
        for _ in 0..60 {
            end.send(Operation::Send, 0, sent.len());
        }
        for _ in 0..60 {
            end.ok();
        }
        let took = start.elapsed();
        assert!(took > Duration::from_millis(48), "{took:?}");
        // What waits is flushed when the queue pair fails. A new limit permits a burst.
        end.qp.limit_rate(0, 0).unwrap();
        end.qp.limit_rate(1, 0).unwrap();
        for _ in 0..20 {
            end.send(Operation::Send, 0, sent.len());
        }
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        end.qp.modify(&error, AttrMask::STATE).unwrap();
        let statuses: Vec<_> = (0..20).map(|_| end.complete().status).collect();
        assert_eq!(statuses[0], Status::Success);
        assert_eq!(statuses[19], Status::WrFlushError);
    });
}
