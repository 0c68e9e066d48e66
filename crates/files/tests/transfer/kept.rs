//! Everything that arrives equals what was sent.

use crate::scratch::{
    Described, Scratch, What, contents, copy, noise, open, send, send_all, source,
};
use airdma_files::{
    CHUNK_BYTES, Clash, Flaw, Limits, Options, Permissions, Problem, Symlinks, walk,
};
use std::collections::BTreeMap;
use std::fs::{self, File, FileTimes};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A tree of all kinds: small files, empty ones, one of several chunks, holes, links, modes, times,
/// odd names.
pub fn everything(scratch: &Scratch) -> std::path::PathBuf {
    let top = scratch.directory("in/tree");
    for number in 0..300_usize {
        scratch.write(
            &format!("in/tree/small/{}/{number}", number % 7),
            noise(number as u64, number * 31),
        );
    }
    scratch.write("in/tree/large", noise(1, 3 * CHUNK_BYTES as usize + 17));
    scratch.write("in/tree/empty", b"");
    scratch.write("in/tree/a\nname \u{fc} \u{1b}[2J", b"odd");
    fs::write(
        top.join(std::ffi::OsStr::from_bytes(b"not\xffutf8")),
        b"odd too",
    )
    .unwrap();
    scratch.directory("in/tree/nothing/in/it");
    let sparse = File::create(top.join("sparse")).unwrap();
    sparse.write_all_at(&noise(2, 100_000), 10 << 20).unwrap();
    sparse.write_all_at(&noise(3, 5), 30 << 20).unwrap();
    sparse.set_len(40 << 20).unwrap();
    File::create(top.join("hole"))
        .unwrap()
        .set_len(1 << 20)
        .unwrap();
    symlink("small/1/1", top.join("link")).unwrap();
    symlink("../large", top.join("nothing/dangling or not")).unwrap();
    let program = scratch.write("in/tree/program", b"#!/bin/sh\n");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o751)).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 123_456_789);
    File::options()
        .write(true)
        .open(&program)
        .unwrap()
        .set_times(FileTimes::new().set_modified(old))
        .unwrap();
    let closed = scratch.directory("in/tree/closed");
    scratch.write("in/tree/closed/inside", b"readable");
    File::open(&closed)
        .unwrap()
        .set_times(FileTimes::new().set_modified(old))
        .unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o555)).unwrap();
    top
}

#[test]
fn a_tree_arrives_as_it_was() {
    let scratch = Scratch::new();
    let tree = everything(&scratch);
    let out = scratch.directory("out");
    let report = send(&tree, &out, Options::default()).unwrap();
    assert_eq!((report.files, report.flaws.len()), (300 + 8, 0));
    assert_eq!(contents(&scratch.join("in")), contents(&out));
    assert_eq!(
        fs::read_dir(&out).unwrap().count(),
        1,
        "nothing is left beside it"
    );
}

#[test]
fn holes_stay_holes_unless_they_are_not_wanted() {
    let scratch = Scratch::new();
    let tree = everything(&scratch);
    let (out, full) = (scratch.directory("out"), scratch.directory("full"));
    send(&tree.join("sparse"), &out, Options::default()).unwrap();
    send(
        &tree.join("sparse"),
        &full,
        Options {
            holes: false,
            ..Options::default()
        },
    )
    .unwrap();
    let blocks = |path: &Path| fs::metadata(path.join("sparse")).unwrap().blocks() * 512;
    assert!(blocks(&out) < 1 << 20, "{}", blocks(&out));
    assert!(blocks(&full) >= 40 << 20, "{}", blocks(&full));
    assert_eq!(
        fs::read(out.join("sparse")).unwrap(),
        fs::read(full.join("sparse")).unwrap()
    );
}

#[test]
fn holes_are_not_sent() {
    let scratch = Scratch::new();
    let file = File::create(scratch.join("terabyte")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(b"end", (1 << 40) - 3).unwrap();
    let walked = walk(&[scratch.join("terabyte")], Limits::default()).unwrap();
    assert!(
        walked.manifest.content_bytes() < 1 << 20,
        "{}",
        walked.manifest.content_bytes()
    );
    send(
        &scratch.join("terabyte"),
        &scratch.directory("out"),
        Options::default(),
    )
    .unwrap();
    let arrived = File::open(scratch.join("out/terabyte")).unwrap();
    let mut end = [0; 4];
    arrived.read_exact_at(&mut end, (1 << 40) - 4).unwrap();
    assert_eq!(
        (arrived.metadata().unwrap().len(), &end),
        (1 << 40, b"\0end")
    );
}

#[test]
fn permissions_and_times_are_left_out_where_that_is_wanted() {
    let scratch = Scratch::new();
    let tree = everything(&scratch);
    let mark = fs::metadata(scratch.write("mark", b"")).unwrap();
    let before = mark.modified().unwrap() - Duration::from_secs(60);
    let options = Options {
        permissions: Permissions::New,
        times: false,
        ..Options::default()
    };
    send(&tree, &scratch.directory("out"), options).unwrap();
    let program = fs::metadata(scratch.join("out/tree/program")).unwrap();
    assert_eq!(program.mode() & 0o111, 0);
    assert!(program.modified().unwrap() > before);
    let closed = fs::metadata(scratch.join("out/tree/closed")).unwrap();
    assert_eq!(closed.mode() & 0o700, 0o700);
}

#[test]
fn a_file_of_somebody_elses_privileges_arrives_without_them() {
    let scratch = Scratch::new();
    let file = scratch.write("in/suid", b"x");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o6755)).unwrap();
    send(&file, &scratch.directory("out"), Options::default()).unwrap();
    assert_eq!(
        fs::metadata(scratch.join("out/suid")).unwrap().mode() & 0o7777,
        0o755
    );
}

#[test]
fn links_are_left_out_where_that_is_wanted() {
    let scratch = Scratch::new();
    let tree = everything(&scratch);
    send(
        &tree,
        &scratch.directory("out"),
        Options {
            symlinks: Symlinks::Skip,
            ..Options::default()
        },
    )
    .unwrap();
    let arrived = contents(&scratch.join("out"));
    let is_link = |described: &Described| matches!(described.what, What::Link(_));
    assert!(!arrived.values().any(is_link));
    assert_eq!(arrived.len(), contents(&scratch.join("in")).len() - 2);
}

#[test]
fn several_paths_are_one_offer_and_a_named_link_is_followed() {
    let scratch = Scratch::new();
    let (b, a) = (
        scratch.write("in/b", b"b"),
        scratch.write("in/deep/a", b"a"),
    );
    symlink(&a, scratch.join("in/link")).unwrap();
    let out = scratch.directory("out");
    send_all(
        &[&b, &a, &scratch.join("in/link")],
        &out,
        Options::default(),
    )
    .unwrap();
    let read = |name| fs::read(out.join(name)).unwrap();
    assert_eq!(
        (read("a"), read("b"), read("link")),
        (b"a".to_vec(), b"b".to_vec(), b"a".to_vec())
    );
}

#[test]
fn the_directory_that_one_is_in_has_a_name() {
    let scratch = Scratch::new();
    scratch.write("in/tree/inner/file", b"x");
    let walked = walk(&[scratch.join("in/tree/inner/..")], Limits::default()).unwrap();
    assert_eq!(walked.manifest.path(0), b"tree");
}

#[test]
fn a_file_that_changes_meanwhile_is_told_and_the_others_arrive() {
    let scratch = Scratch::new();
    let kept = noise(5, 2 * CHUNK_BYTES as usize);
    for name in ["a", "b", "c"] {
        scratch.write(&format!("in/tree/{name}"), &kept);
    }
    for change in [shorten, rewrite, remove, exchange_for_a_link] {
        let out = Scratch::new();
        scratch.write("in/tree/b", &kept);
        let walked = walk(&[scratch.join("in/tree")], Limits::default()).unwrap();
        let manifest = std::sync::Arc::clone(&walked.manifest);
        let sink = crate::scratch::open(out.path(), &manifest, Options::default()).unwrap();
        let source = airdma_files::Source::new(&walked, sink.unwanted(), 0);
        let (sink, source) = crate::scratch::copy(source, sink, 1).unwrap();
        change(&scratch.join("in/tree/b"));
        let (sink, source) = crate::scratch::copy(source, sink, u64::MAX).unwrap();
        assert_eq!(source.flaws(), [(2, Flaw::Changed)]);
        let report = sink.finish().unwrap();
        assert_eq!((report.files, report.flaws), (2, vec![(2, Flaw::Changed)]));
        assert_eq!(
            contents(&out.join("tree")).keys().collect::<Vec<_>>(),
            [b"a", b"c"]
        );
        assert_eq!(fs::read(out.join("tree/c")).unwrap(), kept);
    }
}

/// A log grows while it is sent: its offered part arrives, and its growth is reported.
#[test]
fn a_file_that_only_grows_arrives_as_long_as_it_was() {
    for length in [0, 100, 2 * CHUNK_BYTES as usize] {
        let scratch = Scratch::new();
        let held = noise(5, length);
        scratch.write("in/tree/log", &held);
        scratch.write("in/tree/other", noise(6, 3 * CHUNK_BYTES as usize));
        let walked = walk(&[scratch.join("in/tree")], Limits::default()).unwrap();
        let out = scratch.directory("out");
        let sink = crate::scratch::open(&out, &walked.manifest, Options::default()).unwrap();
        let source = airdma_files::Source::new(&walked, sink.unwanted(), 0);
        lengthen(&scratch.join("in/tree/log"));
        let (sink, source) = crate::scratch::copy(source, sink, 1).unwrap();
        lengthen(&scratch.join("in/tree/log"));
        let (sink, mut source) = crate::scratch::copy(source, sink, u64::MAX).unwrap();
        assert_eq!(source.flaws(), []);
        assert_eq!(source.take_grown(), [1]);
        assert_eq!(sink.finish().unwrap().files, 2);
        assert_eq!(fs::read(out.join("tree/log")).unwrap(), held);
    }
}

#[test]
fn a_file_that_is_rewritten_while_it_grows_is_told() {
    let scratch = Scratch::new();
    let file = scratch.write("in/file", noise(5, 2 * CHUNK_BYTES as usize));
    let walked = walk(&[&file], Limits::default()).unwrap();
    let mut source = airdma_files::Source::new(&walked, &Default::default(), 0);
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    source.read(&mut buffer);
    lengthen(&file);
    let written = File::options().write(true).open(&file).unwrap();
    written.write_all_at(b"other", 0).unwrap();
    while source.next() < source.plan().chunks() {
        source.read(&mut buffer);
    }
    assert_eq!(source.flaws(), [(0, Flaw::Changed)]);
    assert_eq!(source.take_grown(), []);
}

/// A longer file of the same name is not the offered one.
#[test]
fn a_longer_file_in_the_place_of_one_is_no_file_that_grew() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/log", b"held");
    let walked = walk(&[&tree], Limits::default()).unwrap();
    scratch.write("in/new", b"held, and more");
    fs::rename(scratch.join("in/new"), tree.join("log")).unwrap();
    let mut source = airdma_files::Source::new(&walked, &Default::default(), 0);
    source.read(&mut vec![0; CHUNK_BYTES as usize]);
    assert_eq!(source.flaws(), [(1, Flaw::Changed)]);
}

/// A file that the kernel generates as it is read has size 0, and an empty file in its place would
/// be wrong.
#[test]
fn a_file_that_holds_more_than_it_says_is_told() {
    let scratch = Scratch::new();
    for path in ["/proc/self/status", "/proc/version"] {
        let walked = walk(&[path], Limits::default()).unwrap();
        let out = scratch.directory("out");
        let sink = crate::scratch::open(&out, &walked.manifest, Options::default()).unwrap();
        let source = airdma_files::Source::new(&walked, sink.unwanted(), 0);
        let (sink, _) = crate::scratch::copy(source, sink, u64::MAX).unwrap();
        let report = sink.finish().unwrap();
        let told = (report.files, &*report.flaws);
        assert_eq!(told, (0, &[(0, Flaw::Unreadable)][..]), "{path}");
        assert_eq!(fs::read_dir(out).unwrap().count(), 0);
    }
}

/// Its size is unknown.
#[test]
fn a_device_that_is_named_is_an_error_and_so_is_a_pipe() {
    let scratch = Scratch::new();
    let pipe = scratch.join("pipe");
    crate::planted::make_pipe(&pipe);
    let reserved = scratch.write(".airdma-0123456789abcdef", b"x");
    for (path, problem) in [
        (std::path::Path::new("/dev/null"), Problem::Special),
        (&*pipe, Problem::Special),
        (&*reserved, Problem::Reserved),
    ] {
        let error = walk(&[path], Limits::default()).unwrap_err();
        assert_eq!(error.problem, problem, "{error}");
    }
}

/// Many files that share a chunk are created ahead of their data: under their names and under their
/// numbers.
#[test]
fn many_small_files_arrive_and_a_missing_one_is_reported() {
    for is_there in [false, true] {
        let scratch = Scratch::new();
        let name = |number: u32| format!("in/tree/{}/{number:03}", number % 3);
        for number in 0..600 {
            let path = scratch.write(&name(number), noise(number.into(), 4096));
            // Also modes without the bits that umasks remove, and without those needed to write.
            let mode = 0o400 | (number & 0o377);
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let out = scratch.directory("out");
        if is_there {
            scratch.directory("out/tree");
        }
        let (source, manifest) = source(&scratch.join("in/tree"));
        let gone = scratch.join(name(301));
        fs::remove_file(&gone).unwrap();
        let options = Options {
            clash: Clash::Overwrite,
            permissions: Permissions::Exact,
            ..Options::default()
        };
        let sink = open(&out, &manifest, options).unwrap();
        let (sink, _) = copy(source, sink, u64::MAX).unwrap();
        let report = sink.finish().unwrap();
        let gone = manifest.iter().find(|(_, entry)| *entry.name == *b"301");
        assert_eq!(report.flaws, [(gone.unwrap().0, Flaw::Changed)]);
        let files_of = |found: BTreeMap<Vec<u8>, Described>| {
            let files = found.into_iter();
            let is_file = |(_, described): &(_, Described)| described.what != What::Directory;
            files.filter(is_file).collect::<Vec<_>>()
        };
        assert_eq!(
            files_of(contents(&scratch.join("in"))),
            files_of(contents(&out))
        );
    }
}

fn shorten(path: &Path) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(CHUNK_BYTES)
        .unwrap();
}

fn lengthen(path: &Path) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(CHUNK_BYTES * 10)
        .unwrap();
}

/// Rewrites a file with the same size and its old time.
fn rewrite(path: &Path) {
    let modified = fs::metadata(path).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(20));
    let file = File::options().write(true).open(path).unwrap();
    file.write_all_at(b"other", 77).unwrap();
    file.set_times(FileTimes::new().set_modified(modified))
        .unwrap();
}

fn remove(path: &Path) {
    fs::remove_file(path).unwrap();
}

fn exchange_for_a_link(path: &Path) {
    fs::remove_file(path).unwrap();
    symlink("/etc/passwd", path).unwrap();
}

#[test]
fn pipes_are_told_and_not_opened() {
    let scratch = Scratch::new();
    scratch.write("in/tree/file", b"x");
    let made = std::process::Command::new("mkfifo")
        .arg(scratch.join("in/tree/pipe"))
        .status()
        .unwrap();
    assert!(made.success());
    let walked = walk(&[scratch.join("in/tree")], Limits::default()).unwrap();
    assert_eq!(
        walked
            .skipped
            .iter()
            .map(|skipped| &*skipped.path)
            .collect::<Vec<_>>(),
        [b"tree/pipe"]
    );
    assert_eq!(walked.manifest.entries().len(), 2);
}
