//! `airdma sim` from the outside.
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_airdma"));
    command.arg("sim").args(arguments).output().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("airdma-sim-5")
}

#[test]
fn a_seed_is_replayed_with_its_log_and_its_packets() {
    let out = folder();
    let trace = || sim(&["--seed", "5", "--trace", "--out", out.to_str().unwrap()]);
    let (first, second) = (trace(), trace());
    assert!(first.status.success());
    assert_eq!(text(&first), text(&second));
    assert!(text(&first).contains("seed=5 went as it should"));
    let log = std::fs::read_to_string(out.join("events.log")).unwrap();
    assert!(text(&first).starts_with(&log));
    assert!(log.contains(" posts receive ") && log.contains(" completes, "));
    for host in ["host0.pcap", "host1.pcap"] {
        let capture = std::fs::read(out.join(host)).unwrap();
        // Nanosecond timestamps, little-endian.
        assert_eq!(capture[..4], [0x4d, 0x3c, 0xb2, 0xa1]);
        assert!(capture.len() > 24, "{host} has no packets");
    }
}

#[test]
fn bytes_of_the_fuzz_target_are_a_world_too() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/world");
    let file = std::fs::read_dir(corpus).unwrap().next().unwrap().unwrap();
    let file = file.path().display().to_string();
    let output = sim(&["--bytes", &file]);
    assert!(output.status.success());
    assert!(text(&output).contains(&format!("{file} went as it should")));
}

#[test]
fn worlds_are_counted() {
    let output = sim(&["--worlds", "20", "--first", "100", "--json"]);
    assert!(output.status.success());
    let counts: serde_json::Value = serde_json::from_str(&text(&output)).unwrap();
    assert_eq!(counts["worlds"], 20);
    assert_eq!(counts["failures"], 0);
    assert!(counts["packets"].as_u64().unwrap() > 100);
    // The same seeds give the same worlds.
    let again = sim(&[
        "--worlds",
        "20",
        "--first",
        "100",
        "--json",
        "--threads",
        "1",
    ]);
    let again: serde_json::Value = serde_json::from_str(&text(&again)).unwrap();
    for (name, count) in counts.as_object().unwrap() {
        assert!(name == "seconds" || again[name] == *count, "{name}");
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let refused = |arguments: &[&str], status, why: &str| {
        let output = sim(arguments);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}");
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(said.contains(why), "{arguments:?} said: {said}");
    };
    refused(&["--trace"], 2, "--seed");
    refused(&["--seed", "5", "--worlds", "3"], 2, "cannot be used with");
    refused(&["--seed", "five"], 2, "invalid");
    refused(&["--hours", "-1"], 2, "unexpected argument");
    refused(&["--hours=-1"], 1, "not negative");
    refused(&["--bytes", "/nowhere"], 1, "reading /nowhere");
    let nowhere = ["--seed", "5", "--trace", "--out", "/proc/nowhere"];
    refused(&nowhere, 1, "writing to /proc/nowhere");
}

#[test]
fn the_wifi_model_is_compared_with_the_computed_figures() {
    let output = sim(&["--wifi"]);
    assert!(output.status.success());
    assert!(text(&output).contains("| ac-80 | 64 | 9 | 866.7 | 64 | 668 |"));
}
