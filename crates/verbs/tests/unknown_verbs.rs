//! A program that calls verbs which the host's libibverbs has and this library has not, preloaded:
//! each is named, and refused.

#![allow(clippy::unwrap_used)]

mod library;
mod program;

use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `c/NAME.c`; `None` where there is no compiler, or are no headers of rdma-core.
fn compile(name: &str, output: &Path, options: &[&str]) -> Option<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/c");
    let status = Command::new("cc")
        .args(["-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-o"])
        .args([output, &folder.join(format!("{name}.c"))])
        .args(options)
        .args(["-libverbs"])
        .status();
    if status.is_ok_and(|status| status.success()) {
        return Some(());
    }
    let header = Command::new("cc")
        .args(["-include", "infiniband/verbs.h", "-fsyntax-only", "-xc"])
        .arg("/dev/null")
        .output();
    assert!(
        !header.is_ok_and(|output| output.status.success()),
        "{name}.c does not compile"
    );
    program::skipped("no C compiler, or no headers of rdma-core");
    None
}

/// What is said not to be here, once each: two through pointers, of which one was looked up.
const TOLD: [&str; 8] = [
    "ibv_create_future",
    "ibv_query_future",
    "ibv_ask_future",
    "ibv_last_future",
    "ibv_export_future_fd",
    "ibv_pointed_future",
    "rdma_future",
    "a function of libibverbs",
];

#[test]
fn a_verb_of_a_newer_libibverbs_is_named_and_refused() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("unknown-verbs");
    std::fs::create_dir_all(&folder).unwrap();
    let future = folder.join("libibverbs-future.so");
    if compile("future_verbs", &future, &["-shared", "-fPIC"]).is_none() {
        return;
    }
    // The ways in which programs call a function of a library.
    let ways: [&[&str]; 4] = [
        &["-Wl,-z,lazy"],
        &["-Wl,-z,now"],
        &["-fno-plt"],
        &["-fcf-protection=none", "-no-pie", "-Wl,-z,lazy"],
    ];
    for way in ways {
        let program = folder.join("program");
        let library = future.to_str().unwrap();
        compile("unknown_verbs", &program, &[way, &[library]].concat()).unwrap();
        let Some(mut command) = program::isolated("LD_PRELOAD=$LIBRARY timeout 60 $PROGRAM") else {
            return;
        };
        let output = command
            .env("AIRDMA_LOOPBACK", "1")
            .env("LIBRARY", library::path())
            .env("PROGRAM", &program)
            .output()
            .unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success(),
            "{way:?}: {}\n{errors}",
            output.status
        );
        for verb in TOLD {
            let name = format!("airdma: {verb} is not in airdma");
            assert_eq!(
                errors.matches(&name).count(),
                1,
                "{way:?}: {name}\n{errors}"
            );
        }
    }
}
