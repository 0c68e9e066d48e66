//! C programs written to the public header, run against the library alone on the loopback interface, in a network namespace of
//! their own so that the port is free.

use crate::library;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles and runs `c/NAME.c`, which exits with 0 and prints `ok` if everything is as the man pages say. Skipped, and said
/// so, where there is no compiler, no header, or no namespace to be had.
pub fn run(name: &str) {
    run_after(name, "");
}

/// The same after a shell script that prepares the namespace.
pub fn run_after(name: &str, setup: &str) {
    let Some(program) = compile(name) else { return };
    let script = format!("{setup}\nLD_PRELOAD=$LIBRARY timeout 60 $PROGRAM");
    let Some(mut command) = isolated(&script) else {
        return;
    };
    let output = command
        .env("AIRDMA_LOOPBACK", "1")
        .env("LIBRARY", library::path())
        .env("PROGRAM", program)
        .output()
        .unwrap();
    let (out, errors) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert_eq!(out, "ok\n", "{errors}");
}

/// The program; `None` where there is no compiler or no libibverbs to compile with.
fn compile(name: &str) -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let include = Command::new("cc")
        .args(["-include", "infiniband/verbs.h", "-fsyntax-only", "-xc"])
        .arg("/dev/null")
        .output();
    if !include.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no C compiler, or no libibverbs headers");
        return None;
    }
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([&program, &source])
        .arg("-libverbs")
        .status()
        .unwrap();
    assert!(status.success());
    Some(program)
}

/// A shell in a network namespace whose loopback is up; `None` where the kernel refuses.
fn isolated(script: &str) -> Option<Command> {
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
        eprintln!("skipped: no network namespace to be had (unshare, ip)");
        return None;
    }
    Some(shell(script))
}
