//! Full or read-only disks: a clear error, and no incomplete file under its final name.

use crate::scratch::{Scratch, contents, copy, key, noise, open, send, source};
use airdma_files::{CHUNK_BYTES, Options, Problem, Sink};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Runs another test of this binary in namespaces of its own, where it may mount a file system of 8
/// MiB.
fn run_with_small_disk(test: &str, options: &str) {
    let scratch = Scratch::new();
    let disk = scratch.directory("disk");
    let script = "mount -t tmpfs -o size=8m,$OPTIONS none \"$AIRDMA_TEST_DISK\" && exec \"$@\"";
    let output = Command::new("unshare")
        .args([
            "--user",
            "--map-root-user",
            "--mount",
            "sh",
            "-c",
            script,
            "sh",
        ])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", test])
        .env("OPTIONS", options)
        .env("AIRDMA_TEST_DISK", &disk)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
fn a_full_disk_is_reported_and_the_transfer_resumes_later() {
    run_with_small_disk("errors::on_a_disk_that_fills_up", "rw");
}

#[test]
fn a_read_only_disk_is_told() {
    run_with_small_disk("errors::on_a_read_only_disk", "ro");
}

#[test]
#[ignore = "it is started by another test"]
fn on_a_disk_that_fills_up() {
    let Ok(disk) = std::env::var("AIRDMA_TEST_DISK") else {
        return;
    };
    let disk = Path::new(&disk);
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    for name in ["a", "b", "c"] {
        scratch.write(
            &format!("in/tree/{name}"),
            noise(1, 2 * CHUNK_BYTES as usize),
        );
    }
    let (from, manifest) = source(&tree);
    let (mut sink, from) =
        copy(from, open(disk, &manifest, Options::default()).unwrap(), 3).unwrap();
    sink.checkpoint().unwrap();
    fs::write(disk.join("somebody else's"), noise(2, 3 << 20)).unwrap();
    let error = copy(from, sink, u64::MAX).unwrap_err();
    assert_eq!(error.problem, Problem::NoSpace, "{error}");
    assert_eq!(fs::read_dir(disk.join("tree")).unwrap().count(), 1);
    fs::remove_file(disk.join("somebody else's")).unwrap();
    let sink = open(disk, &manifest, Options::default()).unwrap();
    assert_eq!(sink.next(), 3);
    let walked = airdma_files::walk(&[&tree], airdma_files::Limits::default()).unwrap();
    let from = airdma_files::Source::new(&walked, sink.unwanted(), sink.next());
    let (sink, _) = copy(from, sink, u64::MAX).unwrap();
    sink.finish().unwrap();
    assert_eq!(contents(disk), contents(&scratch.join("in")));
    let too_much = scratch.write("in/more", noise(3, 9 << 20));
    let error = send(&too_much, disk, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::NoSpace, "{error}");
    assert_eq!(fs::read_dir(disk).unwrap().count(), 1, "nothing was begun");
}

#[test]
fn a_limit_lowered_meanwhile_refuses_the_resumption() {
    // A limit holds for a process.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "errors::under_a_lowered_limit"])
        .env("AIRDMA_TEST_LIMIT", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
#[ignore = "it is started by another test"]
fn under_a_lowered_limit() {
    if std::env::var_os("AIRDMA_TEST_LIMIT").is_none() {
        return;
    }
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    let out = scratch.directory("out");
    for (name, chunks) in [("a", 4), ("b", 3)] {
        let bytes = noise(1, chunks * CHUNK_BYTES as usize);
        scratch.write(&format!("in/tree/{name}"), bytes);
    }
    let (from, manifest) = source(&tree);
    let sink = open(&out, &manifest, Options::default()).unwrap();
    let (mut sink, from) = copy(from, sink, 6).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let limit = |chunks: Option<u64>| {
        let before = getrlimit(Resource::Fsize);
        let current = chunks.map(|chunks| chunks * CHUNK_BYTES).or(before.maximum);
        setrlimit(Resource::Fsize, Rlimit { current, ..before }).unwrap();
    };
    let start = || {
        let options = Options::default();
        let preview = Sink::preview(&out, &manifest, manifest.id(), &options, &key());
        let next = open(&out, &manifest, options).map(|sink| sink.next());
        let goes_on = next.clone().map(|_| true);
        assert_eq!(preview.map(|preview| preview.goes_on), goes_on);
        next
    };
    limit(Some(2));
    let error = start().unwrap_err();
    assert_eq!(error.problem, Problem::TooLarge, "{error}");
    assert!(error.to_string().contains("tree/b, which has"), "{error}");
    // The file that is too long by this limit has arrived.
    limit(Some(3));
    assert_eq!(start(), Ok(6));
    let sink = open(&out, &manifest, Options::default()).unwrap();
    let (sink, _) = copy(from, sink, u64::MAX).unwrap();
    sink.finish().unwrap();
    limit(None);
    assert_eq!(contents(&out), contents(&scratch.join("in")));
}

#[test]
#[ignore = "it is started by another test"]
fn on_a_read_only_disk() {
    let Ok(disk) = std::env::var("AIRDMA_TEST_DISK") else {
        return;
    };
    let scratch = Scratch::new();
    let file = scratch.write("in/a", b"a");
    let error = send(&file, Path::new(&disk), Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::ReadOnly, "{error}");
}

#[test]
fn a_file_that_is_larger_than_a_file_can_be_is_told() {
    use airdma_files::manifest::{Builder, Content, Entry, Kind};
    let modified = airdma_files::Modified {
        seconds: 0,
        nanos: 0,
    };
    let size = i64::MAX as u64;
    let kind = Kind::File(Content {
        size,
        stamp: 0,
        extents: Some([].into()),
    });
    let mut builder = Builder::new(airdma_files::Limits::default());
    builder
        .push(Entry {
            parent: None,
            depth: 0,
            name: b"a".as_slice().into(),
            mode: 0o644,
            modified,
            kind,
        })
        .unwrap();
    let manifest = std::sync::Arc::new(builder.finish());
    let scratch = Scratch::new();
    let mut sink = open(scratch.path(), &manifest, Options::default()).unwrap();
    let hash = blake3::hash(b"");
    let trailer = [&[0], hash.as_bytes().as_slice()].concat();
    match sink.write(&trailer) {
        Err(error) => assert_eq!(error.problem, Problem::TooLarge, "{error}"),
        // A file system that supports files of this size.
        Ok(()) => assert_eq!(sink.finish().unwrap().files, 1),
    }
}

#[test]
fn a_directory_that_is_none_is_told() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", b"a");
    let error = send(&file, &file, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::NoDirectory);
    let error = send(&file, &scratch.join("nowhere"), Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::Missing);
    let error = send(&scratch.join("nowhere"), scratch.path(), Options::default()).unwrap_err();
    assert_eq!((error.doing, error.problem), ("send", Problem::Missing));
}

#[test]
fn a_name_that_this_file_system_does_not_take_is_told() {
    let error = airdma_files::walk(&[Path::new("/")], airdma_files::Limits::default()).unwrap_err();
    assert_eq!(error.problem, Problem::NoName);
}
