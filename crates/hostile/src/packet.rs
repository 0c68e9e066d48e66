//! Parsing packets: whatever the bytes are, and the same bytes made to look like a packet.

use airdma_wire::{AtomicEth, Bth, HEADERS_LEN_MAX, Headers, Opcode, Packet, ParseError};

/// Parses the bytes as they are, and again with a known opcode, version 0 and whole words.
pub fn run(data: &[u8]) {
    check(data);
    let mut bytes = data.to_vec();
    bytes.resize(data.len().next_multiple_of(4), 0);
    if let [opcode, flags, ..] = &mut bytes[..] {
        *opcode = Opcode::ALL[usize::from(*opcode) % Opcode::ALL.len()] as u8;
        *flags &= 0xf0;
    }
    check(&bytes);
}

fn check(data: &[u8]) {
    match Packet::parse(data) {
        Ok(packet) => check_packet(data, &packet),
        Err(error) => check_refusal(data, error),
    }
}

fn check_packet(data: &[u8], packet: &Packet<'_>) {
    let headers = &packet.headers;
    let headers_len = headers.len();
    assert!(headers.fit_opcode(), "{headers:?}");
    assert!(headers_len <= HEADERS_LEN_MAX);
    let padded = packet.payload.len() + usize::from(headers.bth.pad);
    assert_eq!(headers_len + padded, data.len());
    assert_eq!(
        packet.payload,
        &data[headers_len..data.len() - usize::from(headers.bth.pad)]
    );

    let mut emitted = vec![0; data.len()];
    assert_eq!(headers.emit(&mut emitted), headers_len);
    let mut expected = data[..headers_len].to_vec();
    clear_reserved(headers, &mut expected);
    assert_eq!(emitted[..headers_len], expected);
    emitted[headers_len..].copy_from_slice(&data[headers_len..]);
    assert_eq!(Packet::parse(&emitted).as_ref(), Ok(packet));
}

/// The bits that no header gives a meaning are sent as zero (IBTA 9.2 and 9.3).
fn clear_reserved(headers: &Headers, bytes: &mut [u8]) {
    bytes[4] &= 0xc0;
    bytes[8] &= 0x80;
    if headers.deth.is_some() {
        bytes[Bth::LEN + 4] = 0;
    }
    if headers.xrceth.is_some() {
        bytes[Bth::LEN] = 0;
    }
}

fn check_refusal(data: &[u8], error: ParseError) {
    let longest = HEADERS_LEN_MAX.max(Bth::LEN + AtomicEth::LEN);
    match error {
        ParseError::Truncated => assert!(data.len() < longest),
        ParseError::UnknownOpcode(opcode) => {
            assert!(data[0] == opcode && Opcode::try_from(opcode).is_err());
        }
        ParseError::BadVersion(version) => assert!(version != 0 && version == data[1] & 0x0f),
        ParseError::BadPad => assert!(data[1] >> 4 & 3 != 0),
        ParseError::BadLength => assert!(!data.len().is_multiple_of(4)),
    }
}
