//! Two names of one transfer that the receiver's file system treats as one.
//!
//! Hard links and bind mounts stand in for such a file system: one file under both names.

use crate::scratch::{Scratch, copy, key, noise, open, source};
use airdma_files::{CHUNK_BYTES, Clash, Flaw, Manifest, Options, Report};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

const CLASHES: [Clash; 4] = [
    Clash::Refuse,
    Clash::Rename,
    Clash::Overwrite,
    Clash::SkipSame,
];

fn options(clash: Clash) -> Options {
    Options {
        clash,
        ..Options::default()
    }
}

fn entry(manifest: &Manifest, path: &str) -> u32 {
    let mut entries = manifest.iter();
    let found = entries.find(|(index, _)| manifest.path(*index) == path.as_bytes());
    found.unwrap().0
}

/// Checks that it is reported, also when asked again, and that nothing is left.
fn is_told(out: &Path, manifest: &std::sync::Arc<Manifest>, options: Options, report: &Report) {
    let mut again = open(out, manifest, options).unwrap();
    assert_eq!(again.settle().as_ref(), Ok(report));
    again.forget().unwrap();
    assert!(!out.join(key().staging_name(manifest.id())).exists());
}

#[test]
fn a_file_does_not_replace_another_of_its_transfer() {
    for clash in CLASHES {
        let scratch = Scratch::new();
        scratch.write("in/tree/Makefile", b"the first");
        scratch.write("in/tree/makefile", noise(2, 3 * CHUNK_BYTES as usize));
        scratch.write("in/tree/other", noise(3, 100));
        let (from, manifest) = source(&scratch.join("in/tree"));
        let out = scratch.directory("out");
        let options = options(clash);
        let (mut sink, from) = copy(from, open(&out, &manifest, options).unwrap(), 1).unwrap();
        sink.checkpoint().unwrap();
        let placed = out.join("tree/Makefile");
        fs::hard_link(&placed, out.join("tree/makefile")).unwrap();
        let (mut sink, _) = copy(from, sink, u64::MAX).unwrap();
        let report = sink.settle().unwrap();
        drop(sink);
        let flawed = (entry(&manifest, "tree/makefile"), Flaw::SameName);
        assert_eq!((report.files, &*report.flaws), (2, &[flawed][..]));
        assert_eq!(fs::read(&placed).unwrap(), b"the first", "{clash:?}");
        is_told(&out, &manifest, options, &report);
    }
}

#[test]
fn a_taken_name_in_a_new_directory_is_reported() {
    for is_one_file in [false, true] {
        let scratch = Scratch::new();
        scratch.write("in/tree/Makefile", noise(1, CHUNK_BYTES as usize));
        scratch.write("in/tree/makefile", b"another");
        scratch.write("in/tree/other", noise(3, 100));
        let (from, manifest) = source(&scratch.join("in/tree"));
        let (out, options) = (scratch.directory("out"), options(Clash::Refuse));
        let (sink, from) = copy(from, open(&out, &manifest, options).unwrap(), 1).unwrap();
        let made = out.join(key().staging_name(manifest.id())).join("0");
        match is_one_file {
            true => fs::hard_link(made.join("Makefile"), made.join("makefile")).unwrap(),
            // Only the file system knows that both names are one.
            false => fs::write(made.join("makefile"), b"in the way").unwrap(),
        }
        let (mut sink, _) = copy(from, sink, u64::MAX).unwrap();
        let report = sink.settle().unwrap();
        drop(sink);
        let flawed = (entry(&manifest, "tree/makefile"), Flaw::SameName);
        assert_eq!((report.files, &*report.flaws), (2, &[flawed][..]));
        let first = fs::read(out.join("tree/Makefile")).unwrap();
        assert_eq!(first, noise(1, CHUNK_BYTES as usize));
        is_told(&out, &manifest, options, &report);
    }
}

/// A file that equals one of the two is one file, and the other did not arrive.
#[test]
fn what_is_there_counts_for_one_of_two_names() {
    let scratch = Scratch::new();
    for name in ["Makefile", "makefile"] {
        let file = scratch.write(&format!("in/tree/{name}"), name);
        let time = fs::File::options().write(true).open(file).unwrap();
        time.set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let out = scratch.directory("out");
    let copied = Command::new("cp")
        .arg("-a")
        .args([scratch.join("in/tree"), out.join("tree")])
        .status();
    assert!(copied.unwrap().success());
    fs::remove_file(out.join("tree/makefile")).unwrap();
    fs::hard_link(out.join("tree/Makefile"), out.join("tree/makefile")).unwrap();
    let (_, manifest) = source(&scratch.join("in/tree"));
    let options = options(Clash::SkipSame);
    let sink = open(&out, &manifest, options).unwrap();
    let (one, other) = (
        entry(&manifest, "tree/Makefile"),
        entry(&manifest, "tree/makefile"),
    );
    assert!(sink.unwanted().contains(one) && !sink.unwanted().contains(other));
    let walked = airdma_files::walk(&[scratch.join("in/tree")], airdma_files::Limits::default());
    let source = airdma_files::Source::new(&walked.unwrap(), sink.unwanted(), 0);
    let (mut sink, _) = copy(source, sink, u64::MAX).unwrap();
    assert_eq!(sink.settle().unwrap().flaws, [(other, Flaw::SameName)]);
    assert_eq!(fs::read(out.join("tree/Makefile")).unwrap(), b"Makefile");
}

#[test]
fn a_directory_that_is_another_one_is_told_with_all_in_it() {
    let output = Command::new("unshare")
        .args(["--user", "--map-root-user", "--mount"])
        .arg(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "same_name::where_it_may_mount"])
        .env("AIRDMA_TEST_MOUNTS", "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("1 passed"),
        "{said}"
    );
}

#[test]
#[ignore = "it is started by another test"]
fn where_it_may_mount() {
    if std::env::var("AIRDMA_TEST_MOUNTS").is_err() {
        return;
    }
    for clash in CLASHES {
        let scratch = Scratch::new();
        scratch.write("in/Docs/a", b"the first");
        scratch.write("in/Docs/link-target", b"");
        scratch.write("in/docs/a", noise(2, 3 * CHUNK_BYTES as usize));
        scratch.write("in/docs/b", b"below");
        fs::create_dir(scratch.join("in/docs/empty")).unwrap();
        symlink("a", scratch.join("in/docs/link")).unwrap();
        let tops = [scratch.join("in/Docs"), scratch.join("in/docs")];
        let walked = airdma_files::walk(&tops, airdma_files::Limits::default()).unwrap();
        let manifest = walked.manifest.clone();
        let out = scratch.directory("out");
        let options = options(clash);
        let sink = open(&out, &manifest, options).unwrap();
        let from = airdma_files::Source::new(&walked, sink.unwanted(), 0);
        let (mut sink, from) = copy(from, sink, 1).unwrap();
        sink.checkpoint().unwrap();
        assert!(out.join("Docs/a").is_file());
        let (first, second) = (out.join("Docs"), scratch.directory("out/docs"));
        let mounted = Command::new("mount")
            .arg("--bind")
            .args([&first, &second])
            .status();
        assert!(mounted.unwrap().success());
        let (mut sink, _) = copy(from, sink, u64::MAX).unwrap();
        let report = sink.settle().unwrap();
        let flawed = ["docs", "docs/a", "docs/b", "docs/empty", "docs/link"];
        let flawed = flawed.map(|path| (entry(&manifest, path), Flaw::SameName));
        assert_eq!(
            (report.files, &*report.flaws),
            (2, &flawed[..]),
            "{clash:?}"
        );
        assert_eq!(fs::read(first.join("a")).unwrap(), b"the first");
        assert_eq!(fs::read_dir(&first).unwrap().count(), 2);
        let unmounted = Command::new("umount").arg(&second).status();
        assert!(unmounted.unwrap().success());
    }
}
