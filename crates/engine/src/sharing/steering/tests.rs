#![allow(clippy::unwrap_used)]

use super::places::complete;
use super::*;
use crate::sharing::alone;
use airdma_port::{Destination, Port, TransmitBatch, UdpConfig};
use airdma_wire::{Bth, Headers, Opcode, Psn};
use std::path::PathBuf;

/// Not RoCE's port: a real device may be in use on this machine.
const PORT: u16 = 24_793;

/// Stands for a process: each has its own open file and sockets.
struct Member {
    steering: Arc<Steering>,
    port: UdpPort,
    range: u8,
}

fn file(name: &str) -> PathBuf {
    let name = format!("airdma-test-{}-steering-{name}", std::process::id());
    std::env::temp_dir().join(name)
}

fn config() -> UdpConfig {
    UdpConfig {
        port: PORT,
        share: true,
        ..UdpConfig::default()
    }
}

fn messenger() -> Messenger {
    Messenger::new(MessengerSockets::open().unwrap().into(), 1, PORT)
}

impl Member {
    fn new(file: &std::path::Path, address: IpAddr) -> Self {
        let registry = Registry::join_at(file).unwrap();
        let steering = Steering::with_registry(registry, messenger(), PORT);
        let open = || UdpPort::bind(&[address], 1, config());
        let port = steering.bind(&[Some(address)], open).unwrap();
        let mut this = Member {
            steering,
            port,
            range: 0,
        };
        let lease = |steering: &Steering, ground: &mut Ground<'_>| steering.lease(ground).unwrap();
        this.range = this.with(lease);
        this
    }

    fn with<R>(&mut self, call: impl FnOnce(&Steering, &mut Ground<'_>) -> R) -> R {
        let mut ground = Ground {
            port: &mut self.port,
            receive: &mut |_| {},
        };
        call(&self.steering, &mut ground)
    }

    fn number(&self) -> Qpn {
        Qpn::new(0x50_0007 | u32::from(self.range) << 12)
    }

    /// Packets of this member: queue pair, and whether they were forwarded. Others' are forwarded.
    fn receive(&mut self) -> Vec<(Qpn, bool)> {
        let mut found = Vec::new();
        let steering = &self.steering;
        let mut take = |packet: Received<'_>| {
            let Ok(parsed) = airdma_wire::Packet::parse(packet.bytes) else {
                return;
            };
            let number = parsed.headers.bth.dest_qpn;
            match steering.owner_of_number(number) {
                Some(owner) => {
                    steering.forward(&packet, owner);
                    steering.note_misrouted(Time::ZERO);
                }
                None => found.push((number, packet.forwarded)),
            }
        };
        self.port.receive(64, &mut take).unwrap();
        found
    }

    fn repair(&mut self) {
        self.with(|steering, ground| steering.repair(Time::ZERO, ground));
    }
}

/// Sends a packet to each member from a host.
fn send(from: &mut UdpPort, to: IpAddr, members: &[Member]) {
    let numbers: Vec<_> = members.iter().map(Member::number).collect();
    send_to(from, to, &numbers);
}

fn destination(address: IpAddr) -> Destination {
    Destination {
        address: address.into(),
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

fn send_to(from: &mut UdpPort, to: IpAddr, numbers: &[Qpn]) {
    let mut batch = TransmitBatch::with_capacity(4096, 64);
    for &number in numbers {
        let bth = Bth::new(Opcode::RcSendOnly, number, Psn::new(1));
        let room = batch.reserve(64).unwrap();
        let len = Headers::new(bth).emit(room);
        batch.commit(len, destination(to));
    }
    from.transmit(&mut batch).unwrap();
}

fn peer() -> UdpPort {
    let address = IpAddr::from([127, 0, 0, 79]);
    UdpPort::bind(
        &[address],
        1,
        UdpConfig {
            port: PORT,
            ..UdpConfig::default()
        },
    )
    .unwrap()
}

/// Packets that each member got of those sent to all.
fn delivered(from: &mut UdpPort, address: IpAddr, members: &mut [Member]) -> Vec<Vec<(Qpn, bool)>> {
    send(from, address, members);
    // Twice, for packets forwarded to members that were polled before.
    let mut found: Vec<_> = members.iter_mut().map(Member::receive).collect();
    for (found, member) in found.iter_mut().zip(members) {
        found.extend(member.receive());
    }
    found
}

fn all_get_their_own(members: &[Member], forwarded: bool) -> Vec<Vec<(Qpn, bool)>> {
    let own = |member: &Member| vec![(member.number(), forwarded)];
    members.iter().map(own).collect()
}

#[test]
fn what_goes_astray_is_handed_on_and_the_program_is_put_right() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 71]);
    let file = file("astray");
    let mut peer = peer();
    let mut members: Vec<_> = (0..3).map(|_| Member::new(&file, address)).collect();
    assert_eq!(
        delivered(&mut peer, address, &mut members),
        all_get_their_own(&members, false)
    );
    // A program of an earlier state with other indices.
    let shifted = Plan {
        ranges: (0..)
            .zip(&members)
            .map(|(place, member)| (member.range, (place + 1) % 3))
            .collect(),
        ..Plan::default()
    };
    members[0]
        .port
        .attach_steering(0, &shifted.assemble())
        .unwrap();
    assert_eq!(
        delivered(&mut peer, address, &mut members),
        all_get_their_own(&members, true)
    );
    assert!(members.iter().all(|member| member.steering.wants_repair()));
    // The first time it sees that others attached programs since its last check.
    members[1].repair();
    members[1].repair();
    assert!(!members[1].steering.wants_repair());
    assert_eq!(
        delivered(&mut peer, address, &mut members),
        all_get_their_own(&members, false)
    );
    std::fs::remove_file(file).unwrap();
}

#[test]
fn who_leaves_in_order_leaves_order_behind() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 72]);
    let file = file("leave");
    let mut peer = peer();
    let mut members: Vec<_> = (0..5).map(|_| Member::new(&file, address)).collect();
    for index in [1, 0, 2] {
        let mut gone = members.remove(index);
        gone.with(|steering, ground| steering.leave(ground));
        assert_eq!(
            delivered(&mut peer, address, &mut members),
            all_get_their_own(&members, false)
        );
    }
    std::fs::remove_file(file).unwrap();
}

/// Two processes at an unused address, with unread packets to both.
fn with_much_to_take(address: IpAddr, file: &std::path::Path, peer: &mut UdpPort) -> Vec<Member> {
    let mut members: Vec<_> = (0..2).map(|_| Member::new(file, address)).collect();
    members[1].port.set_active(0, false);
    members[1].receive();
    for _ in 0..200 {
        send(peer, address, &members);
    }
    members
}

fn number_of(packet: &Received<'_>) -> Qpn {
    let packet = airdma_wire::Packet::parse(packet.bytes).unwrap();
    packet.headers.bth.dest_qpn
}

#[test]
fn who_leaves_takes_all_that_came_before() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 82]);
    let file = file("last");
    let mut peer = peer();
    let mut members = with_much_to_take(address, &file, &mut peer);
    let number = members[1].number();
    let gone = &mut members[1];
    let mut came = 0;
    let mut ground = Ground {
        port: &mut gone.port,
        receive: &mut |packet| came += usize::from(number_of(&packet) == number),
    };
    gone.steering.leave(&mut ground);
    assert_eq!(came, 200);
    std::fs::remove_file(file).unwrap();
}

#[test]
fn nobody_waits_for_what_came_before_somebody_left() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 83]);
    let file = file("unlocked");
    let mut peer = peer();
    let mut members = with_much_to_take(address, &file, &mut peer);
    let (others, gone) = members.split_at_mut(1);
    let gone = &mut gone[0];
    let (mut came, mut locked) = (0, 0);
    let mut ground = Ground {
        port: &mut gone.port,
        receive: &mut |_| {
            came += 1;
            let registry = &others[0].steering.registry;
            if registry.try_lock() {
                registry.unlock();
            } else {
                locked += 1;
            }
        },
    };
    gone.steering.leave(&mut ground);
    assert_eq!((came, locked), (200, 0));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_leaving_member_skips_bad_packets_and_ends_in_a_flood() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 84]);
    let file = file("flood");
    let mut peer = peer();
    let mut members: Vec<_> = (0..2).map(|_| Member::new(&file, address)).collect();
    members[1].receive();
    let stranger = std::net::UdpSocket::bind(("127.0.0.79", 0)).unwrap();
    let bth = Bth::new(Opcode::RcSendOnly, members[1].number(), Psn::new(1));
    let mut bytes = [0; 64];
    // The sum is missing.
    let end = Headers::new(bth).emit(&mut bytes) + 4;
    for _ in 0..200 {
        stranger.send_to(&bytes[..end], (address, PORT)).unwrap();
    }
    send(&mut peer, address, &members);
    let (others, gone) = members.split_at_mut(1);
    let (number, gone) = (gone[0].number(), &mut gone[0]);
    let mut came = 0;
    let mut ground = Ground {
        port: &mut gone.port,
        receive: &mut |packet| {
            assert_eq!(number_of(&packet), number);
            came += 1;
            send_to(&mut peer, address, &[number]);
        },
    };
    gone.steering.leave(&mut ground);
    assert!(came > 1);
    assert!(others[0].receive().contains(&(others[0].number(), false)));
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_lone_member_watches_for_exits_once_another_joins() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 81]);
    let file = file("company");
    let mut first = Member::new(&file, address);
    // A watch would report this.
    drop(std::fs::File::options().write(true).open(&file).unwrap());
    assert!(!first.steering.process_left());
    let second = Member::new(&file, address);
    first.receive();
    // The second might have died before the first one's watch began: so it checks once.
    assert!(first.steering.process_left());
    assert!(!first.steering.process_left());
    drop(second);
    assert!(first.steering.process_left());
    std::fs::remove_file(file).unwrap();
}

#[test]
fn after_deaths_the_places_are_found_out() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 73]);
    let file = file("deaths");
    let mut peer = peer();
    let mut members: Vec<_> = (0..6).map(|_| Member::new(&file, address)).collect();
    // In an unpredictable order.
    for index in [4, 0, 1] {
        drop(members.remove(index));
    }
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (repairer, others) = members.split_first_mut().unwrap();
        for other in others {
            scope.spawn(move || {
                while !done.load(Ordering::Relaxed) {
                    other.receive();
                }
            });
        }
        assert!(repairer.steering.process_left());
        assert!(repairer.with(|steering, ground| steering.remove_departed(ground)));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        delivered(&mut peer, address, &mut members),
        all_get_their_own(&members, false)
    );
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_death_that_is_noticed_by_who_fails_is_not_forgotten() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 80]);
    let file = file("noticed");
    let mut peer = peer();
    let mut members: Vec<_> = (0..3).map(|_| Member::new(&file, address)).collect();
    let listen = |steering: &Steering, ground: &mut Ground<'_>| steering.listen(7, None, ground);
    members[2].with(listen).unwrap();
    drop(members.remove(0));
    // It removes dead members, and then fails to listen: the indices are still unknown.
    assert!(members[0].with(listen).is_err());
    let done = &AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (repairer, others) = members.split_first_mut().unwrap();
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                others[0].receive();
            }
        });
        assert!(repairer.with(|steering, ground| steering.remove_departed(ground)));
        done.store(true, Ordering::Relaxed);
    });
    assert_eq!(
        delivered(&mut peer, address, &mut members),
        all_get_their_own(&members, false)
    );
    std::fs::remove_file(file).unwrap();
}

#[test]
fn a_stranger_at_the_address_is_an_error() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 74]);
    let (ours, theirs) = (file("ours"), file("theirs"));
    let stranger = Member::new(&theirs, address);
    let registry = Registry::join_at(&ours).unwrap();
    let steering = Steering::with_registry(registry, messenger(), PORT);
    let open = || UdpPort::bind(&[address], 1, config());
    let error = steering.bind(&[Some(address)], open).err().unwrap();
    assert_eq!(error.errno(), libc::EADDRINUSE);
    assert_eq!(error.address(), Some(address));
    drop(stranger);
    steering.bind(&[Some(address)], open).unwrap();
    for file in [ours, theirs] {
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn healing_is_not_to_be_had_more_often_than_needed() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 75]);
    let file = file("pause");
    let mut member = Member::new(&file, address);
    let mut now = Time::ZERO;
    let mut times = 0;
    // Forged packets come all the time, for ten seconds.
    for _ in 0..10_000 {
        if member.steering.note_misrouted(now) {
            member.with(|steering, ground| steering.repair(now, ground));
            times += 1;
        }
        now = Time::from_nanos(now.as_nanos() + 1_000_000);
    }
    assert!((10..30).contains(&times), "{times}");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn processes_that_heal_for_nothing_do_not_keep_each_other_at_it() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 85]);
    let file = file("both");
    let mut members: Vec<_> = (0..3).map(|_| Member::new(&file, address)).collect();
    let mut now = Time::ZERO;
    let mut times = 0;
    // Forged packets come to all of them all the time, for two seconds.
    for _ in 0..2_000 {
        for member in &mut members {
            if member.steering.note_misrouted(now) {
                member.with(|steering, ground| steering.repair(now, ground));
                times += 1;
            }
        }
        now = Time::from_nanos(now.as_nanos() + 1_000_000);
    }
    // Each of them as often as a single one: after 1, 2, 4, ... ms.
    assert!((3 * 5..3 * 15).contains(&times), "{times}");
    std::fs::remove_file(file).unwrap();
}

/// The kernel coalesces packets from one address and port, forged or not.
#[test]
fn what_only_looks_like_a_message_takes_no_packets_with_it() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 86]);
    let file = file("looks");
    let (mut peer, mut member) = (peer(), Member::new(&file, address));
    let mut batch = TransmitBatch::with_capacity(4096, 64);
    let bth = Bth::new(Opcode::RcSendOnly, member.number(), Psn::new(1));
    for index in 0..8 {
        let room = batch.reserve(64).unwrap();
        let len = Headers::new(bth).emit(room);
        if index == 0 {
            room[airdma_port::sharing::MARK_AT] |= airdma_port::sharing::VERSION_MASK;
        }
        batch.commit(len, destination(address));
    }
    peer.transmit(&mut batch).unwrap();
    assert_eq!(member.receive(), [(member.number(), false); 7]);
    assert_eq!(member.port.counters().rx_buffers, 1, "they came together");
    std::fs::remove_file(file).unwrap();
}

#[test]
fn those_who_do_not_answer_get_the_places_that_are_left() {
    let of = |answers: &[Option<u16>]| complete(answers.iter().copied());
    assert_eq!(of(&[None, Some(0), None, Some(2)]), [1, 0, 3, 2]);
    assert_eq!(of(&[Some(1), Some(0)]), [1, 0]);
}

#[test]
fn the_owner_of_a_datagram_is_found_as_the_program_finds_it() {
    let _alone = alone();
    let address = IpAddr::from([127, 0, 0, 76]);
    let file = file("owner");
    let mut a = Member::new(&file, address);
    let mut b = Member::new(&file, address);
    let me = a.steering.registry.me();
    let mad = |attribute: u16, first: u8, second: u8, service: u64| {
        let mut mad = vec![0; 256];
        mad[16..18].copy_from_slice(&attribute.to_be_bytes());
        mad[24] = first;
        mad[28] = second;
        mad[32..40].copy_from_slice(&service.to_be_bytes());
        mad
    };
    let seen_by_b =
        |steering: &Steering, mad: &[u8]| steering.owner_of_datagram(address.into(), mad, false);
    let (ours, theirs) = (b.range, a.range);
    for (attribute, first, second) in [(0x13, ours, theirs), (SIDR_REP, theirs, ours)] {
        let message = mad(attribute, first, second, 0);
        assert_eq!(seen_by_b(&b.steering, &message), Some(me));
        assert_eq!(
            a.steering.owner_of_datagram(address.into(), &message, true),
            None
        );
    }
    let request = mad(REQ, ours, ours, 99);
    assert_eq!(seen_by_b(&b.steering, &request), None);
    // A process with a connection manager rejects for all.
    a.with(|steering, ground| steering.manage(ground));
    assert_eq!(seen_by_b(&b.steering, &request), Some(me));
    assert_eq!(
        b.steering.owner_of_datagram(address.into(), &request, true),
        None
    );
    b.with(|steering, ground| steering.listen(99, None, ground))
        .unwrap();
    assert_eq!(seen_by_b(&b.steering, &request), None);
    assert_eq!(seen_by_b(&b.steering, &[0; 20]), None);
    std::fs::remove_file(file).unwrap();
}
