//! Runs `c/smoke.c`, a program written to the public header, against the library, in a network
//! namespace of its own so that the port is free.

#![allow(clippy::unwrap_used)]

mod library;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles the program; `None` where there is no compiler or no libibverbs to compile with.
fn compile() -> Option<PathBuf> {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("smoke");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c/smoke.c");
    let include = Command::new("cc")
        .args(["-include", "infiniband/verbs.h", "-fsyntax-only", "-xc"])
        .arg("/dev/null")
        .output();
    if !include.is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: no C compiler, or no libibverbs headers");
        return None;
    }
    let status = Command::new("cc")
        .args(["-Wall", "-Wextra", "-Werror", "-o"])
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

#[test]
fn a_c_program_finds_what_the_man_pages_promise() {
    let Some(program) = compile() else { return };
    let Some(mut command) = isolated("LD_PRELOAD=$LIBRARY exec timeout 60 $PROGRAM") else {
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
    assert!(output.status.success(), "{errors}");
    assert_eq!(out, "ok\n", "{errors}");
}
