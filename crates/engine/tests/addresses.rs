//! An interface whose addresses and state change while the device is open.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::net::IpAddr;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// Two interfaces of one host, with addresses that come and go one by one.
const SETUP: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n\
                     ip link add veth0 type veth peer name veth1\n\
                     ip link set veth0 up\n\
                     ip link set veth1 up\n\
                     ip address add 10.9.0.1/32 dev veth0\n\
                     ip address add 10.9.1.1/32 dev veth1";

fn ip(arguments: &str) {
    let status = Command::new("ip")
        .args(arguments.split_whitespace())
        .status()
        .unwrap();
    assert!(status.success(), "ip {arguments}");
}

fn open(interface: &str) -> Arc<Device> {
    let found = devices().unwrap();
    let info = found.iter().find(|info| info.interface == interface);
    Device::open(info.unwrap()).unwrap()
}

/// The addresses of the GID table, "-" for an empty row.
fn table(device: &Device) -> Vec<String> {
    let text = |row: &GidEntry| {
        assert_eq!(row.is_empty(), row.gid == Gid::default());
        if row.is_empty() {
            "-".to_owned()
        } else {
            row.address.to_string()
        }
    };
    device.current().gids.iter().map(text).collect()
}

fn is_readable(device: &Device) -> bool {
    let mut poll = libc::pollfd {
        fd: device.async_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut poll, 1, 5_000) == 1 }
}

fn event(device: &std::sync::Arc<Device>) -> String {
    format!("{:?}", device.wait_async_event().unwrap())
}

fn set_nonblocking(device: &Device) {
    // SAFETY: plain integers.
    let result = unsafe { libc::fcntl(device.async_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(result, 0);
}

#[test]
fn the_gid_table_and_the_port_follow_the_interface() {
    isolated(
        "the_gid_table_and_the_port_follow_the_interface",
        SETUP,
        || {
            let device = open("veth0");
            let other = open("veth0");
            assert_eq!(table(&device), ["10.9.0.1"]);
            ip("address add 10.9.0.2/32 dev veth0");
            assert!(is_readable(&device));
            assert_eq!(event(&device), "GidChange");
            assert_eq!(event(&other), "GidChange");
            assert_eq!(table(&device), ["10.9.0.1", "10.9.0.2"]);
            ip("address add 10.9.0.3/32 dev veth0");
            // A program that reads the table first still gets the event.
            assert_eq!(
                table(&device),
                ["10.9.0.1", "10.9.0.2", "10.9.0.3"],
                "no event was taken"
            );
            ip("address del 10.9.0.1/32 dev veth0");
            assert_eq!(table(&device), ["-", "10.9.0.2", "10.9.0.3"]);
            ip("address add 10.9.0.4/32 dev veth0");
            assert_eq!(table(&device), ["10.9.0.4", "10.9.0.2", "10.9.0.3"]);
            assert_eq!(table(&other), table(&device));
            // A new listing shows the rows at their index.
            let listed = devices().unwrap();
            let listed = listed.iter().find(|info| info.interface == "veth0");
            assert_eq!(listed.unwrap().gids, device.current().gids);
            for _ in 0..3 {
                assert!(is_readable(&device));
                assert_eq!(event(&device), "GidChange");
            }
            set_nonblocking(&device);
            let none = device.wait_async_event().unwrap_err();
            assert_eq!(none.raw_os_error(), Some(libc::EAGAIN));

            // Changes at other interfaces are ignored.
            ip("address add 10.9.1.2/32 dev veth1");
            let none = device.wait_async_event().unwrap_err();
            assert_eq!(none.raw_os_error(), Some(libc::EAGAIN));

            let blocked = open("veth0");
            let waiting = std::thread::spawn(move || (event(&blocked), blocked));
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(device.current().up);
            ip("link set veth0 down");
            assert!(is_readable(&device));
            assert!(!device.current().up);
            assert_eq!(event(&device), "PortError");
            let (seen, blocked) = waiting.join().unwrap();
            assert_eq!(seen, "PortError");
            ip("link set veth0 up");
            wait_until("carrier", || device.current().up);
            assert!(is_readable(&device));
            assert_eq!(event(&device), "PortActive");
            assert_eq!(event(&blocked), "PortActive");
            assert_eq!(table(&device), ["10.9.0.4", "10.9.0.2", "10.9.0.3"]);
            ip("link set veth0 mtu 9000");
            wait_until("MTU", || device.current().path_mtu == PathMtu::M4096);
            ip("link del veth0");
            wait_until("end", || !device.current().up);
            assert_eq!(table(&device), ["-", "-", "-"]);
        },
    );
}

/// A path to the row of the peer's table, from the row of ours.
fn path(peer: &Device, peer_row: usize, row: u8) -> Path {
    Path {
        gid: peer.current().gids[peer_row].gid,
        sgid_index: row,
        hop_limit: 64,
        ..Path::default()
    }
}

fn connected(left: &Arc<Device>, right: &Arc<Device>, rows: (u8, u8)) -> (End, End) {
    let (a, b) = (
        End::new(left, QpType::Rc, 4096),
        End::new(right, QpType::Rc, 4096),
    );
    connect(
        &a.qp,
        b.qp.number(),
        path(right, usize::from(rows.1), rows.0),
    );
    connect(
        &b.qp,
        a.qp.number(),
        path(left, usize::from(rows.0), rows.1),
    );
    (a, b)
}

fn works(pair: &(End, End), seed: u8) {
    let data = pattern(2048, seed);
    for (from, to) in [(&pair.0, &pair.1), (&pair.1, &pair.0)] {
        from.memory.fill(0, &data);
        from.qp.post_send(&from.write(to, 0, 2048)).unwrap();
        from.ok();
        assert_eq!(to.memory.bytes(0, 2048), data);
    }
}

#[test]
fn queue_pairs_run_on_while_addresses_come_and_go() {
    isolated(
        "queue_pairs_run_on_while_addresses_come_and_go",
        SETUP,
        || {
            let (left, right) = (open("veth0"), open("veth1"));
            let first = connected(&left, &right, (0, 0));
            works(&first, 1);
            let early = End::new(&left, QpType::Ud, 64);
            ip("address add 10.9.0.2/32 dev veth0");
            ip("address add 10.9.1.2/32 dev veth1");
            let second = connected(&left, &right, (1, 1));
            works(&second, 2);
            works(&first, 3);

            // Without its address the first one fails by its timer, and the second is not affected.
            ip("address del 10.9.0.1/32 dev veth0");
            assert_eq!(table(&left), ["-", "10.9.0.2"]);
            first.0.send(Operation::Send, 0, 8);
            works(&second, 4);
            let fast = QpAttributes {
                timeout: 1,
                ..QpAttributes::default()
            };
            let late = connected(&left, &right, (1, 0));
            works(&late, 5);
            assert!(first.0.qp.modify(&fast, AttrMask::TIMEOUT).is_err());
            assert_eq!(first.0.complete().status, Status::RetryExceeded);

            // An empty row has no path.
            let from_empty = path(&right, 0, 0);
            let refused = left.alloc_pd().unwrap().create_ah(from_empty);
            assert_eq!(refused.err().unwrap().errno(), libc::EINVAL);

            // The address returns to its row, where earlier datagram queue pairs receive, too.
            ip("address add 10.9.0.1/32 dev veth0");
            let third = connected(&left, &right, (0, 0));
            works(&third, 6);
            works(&second, 7);
            assert_eq!(table(&left), ["10.9.0.1", "10.9.0.2"]);
            datagram_to_rts(&early.qp, Qkey(5));
            early.recv(1, 0, 48);
            let sender = End::new(&right, QpType::Ud, 64);
            datagram_to_rts(&sender.qp, Qkey(5));
            let wr = SendWr {
                datagram: Some(Datagram {
                    path: path(&left, 0, 0),
                    qpn: early.qp.number(),
                    qkey: Qkey(5),
                }),
                ..signalled(Operation::Send, sender.memory.sge(0, 8))
            };
            sender.qp.post_send(&wr).unwrap();
            sender.ok();
            assert_eq!(early.ok().byte_len, 48);
        },
    );
}

#[test]
fn an_interface_that_is_deleted_ends_what_uses_it() {
    let name = "an_interface_that_is_deleted_ends_what_uses_it";
    isolated(name, SETUP, || {
        let (left, right) = (open("veth0"), open("veth1"));
        let pair = connected(&left, &right, (0, 0));
        works(&pair, 1);
        pair.0.recv(7, 0, 8);
        let (told, tells) = std::sync::mpsc::channel();
        left.when_gone(move || told.send(()).unwrap());
        ip("link del veth0");
        // No call runs the device: the progress thread gets the change.
        tells.recv_timeout(Duration::from_secs(5)).unwrap();
        assert!(left.is_gone());
        assert_eq!(pair.0.complete().status, Status::WrFlushError);
        let seen: Vec<_> = (0..3).map(|_| event(&left)).collect();
        assert_eq!(seen, ["PortError", "GidChange", "DeviceFatal"]);
        // One of the same name is another device.
        ip("link add veth0 type veth peer name veth2");
        ip("link set veth0 up");
        ip("address add 10.9.0.1/32 dev veth0");
        assert!(!open("veth0").is_gone());
        assert!(left.is_gone());
    });
}

/// Two interfaces in one subnet, each on its own link, with a neighbour at 10.9.0.9 and fd09::9.
const ONE_SUBNET: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode
     for number in 1 2; do
         ip link add near$number type veth peer name far$number
         ip link set near$number up; ip link set far$number up
         ip address add 10.9.0.$number/24 dev near$number
         ip address add fd09::$number/64 dev near$number nodad
         ip neighbour add 10.9.0.9 lladdr 02:00:00:00:00:09 dev near$number
         ip neighbour add fd09::9 lladdr 02:00:00:00:00:09 dev near$number
     done";

/// Packets that have left by an interface.
fn left_by(interface: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap();
    let mut lines = text.lines().map(str::trim_start);
    let line = lines.find_map(|line| line.strip_prefix(&format!("{interface}:")));
    line.unwrap()
        .split_whitespace()
        .nth(9)
        .unwrap()
        .parse()
        .unwrap()
}

/// Sends datagrams from each address of a device to the address of its family; returns the
/// interfaces that they leave by.
fn datagrams_leave_by(device: &Arc<Device>, to: [&str; 2]) -> (u64, u64) {
    const DATAGRAMS: u64 = 20;
    let sender = End::new(device, QpType::Ud, 64);
    datagram_to_rts(&sender.qp, Qkey(5));
    let before = (left_by("near1"), left_by("near2"));
    for (row, to) in to.into_iter().enumerate() {
        let wr = SendWr {
            datagram: Some(Datagram {
                path: Path {
                    gid: Gid::from(to.parse::<IpAddr>().unwrap()),
                    sgid_index: row as u8,
                    hop_limit: 64,
                    ..Path::default()
                },
                qpn: Qpn::new(17),
                qkey: Qkey(5),
            }),
            ..signalled(Operation::Send, sender.memory.sge(0, 8))
        };
        for _ in 0..DATAGRAMS {
            sender.qp.post_send(&wr).unwrap();
            sender.ok();
        }
    }
    // Other protocols (IPv6) send packets at times.
    let of = |before: u64, after: u64| (after - before) / DATAGRAMS;
    (
        of(before.0, left_by("near1")),
        of(before.1, left_by("near2")),
    )
}

#[test]
fn in_one_subnet_packets_leave_by_the_interface_of_their_device() {
    let name = "in_one_subnet_packets_leave_by_the_interface_of_their_device";
    isolated(name, ONE_SUBNET, || {
        let neighbours = ["10.9.0.9", "fd09::9"];
        let (first, second) = (open("near1"), open("near2"));
        assert_eq!(datagrams_leave_by(&first, neighbours), (2, 0));
        assert_eq!(datagrams_leave_by(&second, neighbours), (0, 2));
        // This host's own addresses are not neighbours.
        let own = ["10.9.0.1", "fd09::1"];
        assert_eq!(datagrams_leave_by(&second, own), (0, 0));
    });
}

#[test]
fn where_the_kernel_drops_what_comes_back_packets_take_its_way() {
    let name = "where_the_kernel_drops_what_comes_back_packets_take_its_way";
    let setup = format!("{ONE_SUBNET}\necho 1 > /proc/sys/net/ipv4/conf/near2/rp_filter");
    isolated(name, &setup, || {
        let neighbours = ["10.9.0.9", "fd09::9"];
        assert_eq!(datagrams_leave_by(&open("near2"), neighbours), (1, 1));
    });
}

#[test]
fn a_foreign_address_is_offered_once_it_is_free() {
    let name = "a_foreign_address_is_offered_once_it_is_free";
    isolated(name, SETUP, || {
        let (left, right) = (open("veth0"), open("veth1"));
        let _bound = End::new(&left, QpType::Rc, 64);
        let _peer = End::new(&right, QpType::Rc, 64);
        ip("address add 10.9.0.2/32 dev lo");
        let address: IpAddr = "10.9.0.2".parse().unwrap();
        let other = std::net::UdpSocket::bind((address, 4791)).unwrap();
        ip("address add 10.9.0.2/32 dev veth0");
        assert_eq!(table(&left), ["10.9.0.1"]);
        drop(other);
        assert_eq!(table(&left), ["10.9.0.1", "10.9.0.2"]);
        assert_eq!(table(&right), ["10.9.1.1"]);
    });
}

#[test]
fn an_ipv6_address_appears_when_the_kernel_has_checked_it() {
    let name = "an_ipv6_address_appears_when_the_kernel_has_checked_it";
    let setup = "ip link add veth0 type veth peer name veth1\n\
                 ip link set veth1 up\n\
                 ip link set veth0 up\n\
                 ip address add 10.9.0.1/32 dev veth0";
    isolated(name, setup, || {
        let device = open("veth0");
        let address: IpAddr = "fd09::1".parse().unwrap();
        ip("address add fd09::1/64 dev veth0");
        let has = |device: &Device| {
            let gids = device.current().gids;
            gids.iter().any(|row| row.address == address)
        };
        while !has(&device) {
            assert!(is_readable(&device), "the kernel says when it is done");
            event(&device);
        }
        ip("link set veth0 down");
        wait_until("removal", || !has(&device));
    });
}
