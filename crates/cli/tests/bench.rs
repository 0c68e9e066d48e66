//! `airdma bench` from the outside. Tests that need other programs are in tests/system; these bring
//! their own.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// A folder for each test: its output, and the only place where programs are found.
struct Bench {
    folder: PathBuf,
}

impl Bench {
    fn new(name: &str) -> Bench {
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{name}"));
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(folder.join("bin")).unwrap();
        Bench { folder }
    }

    /// Adds a program of this name.
    fn program(&self, name: &str, script: &str) {
        let path = self.folder.join("bin").join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_airdma"));
        command
            .arg("bench")
            .args(["--output", self.stem().to_str().unwrap()])
            .args(arguments)
            .env("PATH", self.folder.join("bin"))
            .env("TMPDIR", &self.folder);
        command
    }

    /// Runs the command; `None` if the machine does not allow namespaces.
    fn run(&self, arguments: &[&str]) -> Option<Output> {
        let output = self.command(arguments).output().unwrap();
        (!said(&output).contains("needs root or unprivileged user namespaces")).then_some(output)
    }

    fn stem(&self) -> PathBuf {
        self.folder.join("run.1")
    }

    fn file(&self, ending: &str) -> PathBuf {
        PathBuf::from(format!("{}{ending}", self.stem().display()))
    }

    fn json(&self) -> Value {
        serde_json::from_slice(&fs::read(self.file(".json")).unwrap()).unwrap()
    }

    fn page(&self) -> String {
        fs::read_to_string(self.file(".md")).unwrap()
    }

    fn leftovers(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.folder).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name.starts_with("airdma-lab"))
            .collect()
    }
}

/// Both outputs.
fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

fn value(json: &Value) -> Option<f64> {
    json["curves"][0]["points"]["65536"]["samples"][0]["value"].as_f64()
}

const BARE_UDP: &str = "^bandwidth/veth-1500/udp_gso/65536$";
const TCP: &str = "^bandwidth/veth-1500/tcp_cubic/65536$";

#[test]
fn a_measurement_ends_with_samples_page_and_plots() {
    let bench = Bench::new("whole");
    let Some(output) = bench.run(&["--only", BARE_UDP, "--runs", "2"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    assert!(said(&output).contains("udp_gso"));
    let json = bench.json();
    let samples = json["curves"][0]["points"]["65536"]["samples"].as_array();
    assert_eq!(samples.unwrap().len(), 2);
    assert!(value(&json).unwrap() > 0.01, "{json}");
    assert!(bench.page().contains("| 64 KiB"), "{}", bench.page());
    assert!(
        bench.page().contains("](run.1-veth-1500.svg)"),
        "{}",
        bench.page()
    );
    let svg = fs::read_to_string(bench.file("-veth-1500.svg")).unwrap();
    assert!(svg.contains("bare UDP, GSO and GRO"));
    let png = fs::read(bench.file("-veth-1500.png")).unwrap();
    assert!(png.starts_with(b"\x89PNG") && png.len() > 5000);
    assert_eq!(bench.leftovers(), Vec::<String>::new());

    // The page can be rewritten from the samples.
    let page = bench.page();
    fs::remove_file(bench.file(".md")).unwrap();
    let json = bench.file(".json");
    let mut again = Command::new(env!("CARGO_BIN_EXE_airdma"));
    let output = again
        .args(["bench", "--render"])
        .arg(json)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(bench.page(), page);
}

#[test]
fn a_run_that_fails_is_kept_with_what_both_ends_said() {
    let bench = Bench::new("failure");
    bench.program(
        "iperf3",
        "echo this is iperf3 $1; echo no such thing >&2; exit 3",
    );
    let Some(output) = bench.run(&["--only", TCP, "--runs", "2"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(said(&output).contains("no such thing"), "{}", said(&output));
    let json = bench.json();
    let point = &json["curves"][0]["points"]["65536"];
    assert_eq!(point["samples"].as_array().unwrap().len(), 0);
    let failures = point["failures"].as_array().unwrap();
    assert_eq!(failures.len(), 2);
    let failure = failures[0].as_str().unwrap();
    for words in [
        "--- server\n$ iperf3 -s -1",
        "exit status: 3",
        "this is iperf3 -s",
        "no such thing",
        "--- client",
    ] {
        assert!(failure.contains(words), "{words:?} in {failure}");
    }
    let page = bench.page();
    assert!(page.contains("2 of 2 runs failed"), "{page}");
}

#[test]
fn a_peer_that_is_not_installed_is_named_with_its_package() {
    let bench = Bench::new("missing");
    let only = "^(bandwidth/veth-1500/udp_gso/65536|latency/veth-1500/sockperf_udp/64)$";
    let Some(output) = bench.run(&["--only", only, "--runs", "1"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("sockperf is not there (sockperf)"),
        "{complaint}"
    );
    assert_eq!(bench.json()["missing"][0]["program"], "sockperf");
    assert!(bench.page().contains("`sockperf` is not there (sockperf)"));
}

#[test]
fn a_link_that_cannot_be_made_does_not_cost_the_others() {
    let bench = Bench::new("no-link");
    bench.program("nft", "echo no such expression >&2; exit 1");
    let only = "/(veth-1500|lossy)/udp_gso/65536$";
    let Some(output) = bench.run(&["--only", only, "--runs", "1"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(
        complaint.contains("no link lossy") && complaint.contains("no such expression"),
        "{complaint}"
    );
    assert!(value(&bench.json()).is_some());
    assert!(
        bench.page().contains("`link lossy` is not there"),
        "{}",
        bench.page()
    );
}

#[test]
fn without_perftest_nothing_is_measured_and_help_is_printed() {
    let bench = Bench::new("no-perftest");
    let output = bench.command(&["--only", "write_bw"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(
        said(&output).contains("apt-get install perftest"),
        "{}",
        said(&output)
    );
    assert!(!bench.file(".json").exists());
}

#[test]
fn cases_have_names_that_can_be_chosen() {
    let bench = Bench::new("list");
    let output = bench.command(&["--list"]).output().unwrap();
    assert!(output.status.success());
    let all = said(&output);
    assert!(
        all.contains("bandwidth/veth-9000/write_bw/1048576"),
        "{all}"
    );
    assert!(
        all.contains("queue-pairs/veth-1500/write_pairs/16384"),
        "{all}"
    );
    let output = bench
        .command(&["--list", "--only", "send_lat/64$"])
        .output()
        .unwrap();
    assert!(said(&output).contains("latency/veth-1500/sockperf_tcp/64"));
    for (only, complaint) in [("[", "regular expression"), ("no-such-case", "--list")] {
        let output = bench.command(&["--only", only]).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{only}");
        assert!(said(&output).contains(complaint), "{}", said(&output));
    }
}

#[test]
fn without_namespaces_the_message_says_what_to_do() {
    let bench = Bench::new("no-namespaces");
    let script = "for kind in net user; do echo 0 > /proc/sys/user/max_${kind}_namespaces || exit 77; done; exec \"$@\"";
    let wanted = bench.command(&["--only", BARE_UDP]);
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c", script, "sh"]);
    command.arg(wanted.get_program()).args(wanted.get_args());
    let Ok(output) = command.output() else {
        return;
    };
    let said = said(&output);
    if output.status.code() == Some(77) || said.starts_with("unshare:") {
        return;
    }
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("Run it with sudo"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_written_is_found_out_at_once() {
    let bench = Bench::new("unwritable");
    fs::write(bench.folder.join("file"), "").unwrap();
    let stem = bench.folder.join("file/run");
    let only = ["--only", BARE_UDP, "--output", stem.to_str().unwrap()];
    let started = Instant::now();
    let Some(output) = bench.run(&only) else {
        return;
    };
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("making "), "{}", said(&output));
    assert!(started.elapsed() < Duration::from_secs(5));
}

#[test]
fn ctrl_c_keeps_what_was_measured_and_leaves_nothing() {
    let bench = Bench::new("interrupted");
    let only = "^bandwidth/veth-1500/udp_gso/(8192|30000)$";
    let mut command = bench.command(&["--only", only, "--runs", "1"]);
    let bench_process = command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = bench_process.spawn().unwrap();
    // The first size is kept when it is done; the second one is running then.
    wait_for_sample(&bench, &mut process);
    // SAFETY: our own child, not reaped yet.
    unsafe { libc::kill(process.id() as libc::pid_t, libc::SIGINT) };
    let output = process.wait_with_output().unwrap();
    if said(&output).contains("needs root or unprivileged user namespaces") {
        return;
    }
    assert_eq!(output.status.code(), Some(130), "{}", said(&output));
    let json = bench.json();
    assert_eq!(json["interrupted"], true);
    assert!(bench.page().contains("Stopped before its end"));
    assert_eq!(bench.leftovers(), Vec::<String>::new());
}

fn wait_for_sample(bench: &Bench, process: &mut Child) {
    let deadline = Instant::now() + Duration::from_secs(60);
    let has_sample = |file: &Path| {
        let text = fs::read_to_string(file).unwrap_or_default();
        text.contains("\"cpu_s\"")
    };
    while !has_sample(&bench.file(".json")) && process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline);
        thread::sleep(Duration::from_millis(10));
    }
}
