#![allow(clippy::unwrap_used)]

use std::net::{Ipv4Addr, Ipv6Addr};

use proptest::prelude::*;

use super::*;

/// The attribute ids and the bits of each message that are reserved in all its bodies: `(first bit,
/// bits)`.
const MESSAGES: [(u16, &[(usize, usize)]); 9] = [
    (
        REQ,
        &[
            (32, 32),
            (192, 32),
            (724, 6),
            (757, 3),
            (765, 3),
            (1076, 6),
            (1109, 3),
            (1117, 3),
        ],
    ),
    (MRA, &[(66, 6), (77, 3)]),
    (REJ, &[(66, 6), (79, 1)]),
    (REP, &[(120, 8), (152, 8), (184, 8), (220, 4)]),
    (RTU, &[]),
    (DREQ, &[(88, 8)]),
    (DREP, &[]),
    (SIDR_REQ, &[(48, 16)]),
    (SIDR_REP, &[(48, 16), (88, 8)]),
];

fn mad(attribute: u16, transaction: u64, body: &Body) -> [u8; MAD_LEN] {
    let header = MadHeader {
        class: CmMad::CLASS,
        class_version: CmMad::CLASS_VERSION,
        method: METHOD_SEND,
        status: 0,
        class_specific: 0,
        transaction,
        attribute,
        modifier: 0,
    };
    header.emit(body)
}

fn clear(bytes: &mut [u8], first_bit: usize, bits: usize) {
    for bit in first_bit..first_bit + bits {
        bytes[bit / 8] &= !(0x80 >> (bit % 8));
    }
}

/// Any body of that message whose checked fields are good.
fn body(attribute: u16) -> impl Strategy<Value = Body> {
    let bytes = prop::collection::vec(any::<u8>(), MAD_BODY_LEN);
    (bytes, 1u8..=5, 0u8..=72).prop_map(move |(bytes, mtu, info_len)| {
        let mut body: Body = bytes.try_into().unwrap();
        match attribute {
            REQ => body[50] = mtu << 4 | body[50] & 0xf,
            REJ => body[9] = info_len << 1,
            SIDR_REP => body[5] = info_len,
            _ => {}
        }
        body
    })
}

fn any_mad() -> impl Strategy<Value = (usize, [u8; MAD_LEN])> {
    (0..MESSAGES.len(), any::<u64>()).prop_flat_map(|(i, transaction)| {
        let attribute = MESSAGES[i].0;
        body(attribute).prop_map(move |body| (i, mad(attribute, transaction, &body)))
    })
}

proptest! {
    /// Every bit that is not reserved is read and written back.
    #[test]
    fn a_message_is_written_as_it_was_read_except_for_reserved_bits((i, bytes) in any_mad()) {
        let parsed = CmMad::parse(&bytes).unwrap();
        prop_assert_eq!(parsed.message.attribute(), MESSAGES[i].0);
        let mut expected = bytes;
        for &(first_bit, bits) in MESSAGES[i].1 {
            clear(&mut expected[MadHeader::LEN..], first_bit, bits);
        }
        prop_assert_eq!(parsed.emit(), expected);
        prop_assert_eq!(CmMad::parse(&parsed.emit()), Ok(parsed));
    }

    /// The vendor id of enhanced connection establishment (ECE) and its attribute modifier are
    /// zero.
    #[test]
    fn no_message_names_a_vendor((i, bytes) in any_mad()) {
        let places: &[usize] = match MESSAGES[i].0 {
            REQ => &[5, 6, 7],
            REP => &[15, 19, 23],
            SIDR_REP => &[6, 7, 11],
            _ => &[],
        };
        let emitted = CmMad::parse(&bytes).unwrap().emit();
        for &at in places {
            prop_assert_eq!(emitted[MadHeader::LEN + at], 0);
        }
        prop_assert_eq!(&emitted[20..MadHeader::LEN], &[0; 4]);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        prop_assert!(CmMad::parse(&bytes).is_err());
    }

    #[test]
    fn addressing_reads_back_as_it_was_written(
        v6 in any::<bool>(),
        src in any::<[u8; 16]>(),
        dst in any::<[u8; 16]>(),
        src_port in any::<u16>(),
    ) {
        let short = |bytes: [u8; 16]| <[u8; 4]>::try_from(&bytes[..4]).unwrap();
        let addressing = if v6 {
            IpAddressing::V6 { src_port, src: src.into(), dst: dst.into() }
        } else {
            IpAddressing::V4 { src_port, src: short(src).into(), dst: short(dst).into() }
        };
        prop_assert_eq!(IpAddressing::from_bytes(&addressing.to_bytes()), Ok(addressing));
        let again = IpAddressing::new(addressing.src(), src_port, addressing.dst());
        prop_assert_eq!(again, Some(addressing));
    }
}

#[test]
fn what_is_wrong_with_a_datagram_is_said() {
    let good = mad(RTU, 1, &[0; MAD_BODY_LEN]);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        CmMad::parse(&bytes).unwrap_err()
    };
    assert!(CmMad::parse(&good).is_ok());
    assert_eq!(CmMad::parse(&good[..255]), Err(MadError::Length(255)));
    assert_eq!(CmMad::parse(&[]), Err(MadError::Length(0)));
    assert_eq!(with(0, 2), MadError::BaseVersion(2));
    assert_eq!(with(1, 3), MadError::Class(3));
    assert_eq!(with(2, 1), MadError::ClassVersion(1));
    assert_eq!(with(3, 1), MadError::Method(1));
    assert_eq!(with(17, 0x19), MadError::Attribute(0x19));
    assert_eq!(with(17, 0x10), MadError::PathMtu(0));

    let mut body = [0; MAD_BODY_LEN];
    body[9] = 73 << 1;
    let rej = CmMad::parse(&mad(REJ, 1, &body));
    assert_eq!(rej, Err(MadError::InfoLength(73)));
    body[5] = 73;
    let sidr = CmMad::parse(&mad(SIDR_REP, 1, &body));
    assert_eq!(sidr, Err(MadError::InfoLength(73)));

    let mut addressing = [0; IpAddressing::LEN];
    let of = |bytes: &[u8; IpAddressing::LEN]| IpAddressing::from_bytes(bytes);
    assert_eq!(of(&addressing), Err(MadError::IpVersion(0)));
    addressing[0] = 0x10;
    assert_eq!(of(&addressing), Err(MadError::AddressingVersion(0x10)));
}

#[test]
fn addresses_of_two_families_do_not_talk() {
    let (v4, v6) = (Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into());
    assert_eq!(IpAddressing::new(v4, 1, v6), None);
    assert_eq!(IpAddressing::new(v6, 1, v4), None);
}

#[test]
fn reasons_and_services_print_for_people() {
    assert_eq!(RejReason::CONSUMER.to_string(), "consumer (28)");
    // The reasons that have a name here.
    let named: Vec<u16> = (0..100)
        .filter(|&reason| !RejReason(reason).to_string().starts_with("other"))
        .collect();
    assert_eq!(named, [1, 3, 4, 5, 6, 8, 9, 10, 12, 26, 28]);
    let service = ServiceId::of_port(PortSpace::TCP, 80);
    assert_eq!(format!("{service:?}"), "ServiceId(0x0000000001060050)");
}

#[test]
fn ports_are_service_ids_and_back() {
    let id = ServiceId::of_port(PortSpace::TCP, 7174);
    assert_eq!(id, ServiceId(0x0106_1c06));
    assert_eq!(id.port(), Some((PortSpace::TCP, 7174)));
    assert_eq!(ServiceId(0x0111_0001).port(), Some((PortSpace::UDP, 1)));
    assert_eq!(ServiceId(0x1_0106_1c06).port(), None);
    assert_eq!(ServiceId(0x0206_1c06).port(), None);
}
