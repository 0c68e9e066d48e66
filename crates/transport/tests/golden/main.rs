//! Queue pairs against the captures of a kernel's rxe: ours stands in for one end, gets what the
//! other end sent and when, and has to send what rxe sent there, complete what rxe completed, and
//! leave the same memory. Where both are right in different ways, `rules.rs` says which rule of the
//! specification leaves the choice.

#![allow(clippy::unwrap_used, missing_docs)]

mod machine;
mod memory;
mod record;
mod replay;
mod rules;
mod seen;
mod story;

use record::{End, Record};
use replay::Replay;
use rules::Verdict;

const CAPTURES: [&str; 22] = [
    "rc_send",
    "rc_send_imm",
    "rc_write",
    "rc_write_imm",
    "rc_read",
    "rc_atomic",
    "rc_pipeline",
    "rc_bidir",
    "rc_rnr",
    "rc_rnr_exceeded",
    "rc_nak_access_write",
    "rc_nak_access_read",
    "rc_nak_recv_too_short",
    "rc_loss",
    "rc_ecn",
    "rc_dscp",
    "rc_mtu256",
    "rc_mtu4096",
    "rc_ipv6",
    "uc",
    "ud",
    "ud_ipv6",
];

/// Captures of programs on the connection manager, without a record, and their connections. In the
/// last, one end is the rxe of Linux 6.12.
const SEEN: [(&str, &str, usize); 4] = [
    ("rxe-6.1/", "cm_rping", 1),
    ("rxe-6.1/", "cm_rping_v6", 1),
    ("rxe-6.1/", "cm_ucmatose", 2),
    ("", "two-vm-rping", 2),
];

#[test]
fn in_the_place_of_a_ours_does_what_rxe_did() {
    stand_in_for(End::A);
}

#[test]
fn in_the_place_of_b_ours_does_what_rxe_did() {
    stand_in_for(End::B);
}

/// A responder may join acknowledgements (IBTA 9.7.5.1.2), and ours does when it is kept from
/// sending.
#[test]
fn answers_that_wait_say_what_rxes_answers_said_one_by_one() {
    let mut verdict = Verdict::new(End::B);
    for name in CAPTURES.into_iter().filter(|name| is_clean(name)) {
        let record = Record::read(name);
        verdict.add(name, Replay::run_at_once(&record));
    }
    verdict.give_without_counting();
}

/// Reliable, `a` alone asks, every packet comes once, and nothing is refused.
fn is_clean(name: &str) -> bool {
    let disturbed = ["rc_loss", "rc_bidir"].contains(&name);
    name.starts_with("rc_")
        && !disturbed
        && !name.starts_with("rc_rnr")
        && !name.starts_with("rc_nak")
}

fn stand_in_for(end: End) {
    let mut verdict = Verdict::new(end);
    for name in CAPTURES {
        let record = Record::read(name);
        verdict.add(name, Replay::run(&record, end));
    }
    for (folder, name, connections) in SEEN {
        let records = seen::connections(folder, name);
        assert_eq!(records.len(), connections, "connections of {name}");
        for record in records {
            verdict.add(name, Replay::run(&record, end));
        }
    }
    verdict.give();
}

/// So that a new capture is not forgotten here.
#[test]
fn every_recorded_capture_is_replayed() {
    let mut recorded = captures_in("json");
    recorded.sort();
    let mut replayed = CAPTURES.to_vec();
    replayed.sort_unstable();
    assert_eq!(recorded, replayed);
    // Those without a record: connections, of which only these have no data on a queue pair of
    // their own.
    let without_data = ["cm_cmtime", "cm_reject", "cm_udaddy"];
    let mut seen: Vec<_> = captures_in("pcap")
        .into_iter()
        .filter(|name| !recorded.contains(name) && !without_data.contains(&name.as_str()))
        .collect();
    seen.sort();
    let listed = SEEN.iter().filter(|(folder, ..)| !folder.is_empty());
    assert_eq!(seen, listed.map(|(_, name, _)| *name).collect::<Vec<_>>());
}

/// Files of that kind among those of rxe, without their endings.
fn captures_in(kind: &str) -> Vec<String> {
    std::fs::read_dir(airdma_captures::vectors().join("rxe-6.1"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(&format!(".{kind}")).map(str::to_owned))
        .collect()
}
