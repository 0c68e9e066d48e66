use super::*;
use airdma_wire::Bth;
use airdma_wire::sealed::SEALED_OVERHEAD;

const SECRET: &[u8] = b"a secret of hosts";
const A: u8 = 1;
const B: u8 = 2;

fn address(last: u8) -> Neighbour {
    Neighbour::from([192, 0, 2, last])
}

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * 1_000_000)
}

/// A datagram queue pair at an address.
struct Host {
    address: u8,
    number: Qpn,
    seals: DatagramSeals,
}

impl Host {
    fn new(address: u8, number: u32) -> Self {
        let number = Qpn::new(number);
        Host {
            address,
            number,
            seals: DatagramSeals::new(number),
        }
    }

    fn name_of(&self, peer: &Host) -> Name {
        self.name(peer.address, peer.number)
    }

    fn name(&self, remote: u8, number: Qpn) -> Name {
        Name {
            local: address(self.address),
            remote: address(remote),
            number,
        }
    }

    fn prepare(&mut self, name: Name, now: Time) -> Readiness {
        let to = to(name.remote);
        self.seals.prepare(name, to, now, &mut Random::kernel()).0
    }

    fn seal(&mut self, peer: &Host, payload: u8) -> Vec<u8> {
        let mut packet = vec![0x64, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, payload];
        let len = packet.len();
        packet.resize(len + SEALED_OVERHEAD, 0);
        let name = self.name_of(peer);
        let session = self.seals.session(name).expect("keys");
        session.seal(&mut packet, len).unwrap();
        packet
    }

    fn open(&mut self, from: &Host, packet: &[u8], now: Time) -> Result<u8, Unopened> {
        let mut out = [0; 64];
        let received = Received {
            source: address(from.address),
            destination: address(self.address),
            bytes: packet,
            ..received()
        };
        let (_, number) = self.seals.open(&received, &mut out, now)?;
        assert_eq!(number, from.number);
        Ok(out[Bth::LEN])
    }

    fn take(&mut self, from: u8, offer: &KeyOffer, now: Time) -> Option<bool> {
        let name = self.name(from, offer.sender);
        let random = &mut Random::kernel();
        self.seals
            .take((name, to(name.remote)), offer, SECRET, now, random)
    }
}

fn received() -> Received<'static> {
    Received {
        source: address(0),
        destination: address(0),
        source_port: 4791,
        tos: 0,
        ttl: 64,
        flow_label: 0,
        forwarded: false,
        bundled: false,
        bytes: &[],
        following: None,
    }
}

fn to(address: Neighbour) -> Destination {
    Destination {
        address,
        source_index: 0,
        tos: 0,
        hop_limit: 0,
        flow_label: 0,
        bundles: false,
    }
}

/// Delivers all offers to the other host until there are none. Returns them, with whether the first
/// host sent each.
fn exchange(a: &mut Host, b: &mut Host, now: Time) -> Vec<(bool, KeyOffer)> {
    let mut said = Vec::new();
    while said.len() < 20 {
        let before = said.len();
        while let Some((_, offer)) = a.seals.next_offer(now) {
            said.push((true, offer));
            b.take(a.address, &offer, now);
        }
        while let Some((_, offer)) = b.seals.next_offer(now) {
            said.push((false, offer));
            a.take(b.address, &offer, now);
        }
        if said.len() == before {
            return said;
        }
    }
    panic!("two hosts offer keys without end");
}

fn agreed(a: &mut Host, b: &mut Host, now: Time) -> Vec<(bool, KeyOffer)> {
    let name = a.name_of(b);
    assert_eq!(a.prepare(name, now), Readiness::Waits);
    let said = exchange(a, b, now);
    assert_eq!(a.prepare(name, now), Readiness::Leaves);
    said
}

#[test]
fn peers_agree_and_a_datagram_is_opened_once() {
    let (mut a, mut b, mut c) = (
        Host::new(A, 0x123),
        Host::new(B, 0x123),
        Host::new(A, 0x124),
    );
    agreed(&mut a, &mut b, at(0));
    agreed(&mut c, &mut b, at(0));
    for payload in 0..3 {
        let packet = a.seal(&b, payload);
        assert_eq!(c.open(&b, &packet, at(1)), Err(Unopened::Forged), "back");
        assert_eq!(b.open(&a, &packet, at(1)), Ok(payload));
        assert_eq!(b.open(&a, &packet, at(1)), Err(Unopened::Forged), "again");
        // As from another peer: its number is in the counter, which is authenticated.
        let mut other = packet.clone();
        let number = other.len() - 24;
        other[number..number + 3].copy_from_slice(&[0, 1, 0x24]);
        assert_eq!(b.open(&c, &other, at(1)), Err(Unopened::Forged));
    }
    let back = b.seal(&a, 9);
    assert_eq!(a.open(&b, &back, at(1)), Ok(9));
}

#[test]
fn datagrams_to_a_silent_peer_wait_once_in_ten_seconds() {
    let mut a = Host::new(A, 1);
    let name = a.name(B, Qpn::new(2));
    assert_eq!(a.prepare(name, at(0)), Readiness::Waits);
    assert_eq!(a.prepare(name, at(99)), Readiness::Waits);
    for ms in [100, 5_000, 9_999] {
        while a.seals.next_offer(at(ms)).is_some() {}
        assert_eq!(a.prepare(name, at(ms)), Readiness::Leaves);
        assert!(a.seals.session(name).is_none());
    }
    assert_eq!(a.prepare(name, at(10_000)), Readiness::Waits, "asked anew");
}

/// A peer keeps its place: the recorded exchange of another one with its number opens nothing.
#[test]
fn a_replayed_offer_takes_no_place() {
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    let before = agreed(&mut a, &mut b, at(0));
    let old = a.seal(&b, 1);
    // Both were restarted, and have their numbers by chance.
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    agreed(&mut a, &mut b, at(0));
    for (from_a, offer) in &before {
        let (to, from) = if *from_a { (&mut b, A) } else { (&mut a, B) };
        assert_ne!(to.take(from, offer, at(1)), Some(true));
    }
    exchange(&mut a, &mut b, at(1));
    assert!(b.open(&a, &old, at(1)).is_err());
    let packet = a.seal(&b, 5);
    assert_eq!(b.open(&a, &packet, at(2)), Ok(5));
    // Nor where no peer has its place.
    let mut b = Host::new(B, 2);
    for (_, offer) in before.iter().filter(|(from_a, _)| *from_a) {
        assert_ne!(b.take(A, offer, at(1)), Some(true));
    }
    assert_eq!(b.open(&a, &old, at(1)), Err(Unopened::NoKeys));
}

#[test]
fn a_restarted_peer_asks_and_packets_in_flight_still_arrive() {
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    agreed(&mut a, &mut b, at(0));
    let late = b.seal(&a, 7);
    // The same queue pair, as its peer sees it, without its former state.
    let mut again = Host::new(B, 2);
    agreed(&mut again, &mut a, at(5));
    let packet = again.seal(&a, 1);
    assert_eq!(a.open(&again, &packet, at(6)), Ok(1));
    assert_eq!(a.open(&b, &late, at(6)), Ok(7));
    assert!(a.open(&b, &late, at(6)).is_err());
    let back = a.seal(&again, 2);
    assert_eq!(again.open(&a, &back, at(6)), Ok(2));
}

#[test]
fn a_peer_that_is_silent_is_asked_anew() {
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    agreed(&mut a, &mut b, at(0));
    let mut again = Host::new(B, 2);
    let name = a.name_of(&again);
    let packet = a.seal(&again, 1);
    assert_eq!(again.open(&a, &packet, at(1)), Err(Unopened::NoKeys));
    a.prepare(name, at(999));
    assert!(exchange(&mut a, &mut again, at(999)).is_empty());
    assert_eq!(
        a.prepare(name, at(1_000)),
        Readiness::Leaves,
        "it does not wait"
    );
    exchange(&mut a, &mut again, at(1_000));
    let packet = a.seal(&again, 2);
    assert_eq!(again.open(&a, &packet, at(1_001)), Ok(2));
    // A peer whose packets arrive is not.
    for ms in (1_000..5_000).step_by(500) {
        let heard = again.seal(&a, 3);
        a.open(&again, &heard, at(ms)).unwrap();
        a.prepare(name, at(ms));
        assert!(exchange(&mut a, &mut again, at(ms)).is_empty());
    }
}

#[test]
fn counters_of_one_key_end_before_they_reach_the_number() {
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    agreed(&mut a, &mut b, at(0));
    let name = a.name_of(&b);
    let session = a.seals.session(name).unwrap();
    assert_eq!(session.counter(), 1 << COUNTER_BITS);
    session.count_from((1 << COUNTER_BITS) + RENEW_DATAGRAMS);
    a.prepare(name, at(1));
    exchange(&mut a, &mut b, at(1));
    assert_eq!(a.seals.session(name).unwrap().counter(), 1 << COUNTER_BITS);
    let packet = a.seal(&b, 4);
    assert_eq!(b.open(&a, &packet, at(2)), Ok(4));
}

/// A host that replays offers, or one that knows the secret, fills the table with any number of
/// names.
#[test]
fn peers_are_bounded_and_those_without_keys_go_first() {
    let (mut a, mut b) = (Host::new(A, 1), Host::new(B, 2));
    agreed(&mut a, &mut b, at(0));
    let mut asking = Host::new(3, 0);
    for number in 0..2 * DATAGRAM_PEERS_MAX as u32 {
        asking.seals = DatagramSeals::new(Qpn::new(number + 10));
        asking.number = Qpn::new(number + 10);
        let name = asking.name_of(&b);
        asking.prepare(name, at(1));
        let (_, offer) = asking.seals.next_offer(at(1)).unwrap();
        assert_eq!(b.take(3, &offer, at(1)), Some(false));
        assert!(b.seals.peers.len() <= DATAGRAM_PEERS_MAX);
        assert!(b.seals.next_offer(at(1)).is_some(), "one answer");
        assert!(b.seals.next_offer(at(1)).is_none());
    }
    assert_eq!(b.seals.peers.len(), DATAGRAM_PEERS_MAX);
    let packet = a.seal(&b, 6);
    assert_eq!(b.open(&a, &packet, at(2)), Ok(6), "it has its keys");
}
