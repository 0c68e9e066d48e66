#![allow(clippy::unwrap_used)]

use std::fs;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use airdma_shm::{Block, PACKET_RING_BYTES};
use airdma_wire::Gid;

use super::messages::{Grant, Request};
use super::*;
use crate::{UdpConfig, UdpPort};

const LEFT: &str = "127.0.0.1";
const RIGHT: &str = "127.0.0.2";
/// Longer than an answer is waited for.
const LONG: Duration = Duration::from_secs(3);

/// A directory for the processes of one test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-local-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn names(&self) -> usize {
        fs::read_dir(&self.0).unwrap().count()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn address(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn neighbour(text: &str) -> Neighbour {
    address(text).into()
}

/// Sockets at 127.0.0.1 and 127.0.0.2 with one UDP port.
fn sockets() -> (UdpPort, UdpPort) {
    for _ in 0..100 {
        let config = |port| UdpConfig {
            port,
            ..UdpConfig::default()
        };
        let right = UdpPort::bind(&[address(RIGHT)], 0, config(0)).unwrap();
        if let Ok(left) = UdpPort::bind(&[address(LEFT)], 0, config(right.port())) {
            return (left, right);
        }
    }
    panic!("no UDP port is free at both {LEFT} and {RIGHT}");
}

fn local(port: UdpPort, at: &str, folder: &Path) -> LocalPort<UdpPort> {
    let meeting = Meeting::open(folder).unwrap();
    let bell = Arc::new(Bell::new().unwrap());
    LocalPort::new(port, &[Some(neighbour(at))], meeting, bell)
}

fn pair(folder: &Folder) -> (LocalPort<UdpPort>, LocalPort<UdpPort>) {
    let (left, right) = sockets();
    (local(left, LEFT, &folder.0), local(right, RIGHT, &folder.0))
}

/// The sockets of a port that ends.
fn inner_of(port: LocalPort<UdpPort>) -> UdpPort {
    port.inner
}

fn packet(number: u32) -> Vec<u8> {
    let mut bytes = vec![0x0a, 0, 0xff, 0xff, 0, 0x01, 0x23, 0x45, 0, 0, 0, 0];
    bytes.extend(number.to_be_bytes());
    bytes
}

fn send(port: &mut LocalPort<UdpPort>, to: &str, packets: &[Vec<u8>]) {
    let mut batch = port.lend_batch(1 << 20, 1024);
    for bytes in packets {
        batch.reserve(bytes.len()).unwrap().copy_from_slice(bytes);
        batch.commit(
            bytes.len(),
            Destination {
                address: neighbour(to),
                source_index: 0,
                tos: 0x20,
                hop_limit: 0,
                flow_label: 0,
                bundles: false,
            },
        );
    }
    port.transmit(&mut batch).unwrap();
    assert!(batch.is_empty());
}

fn receive(port: &mut LocalPort<UdpPort>) -> Vec<Vec<u8>> {
    let mut got = Vec::new();
    port.receive(64, &mut |received| got.push(received.bytes.to_vec()))
        .unwrap();
    got
}

/// Sends numbered packets to the right until `done`, and checks that all arrive in order.
fn talk_until(
    left: &mut LocalPort<UdpPort>,
    right: &mut LocalPort<UdpPort>,
    done: impl Fn(&LocalPort<UdpPort>) -> bool,
) -> bool {
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < LONG {
        send(left, RIGHT, &[packet(number)]);
        let sent = Instant::now();
        let mut got = Vec::new();
        while got.is_empty() && sent.elapsed() < LONG {
            got = receive(right);
        }
        assert_eq!(got, [packet(number)], "packet {number}");
        number += 1;
        if done(left) {
            return true;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

fn has_ring(port: &LocalPort<UdpPort>) -> bool {
    port.counters().tx_local > 0
}

fn is_readable(fd: RawFd) -> bool {
    let mut poll = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one pollfd.
    unsafe { libc::poll(&raw mut poll, 1, 0) == 1 }
}

#[test]
fn packets_go_through_memory_once_the_network_proved_the_peer() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let by_network = left.inner.counters().tx_packets;
    let packets: Vec<_> = (0..200).map(packet).collect();
    send(&mut left, RIGHT, &packets);
    let mut got = Vec::new();
    while got.len() < packets.len() {
        got.extend(receive(&mut right));
    }
    assert_eq!(got, packets);
    assert_eq!(left.inner.counters().tx_packets, by_network);
    let counters = right.counters();
    assert!(counters.rx_local >= 200 && counters.rx_packets > counters.rx_local);
}

#[test]
fn a_packet_through_memory_looks_as_one_from_the_network() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let port = right.inner.port();
    send(&mut left, RIGHT, &[packet(7)]);
    let mut seen = None;
    right
        .receive(64, &mut |it| {
            seen = Some((it.source, it.source_port, it.destination, it.tos, it.ttl));
        })
        .unwrap();
    let expected = (neighbour(LEFT), port, neighbour(RIGHT), 0x20, 64);
    assert_eq!(seen, Some(expected));
}

#[test]
fn an_equal_address_elsewhere_gets_no_packet() {
    let folder = Folder::new();
    let (left, right) = sockets();
    // A process of another network namespace, whose address is the peer's by chance; the peer's own
    // process is not of this host.
    let (elsewhere, _) = sockets();
    let mut elsewhere = local(elsewhere, RIGHT, &folder.0);
    let mut left = local(left, LEFT, &folder.0);
    let hidden = Folder::new();
    let mut right = local(right, RIGHT, &hidden.0);
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < Duration::from_millis(700) {
        send(&mut left, RIGHT, &[packet(number)]);
        assert_eq!(receive(&mut elsewhere), Vec::<Vec<u8>>::new());
        let sent = Instant::now();
        let mut got = Vec::new();
        while got.is_empty() && sent.elapsed() < LONG {
            got = receive(&mut right);
        }
        assert_eq!(got, [packet(number)]);
        number += 1;
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(left.counters().tx_local, 0);
    assert_eq!(elsewhere.counters().rx_local, 0);
}

#[test]
fn the_right_one_of_two_equal_addresses_is_found() {
    let folder = Folder::new();
    let (elsewhere, _) = sockets();
    let mut elsewhere = local(elsewhere, RIGHT, &folder.0);
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    assert_eq!(receive(&mut elsewhere), Vec::<Vec<u8>>::new());
}

/// A process that has the peer's name, and answers requests as it likes.
struct Impostor {
    meeting: Meeting,
    bell: OwnedFd,
}

impl Impostor {
    fn new(folder: &Folder, bell: OwnedFd) -> Self {
        let mut meeting = Meeting::open(&folder.0).unwrap();
        meeting.set_address(0, Some(neighbour(RIGHT)));
        Impostor { meeting, bell }
    }

    /// Accepts a request, and answers with this nonce and these ends.
    fn grant(&self, nonce: [u8; 16], ends: (&str, &str)) -> Option<OwnedFd> {
        let mut bytes = [0; messages::ROOM];
        // Processes that only look whether this one lives have connected, too.
        let (connection, len) = loop {
            let connection = self.meeting.accept()?;
            if let unix::Message::Whole(len, _) = unix::receive(&connection, &mut bytes) {
                break (connection, len);
            }
        };
        Request::parse(&bytes[..len]).unwrap();
        let (_consumer, block) = airdma_shm::packet_ring().unwrap();
        let grant = Grant {
            nonce,
            source: neighbour(ends.0).into(),
            destination: neighbour(ends.1).into(),
            offset: block.offset(),
        };
        let descriptors = [block.fd().as_raw_fd(), self.bell.as_raw_fd()];
        unix::send(&connection, &grant.to_bytes(), &descriptors).unwrap();
        Some(connection)
    }
}

#[test]
fn a_grant_without_the_nonce_of_the_probe_is_refused() {
    let folder = Folder::new();
    let (left, _right) = sockets();
    let impostor = Impostor::new(&folder, eventfd(libc::EFD_NONBLOCK));
    let mut left = local(left, LEFT, &folder.0);
    let mut grants = Vec::new();
    for number in 0..60 {
        send(&mut left, RIGHT, &[packet(number)]);
        grants.extend(impostor.grant([0; 16], (LEFT, RIGHT)));
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!grants.is_empty(), "it was asked");
    assert_eq!(left.counters().tx_local, 0);
}

fn eventfd(flags: i32) -> OwnedFd {
    // SAFETY: plain integers make a descriptor that nothing else owns.
    unsafe { OwnedFd::from_raw_fd(libc::eventfd(0, flags)) }
}

/// Whether a ring is taken from a process that knows the nonce, and names these ends and this bell.
fn is_granted(ends: (&str, &str), bell: OwnedFd) -> bool {
    let folder = Folder::new();
    let (left, right) = sockets();
    let impostor = Impostor::new(&folder, bell);
    let mut left = local(left, LEFT, &folder.0);
    let mut right = local(right, RIGHT, &Folder::new().0);
    let mut kept = Vec::new();
    for number in 0..40 {
        send(&mut left, RIGHT, &[packet(number)]);
        right
            .inner
            .receive(64, &mut |received| {
                let probe = airdma_wire::local_probe::LocalProbe::parse(received.bytes);
                kept.extend(probe.and_then(|probe| impostor.grant(probe.nonce, ends)));
            })
            .unwrap();
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!kept.is_empty(), "it was asked");
    has_ring(&left)
}

/// A peer that gets a probe may pass it on to a process of the host, with any source address. That
/// process says where the probe came from and to.
#[test]
fn a_grant_for_a_probe_between_other_ends_is_refused() {
    for (ends, takes) in [
        ((LEFT, RIGHT), true),
        (("127.0.0.3", RIGHT), false),
        ((LEFT, "127.0.0.3"), false),
    ] {
        let is_taken = is_granted(ends, eventfd(libc::EFD_NONBLOCK));
        assert_eq!(is_taken, takes, "{ends:?}");
    }
}

#[test]
fn a_process_of_another_user_is_refused() {
    let folder = Folder::new();
    let (left, right) = sockets();
    // SAFETY: no arguments.
    let user = unsafe { libc::geteuid() };
    let meeting = Meeting::open_for(&folder.0, user + 1).unwrap();
    let bell = Arc::new(Bell::new().unwrap());
    // Either end refuses the other: for it, this process is another user's.
    let mut strange = LocalPort::new(left, &[Some(neighbour(LEFT))], meeting, bell);
    let mut right = local(right, RIGHT, &folder.0);
    for number in 0..40 {
        send(&mut strange, RIGHT, &[packet(number)]);
        send(&mut right, LEFT, &[packet(number)]);
        receive(&mut right);
        receive(&mut strange);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!has_ring(&strange) && !has_ring(&right));
}

#[test]
fn without_its_receiver_a_ring_is_abandoned_for_the_network() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let mut inner = inner_of(right);
    let start = Instant::now();
    let mut arrived = 0;
    while arrived == 0 && start.elapsed() < LONG {
        send(&mut left, RIGHT, &[packet(1)]);
        arrived += inner.receive(64, &mut |_| {}).unwrap();
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(arrived > 0, "nothing came over the network");
    // The next process at the address gets a ring of its own.
    let mut right = local(inner, RIGHT, &folder.0);
    let before = left.counters().tx_local;
    assert!(talk_until(&mut left, &mut right, |left| {
        left.counters().tx_local > before
    }));
}

#[test]
fn a_full_ring_loses_packets_and_counts_them() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let long = [&packet(0)[..], &[0; 4096]].concat();
    for _ in 0..10 {
        send(&mut left, RIGHT, &vec![long.clone(); 40]);
    }
    let counters = left.counters();
    assert!(counters.tx_local_full > 0);
    let mut got = 0;
    loop {
        match receive(&mut right).len() {
            0 => break,
            more => got += more as u64,
        }
    }
    assert_eq!(got + counters.tx_local_full, 400);
    send(&mut left, RIGHT, &[packet(3)]);
    assert_eq!(receive(&mut right), [packet(3)]);
}

#[test]
fn only_a_thread_that_sleeps_is_woken() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let bell = Arc::clone(&right.bell);
    send(&mut left, RIGHT, &[packet(1)]);
    assert!(!is_readable(bell.fd()));
    // What is there already wakes at once.
    bell.will_sleep();
    assert!(is_readable(bell.fd()));
    bell.woke();
    assert_eq!(receive(&mut right), [packet(1)]);
    assert!(!is_readable(bell.fd()));
    bell.will_sleep();
    assert!(!is_readable(bell.fd()));
    send(&mut left, RIGHT, &[packet(2)]);
    assert!(is_readable(bell.fd()));
    bell.woke();
    assert_eq!(receive(&mut right), [packet(2)]);
}

#[test]
fn a_call_that_leaves_packets_wakes_the_next_thread() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    let bell = Arc::clone(&right.bell);
    bell.will_sleep();
    send(&mut left, RIGHT, &(0..100).map(packet).collect::<Vec<_>>());
    assert_eq!(receive(&mut right).len(), 64);
    assert!(is_readable(bell.fd()));
    assert_eq!(receive(&mut right).len(), 36);
    assert!(!is_readable(bell.fd()));
    bell.woke();
}

#[test]
fn an_address_that_leaves_takes_its_rings_along() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    assert_eq!(folder.names(), 4);
    right.set_address(0, None).unwrap();
    assert_eq!(folder.names(), 3);
    assert!(right.inlets.is_empty());
    left.set_address(0, None).unwrap();
    left.set_address(0, Some(neighbour(LEFT))).unwrap();
    let before = left.counters().tx_local;
    send(&mut left, RIGHT, &[packet(1)]);
    assert_eq!(left.counters().tx_local, before);
}

#[test]
fn names_of_dead_processes_are_removed() {
    let folder = Folder::new();
    let (left, right) = sockets();
    let mut right = local(right, RIGHT, &folder.0);
    // As after a kill: the names stay.
    let meeting = std::mem::replace(&mut right.meeting, Meeting::open(&folder.0).unwrap());
    right.meeting.close();
    meeting.abandon();
    assert_eq!(folder.names(), 2);
    let _left = local(left, LEFT, &folder.0);
    assert_eq!(folder.names(), 2, "those of the new one alone");
}

#[test]
fn a_withdrawn_port_has_no_names() {
    let folder = Folder::new();
    let (mut left, right) = pair(&folder);
    left.withdraw();
    assert_eq!(folder.names(), 2);
    drop(right);
    assert_eq!(folder.names(), 0);
}

#[test]
fn messages_are_read_as_they_were_written() {
    let request = Request { token: [9; 16] };
    let grant = Grant {
        nonce: [1; 16],
        source: neighbour(LEFT).into(),
        destination: neighbour(RIGHT).into(),
        offset: 0x1234_5678_9abc,
    };
    assert_eq!(Request::parse(&request.to_bytes()), Some(request));
    assert_eq!(Grant::parse(&grant.to_bytes()), Some(grant));
    assert_eq!(Grant::parse(&request.to_bytes()), None);
    assert_eq!(Request::parse(&grant.to_bytes()), None);
    for len in 0..64 {
        assert_eq!(Grant::parse(&grant.to_bytes()[..len]), None);
    }
}

fn probe(token: [u8; 16]) -> Vec<u8> {
    let probe = airdma_wire::local_probe::LocalProbe {
        to: Qpn::new(0x12_3456),
        token,
        nonce: [5; 16],
    };
    probe.to_bytes().to_vec()
}

/// A packet from the left that arrives at the right.
fn arrived(bytes: &[u8]) -> Received<'_> {
    Received {
        source: neighbour(LEFT),
        source_port: 4791,
        destination: neighbour(RIGHT),
        tos: 0,
        ttl: 64,
        flow_label: 0,
        forwarded: false,
        bundled: false,
        bytes,
        following: None,
    }
}

#[test]
fn probes_without_a_request_make_nothing() {
    let folder = Folder::new();
    let (mut left, right) = sockets();
    let mut right = local(right, RIGHT, &folder.0);
    let mut batch = left.lend_batch(1 << 16, 1024);
    for number in 0..100 {
        let bytes = probe([number; 16]);
        batch.reserve(bytes.len()).unwrap().copy_from_slice(&bytes);
        batch.commit(
            bytes.len(),
            Destination {
                address: neighbour(RIGHT),
                source_index: 0,
                tos: 0,
                hop_limit: 0,
                flow_label: 0,
                bundles: false,
            },
        );
    }
    left.transmit(&mut batch).unwrap();
    while right.inner.counters().rx_packets < 100 {
        assert_eq!(receive(&mut right), Vec::<Vec<u8>>::new());
    }
    assert!(right.inlets.is_empty());
    let counted = right.counters().rx_unasked_probes;
    assert!((8..=100).contains(&counted), "{counted}");
}

#[test]
fn rings_and_requests_have_limits() {
    let folder = Folder::new();
    let meeting = Meeting::open(&folder.0).unwrap();
    let socket = fs::read_dir(&folder.0).unwrap().next().unwrap().unwrap();
    let bell = Bell::new().unwrap();
    let mut inlets = Inlets::default();
    let mut kept = Vec::new();
    let mut ask = |inlets: &mut Inlets, number: u32, with_probe: bool| {
        let mut token = [0; 16];
        token[..4].copy_from_slice(&number.to_be_bytes());
        let connection = unix::connect(&socket.path()).unwrap();
        unix::send(&connection, &Request { token }.to_bytes(), &[]).unwrap();
        kept.push(connection);
        let token = if with_probe { token } else { [0xff; 16] };
        assert!(inlets.take_probe(&arrived(&probe(token))));
        inlets.answer_probes(&meeting, &bell);
    };
    for number in 0..100 {
        ask(&mut inlets, number, false);
    }
    assert_eq!(inlets.counts(), (0, 32));
    // Each takes the place of one that waits, and leaves it when its ring is made.
    for number in 100..250 {
        ask(&mut inlets, number, true);
    }
    assert_eq!(inlets.counts(), (128, 31));
    // Those whose senders are gone make room.
    drop(kept);
    inlets.sweep_sometimes(Duration::from_secs(1000), &meeting, &bell);
    assert!(inlets.is_empty());
}

#[test]
fn unasked_probes_are_counted_and_others_answered() {
    let folder = Folder::new();
    let meeting = Meeting::open(&folder.0).unwrap();
    let socket = fs::read_dir(&folder.0).unwrap().next().unwrap().unwrap();
    let bell = Bell::new().unwrap();
    let mut inlets = Inlets::default();
    let ask = |token: u8| {
        let connection = unix::connect(&socket.path()).unwrap();
        let request = Request { token: [token; 16] };
        unix::send(&connection, &request.to_bytes(), &[]).unwrap();
        connection
    };
    let _asked = [ask(3), ask(4)];
    for token in [1, 2, 3, 4] {
        assert!(inlets.take_probe(&arrived(&probe([token; 16]))));
    }
    inlets.answer_probes(&meeting, &bell);
    assert_eq!((inlets.counts(), inlets.unasked), ((2, 0), 2));
}

/// Names of an address at which no process listens.
fn dead_names(folder: &Folder, count: u32) {
    let digits = format!(
        "{:032x}",
        u128::from_be_bytes(Gid::from(neighbour(RIGHT)).0)
    );
    for id in 0..count {
        let name = folder.0.join(format!("local-{id:016x}-{digits}"));
        drop(std::os::unix::net::UnixDatagram::bind(&name).unwrap());
        let socket = folder.0.join(format!("local-{id:016x}"));
        fs::rename(&name, &socket).unwrap();
        fs::hard_link(&socket, &name).unwrap();
    }
}

#[test]
fn of_very_many_names_some_are_tried() {
    let folder = Folder::new();
    let meeting = Meeting::open(&folder.0).unwrap();
    dead_names(&folder, 100);
    let before = folder.names();
    assert!(meeting.candidates(neighbour(RIGHT), 16).is_empty());
    let tried = (before - folder.names()) / 2;
    assert!((1..=32).contains(&tried), "{tried}");
}

#[test]
fn a_socket_that_never_got_its_name_is_removed() {
    let folder = Folder::new();
    let [old, new] = ["new-local-0011223344556677", "new-local-7766554433221100"];
    for name in [old, new] {
        fs::write(folder.0.join(name), []).unwrap();
    }
    let file = fs::File::options()
        .write(true)
        .open(folder.0.join(old))
        .unwrap();
    let hour = Duration::from_secs(3600);
    file.set_modified(std::time::SystemTime::now() - hour)
        .unwrap();
    drop(Meeting::open(&folder.0).unwrap());
    assert!(!folder.0.join(old).exists());
    assert!(folder.0.join(new).exists(), "it may be named yet");
}

/// Sixteen processes have the address, and none answers.
#[test]
fn routes_that_are_asked_for_hold_few_descriptors() {
    let folder = Folder::new();
    let (left, _right) = sockets();
    let mut left = local(left, LEFT, &folder.0);
    let mut others: Vec<_> = (0..16).map(|_| Meeting::open(&folder.0).unwrap()).collect();
    for other in &mut others {
        other.set_address(0, Some(neighbour(RIGHT)));
    }
    let mut kept = Vec::new();
    for range in 0..64_u8 {
        let mut bytes = packet(0);
        (bytes[5], bytes[6]) = (range >> 4, range << 4);
        send(&mut left, RIGHT, &[bytes]);
        for other in &others {
            kept.extend(std::iter::from_fn(|| other.accept()));
        }
    }
    let mut held = Vec::new();
    left.outlets.lifelines(&mut held);
    assert!((1..=128).contains(&held.len()), "{}", held.len());
}

#[test]
fn routes_have_a_limit() {
    let folder = Folder::new();
    let (left, _right) = sockets();
    let mut left = local(left, LEFT, &folder.0);
    for range in 0..=255_u8 {
        for last in 1..=20 {
            let mut bytes = packet(0);
            (bytes[5], bytes[6]) = (range >> 4, range << 4);
            send(&mut left, &format!("127.0.1.{last}"), &[bytes]);
            assert!(left.outlets.count() <= 4096);
        }
    }
    assert!(left.outlets.count() > 0);
}

/// Each process that opens a device looks whether the others live, and one that shares an address
/// with the receiver is asked in vain beside it.
#[test]
fn connections_without_a_probe_do_not_hide_a_process() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    for _ in 0..40 {
        drop(Meeting::open(&folder.0).unwrap());
    }
    assert!(talk_until(&mut left, &mut right, has_ring));
}

#[test]
fn a_ring_of_packets_without_a_header_takes_one_budget_a_call() {
    let folder = Folder::new();
    let (mut left, mut right) = pair(&folder);
    assert!(talk_until(&mut left, &mut right, has_ring));
    right.bell.will_sleep();
    for _ in 0..100 {
        let fate = left.outlets.push(0, PacketTag::default(), &[]);
        assert_eq!(fate, Fate::Taken);
    }
    left.outlets.push(0, PacketTag::default(), &packet(1));
    left.outlets.publish(&[0]);
    assert_eq!(receive(&mut right), Vec::<Vec<u8>>::new());
    assert!(is_readable(right.bell.fd()), "there is more");
    assert_eq!(receive(&mut right), [packet(1)]);
    right.bell.woke();
}

#[test]
fn a_connection_that_says_more_than_it_must_ends() {
    let folder = Folder::new();
    let meeting = Meeting::open(&folder.0).unwrap();
    let socket = fs::read_dir(&folder.0).unwrap().next().unwrap().unwrap();
    let client = unix::connect(&socket.path()).unwrap();
    let server = meeting.accept().unwrap();
    assert!(!unix::is_closed(&server));
    unix::send(&client, b"more", &[]).unwrap();
    drop(client);
    assert!(unix::is_closed(&server));
}

/// The bytes of a ring at which its consumer's index lies.
const RELEASED_AT: usize = 256;

#[test]
fn a_dead_process_cannot_keep_its_ring() {
    let folder = Folder::new();
    let meeting = Meeting::open(&folder.0).unwrap();
    let socket = fs::read_dir(&folder.0).unwrap().next().unwrap().unwrap();
    let bell = Bell::new().unwrap();
    let mut inlets = Inlets::default();
    let connection = unix::connect(&socket.path()).unwrap();
    unix::send(&connection, &Request { token: [7; 16] }.to_bytes(), &[]).unwrap();
    assert!(inlets.take_probe(&arrived(&probe([7; 16]))));
    inlets.answer_probes(&meeting, &bell);
    let mut bytes = [0; messages::ROOM];
    let unix::Message::Whole(len, descriptors) = unix::receive(&connection, &mut bytes) else {
        panic!("no grant");
    };
    let offset = Grant::parse(&bytes[..len]).unwrap().offset;
    let memory = descriptors.into_iter().next().unwrap();
    let block = Block::map(memory, offset, PACKET_RING_BYTES).unwrap();
    // SAFETY: within the ring, aligned, and touched through atomics only.
    let released = unsafe { AtomicU32::from_ptr(block.ptr().add(RELEASED_AT).cast().as_ptr()) };
    released.fetch_add(100, Ordering::SeqCst);
    drop(connection);
    inlets.sweep_sometimes(Duration::from_secs(1000), &meeting, &bell);
    assert!(inlets.is_empty());
}

/// A write to something else could block, or end the program (SIGPIPE).
#[test]
fn a_grant_without_a_bell_that_cannot_block_is_refused() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let file = fs::File::create("/dev/null").unwrap();
    for (bell, takes) in [
        (eventfd(libc::EFD_NONBLOCK), true),
        (eventfd(0), false),
        (OwnedFd::from(writer), false),
        (OwnedFd::from(file), false),
    ] {
        assert_eq!(is_granted((LEFT, RIGHT), bell), takes);
    }
}
