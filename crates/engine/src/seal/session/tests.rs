use super::*;
use airdma_wire::sealed::SEALED_OVERHEAD;
use std::collections::HashSet;

fn key() -> (PrivateKey, PublicKey) {
    let private = PrivateKey::draw(&mut Random::kernel());
    let public = private.public();
    (private, public)
}

/// RFC 7748 5.2.
#[test]
fn the_keys_of_the_specification_give_its_secret() {
    let bytes = |text: &str| -> [u8; 32] {
        std::array::from_fn(|at| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap())
    };
    let scalar = bytes("a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4");
    let point = bytes("e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c");
    let secret = bytes("c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552");
    assert_eq!(PrivateKey(scalar).agree(&point), Some(secret));
}

fn pair_with(left: &[u8], right: &[u8]) -> (Session, Session) {
    let ((a, ours), (b, peers)) = (key(), key());
    (
        Session::agree(a, &ours, &peers, left).unwrap(),
        Session::agree(b, &peers, &ours, right).unwrap(),
    )
}

/// A BTH and a payload.
fn packet(payload: &[u8]) -> Vec<u8> {
    [
        &[4, 0x40, 0xff, 0xff, 0, 0x51, 0x23, 0x45, 0x80, 0, 0, 7],
        payload,
    ]
    .concat()
}

fn seal(session: &mut Session, packet: &[u8]) -> Vec<u8> {
    let mut sealed = packet.to_vec();
    sealed.resize(packet.len() + SEALED_OVERHEAD, 0);
    let len = session.seal(&mut sealed, packet.len()).unwrap();
    assert_eq!(len, sealed.len());
    sealed
}

fn open(session: &mut Session, sealed: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; 256];
    let len = session.open(sealed, &mut out)?;
    Some(out[..len].to_vec())
}

#[test]
fn both_ends_open_what_the_other_sealed() {
    let (mut left, mut right) = pair_with(b"", b"");
    assert_eq!(left.binding(), right.binding());
    for payload in [&b""[..], b"1234", &[7; 96]] {
        let plain = packet(payload);
        let there = seal(&mut left, &plain);
        assert_ne!(there[12..12 + payload.len() + 4], plain[12..]);
        assert_eq!(open(&mut right, &there), Some(plain.clone()));
        let back = seal(&mut right, &plain);
        assert_eq!(open(&mut left, &back), Some(plain));
        assert_eq!(open(&mut right, &back), None, "its own");
    }
}

#[test]
fn any_changed_bit_but_congestion_marks_is_detected() {
    let (mut left, mut right) = pair_with(b"", b"");
    let sealed = seal(&mut left, &packet(b"12345678"));
    for bit in 0..sealed.len() * 8 {
        let mut changed = sealed.clone();
        changed[bit / 8] ^= 1 << (bit % 8);
        let opened = open(&mut right, &changed);
        // Byte 4 has FECN and BECN, which routers set.
        assert_eq!(opened.is_some(), bit / 8 == 4 && bit == 4 * 8, "bit {bit}");
        if opened.is_some() {
            break;
        }
    }
    for end in 0..sealed.len() {
        assert_eq!(open(&mut right, &sealed[..end]), None, "{end} bytes");
    }
}

#[test]
fn a_packet_is_opened_once_in_whatever_order_it_comes() {
    let (mut left, mut right) = pair_with(b"", b"");
    let sealed: Vec<_> = (0..9000u32)
        .map(|number| seal(&mut left, &packet(&number.to_be_bytes())))
        .collect();
    let mut open = |at: usize| open(&mut right, &sealed[at]).is_some();
    assert!(open(700) && open(3) && open(699) && open(0));
    assert!(!open(700) && !open(3) && !open(0));
    assert!(open(8999) && !open(8999) && !open(700));
    let oldest = 9000 - WINDOW_PACKETS as usize;
    assert!(open(oldest) && !open(oldest));
    assert!(!open(oldest - 1), "older than the window");
}

#[test]
fn the_window_agrees_with_a_set() {
    let mut window = Window::default();
    let mut seen = HashSet::new();
    let (mut state, mut end) = (7u64, 0);
    for _ in 0..100_000 {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let step = state >> 33;
        let counter = match step % 64 {
            0 => end + step % 20_000,
            _ => (end + 3).saturating_sub(step % (WINDOW_PACKETS + 100)),
        };
        let is_old = counter < end && end - counter > WINDOW_PACKETS;
        assert_eq!(
            window.is_fresh(counter),
            !is_old && !seen.contains(&counter)
        );
        if window.is_fresh(counter) {
            window.note(counter);
            seen.insert(counter);
            end = end.max(counter + 1);
        }
    }
    assert!(!window.is_fresh(u64::MAX), "the next one would be 0");
}

#[test]
fn another_secret_and_a_man_in_the_middle_share_no_keys() {
    let (mut left, mut right) = pair_with(b"one", b"another");
    assert_ne!(left.binding(), right.binding());
    let sealed = seal(&mut left, &packet(b""));
    assert_eq!(open(&mut right, &sealed), None);
    let ((a, ours), (b, peers), (c, middle)) = (key(), key(), key());
    let left = Session::agree(a, &ours, &middle, b"").unwrap();
    let right = Session::agree(b, &peers, &middle, b"").unwrap();
    let one_side = Session::agree(c, &middle, &ours, b"").unwrap();
    assert_eq!(one_side.binding(), left.binding());
    assert_ne!(left.binding(), right.binding(), "what reveals it");
}

#[test]
fn a_key_that_comes_back_or_is_weak_is_refused() {
    let (private, ours) = key();
    assert!(Session::agree(private, &ours, &ours, b"").is_none());
    let (private, ours) = key();
    assert!(Session::agree(private, &ours, &[0; 32], b"").is_none());
}

#[test]
fn no_counter_is_used_twice_and_a_packet_without_room_uses_none() {
    let (mut left, _) = pair_with(b"", b"");
    let mut short = packet(b"");
    assert_eq!(left.seal(&mut short, 12), None);
    let counters: Vec<_> = (0..3)
        .map(|_| {
            let sealed = seal(&mut left, &packet(b""));
            Sealed::parse(&sealed).unwrap().counter
        })
        .collect();
    assert_eq!(counters, [0, 1, 2]);
}
