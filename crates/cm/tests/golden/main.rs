//! The connection manager against captures of kernels that connected to each other.
//!
//! The manager stands in for one end, receives the datagrams of the other, and its program makes
//! the calls that the program there made. It must send byte for byte what the kernel sent, except
//! for random values: communication ids and transaction ids.

#![allow(clippy::unwrap_used, missing_docs)]

mod conversation;
mod replay;

use conversation::End;
use replay::Replay;

/// Captures with management datagrams, and the ends that the manager stands in for. `tap-cmreq` has
/// no answering end.
const CAPTURES: [(&str, &[End]); 8] = [
    ("rxe-6.1/cm_cmtime", &[End::A, End::B]),
    ("rxe-6.1/cm_reject", &[End::A, End::B]),
    ("rxe-6.1/cm_rping", &[End::A, End::B]),
    ("rxe-6.1/cm_rping_v6", &[End::A, End::B]),
    ("rxe-6.1/cm_ucmatose", &[End::A, End::B]),
    ("rxe-6.1/cm_udaddy", &[End::A, End::B]),
    ("two-vm-rping", &[End::A, End::B]),
    ("tap-cmreq", &[End::A]),
];

/// Allowed differences: capture, end, field, number of times, and the reason.
const ALLOWED: [(&str, End, &str, usize, &str); 1] = [(
    "tap-cmreq",
    End::A,
    "REQ: only ours",
    1,
    "IBTA 12.6.7: an answer may take as long as the request says (remote CM response timeout, 4.3 s); how much later the \
     request is repeated is the sender's choice. The kernel adds twice the lifetime of a packet (2.1 s), we do not.",
)];

#[test]
fn our_manager_says_what_the_kernels_said() {
    let mut complaints = Vec::new();
    let mut seen = [0; ALLOWED.len()];
    for (name, ends) in CAPTURES {
        for &end in ends {
            for line in Replay::run(name, end) {
                let allowed = ALLOWED.iter().position(|(capture, at, difference, ..)| {
                    (*capture, *at, *difference) == (name, end, &line)
                });
                match allowed {
                    Some(at) => seen[at] += 1,
                    None => complaints.push(format!("{name}, end {end:?}: {line}")),
                }
            }
        }
    }
    for ((name, end, difference, times, rule), seen) in ALLOWED.iter().zip(seen) {
        if *times != seen {
            let found = format!("{difference}: seen {seen} times, not {times} ({rule})");
            complaints.push(format!("{name}, end {end:?}: {found}"));
        }
    }
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}

/// Fails if a new capture is missing from the list.
#[test]
fn every_capture_with_management_datagrams_is_replayed() {
    let manages = |name: &&str| !conversation::datagrams(name).is_empty();
    let mut captured: Vec<_> = airdma_captures::CAPTURES
        .iter()
        .map(|(name, _)| *name)
        .collect();
    captured.retain(manages);
    captured.sort_unstable();
    let mut replayed: Vec<_> = CAPTURES.iter().map(|(name, _)| *name).collect();
    replayed.sort_unstable();
    assert_eq!(captured, replayed);
}
