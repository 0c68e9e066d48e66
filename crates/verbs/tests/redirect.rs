//! What unmodified programs see under `/sys/class/infiniband*` and `/dev/infiniband` with the
//! library preloaded, and that they see no difference elsewhere. In a network namespace with one
//! pair of interfaces; without one the test says so.

#![allow(clippy::unwrap_used)]

mod library;
#[path = "../../engine/tests/common/skipped.rs"]
mod skipped;

use skipped::skipped;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A runtime directory of this test's own.
struct Runtime(PathBuf);

impl Runtime {
    fn new(name: &str) -> Runtime {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("redirect-{name}"));
        fs::remove_dir_all(&path).ok();
        fs::create_dir_all(&path).unwrap();
        Runtime(path)
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

/// What a shell script prints in a namespace where the device `airdma_veth0` exists; `None` where
/// the kernel refuses. `p COMMAND` runs a command that is no builtin of the shell with the library
/// preloaded.
fn isolated(runtime: &Runtime, script: &str) -> Option<Output> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--net", "sh", "-c", script]);
        command
    };
    let setup = "ip link add veth0 type veth peer name veth1 && ip link set veth1 up && \
         ip address add 10.5.0.1/24 dev veth0 && ip link set veth0 up";
    if !shell(setup)
        .output()
        .is_ok_and(|output| output.status.success())
    {
        skipped("no network namespace with interfaces to be had (unshare, ip)");
        return None;
    }
    let preload = "p() { LD_PRELOAD=$LIBRARY \"$@\"; }";
    let output = shell(&format!("{setup}\n{preload}\n{script}"))
        .env("LIBRARY", library::path())
        .env("XDG_RUNTIME_DIR", &runtime.0)
        .env("LC_ALL", "C")
        .output()
        .unwrap();
    Some(output)
}

/// The standard output of such a script, which prints nothing on standard error.
fn says(name: &str, script: &str) -> Option<String> {
    let runtime = Runtime::new(name);
    let output = isolated(&runtime, script)?;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    Some(String::from_utf8(output.stdout).unwrap())
}

const DEVICE: &str = "/sys/class/infiniband/airdma_veth0";

#[test]
fn the_device_is_listed_and_its_files_are_read() {
    let script = format!(
        "p ls /sys/class/infiniband; p ls {DEVICE}/device/net/; p cat {DEVICE}/ports/1/gids/0 \
         {DEVICE}/ports/1/gid_attrs/types/0 {DEVICE}/ports/1/gid_attrs/ndevs/0 {DEVICE}/device/numa_node; \
         p cat {DEVICE}/ports/1/counters/port_xmit_packets {DEVICE}/ports/1/hw_counters/retransmits; \
         p find {DEVICE}/ -name rate; p ls -l {DEVICE}/.. | wc -l; p readlink -f {DEVICE}/ports/1; \
         p sh -c 'cd {DEVICE}/ports && echo *'"
    );
    let Some(out) = says("listed", &script) else {
        return;
    };
    let wanted = [
        "airdma_veth0",
        "veth0",
        "0000:0000:0000:0000:0000:ffff:0a05:0001",
        "RoCE v2",
        "veth0",
        "-1",
        "0",
        "0",
        "/sys/class/infiniband/airdma_veth0/ports/1/rate",
        "2",
        "/sys/class/infiniband/airdma_veth0/ports/1",
        "1",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), wanted, "{out}");
}

#[test]
fn the_node_is_a_character_device_that_may_be_read_and_written() {
    let script = "n=$(p ls /sys/class/infiniband_verbs | grep uverbs); p ls /dev/infiniband | grep -cx $n; \
         p stat -c %F /dev/infiniband/$n; p env test -r /dev/infiniband/$n -a -w /dev/infiniband/$n && echo yes; \
         p cat /sys/class/infiniband_verbs/$n/ibdev; p sh -c \"echo x > /dev/infiniband/$n\" && echo written";
    let Some(out) = says("node", script) else {
        return;
    };
    let wanted = [
        "1",
        "character special file",
        "yes",
        "airdma_veth0",
        "written",
    ];
    assert_eq!(out.lines().collect::<Vec<_>>(), wanted, "{out}");
}

#[test]
fn addresses_and_interfaces_come_and_go() {
    let script = format!(
        "p ls {DEVICE}/ports/1/gids; ip address add 10.5.0.2/24 dev veth0; p ls -x {DEVICE}/ports/1/gids; \
         ip address del 10.5.0.2/24 dev veth0; p ls {DEVICE}/ports/1/gids; p env test -e {DEVICE} && echo there; ip link set veth0 down; \
         p env test -e {DEVICE} || p env test -e /sys/class/infiniband || echo gone"
    );
    let Some(out) = says("fresh", &script) else {
        return;
    };
    assert_eq!(out, "0\n0  1\n0\nthere\ngone\n");
}

#[test]
fn python_sees_what_the_shell_sees() {
    if Command::new("python3").arg("--version").output().is_err() {
        skipped("python3 is not installed");
        return;
    }
    let script = format!(
        "p python3 -c \"import os; d = '{DEVICE}'; print(os.path.exists(d + '/device/net/'), os.path.isdir(d), \
         os.listdir('/sys/class/infiniband'), open(d + '/node_type').read().strip(), os.path.realpath(d) == d, \
         [e.name for e in os.scandir(d + '/device/net')], os.path.exists(d + '/nothing'))\"; \
         p python3 -c \"import os; os.close(os.open('$XDG_RUNTIME_DIR/x', os.O_CREAT | os.O_WRONLY, 0o640)); \
         print(oct(os.stat('$XDG_RUNTIME_DIR/x').st_mode & 0o777))\""
    );
    let Some(out) = says("python", &script) else {
        return;
    };
    assert_eq!(
        out,
        "True True ['airdma_veth0'] 1: CA True ['veth0'] False\n0o640\n"
    );
}

#[test]
fn writers_and_names_that_are_not_ours_get_the_kernels_answer() {
    let runtime = Runtime::new("foreign");
    let script = format!(
        "p cat /sys/class/infiniband/airdma_other/node_type; p cat /sys/class/infiniband_mad/umad0/ibdev; \
         p cat /dev/infiniband/uverbs999; p sh -c 'echo x > {DEVICE}/made'"
    );
    let Some(output) = isolated(&runtime, &script) else {
        return;
    };
    let errors = String::from_utf8(output.stderr).unwrap();
    let answers: Vec<_> = errors.lines().collect();
    assert_eq!(answers.len(), 4, "{errors}");
    for answer in answers {
        let refused = [
            "No such file",
            "nonexistent",
            "Permission denied",
            "Directory nonexistent",
        ];
        assert!(refused.iter().any(|why| answer.contains(why)), "{errors}");
    }
}

#[test]
fn unrelated_programs_see_no_difference_and_leave_nothing() {
    let runtime = Runtime::new("unrelated");
    for arguments in [
        &["ls", "-l", "/sys/class/net/"][..],
        &["cat", "/proc/sys/kernel/ostype", "/nonexistent/file"],
        &["stat", "/dev/null", "/nonexistent"],
        &["readlink", "-f", "/sys/class/net/lo"],
        &["find", "/sys/class/infiniband_mad", "/dev/shm/.nonexistent"],
    ] {
        let run = |preload: Option<&Path>| {
            let mut command = Command::new(arguments[0]);
            command
                .args(&arguments[1..])
                .env("LC_ALL", "C")
                .env("XDG_RUNTIME_DIR", &runtime.0);
            if let Some(library) = preload {
                command.env("LD_PRELOAD", library);
            }
            command.output().unwrap()
        };
        let (with, without) = (run(Some(&library::path())), run(None));
        assert_eq!(with, without, "{arguments:?}");
    }
    assert_eq!(fs::read_dir(&runtime.0).unwrap().count(), 0);
}
