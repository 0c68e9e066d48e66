//! Path MTUs from 256 to 4,096 bytes on an interface of 1,500, if the ports have one of 4,096, as
//! by `AIRDMA_MTU`.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::net::IpAddr;

const SETUP: &str = "ip link set lo mtu 1500\n\
                     ip address add fd00::1/128 dev lo nodad\n\
                     ip address add fd00::2/128 dev lo nodad";

fn data_is_whole(left: &str, right: &str, path_mtu: PathMtu) {
    let length = 1 << 20;
    let (left, right) = sockets_with(left, right, PathMtu::M4096);
    let (left, right) = (
        End::new(&left, QpType::Rc, length),
        End::new(&right, QpType::Rc, length),
    );
    for (end, peer) in [(&left, &right), (&right, &left)] {
        to_rtr_with(&end.qp, peer.qp.number(), peer.path(), path_mtu);
        to_rts(&end.qp, 14);
    }
    let data = pattern(length, 3);
    left.memory.fill(0, &data);
    left.qp.post_send(&left.write(&right, 0, length)).unwrap();
    left.ok();
    assert_eq!(right.memory.bytes(0, length), data);
    left.memory.fill(0, &vec![0; length]);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    left.send(Operation::Read { va, rkey }, 0, length);
    left.ok();
    assert_eq!(left.memory.bytes(0, length), data);
    for end in [&left, &right] {
        let seen = |name| counter(&end.device, name);
        assert_eq!(seen("tx_fragmented") > 0, path_mtu > PathMtu::M1024);
        assert_eq!(seen("tx_errors"), 0);
        assert_eq!(seen("drop_bad_icrc"), 0);
        // The check is exact, fragments or not.
        assert_eq!(seen("rx_id_recovered"), 0);
    }
    assert_eq!(left.qp.query().unwrap().path_mtu, path_mtu);
}

#[test]
fn every_path_mtu_carries_data_over_ipv4() {
    isolated("every_path_mtu_carries_data_over_ipv4", SETUP, || {
        for path_mtu in PathMtu::ALL {
            data_is_whole("127.0.0.1", "127.0.0.2", path_mtu);
        }
    });
}

#[test]
fn every_path_mtu_carries_data_over_ipv6() {
    isolated("every_path_mtu_carries_data_over_ipv6", SETUP, || {
        for path_mtu in PathMtu::ALL {
            data_is_whole("fd00::1", "fd00::2", path_mtu);
        }
    });
}

#[test]
fn a_path_mtu_above_the_ports_is_refused() {
    isolated("a_path_mtu_above_the_ports_is_refused", SETUP, || {
        let (left, right) = sockets("127.0.0.1", "127.0.0.2");
        assert_eq!(left.info().path_mtu, PathMtu::M1024);
        let (left, right) = (
            End::new(&left, QpType::Rc, 64),
            End::new(&right, QpType::Rc, 64),
        );
        let to_init = QpAttributes {
            state: QpState::Init,
            port: 1,
            ..QpAttributes::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        left.qp.modify(&to_init, init).unwrap();
        let mask = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let to_receive = |path_mtu| {
            let attributes = QpAttributes {
                state: QpState::ReadyToReceive,
                path: right.path(),
                path_mtu,
                dest_qpn: right.qp.number(),
                ..to_init
            };
            left.qp
                .modify(&attributes, mask)
                .map_err(|error| error.errno())
        };
        assert_eq!(to_receive(PathMtu::M2048), Err(libc::EINVAL));
        assert_eq!(to_receive(PathMtu::M4096), Err(libc::EINVAL));
        assert_eq!(left.qp.state(), QpState::Init);
        assert_eq!(to_receive(PathMtu::M1024), Ok(()));
    });
}

/// Behind a router is a narrower link, of which the kernel knows.
const ROUTED: &str = "ip link add here mtu 9000 type veth peer name there mtu 9000
    ip address add 192.0.2.1/24 dev here
    ip link set here up; ip link set there up
    ip route add 198.51.100.7 via 192.0.2.2 mtu 1500
    ip neighbour add 192.0.2.2 lladdr 02:00:00:00:00:02 dev here nud permanent";

#[test]
fn a_path_that_is_known_to_be_narrow_is_used_and_counted() {
    let name = "a_path_that_is_known_to_be_narrow_is_used_and_counted";
    isolated(name, ROUTED, || {
        let all = devices().unwrap();
        let here = all.iter().find(|info| info.interface == "here");
        let device = Device::open(here.unwrap()).unwrap();
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let (here, router, far) = ("192.0.2.1", "192.0.2.2", "198.51.100.7");
        let path_mtu = |to| device.path_mtu_to(address(here), address(to));
        assert_eq!(path_mtu(router), PathMtu::M4096);
        assert_eq!(path_mtu(far), PathMtu::M1024);
        for (path_mtu, narrow) in [(PathMtu::M1024, 0), (PathMtu::M4096, 1)] {
            let end = End::new(&device, QpType::Rc, 1 << 16);
            let path = Path {
                gid: Gid::from(address(far)),
                ..Path::default()
            };
            to_rtr_with(&end.qp, Qpn::new(0x1234), path, path_mtu);
            to_rts(&end.qp, 8);
            end.send(Operation::Send, 0, 1 << 16);
            assert_eq!(end.complete().status, Status::RetryExceeded);
            assert_eq!(counter(&device, "narrow_paths"), narrow, "{path_mtu:?}");
        }
    });
}

/// A full packet of the path MTU 1,024 has 1,068 bytes over IPv4, and 28 more if it is sealed.
#[test]
fn a_path_too_narrow_for_sealed_packets_alone_is_counted() {
    let name = "a_path_too_narrow_for_sealed_packets_alone_is_counted";
    isolated(name, &ROUTED.replace("mtu 1500", "mtu 1080"), || {
        let all = devices().unwrap();
        let here = all.iter().find(|info| info.interface == "here");
        for seals in [false, true] {
            let device = Device::open(here.unwrap()).unwrap();
            if seals {
                device.share_secret(&[7; 32]).unwrap();
            }
            let end = End::new(&device, QpType::Rc, 1 << 16);
            let path = Path {
                gid: Gid::from("198.51.100.7".parse::<IpAddr>().unwrap()),
                ..Path::default()
            };
            to_rtr_with(&end.qp, Qpn::new(0x1234), path, PathMtu::M1024);
            to_rts(&end.qp, 8);
            end.send(Operation::Send, 0, 1 << 16);
            assert_eq!(end.complete().status, Status::RetryExceeded);
            assert_eq!(counter(&device, "narrow_paths"), u64::from(seals));
        }
    });
}
