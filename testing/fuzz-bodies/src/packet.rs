//! Parsing packets: whatever the bytes are, and the same bytes made to look like a packet, a bundle
//! of packets, a packet of a Write-Record, an answer to one, or a request to read.

use airdma_wire::bundle::{
    BUNDLE_HEADER_LEN, BUNDLE_OPCODE, BUNDLE_PACKETS_MAX, Bundle, bundle_header,
};
use airdma_wire::padded::{PADDING_MIN, may_be_padded, pad_packet};
use airdma_wire::{
    AtomicEth, Bth, Deth, HEADERS_LEN_MAX, Headers, Opcode, Packet, ParseError, Qpn,
    READ_RANGES_MAX, RECORD_ACK_LEN, RECORD_ACK_OPCODE, RECORD_ECHO_LEN, RECORD_ECHO_OPCODE,
    RECORD_OPCODE, RECORD_READ_LEN, RECORD_READ_OPCODE, RecordAck, RecordEcho, RecordPacket,
    RecordRead, Reth, XrcEth,
};

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
    check(&like_a_padded(bytes));
    check_bundle(data);
    check_bundle(&like_a_bundle(data));
    check_record(data);
    check_record(&like_a_record(data));
    check_record_echo(data);
    check_record_echo(&like_a_record_echo(data));
    check_answer(data);
    check_answer(&like_an_answer(data));
    check_read(data);
    check_read(&like_a_read(data));
}

/// Where a packet of a Write-Record has its version and flags.
const RECORD_FLAGS_AT: usize = Bth::LEN + Deth::LEN + Reth::LEN + 10;

/// The bytes in whole words, with an opcode and versions that fit.
fn like_a_record(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(data.len().next_multiple_of(4), 0);
    if let [opcode, flags, ..] = &mut bytes[..] {
        *opcode = RECORD_OPCODE;
        *flags &= 0xf0;
    }
    if let Some(flags) = bytes.get_mut(RECORD_FLAGS_AT) {
        *flags = *flags & 0x0f | 0x10;
    }
    bytes
}

/// What is read of a packet of a Write-Record is written as it was, but for what is reserved.
fn check_record(data: &[u8]) {
    let Ok(packet) = RecordPacket::parse(data) else {
        return;
    };
    let headers = &packet.headers;
    let padded = packet.payload.len() + usize::from(headers.bth.pad);
    assert_eq!(headers.len() + padded, data.len());
    assert_eq!(
        packet.payload,
        &data[headers.len()..data.len() - usize::from(headers.bth.pad)]
    );
    let mut emitted = data.to_vec();
    assert_eq!(headers.emit(&mut emitted), headers.len());
    assert_eq!(
        RecordPacket::parse(&emitted).map(|read| read.payload),
        Ok(packet.payload)
    );
    let mut expected = data.to_vec();
    expected[4] &= 0xc0;
    expected[8] &= 0x80;
    expected[Bth::LEN + 4] = 0;
    assert_eq!(emitted, expected);
}

/// Where an answer has its version and kind.
const ANSWER_KIND_AT: usize = 36;

/// The bytes in the length of an answer, with an opcode and versions that fit.
fn like_an_answer(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(RECORD_ACK_LEN, 0);
    bytes[0] = RECORD_ACK_OPCODE;
    bytes[1] &= 0xf0;
    bytes[ANSWER_KIND_AT] = bytes[ANSWER_KIND_AT] & 0x0f | 0x10;
    bytes
}

/// What is read of an answer is written as it was, but for what is reserved.
fn check_answer(data: &[u8]) {
    let Ok(answer) = RecordAck::parse(data) else {
        return;
    };
    let mut emitted = data.to_vec();
    assert_eq!(answer.emit(&mut emitted), data.len());
    let mut expected = data.to_vec();
    expected[4] &= 0xc0;
    expected[8] &= 0x80;
    expected[Bth::LEN + 4] = 0;
    expected[ANSWER_KIND_AT + 2..][..2].fill(0);
    assert_eq!(emitted, expected);
}

/// The bytes with an opcode, versions and a number of ranges that fit.
fn like_a_read(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(data.len().max(RECORD_READ_LEN).next_multiple_of(8), 0);
    let ranges = ((bytes.len() - RECORD_READ_LEN) / 8).min(READ_RANGES_MAX);
    bytes.truncate(RECORD_READ_LEN + 8 * ranges);
    bytes[0] = RECORD_READ_OPCODE;
    bytes[1] &= 0xf0;
    bytes[62] = 0x10 | bytes[62] & 3;
    if ranges > 0 {
        bytes[62] = 0x10;
    }
    bytes[63] = ranges as u8;
    bytes
}

/// What is read of a request to read is written as it was, but for what is reserved.
fn check_read(data: &[u8]) {
    let Ok(read) = RecordRead::parse(data) else {
        return;
    };
    let mut emitted = data.to_vec();
    assert_eq!(read.emit(&mut emitted), data.len());
    let mut expected = data.to_vec();
    expected[4] &= 0xc0;
    expected[8] &= 0x80;
    expected[Bth::LEN + 4] = 0;
    assert_eq!(emitted, expected);
}

/// The bytes in the length of an answer to such a packet, with an opcode and versions that fit.
fn like_a_record_echo(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    bytes.resize(RECORD_ECHO_LEN, 0);
    bytes[0] = RECORD_ECHO_OPCODE;
    bytes[1] &= 0xf0;
    bytes[RECORD_ECHO_LEN - 4] = 0x10 | bytes[RECORD_ECHO_LEN - 4] & 0x0f;
    bytes
}

/// What is read of an answer to such a packet is written again, and reads the same.
fn check_record_echo(data: &[u8]) {
    if let Ok(echo) = RecordEcho::parse(data) {
        assert_eq!(data.len(), RECORD_ECHO_LEN);
        assert_eq!(RecordEcho::parse(&echo.to_bytes()), Ok(echo));
    }
}

/// Whatever a bundle is made of, its packets are all that is behind its header.
fn check_bundle(data: &[u8]) {
    let Some(bundle) = Bundle::parse(data) else {
        return;
    };
    let packets: Vec<_> = bundle.packets().collect();
    let (bytes, segment) = bundle.segments();
    assert_eq!(bytes, &data[BUNDLE_HEADER_LEN..]);
    assert_eq!(packets.concat(), bytes);
    let first = Qpn::new(u32::from_be_bytes([0, data[5], data[6], data[7]]));
    let header = bundle_header(segment as u16, packets.len(), first);
    assert_eq!(header, data[..BUNDLE_HEADER_LEN]);
}

/// The bytes with a header that fits them, if there is one.
fn like_a_bundle(data: &[u8]) -> Vec<u8> {
    let mut bytes = data.to_vec();
    if let [opcode, reserved, high, low, packets, _, _, _, body @ ..] = &mut bytes[..] {
        let segment = 16 + usize::from(*low);
        let needed = body.len().div_ceil(segment);
        [*high, *low] = (segment as u16).to_be_bytes();
        (*opcode, *reserved, *packets) = (BUNDLE_OPCODE, 0, needed as u8);
        let fits = (1..=BUNDLE_PACKETS_MAX).contains(&needed);
        assert_eq!(Bundle::parse(&bytes).is_some(), fits);
    }
    bytes
}

/// The bytes with a version and a padding that fit, where the input does not forbid it.
fn like_a_padded(mut bytes: Vec<u8>) -> Vec<u8> {
    let padding = bytes.last().copied().unwrap_or(0);
    let room = bytes.len().saturating_sub(2);
    if (PADDING_MIN..room).contains(&usize::from(padding)) && bytes.len() > 1 {
        pad_packet(&mut bytes, padding.into());
    }
    bytes
}

fn check(data: &[u8]) {
    match Packet::parse(data) {
        Ok(packet) => check_packet(data, &packet),
        Err(error) => check_refusal(data, error),
    }
    if let Ok(packet) = Packet::parse_padded(data) {
        check_padded(data, &packet);
    }
}

/// A padded packet is what it was before it was padded.
fn check_padded(data: &[u8], packet: &Packet<'_>) {
    assert!(may_be_padded(packet.opcode()) && !packet.payload.is_empty());
    let end = packet.headers.len() + packet.payload.len();
    let padding = data.len() - end;
    let mut again = data[..end].to_vec();
    again[1] &= 0xc0;
    again.resize(data.len(), 0);
    pad_packet(&mut again, u16::try_from(padding).expect("two bytes"));
    assert_eq!(Packet::parse_padded(&again).as_ref(), Ok(packet));
    assert_eq!(again, data);
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
    let header = emitted.first_chunk_mut().expect("a BTH");
    Bth::mark(header, headers.bth.tag);
    let mut expected = data[..headers_len].to_vec();
    clear_reserved(headers, &mut expected);
    assert_eq!(emitted[..headers_len], expected);
    emitted[headers_len..].copy_from_slice(&data[headers_len..]);
    assert_eq!(Packet::parse(&emitted).as_ref(), Ok(packet));
}

/// The bits that no header gives a meaning are sent as zero (IBTA 9.2 and 9.3); those of the BTH
/// are a tag.
fn clear_reserved(headers: &Headers, bytes: &mut [u8]) {
    if headers.deth.is_some() {
        bytes[Bth::LEN + 4] = 0;
    }
    if headers.xrceth.is_some() {
        bytes[Bth::LEN] = 0;
    }
    if headers.feth.is_some() {
        let at = Bth::LEN + headers.xrceth.map_or(0, |_| XrcEth::LEN);
        bytes[at..at + 3].fill(0);
        bytes[at + 3] &= 0x3f;
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
