#![allow(clippy::unwrap_used)]

use super::*;

/// The rules of the specification on operation numbers (IBTA table 39), written a second time, in
/// another form than the table under test.
struct Expected {
    operations: std::ops::RangeInclusive<u8>,
    reserved: &'static [u8],
}

#[test]
fn the_valid_bytes_are_those_of_the_specification() {
    let classes = [
        (
            0x00,
            Expected {
                operations: 0x00..=0x1d,
                reserved: &[0x15, 0x18, 0x19, 0x1a, 0x1b],
            },
        ),
        (
            0xa0,
            Expected {
                operations: 0x00..=0x1d,
                reserved: &[0x15, 0x18, 0x19, 0x1a, 0x1b],
            },
        ),
        (
            0x20,
            Expected {
                operations: 0x00..=0x0b,
                reserved: &[],
            },
        ),
        (
            0x60,
            Expected {
                operations: 0x04..=0x05,
                reserved: &[],
            },
        ),
        (
            0x80,
            Expected {
                operations: 0x01..=0x01,
                reserved: &[],
            },
        ),
    ];
    for byte in 0..=u8::MAX {
        let (class, operation) = (byte & 0xe0, byte & 0x1f);
        let valid = classes.iter().any(|(c, expected)| {
            *c == class
                && expected.operations.contains(&operation)
                && !expected.reserved.contains(&operation)
        });
        let parsed = Opcode::try_from(byte);
        assert_eq!(parsed.is_ok(), valid, "{byte:#04x}");
        match parsed {
            Ok(opcode) => assert_eq!(opcode as u8, byte),
            Err(error) => assert_eq!(error, UnknownOpcode(byte)),
        }
    }
    assert_eq!(Opcode::ALL.len(), 25 + 12 + 2 + 25 + 1);
}

#[test]
fn the_operation_number_decides_what_a_packet_carries() {
    for &opcode in Opcode::ALL {
        if opcode == Opcode::Cnp {
            continue;
        }
        let operation = opcode as u8 & 0x1f;
        let is = |numbers: &[u8]| numbers.contains(&operation);
        let name = opcode.name();
        assert_eq!(opcode.is_first(), is(&[0x00, 0x06, 0x0d]), "{name}");
        assert_eq!(opcode.is_middle(), is(&[0x01, 0x07, 0x0e]), "{name}");
        assert_eq!(
            opcode.is_last(),
            is(&[0x02, 0x03, 0x08, 0x09, 0x0f, 0x16]),
            "{name}"
        );
        assert_eq!(
            opcode.is_only(),
            is(&[0x04, 0x05, 0x0a, 0x0b, 0x10, 0x17]),
            "{name}"
        );
        assert_eq!(
            opcode.is_send(),
            operation <= 0x05 || is(&[0x16, 0x17]),
            "{name}"
        );
        assert_eq!(
            opcode.is_write(),
            (0x06..=0x0b).contains(&operation),
            "{name}"
        );
        assert_eq!(
            opcode.is_read_response(),
            (0x0d..=0x10).contains(&operation),
            "{name}"
        );
        assert_eq!(
            opcode.is_request(),
            !(0x0d..=0x12).contains(&operation),
            "{name}"
        );
        assert_eq!(
            opcode.has_reth(),
            is(&[0x06, 0x0a, 0x0b, 0x0c, 0x1c, 0x1d]),
            "{name}"
        );
        assert_eq!(opcode.has_feth(), is(&[0x1c]), "{name}");
        assert_eq!(opcode.has_imm(), is(&[0x03, 0x05, 0x09, 0x0b]), "{name}");
        assert_eq!(
            opcode.has_aeth(),
            is(&[0x0d, 0x0f, 0x10, 0x11, 0x12]),
            "{name}"
        );
        assert_eq!(opcode.has_atomic_ack(), is(&[0x12]), "{name}");
        assert_eq!(opcode.has_atomic_eth(), is(&[0x13, 0x14]), "{name}");
        assert_eq!(opcode.has_ieth(), is(&[0x16, 0x17]), "{name}");
        assert_eq!(
            opcode.has_deth(),
            opcode.transport() == Transport::Ud,
            "{name}"
        );
        assert_eq!(
            opcode.has_xrceth(),
            opcode.transport() == Transport::Xrc && opcode.is_request(),
            "{name}"
        );
    }
}

#[test]
fn a_cnp_carries_nothing_and_has_no_place_in_a_message() {
    let cnp = Opcode::Cnp;
    assert_eq!(cnp.transport(), Transport::Cnp);
    assert!(!cnp.is_first() && !cnp.is_middle() && !cnp.is_last() && !cnp.is_only());
    assert!(!cnp.is_send() && !cnp.is_write() && !cnp.is_read_response() && !cnp.is_request());
    assert!(!cnp.has_xrceth());
    assert!(!cnp.has_deth() && !cnp.has_reth() && !cnp.has_atomic_eth() && !cnp.has_aeth());
    assert!(!cnp.has_atomic_ack() && !cnp.has_imm() && !cnp.has_ieth());
}

#[test]
fn the_class_bits_are_the_transport() {
    for &opcode in Opcode::ALL {
        let transport = match opcode as u8 >> 5 {
            0b000 => Transport::Rc,
            0b001 => Transport::Uc,
            0b011 => Transport::Ud,
            0b101 => Transport::Xrc,
            _ => Transport::Cnp,
        };
        assert_eq!(opcode.transport(), transport);
    }
}

#[test]
fn an_operation_is_found_on_every_service_that_has_it() {
    let write = Opcode::RcWriteFirst;
    assert_eq!(write.on(Transport::Uc), Some(Opcode::UcWriteFirst));
    assert_eq!(write.on(Transport::Xrc), Some(Opcode::XrcWriteFirst));
    assert_eq!(write.on(Transport::Ud), None);
    assert_eq!(write.on(Transport::Cnp), None);
    assert_eq!(Opcode::RcReadRequest.on(Transport::Uc), None);
    assert_eq!(Opcode::RcSendOnlyInvalidate.on(Transport::Uc), None);
    for &opcode in Opcode::ALL {
        match opcode.transport() {
            Transport::Rc | Transport::Xrc => {
                let other = opcode.on(Transport::Xrc).unwrap();
                assert_eq!(other.on(opcode.transport()), Some(opcode));
                assert_eq!(opcode.on(Transport::Rc).unwrap() as u8, other as u8 & 0x1f);
            }
            Transport::Uc | Transport::Ud => {
                assert_eq!(opcode.on(opcode.transport()), Some(opcode));
            }
            Transport::Cnp => {}
        }
    }
}

#[test]
fn names_say_service_and_operation() {
    assert_eq!(Opcode::RcSendOnlyImm.to_string(), "RC_SEND_ONLY_IMM");
    assert_eq!(
        Opcode::try_from(0x17).unwrap().name(),
        "RC_SEND_ONLY_INVALIDATE"
    );
    let mut names: Vec<_> = Opcode::ALL.iter().map(|opcode| opcode.name()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), Opcode::ALL.len());
}
