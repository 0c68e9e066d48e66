//! `airdma lab`: hosts that last as long as standard input, and numbers from what programs print.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn lab(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_airdma"));
    let mut child = command
        .arg("lab")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let written = child.stdin.take().unwrap().write_all(input.as_bytes());
    assert!(written.is_ok() || input.is_empty());
    child.wait_with_output().unwrap()
}

#[test]
fn numbers_come_from_what_programs_print() {
    let table = " #bytes #iterations    t_typical[usec]\n 64      1000          8.02\n";
    let output = lab(&["read", "perftest"], table);
    let rows: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(rows[0]["t_typical[usec]"], 8.02);
    let refused = lab(&["read", "iperf3"], "{\"error\": \"refused\"}");
    assert_eq!(refused.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("iperf3 printed no result"));
}

#[test]
fn a_host_that_is_not_there_is_named() {
    let output = lab(&["exec", "airdma-lab-0-a", "--", "true"], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("opening host airdma-lab-0-a"));
    let outside = lab(&["exec", "../../proc/self/ns/net", "--", "true"], "");
    assert!(String::from_utf8_lossy(&outside.stderr).contains("is not the name of a host"));
}

#[test]
fn hosts_last_as_long_as_standard_input() {
    let mut holder = Command::new(env!("CARGO_BIN_EXE_airdma"))
        .args(["lab", "hold", "--mtu", "4200"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ready = String::new();
    let mut out = BufReader::new(holder.stdout.take().unwrap());
    out.read_line(&mut ready).unwrap();
    if ready.is_empty() {
        let output = holder.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        let is_root = fs::metadata("/proc/self").unwrap().uid() == 0;
        let must_run = is_root && std::env::var("CI").as_deref() == Ok("true");
        assert!(!must_run, "{}", String::from_utf8_lossy(&output.stderr));
        println!("skipped: {}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let made: serde_json::Value = serde_json::from_str(&ready).unwrap();
    let host = |index: usize| {
        made["hosts"][index]["namespace"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    let runtime = made["runtime"].as_str().unwrap();
    assert!(Path::new(runtime).is_dir());
    let look = ["exec", &host(0), "--", "cat", "/sys/class/net/eth0/mtu"];
    assert_eq!(String::from_utf8_lossy(&lab(&look, "").stdout), "4200\n");
    let missing = lab(&["exec", &host(1), "--core", "0", "--", "/nonexistent"], "");
    assert_eq!(missing.status.code(), Some(127));
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert!(!Path::new(runtime).exists());
    assert!(!Path::new("/run/netns").join(host(0)).exists());
}
