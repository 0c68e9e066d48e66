//! Unmodified programs with the library preloaded, on the loopback interface. No traffic: what they
//! list and how they bind. A program that is not installed is skipped, and said so.

#![allow(clippy::unwrap_used)]

mod library;
#[path = "../../engine/tests/common/skipped.rs"]
mod skipped;

use skipped::skipped;
use std::io::ErrorKind;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// Runs a program with the library preloaded; `None` if it is not installed.
fn run(program: &str, arguments: &[&str], environment: &[(&str, &str)]) -> Option<Output> {
    let result = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", library::path())
        .env("AIRDMA_LOOPBACK", "1")
        .envs(environment.iter().copied())
        .output();
    match result {
        Ok(output) => Some(output),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            skipped(&format!("{program} is not installed"));
            None
        }
        Err(error) => panic!("{program}: {error}"),
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn ibv_devices_lists_the_device_with_its_guid() {
    let Some(output) = run("ibv_devices", &[], &[]) else {
        return;
    };
    let out = text(&output.stdout);
    let line = out.lines().find(|line| line.contains("airdma_lo"));
    let words: Vec<&str> = line.unwrap().split_whitespace().collect();
    assert_eq!(words.len(), 2, "{out}");
    assert_eq!(words[1].len(), 16, "{out}");
}

#[test]
fn ibv_devinfo_prints_an_active_ethernet_port_with_gids() {
    let Some(output) = run("ibv_devinfo", &["-v", "-d", "airdma_lo"], &[]) else {
        return;
    };
    let out = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let value = |label: &str| {
        let line = out
            .lines()
            .find(|line| line.trim_start().starts_with(&format!("{label}:")));
        line.unwrap_or_else(|| panic!("{label} in {out}"))
            .split_once(':')
            .unwrap()
            .1
            .trim()
            .to_owned()
    };
    assert_eq!(value("transport"), "InfiniBand (0)");
    assert_eq!(value("fw_ver"), env!("CARGO_PKG_VERSION"));
    assert_eq!(value("board_id"), "airdma");
    assert_eq!(value("state"), "PORT_ACTIVE (4)");
    assert_eq!(value("max_mtu"), "4096 (5)");
    assert_eq!(value("active_mtu"), "4096 (5)");
    assert_eq!(value("link_layer"), "Ethernet");
    assert_eq!(value("max_msg_sz"), "0x7fffffff");
    assert!(out.contains("127.0.0.1, RoCE v2"), "{out}");
}

/// By netlink, which this kernel may not have for RDMA at all.
#[test]
fn rdma_of_iproute2_shows_devices_links_and_counters() {
    for (arguments, wanted) in [
        (&["dev"][..], "airdma_lo: node_type ca"),
        (
            &["dev", "show", "airdma_lo"],
            "node_guid 0200:ffff:7f00:0001",
        ),
        (
            &["link"],
            "link airdma_lo/1 state ACTIVE physical_state LINK_UP netdev lo",
        ),
        (&["system"], "netns exclusive"),
        (
            &["statistic", "show", "link", "airdma_lo/1"],
            "local_ack_timeout_err",
        ),
    ] {
        let Some(output) = run("rdma", arguments, &[]) else {
            return;
        };
        let out = text(&output.stdout);
        assert!(
            out.contains(wanted),
            "{arguments:?}: {out}{}",
            text(&output.stderr)
        );
    }
    let refused = run(
        "rdma",
        &["link", "add", "x", "type", "rxe", "netdev", "lo"],
        &[],
    )
    .unwrap();
    assert!(!refused.status.success());
    let said = text(&refused.stderr);
    assert!(said.contains("Operation not supported"), "{said}");
}

#[test]
fn programs_that_never_touch_rdma_do_not_notice() {
    let trace = [("AIRDMA_TRACE", "verbs")];
    let output = run("ls", &["/"], &trace).unwrap();
    assert!(output.status.success());
    assert_eq!(text(&output.stderr), "");
}

/// The names of the system calls that a program makes once it is loaded, by strace; `None` where
/// that cannot be had.
fn system_calls(program: &[&str], preload: Option<&Path>) -> Option<Vec<String>> {
    static TRACES: AtomicU32 = AtomicU32::new(0);
    let number = TRACES.fetch_add(1, Ordering::Relaxed);
    let trace = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("preload-{number}.strace"));
    let mut strace = Command::new("strace");
    strace.args(["--follow-forks", "--output"]).arg(&trace);
    if let Some(library) = preload {
        strace.arg(format!("--env=LD_PRELOAD={}", library.display()));
    }
    let output = strace.args(program).output();
    if !output.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: strace is not installed, or may not trace");
        return None;
    }
    let trace = std::fs::read_to_string(&trace).unwrap();
    // The loader ends with the removal of its cache, after what it does for the first thread.
    let calls = trace
        .lines()
        .skip_while(|line| !line.contains("set_robust_list("))
        .skip_while(|line| !line.contains("munmap("))
        .skip(1)
        .filter_map(|line| line.split_once(' ')?.1.trim().split_once('('))
        .map(|(name, _)| name.to_owned())
        .collect();
    Some(calls)
}

#[test]
fn loading_the_library_makes_no_system_call() {
    let library = library::path();
    for program in [&["true"][..], &["ls", "/"]] {
        let Some(without) = system_calls(program, None) else {
            return;
        };
        assert!(without.iter().any(|name| name == "exit_group"));
        let with = system_calls(program, Some(&library)).unwrap();
        assert_eq!(with, without, "{program:?}");
    }
}

#[test]
fn loading_the_library_opens_no_descriptor_and_starts_no_thread() {
    for folder in ["/proc/self/fd", "/proc/self/task"] {
        let count = |output: Output| text(&output.stdout).lines().count();
        let with = run("ls", &["-1", folder], &[]).unwrap();
        let without = Command::new("ls").args(["-1", folder]).output().unwrap();
        assert_eq!(count(with), count(without), "{folder}");
    }
}

#[test]
fn the_trace_shows_calls_arguments_and_answers() {
    let trace = [("AIRDMA_TRACE", "verbs")];
    let Some(output) = run("ibv_devices", &[], &trace) else {
        return;
    };
    let trace = text(&output.stderr);
    let call = trace
        .lines()
        .find(|line| line.contains("ibv_get_device_list(num_devices="));
    assert!(call.is_some_and(|line| line.contains(") = 0x")), "{trace}");
}

/// Every reference to one of our names, from whatever version, is bound to us; the private ones of
/// hardware providers stay with rdma-core.
#[test]
fn perftest_binds_to_the_preload_whatever_the_version() {
    let environment = [("LD_DEBUG", "bindings"), ("LD_BIND_NOW", "1")];
    let Some(output) = run("ib_send_bw", &["--version"], &environment) else {
        return;
    };
    let names: Vec<&str> = include_str!("symbols.txt")
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect();
    let mut bound = 0;
    let bindings = text(&output.stderr);
    for line in bindings
        .lines()
        .filter(|line| line.contains("binding file"))
    {
        let Some(name) = line
            .split('`')
            .nth(1)
            .and_then(|rest| rest.split('\'').next())
        else {
            continue;
        };
        if names.contains(&name) {
            let (_, target) = line.split_once(" to ").unwrap();
            assert!(target.contains("libairdma.so"), "{line}");
            bound += 1;
        }
    }
    assert!(bound > 30, "perftest imports dozens of them: {bound}");
}
