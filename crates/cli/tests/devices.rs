//! `airdma devices` on the interface that every machine has.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output};

fn devices(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_airdma"))
        .env("AIRDMA_LOOPBACK", "1")
        .arg("devices")
        .args(arguments)
        .output()
        .unwrap()
}

#[test]
fn the_loopback_device_is_listed_with_interface_and_address() {
    let output = devices(&[]);
    assert!(output.status.success());
    let text = String::from_utf8(output.stdout).unwrap();
    let line = text.lines().find(|line| line.starts_with("airdma_lo "));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words[2], "lo");
    assert!(words.contains(&"127.0.0.1"), "{words:?}");
}

#[test]
fn the_verbose_list_has_port_state_and_gids() {
    let text = String::from_utf8(devices(&["-v"]).stdout).unwrap();
    for part in [
        "hca_id: airdma_lo",
        "PORT_ACTIVE",
        "active_mtu",
        "RoCE v2",
        "cm_drop_malformed",
        "cm_drop_wrong_peer",
        "cm_duplicates",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn the_json_is_a_list_of_devices_with_counters() {
    let output = devices(&["--json"]);
    let all: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let lo = all
        .as_array()
        .unwrap()
        .iter()
        .find(|d| d["name"] == "airdma_lo");
    let lo = lo.unwrap();
    assert_eq!(lo["interface"], "lo");
    assert!(lo["counters"].is_object());
    assert_eq!(lo["node_guid"].as_str().unwrap().len(), 19);
}
