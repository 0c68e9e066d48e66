//! One seed replays everything.

use airdma_sim::{Fate, Pair, Setup, Side};
use airdma_wire::icrc_of_ip_packet;

use crate::scene::{bad, open_region, post, read_from, write_to};

fn run(seed: u64) -> Pair {
    let mut pair = Pair::new(seed, bad(0.03), bad(0.03));
    let qp = pair.connect(&Setup::default());
    pair.start_capture();
    let near = open_region(&mut pair, Side::A, 50_000);
    let far = open_region(&mut pair, Side::B, 50_000);
    post(&mut pair, qp, 1, write_to(&far), &near);
    post(&mut pair, qp, 2, read_from(&far), &near);
    pair.run_until_idle();
    pair
}

#[test]
fn the_same_seed_gives_the_same_packets_at_the_same_time() {
    let (one, two, other) = (run(5), run(5), run(6));
    let lines = |pair: &Pair| {
        let records = pair.trace().records();
        records.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert!(lines(&one) == lines(&two));
    assert!(one.captured() == two.captured());
    assert!(lines(&one) != lines(&other));
}

#[test]
fn a_trace_line_says_what_happened() {
    let pair = run(5);
    let first = pair.trace().records().next().unwrap().to_string();
    assert_eq!(
        first,
        "        0.000 us  a > b  Sent       RC_WRITE_FIRST           qp 0x220022 psn 0x000010 1024 B \
         va 0x100000000 length 50000"
            .replace("va 0x100000000", &va_of(&first))
    );
    let fates = [Fate::Lost, Fate::Duplicated, Fate::HeldBack, Fate::Damaged];
    for fate in fates {
        assert!(pair.trace().count(|record| record.fate == fate) > 0);
    }
}

/// The address is the seed's business.
fn va_of(line: &str) -> String {
    let start = line.find("va 0x").unwrap();
    let end = line.find(" length").unwrap();
    line[start..end].to_string()
}

#[test]
fn every_captured_packet_carries_the_icrc_of_its_ip_packet() {
    let pair = run(7);
    let mut rest = &pair.captured()[24..];
    let mut packets = 0;
    while let Some((header, behind)) = rest.split_first_chunk::<16>() {
        let len = u32::from_le_bytes(header[8..12].try_into().unwrap()) as usize;
        let (packet, behind) = behind.split_at(len);
        let (covered, icrc) = packet.split_last_chunk::<4>().unwrap();
        let expected = icrc_of_ip_packet(covered);
        assert_eq!(expected, Some(u32::from_le_bytes(*icrc)));
        rest = behind;
        packets += 1;
    }
    let sent = pair.trace().count(|record| record.fate == Fate::Sent);
    assert_eq!(packets, sent);
}
