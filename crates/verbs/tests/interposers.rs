//! Programs and libraries that stand in front of functions themselves, beside the preload: each
//! gets what it would get without it, and airdma's devices.

#![cfg(target_arch = "x86_64")]
#![allow(clippy::unwrap_used)]

mod library;
mod program;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// `c/NAME.c`, compiled; `None` where there is no compiler.
fn compiled(name: &str, options: &[&str]) -> Option<PathBuf> {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("interposers");
    std::fs::create_dir_all(&folder).unwrap();
    // Tests run at the same time: none overwrites what another executes.
    static COMPILED: AtomicU32 = AtomicU32::new(0);
    let number = COMPILED.fetch_add(1, Ordering::Relaxed);
    let output = folder.join(format!("{number}-{name}"));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/c/{name}.c"));
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .args([&output, &source])
        .args(options)
        .arg("-ldl")
        .status();
    match status {
        Ok(status) if status.success() => Some(output),
        Ok(_) => {
            program::skipped(&format!("cc does not compile {name}.c with {options:?}"));
            None
        }
        Err(_) => {
            program::skipped("no C compiler");
            None
        }
    }
}

/// What the program prints with these libraries preloaded; `AIRDMA` stands for ours.
fn output(program: &Path, preload: &str) -> Option<String> {
    output_with(program, preload, "")
}

/// The same of a program with an argument.
fn output_with(program: &Path, preload: &str, argument: &str) -> Option<String> {
    let script = format!("LD_PRELOAD=\"{preload}\" exec timeout 60 $PROGRAM {argument}");
    let output = program::isolated(&script)?
        .env("AIRDMA_LOOPBACK", "1")
        .env("AIRDMA", library::path())
        .env("PROGRAM", program)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {errors}", output.status);
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The program opens the one device; `None` where it cannot be run.
fn opens_a_device(options: &[&str]) -> Option<()> {
    let program = compiled("interposed", options)?;
    assert_eq!(output(&program, "$AIRDMA")?, "opened");
    Some(())
}

/// ThreadSanitizer asks `dlsym` for what it stands in front of, before any of it works.
#[test]
fn a_program_under_thread_sanitizer() {
    for options in [
        &["-fsanitize=thread"][..],
        &["-fsanitize=thread", "-static-libtsan"],
    ] {
        opens_a_device(options);
    }
}

/// Programs that do without libibverbs where there is none export functions of its names, behind
/// which they look it up.
#[test]
fn a_program_that_exports_functions_of_these_names() {
    opens_a_device(&["-DSTUBS", "-rdynamic"]);
}

#[test]
fn a_library_that_wraps_verbs_beside_one_that_looks_them_up() {
    let library = compiled("interposer_wrap", &["-shared", "-fPIC"]);
    let (Some(library), Some(program)) = (library, compiled("interposed", &[])) else {
        return;
    };
    let preload = format!("{} $AIRDMA", library.display());
    if let Some(said) = output(&program, &preload) {
        assert_eq!(said, "opened");
    }
}

#[test]
fn a_library_with_a_dlsym_of_its_own_before_ours_or_behind() {
    let library = compiled("interposer_hook", &["-shared", "-fPIC"]);
    let (Some(library), Some(program)) = (library, compiled("interposed", &[])) else {
        return;
    };
    let library = library.display();
    // In front of airdma it has asked the C library for what comes next, by a version: the
    // program's look-ups do not come past airdma.
    for (preload, wanted) in [
        (format!("{library} $AIRDMA"), "not opened hooked"),
        (format!("$AIRDMA {library}"), "opened hooked"),
    ] {
        if let Some(said) = output(&program, &preload) {
            assert_eq!(said, wanted, "{preload}");
        }
    }
}

/// A library that is opened so that its own dependencies come first (`RTLD_DEEPBIND`, Valkey's
/// modules) gets airdma's functions; one without verbs keeps its own names.
#[test]
fn a_library_that_is_opened_with_its_own_dependencies_first() {
    for (options, wanted) in [
        (&["-DMODULE", "-libverbs"][..], "airdma_lo"),
        (&["-DPLAIN"], "its own"),
    ] {
        let module = compiled("deep_bound", &[&["-shared", "-fPIC"], options].concat());
        let (Some(module), Some(program)) = (module, compiled("deep_bound", &["-rdynamic"])) else {
            return;
        };
        if let Some(said) = output_with(&program, "$AIRDMA", &module.display().to_string()) {
            assert_eq!(said, wanted, "{options:?}");
        }
    }
}
