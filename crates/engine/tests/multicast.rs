//! Datagrams to multicast groups.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_port::{UdpConfig, UdpPort};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

const QKEY: Qkey = Qkey(0x1111);

/// A device on sockets of one address, on the interface with that index.
fn device(address: &str, interface_index: u32) -> Arc<Device> {
    let address: IpAddr = address.parse().unwrap();
    let config = UdpConfig {
        port: 24_792,
        ..UdpConfig::default()
    };
    let port = UdpPort::bind(&[address], interface_index, config).unwrap();
    Device::with_port(info("group", address), Box::new(port)).unwrap()
}

fn datagram_end(device: &Arc<Device>) -> End {
    let end = End::new(device, QpType::Ud, 2048);
    datagram_to_rts(&end.qp, QKEY);
    end
}

fn gid(group: &str) -> Gid {
    Gid::from(group.parse::<IpAddr>().unwrap())
}

fn send_to(end: &End, group: &str, seed: u8) {
    end.memory.fill(1024, &pattern(512, seed));
    let datagram = Datagram {
        path: Path {
            gid: gid(group),
            hop_limit: 1,
            ..Path::default()
        },
        qpn: Qpn::MULTICAST,
        qkey: QKEY,
    };
    let wr = SendWr {
        datagram: Some(datagram),
        ..signalled(Operation::Send, end.memory.sge(1024, 512))
    };
    end.qp.post_send(&wr).unwrap();
    assert_eq!(end.ok().opcode, CompletionOpcode::Send);
}

fn received(end: &End, from: &End, seed: u8) {
    let completion = end.ok();
    assert_eq!(completion.opcode, CompletionOpcode::Receive);
    assert_eq!(completion.byte_len, 40 + 512);
    assert_eq!(completion.src_qpn, from.qp.number());
    assert_eq!(end.memory.bytes(40, 512), pattern(512, seed));
}

fn nothing_comes(end: &End) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(50) {
        end.cq
            .poll(1, |completion| panic!("{completion:?}"))
            .unwrap();
    }
}

fn everybody_attached_gets_a_copy(left: &str, right: &str, interface_index: u32, group: &str) {
    let left = device(left, interface_index);
    let right = device(right, interface_index);
    let (sender, same_host) = (datagram_end(&left), datagram_end(&left));
    let (first, second) = (datagram_end(&right), datagram_end(&right));
    let stranger = datagram_end(&right);
    for end in [&sender, &same_host, &first, &second, &stranger] {
        end.recv(1, 0, 40 + 512);
    }
    for end in [&sender, &same_host, &first, &second] {
        end.qp.attach_multicast(gid(group)).unwrap();
    }
    // Its own copy comes to the sender too, beside the completion of the send.
    same_host.qp.attach_multicast(gid(group)).unwrap();
    sender.qp.detach_multicast(gid(group)).unwrap();
    send_to(&sender, group, 5);
    for end in [&same_host, &first, &second] {
        received(end, &sender, 5);
        end.recv(1, 0, 40 + 512);
    }
    nothing_comes(&stranger);
    nothing_comes(&sender);

    // A sender that is attached hears itself.
    send_to(&first, group, 6);
    for end in [&first, &second, &same_host] {
        received(end, &first, 6);
        end.recv(1, 0, 40 + 512);
    }
    let destroyed = second.qp.destroy();
    assert_eq!(destroyed.unwrap_err().errno(), libc::EBUSY);
    second.qp.detach_multicast(gid(group)).unwrap();
    second.qp.destroy().unwrap();
    send_to(&sender, group, 7);
    received(&first, &sender, 7);
    received(&same_host, &sender, 7);
    assert_eq!(counter(&right, "drop_unknown_qp"), 0);
}

#[test]
fn everybody_attached_to_an_ipv4_group_gets_a_copy() {
    everybody_attached_gets_a_copy("127.0.0.41", "127.0.0.42", 1, "239.7.7.7");
}

#[test]
fn everybody_attached_to_an_ipv6_group_gets_a_copy() {
    let setup = "ip link add veth0 type veth peer name veth1\n\
                 ip link set veth1 up\n\
                 ip link set veth0 up\n\
                 ip address add fd00::1/64 dev veth0 nodad\n\
                 ip address add fd00::2/64 dev veth0 nodad";
    isolated(
        "everybody_attached_to_an_ipv6_group_gets_a_copy",
        setup,
        || {
            let devices = devices().unwrap();
            let veth = devices.iter().find(|info| info.interface == "veth0");
            let index = veth.unwrap().interface_index;
            for group in ["ff02::7:7", "ff15::7"] {
                everybody_attached_gets_a_copy("fd00::1", "fd00::2", index, group);
            }
        },
    );
}

#[test]
fn a_wrong_q_key_or_group_or_queue_pair_is_refused() {
    let left = device("127.0.0.43", 1);
    let sender = datagram_end(&left);
    let other = End::new(&left, QpType::Ud, 2048);
    datagram_to_rts(&other.qp, Qkey(0x2222));
    other.recv(1, 0, 40 + 512);
    other.qp.attach_multicast(gid("239.7.7.8")).unwrap();
    send_to(&sender, "239.7.7.8", 1);
    wait_until("drop", || {
        other.cq.poll(1, |_| panic!("another Q_Key")).unwrap();
        counter(&left, "drop_bad_qkey") == 1
    });

    let errno = |result: Result<(), Error>| result.unwrap_err().errno();
    for no_group in ["10.0.0.1", "fd00::1", "::"] {
        assert_eq!(
            errno(other.qp.attach_multicast(gid(no_group))),
            libc::EINVAL
        );
    }
    for within in ["ff01::7", "ff00::7", "ff11::7"] {
        // The kernel would drop every packet.
        let refused = other.qp.attach_multicast(gid(within)).unwrap_err();
        assert_eq!(refused.errno(), libc::EADDRNOTAVAIL, "{within}");
        assert!(refused.to_string().contains("ff02::"), "{refused}");
    }
    assert_eq!(
        errno(other.qp.detach_multicast(gid("239.7.7.9"))),
        libc::EINVAL
    );
    assert_eq!(
        errno(sender.qp.detach_multicast(gid("239.7.7.8"))),
        libc::EINVAL
    );
    let connected = End::new(&left, QpType::Rc, 64);
    assert_eq!(
        errno(connected.qp.attach_multicast(gid("239.7.7.8"))),
        libc::EINVAL
    );
}

#[test]
fn who_sleeps_on_a_channel_hears_of_a_group_joined_meanwhile() {
    let (left, right) = (device("127.0.0.44", 1), device("127.0.0.45", 1));
    let (sender, listener) = (datagram_end(&left), datagram_end(&right));
    for round in 0..20 {
        let group = format!("239.7.8.{round}");
        listener.recv(1, 0, 40 + 512);
        listener.cq.arm(false).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| listener.channel.wait_event().unwrap());
            std::thread::sleep(Duration::from_millis(2));
            listener.qp.attach_multicast(gid(&group)).unwrap();
            send_to(&sender, &group, round);
        });
        received(&listener, &sender, round);
        listener.qp.detach_multicast(gid(&group)).unwrap();
    }
}
