//! What a process may have: few descriptors, no privileges.

use crate::scratch::{Scratch, contents, noise, send};
use airdma_files::{Clash, Options};
use std::process::Command;

/// Runs another test of this binary by itself: limits are a process's.
fn run_by(program: &str, arguments: &[&str], test: &str) {
    let output = Command::new(program)
        .args(arguments)
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .env("AIRDMA_TEST_LIMITED", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

fn is_limited() -> bool {
    std::env::var("AIRDMA_TEST_LIMITED").is_ok()
}

#[test]
fn a_chunk_of_many_small_directories_needs_few_descriptors() {
    let limit = "ulimit -n 128 && exec \"$@\"";
    let test = "limits::with_few_descriptors";
    run_by("sh", &["-c", limit, "sh"], test);
}

/// Each file is in another directory than the one before it: under their names, and under their numbers.
#[test]
#[ignore = "it is started by another test"]
fn with_few_descriptors() {
    if !is_limited() {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.join("in/tree");
    for number in 0..1000 {
        scratch.write(&format!("in/tree/{number}/file"), noise(number, 100));
    }
    for is_there in [false, true] {
        let out = scratch.directory(&format!("out-{is_there}"));
        if is_there {
            scratch.directory("out-true/tree");
        }
        let options = Options {
            clash: Clash::Overwrite,
            ..Options::default()
        };
        assert_eq!(send(&tree, &out, options).unwrap().files, 1000);
        assert_eq!(contents(&scratch.join("in")), contents(&out));
    }
}
