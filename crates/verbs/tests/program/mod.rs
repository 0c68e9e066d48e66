//! C programs written to the public header, run against the library alone on the loopback
//! interface, in a network namespace of their own so that the port is free.

#![allow(dead_code, reason = "no test uses all of it")]

#[path = "../../../engine/tests/common/skipped.rs"]
mod skipped;

pub use skipped::skipped;

use crate::library;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

/// The longest that one program takes: under valgrind, on a busy machine.
const SECONDS_MAX: &str = "120";

/// Valgrind, to which a lost block and an access to memory that is not there are failures. It runs
/// one thread at a time; without fairness one that polls can keep the one that holds the worker
/// from running, for seconds.
const VALGRIND: &str = "valgrind --quiet --fair-sched=yes --leak-check=full --show-leak-kinds=definite,indirect \
                        --errors-for-leak-kinds=definite,indirect --error-exitcode=9";

/// Compiles and runs `c/NAME.c`, which exits with 0 and prints `ok` if everything is as the man
/// pages say. Skipped, and said so, where there is no compiler, no header, or no namespace to be
/// had.
pub fn run(name: &str) {
    run_after(name, "");
}

/// The same after a shell script that prepares the namespace, and may leave a trap for the end.
pub fn run_after(name: &str, setup: &str) {
    if let Some(out) = output(&source(name), setup, Under::Nothing) {
        assert_eq!(out, "ok\n");
    }
}

/// The same under valgrind, where that is installed.
pub fn run_in_valgrind(name: &str) {
    if let Some(out) = output(&source(name), "", Under::Valgrind) {
        assert_eq!(out, "ok\n");
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"))
}

/// What a program runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Under {
    Nothing,
    Valgrind,
}

/// Compiles the program, runs it after a shell script, and returns what it printed; it has to end
/// with 0. `None` where it cannot be run.
pub fn output(source: &Path, setup: &str, under: Under) -> Option<String> {
    if under == Under::Valgrind && Command::new("valgrind").arg("--version").output().is_err() {
        skipped("valgrind is not installed");
        return None;
    }
    let program = compile(source)?;
    let prefix = match under {
        Under::Nothing => "",
        Under::Valgrind => VALGRIND,
    };
    let script = format!("{setup}\nLD_PRELOAD=$LIBRARY timeout {SECONDS_MAX} {prefix} $PROGRAM");
    let Output {
        status,
        stdout,
        stderr,
    } = isolated(&script)?
        .env("AIRDMA_LOOPBACK", "1")
        .env("LIBRARY", library::path())
        .env("PROGRAM", program)
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&stdout),
        String::from_utf8_lossy(&stderr),
    );
    assert!(
        status.success(),
        "{}: {status}\n{out}{errors}",
        source.display()
    );
    Some(out.into_owned())
}

/// The program; `None` where there is no compiler or no rdma-core to compile with.
fn compile(source: &Path) -> Option<PathBuf> {
    // Tests run at the same time: none overwrites what another executes.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let text = std::fs::read_to_string(source).unwrap();
    let uses_newer = text.contains("\"newer.h\"");
    let uses_connections = text.contains("rdma_cma.h") || text.contains("\"cm.h\"") || uses_newer;
    let (header, libraries) = if uses_connections {
        ("rdma/rdma_cma.h", ["-libverbs", "-lrdmacm"].as_slice())
    } else {
        ("infiniband/verbs.h", ["-libverbs"].as_slice())
    };
    let include = Command::new("cc")
        .args(["-include", header, "-fsyntax-only", "-xc"])
        .arg("/dev/null")
        .output();
    if !include.is_ok_and(|output| output.status.success()) {
        skipped("no C compiler, or no headers of rdma-core");
        return None;
    }
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let name = source.file_stem().unwrap().to_string_lossy();
    let test = std::env::current_exe().unwrap();
    let test = test.file_stem().unwrap().to_string_lossy();
    // Without the number that Cargo gives each build.
    let test = test.split('-').next().unwrap();
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}-{number}-{name}"));
    let status = Command::new("cc")
        .args(["-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .arg(&program)
        .arg(source)
        // The installed libraries may be older.
        .args(uses_newer.then(library::path))
        .args(libraries)
        .status()
        .unwrap();
    assert!(status.success());
    Some(program)
}

/// A shell in a network namespace whose loopback is up; `None` where the kernel refuses.
pub fn isolated(script: &str) -> Option<Command> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--net", "sh", "-c"])
            .arg(format!("ip link set lo up && {script}"));
        command
    };
    if !shell("true")
        .output()
        .is_ok_and(|output| output.status.success())
    {
        skipped("no network namespace to be had (unshare, ip)");
        return None;
    }
    Some(shell(script))
}
