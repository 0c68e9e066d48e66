//! `airdma doctor` in networks of its own.

#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/skipped.rs"]
mod skipped;

use skipped::skipped;
use std::process::{Command, Output};

use serde_json::Value;

/// Runs a shell script in a network namespace of its own; `None` where there is none to be had.
fn alone(script: &str) -> Option<Output> {
    let with_root = ["--user", "--map-root-user", "--net", "sh", "-c"];
    let output = Command::new("unshare")
        .args(with_root)
        .arg(script)
        .env("AIRDMA", env!("CARGO_BIN_EXE_airdma"))
        .env_remove("AIRDMA_LOOPBACK")
        .output()
        .unwrap();
    let refused = String::from_utf8_lossy(&output.stderr).contains("unshare");
    if refused {
        skipped("no user namespaces");
    }
    (!refused).then_some(output)
}

fn found(output: &Output, check: &str) -> Vec<Value> {
    let all: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
    let of_check = all.into_iter().filter(|it| it["check"] == check);
    of_check.collect()
}

#[test]
fn a_host_without_a_device_is_bad_and_told_how_to_get_one() {
    let Some(output) = alone("$AIRDMA doctor") else {
        return;
    };
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().find(|line| line.starts_with("bad")).unwrap();
    assert!(line.contains("AIRDMA_LOOPBACK=1"), "{line}");
    // One line each, and no colour.
    let states = ["ok ", "hint ", "bad ", "skip "];
    assert!(
        text.lines()
            .all(|line| states.iter().any(|it| line.starts_with(it))),
        "{text}"
    );
    assert!(!text.contains('\u{1b}'));
}

#[test]
fn a_taken_port_is_bad_and_its_owner_is_named() {
    let script = "ip link set lo up; python3 -c 'import socket, time; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); \
                  s.bind((\"127.0.0.1\", 4791)); time.sleep(60)' & \
                  sleep 1; AIRDMA_LOOPBACK=1 $AIRDMA doctor --json; status=$?; kill $!; exit $status";
    let Some(output) = alone(script) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1));
    let ports = found(&output, "port");
    let bad = ports.iter().find(|it| it["state"] == "bad").unwrap();
    assert!(
        bad["message"].as_str().unwrap().contains("127.0.0.1"),
        "{bad}"
    );
    assert!(bad["remedy"].as_str().unwrap().contains("python3"), "{bad}");
}

#[test]
fn a_closed_firewall_is_a_hint_until_the_command_opens_it() {
    let closed = "ip link set lo up; nft add table inet f; nft add chain inet f i '{ type filter hook input priority 0; policy drop; }'";
    let ask = "AIRDMA_LOOPBACK=1 $AIRDMA doctor --json";
    let Some(output) = alone(&format!("{closed}; {ask}")) else {
        return;
    };
    let hint = found(&output, "firewall").remove(0);
    if hint["state"] == "ok" && hint["message"].as_str().unwrap().contains("neither") {
        skipped("no nft");
        return;
    }
    assert_eq!(hint["state"], "hint", "{hint}");
    let command = hint["remedy"]
        .as_str()
        .unwrap()
        .trim_matches('`')
        .to_owned();
    assert!(
        command.starts_with("nft insert rule inet f i udp dport 4791"),
        "{command}"
    );
    let output = alone(&format!("{closed}; {command}; {ask}")).unwrap();
    assert_eq!(found(&output, "firewall").remove(0)["state"], "ok");
}
