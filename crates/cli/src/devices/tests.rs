#![allow(clippy::unwrap_used)]

use super::*;
use airdma_engine::{Gid, GidEntry};
use std::net::IpAddr;

fn info() -> DeviceInfo {
    let row = |text: &str| {
        let address: IpAddr = text.parse().unwrap();
        GidEntry {
            gid: Gid::from(address),
            address,
        }
    };
    DeviceInfo {
        name: "airdma_veth0".into(),
        interface: "veth0".into(),
        interface_index: 7,
        mtu: 1500,
        mac: [2, 0, 0, 0, 0, 1],
        guid: 0x0200_00ff_fe00_0001,
        gids: vec![row("10.5.0.1"), row("fe80::1")],
        path_mtu: PathMtu::M1024,
        up: true,
        speed_mbps: Some(10_000),
    }
}

#[test]
fn the_table_has_a_line_per_device_with_interface_and_addresses() {
    let text = table(&[info()]);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2);
    let words: Vec<&str> = lines[1].split_whitespace().collect();
    assert_eq!(
        words,
        [
            "airdma_veth0",
            "020000fffe000001",
            "veth0",
            "up",
            "10.5.0.1",
            "fe80::1"
        ]
    );
}

#[test]
fn the_description_holds_state_mtus_gids_and_counters() {
    let link = [("queue".to_owned(), "noqueue".to_owned())];
    let text = description(&info(), &link, &[("acks_sent", 12)]);
    let value = |label: &str| {
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{label}:")));
        line.unwrap().split_once(':').unwrap().1.trim().to_owned()
    };
    assert_eq!(value("state"), "PORT_ACTIVE (4)");
    assert_eq!(value("active_mtu"), "1024 (3)");
    assert_eq!(value("max_mtu"), "4096 (5)");
    assert_eq!(value("node_guid"), "0200:00ff:fe00:0001");
    assert_eq!(value("acks_sent"), "12");
    assert_eq!(value("queue"), "noqueue");
    assert!(value("GID[0]").ends_with("RoCE v2  10.5.0.1"));
    assert!(value("GID[1]").ends_with("fe80::1"));
}

#[test]
fn the_document_carries_the_same() {
    let mode = Mode::Refused("/run/socket".into(), "no daemon answers".into());
    let value = document(&info(), &[("acks_sent", 12)], &mode);
    assert_eq!(value["daemon"], "/run/socket");
    assert_eq!(value["daemon_refuses"], "no daemon answers");
    assert_eq!(value["name"], "airdma_veth0");
    assert_eq!(value["active_mtu"], 1024);
    assert_eq!(value["counters"]["acks_sent"], 12);
    assert_eq!(value["gids"][1]["address"], "fe80::1");
    assert_eq!(value["mac"], "02:00:00:00:00:01");
}

#[test]
fn the_mode_is_told_with_its_reason() {
    let own = Mode::InProcess("AIRDMA_DAEMON=off").to_string();
    assert_eq!(
        own,
        "in each program's own process, because AIRDMA_DAEMON=off"
    );
    let daemon = Mode::Daemon("/run/socket".into());
    assert!(daemon.to_string().contains("in the daemon at /run/socket"));
    assert_eq!(daemon.refusal(), None);
    let refused = Mode::Refused("/run/socket".into(), "no daemon answers".into());
    assert!(
        refused
            .to_string()
            .ends_with("names /run/socket, and no daemon answers")
    );
}

#[test]
fn interfaces_are_read_from_the_kernels_table() {
    let table = "Inter-|   Receive\n face |bytes\n    lo: 1 2\n  eth0: 3 4\n";
    assert_eq!(names(table), ["lo", "eth0"]);
}

#[test]
fn without_a_device_the_advice_names_an_interface() {
    let text = why_none(&["lo".into(), "wlan0".into()]);
    assert!(text.contains("ip link set wlan0 up"), "{text}");
    assert!(why_none(&["lo".into()]).contains("AIRDMA_LOOPBACK=1"));
}
