//! Flipped bits anywhere: the IP layer or the ICRC detects them, or no covered bit has changed.

use airdma_sim::{Link, Network, Random};
use airdma_transport::Time;

use crate::scene::packet;

#[test]
fn damage_is_detected_or_changes_no_covered_byte() {
    for ipv6 in [false, true] {
        let bad = Link::new().corrupt_any(0.5).truncate(0.1);
        let mut network = Network::pair(17, bad, Link::new());
        if ipv6 {
            network = network.with_ipv6();
        }
        let payload = Random::new(3).bytes(256);
        let (mut refused, mut found, mut unharmed, mut whole) = (0, 0, 0, 0);
        for _ in 0..30_000 {
            let sent = packet(&network, 0, 1, &payload);
            network.send(Time::ZERO, 0, sent.clone());
            let mut got = None;
            network.deliver(Time::ZERO, &mut |delivery| got = Some(delivery));
            let Some(got) = got else {
                refused += 1;
                continue;
            };
            assert_eq!(got.harmed, got.frame.open().is_none());
            match (got.damaged, got.harmed) {
                (false, harmed) => {
                    assert!(!harmed && got.frame == sent);
                    whole += 1;
                }
                (true, true) => found += 1,
                (true, false) => {
                    assert_eq!(got.frame.bytes[..4], sent.bytes[..4]);
                    assert_eq!(got.frame.bytes[5..], sent.bytes[5..]);
                    unharmed += 1;
                }
            }
        }
        assert!(refused > 1000 && found > 5000 && unharmed > 5 && whole > 10_000);
        assert_eq!(network.refused(1).values().sum::<u64>(), refused);
        let path = network.path(0, 1);
        assert_eq!(path.delivered, whole);
        assert!(path.lost >= 30_000 - whole);
    }
}

#[test]
fn with_a_udp_checksum_single_damage_never_reaches_the_icrc() {
    let bad = Link::new().corrupt_any(1.0);
    let mut network = Network::pair(17, bad, Link::new()).with_udp_checksums();
    let mut reached = 0;
    for _ in 0..2000 {
        let sent = packet(&network, 0, 1, &[7; 64]);
        network.send(Time::ZERO, 0, sent);
        network.deliver(Time::ZERO, &mut |delivery| {
            reached += u32::from(delivery.harmed)
        });
    }
    // Two flips that undo each other in the sum.
    assert!(reached < 60, "{reached}");
}

#[test]
fn damage_behind_the_headers_is_left_to_the_icrc() {
    for ipv6 in [false, true] {
        let mut network = Network::pair(17, Link::new().corrupt(1.0), Link::new());
        if ipv6 {
            network = network.with_ipv6();
        }
        let mut lens = Vec::new();
        for _ in 0..1000 {
            let sent = packet(&network, 0, 1, &[7; 64]);
            network.send(Time::ZERO, 0, sent);
            network.deliver(Time::ZERO, &mut |got| {
                assert!(got.damaged && got.harmed && got.frame.open().is_none());
                lens.push(got.frame.bytes.len());
            });
        }
        assert_eq!((lens.len(), network.refused(1).len()), (1000, 0));
        let cut_off = lens.iter().filter(|&&len| len < 80).count();
        assert!((80..180).contains(&cut_off), "an eighth: {cut_off}");
    }
}
