//! Restricted processes: few descriptors, no privileges.

use crate::scratch::{Scratch, contents, copy, noise, open, send, source};
use airdma_files::{CHUNK_BYTES, Clash, Limits, Options, Source, walk};
use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

/// Runs another test of this binary by itself: limits apply to a process.
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

/// Each file is in another directory than the one before it: under their names, and under their
/// numbers.
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

#[test]
fn a_file_that_may_not_be_written_goes_on_where_it_was_cut_off() {
    run_without_privileges("limits::without_privileges");
}

/// Runs a test in a user namespace of its own, without privileges over the files of this one.
fn run_without_privileges(test: &str) {
    run_by("unshare", &["--user"], test);
}

/// It was complete and had its permissions, but the journal does not know that yet.
#[test]
#[ignore = "it is started by another test"]
fn without_privileges() {
    if !is_limited() {
        return;
    }
    let scratch = Scratch::new();
    let file = scratch.write("in/file", noise(1, 3 * CHUNK_BYTES as usize));
    fs::set_permissions(&file, Permissions::from_mode(0o444)).unwrap();
    let refused = File::options().write(true).open(&file).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let (from, manifest) = source(&file);
    let out = scratch.directory("out");
    let open = || open(&out, &manifest, Options::default()).unwrap();
    let (mut sink, from) = copy(from, open(), 1).unwrap();
    sink.checkpoint().unwrap();
    let (sink, _) = copy(from, sink, u64::MAX).unwrap();
    assert_eq!(sink.next(), sink.plan().chunks());
    drop(sink);
    let sink = open();
    assert_eq!(sink.next(), 1);
    let walked = walk(&[&file], Limits::default()).unwrap();
    let from = Source::new(&walked, sink.unwanted(), sink.next());
    let (sink, _) = copy(from, sink, u64::MAX).unwrap();
    assert_eq!(sink.finish().unwrap().files, 1);
    assert_eq!(contents(&scratch.join("in")), contents(&out));
}

#[test]
fn files_in_an_unreadable_directory_are_known_to_exist() {
    run_without_privileges("limits::without_a_list");
}

#[test]
#[ignore = "it is started by another test"]
fn without_a_list() {
    if !is_limited() {
        return;
    }
    let scratch = Scratch::new();
    scratch.write("in/tree/file", noise(1, 100));
    let (from, manifest) = source(&scratch.join("in/tree"));
    let out = scratch.directory("out");
    let open = || open(&out, &manifest, Options::default()).unwrap();
    let (mut sink, _) = copy(from, open(), u64::MAX).unwrap();
    let report = sink.settle().unwrap();
    drop(sink);
    fs::set_permissions(out.join("tree"), Permissions::from_mode(0o311)).unwrap();
    let refused = fs::read_dir(out.join("tree")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::PermissionDenied);
    let mut sink = open();
    assert_eq!(sink.next(), sink.plan().chunks(), "nothing is to be sent");
    assert_eq!(sink.settle(), Ok(report));
}
