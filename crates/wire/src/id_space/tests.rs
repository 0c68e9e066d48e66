#![allow(clippy::unwrap_used)]

use std::net::Ipv4Addr;

use proptest::prelude::*;

use super::*;
use crate::{IpPseudo, ROCE_PORT, icrc};

fn icrc_with(id: u16, dont_fragment: bool, transport: &[u8]) -> u32 {
    let src = Ipv4Addr::new(10, 5, 0, 1);
    let dst = Ipv4Addr::new(10, 5, 0, 2);
    icrc(
        &IpPseudo::V4 {
            src,
            dst,
            id,
            dont_fragment,
        },
        0xc123,
        ROCE_PORT,
        transport,
    )
}

proptest! {
    #[test]
    fn the_image_is_what_the_identification_does_to_the_icrc(
        id in any::<u16>(),
        transport in prop::collection::vec(any::<u8>(), 0..2000),
    ) {
        let difference = icrc_with(id, true, &transport) ^ icrc_with(0, true, &transport);
        let space = IdSpace::for_transport_len(transport.len());
        prop_assert_eq!(space.image(id), difference);
        prop_assert_eq!(space.recover(difference), Some(id));
    }

    #[test]
    fn what_is_recovered_explains_the_difference(
        difference in any::<u32>(),
        len in 0usize..70_000,
    ) {
        let space = IdSpace::for_transport_len(len);
        if let Some(id) = space.recover(difference) {
            prop_assert_eq!(space.image(id), difference);
        }
    }

    #[test]
    fn powers_of_x_add_their_exponents(a in 0..ORDER_OF_X, b in 0..ORDER_OF_X) {
        let (pa, pb) = (power_of_x(a), power_of_x(b));
        prop_assert_eq!(times(pa, pb), power_of_x((a + b) % ORDER_OF_X));
        prop_assert_eq!(times(pa, power_of_x(ORDER_OF_X - a)), ONE);
        prop_assert_eq!(times_x(pa), power_of_x(a + 1));
    }
}

#[test]
fn every_identification_is_recovered() {
    for len in [16, 28, 1040, 4124] {
        let space = IdSpace::for_transport_len(len);
        assert!(
            (0..=u16::MAX).all(|id| space.recover(space.image(id)) == Some(id)),
            "{len}"
        );
    }
}

/// 2^16 of the 2^32 differences are images; of 2^16 others, at most a few may be.
#[test]
fn other_differences_have_no_identification() {
    let space = IdSpace::for_transport_len(1036);
    // One bit outside the space moves all of its elements out of it.
    let outside = (0..32)
        .map(|bit| 1 << bit)
        .find(|&d| space.recover(d).is_none())
        .unwrap();
    assert!((0..=u16::MAX).all(|id| space.recover(space.image(id) ^ outside).is_none()));

    let found = (0..1_u32 << 16)
        .filter(|i| space.recover(i.wrapping_mul(0x9e37_79b9)).is_some())
        .count();
    assert!(
        found < 12,
        "{found} of 2^16 arbitrary differences; 1 is expected"
    );
}

#[test]
fn a_cleared_dont_fragment_bit_has_no_identification() {
    for len in [12, 16, 76, 1036] {
        let transport = vec![0x11; len];
        let difference = icrc_with(0, false, &transport) ^ icrc_with(0, true, &transport);
        assert_eq!(IdSpace::for_transport_len(len).recover(difference), None);
    }
}

/// Bit `i` behind the identification changes the ICRC by x^-i times the effect of x^0 of the
/// identification, whatever follows.
#[test]
fn no_flipped_bit_behind_it_looks_like_an_identification() {
    let bits = 8 * 9000;
    // The identification of the longest packet, so that all those bits lie behind it.
    let space = IdSpace::for_transport_len(9000);
    let x0 = space.images[15];
    assert_eq!(space.recover(x0), Some(1 << 7));

    let mut difference = x0;
    for i in 1..=bits {
        difference = times(difference, power_of_x(ORDER_OF_X - 1));
        assert_eq!(space.recover(difference), None, "{i} bits behind");
    }
}

#[test]
fn spaces_are_kept_by_length() {
    let mut spaces = IdSpaces::new(4124);
    for len in [12, 16, 4124] {
        let expected = IdSpace::for_transport_len(len);
        assert_eq!(spaces.for_transport_len(len), Some(&expected));
        assert_eq!(spaces.recover(len, expected.image(0x718c)), Some(0x718c));
    }
    let first = std::ptr::from_ref(spaces.for_transport_len(16).unwrap());
    let again = std::ptr::from_ref(spaces.for_transport_len(16).unwrap());
    assert_eq!(first, again);
    for len in [13, 14, 15, 4128, usize::MAX] {
        assert_eq!(spaces.for_transport_len(len), None);
        assert_eq!(spaces.recover(len, 0), None);
    }
}
