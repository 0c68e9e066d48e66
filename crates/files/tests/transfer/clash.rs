//! Names that exist already.

use crate::scratch::{Scratch, contents, noise, send, send_all};
use airdma_files::{Clash, Options, Problem, Symlinks};
use std::fs;
use std::os::unix::fs::symlink;

fn with(clash: Clash) -> Options {
    Options {
        clash,
        ..Options::default()
    }
}

#[test]
fn a_name_that_exists_is_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let (a, b) = (scratch.write("in/a", b"new"), scratch.write("in/b", b"new"));
    scratch.write("out/b", b"old");
    let before = contents(&scratch.join("out"));
    let error = send_all(&[&a, &b], &scratch.join("out"), with(Clash::Refuse)).unwrap_err();
    assert_eq!((error.problem, &*error.path), (Problem::Exists, "b"));
    assert_eq!(contents(&scratch.join("out")), before);
}

#[test]
fn a_dangling_link_is_a_name_that_exists() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", b"new");
    symlink("nowhere", scratch.directory("out").join("a")).unwrap();
    for clash in [Clash::Refuse, Clash::SkipSame] {
        assert_eq!(
            send(&file, &scratch.join("out"), with(clash))
                .unwrap_err()
                .problem,
            Problem::Exists
        );
    }
    assert!(!scratch.join("out/nowhere").exists());
}

#[test]
fn another_name_is_found_beside_what_exists() {
    let scratch = Scratch::new();
    let (file, tree) = (
        scratch.write("in/a.tar.gz", b"new"),
        scratch.directory("in/tree.d"),
    );
    scratch.write("in/tree.d/inner", b"new");
    scratch.write("out/a.tar.gz", b"old");
    scratch.write("out/a.tar (1).gz", b"old");
    scratch.write("out/tree.d/inner", b"old");
    send_all(&[&file, &tree], &scratch.join("out"), with(Clash::Rename)).unwrap();
    let read = |name: &str| fs::read(scratch.join("out").join(name)).unwrap();
    assert_eq!(
        (read("a.tar.gz"), read("tree.d/inner")),
        (b"old".to_vec(), b"old".to_vec())
    );
    assert_eq!(
        (read("a.tar (2).gz"), read("tree.d (1)/inner")),
        (b"new".to_vec(), b"new".to_vec())
    );
}

#[test]
fn another_name_is_not_one_that_is_offered_too() {
    let scratch = Scratch::new();
    let (a, one) = (
        scratch.write("in/a", b"a"),
        scratch.write("in/a (1)", b"one"),
    );
    scratch.write("out/a", b"old");
    send_all(&[&a, &one], &scratch.join("out"), with(Clash::Rename)).unwrap();
    let read = |name: &str| fs::read(scratch.join("out").join(name)).unwrap();
    assert_eq!(
        (read("a (1)"), read("a (2)")),
        (b"one".to_vec(), b"a".to_vec())
    );
}

/// A file system without case treats both names as one, and one of the files would not arrive.
#[test]
fn another_name_is_not_one_that_is_offered_in_other_letters() {
    let scratch = Scratch::new();
    let offered = ["a", "A (1)", "B", "b"].map(|name| scratch.write(&format!("in/{name}"), name));
    for name in ["a", "B", "b"] {
        scratch.write(&format!("out/{name}"), b"old");
    }
    let offered = offered.each_ref().map(|path| path.as_path());
    send_all(&offered, &scratch.join("out"), with(Clash::Rename)).unwrap();
    let read = |name: &str| fs::read_to_string(scratch.join("out").join(name)).unwrap();
    assert_eq!((read("A (1)"), read("a (2)")), ("A (1)".into(), "a".into()));
    assert_eq!((read("B (1)"), read("b (2)")), ("B".into(), "b".into()));
}

#[test]
fn another_name_for_the_longest_one_is_not_longer() {
    let scratch = Scratch::new();
    let name = format!("{}.txt", "\u{e9}".repeat(125));
    let file = scratch.write(&format!("in/{name}"), b"new");
    scratch.write(&format!("out/{name}"), b"old");
    send(&file, &scratch.join("out"), with(Clash::Rename)).unwrap();
    let shorter = format!("{} (1).txt", "\u{e9}".repeat(123));
    assert_eq!(fs::read(scratch.join("out").join(shorter)).unwrap(), b"new");
}

#[test]
fn overwriting_merges_directories_and_replaces_files_and_links() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", b"new");
    scratch.write("in/tree/b", b"new");
    scratch.write("out/tree/a", b"old");
    scratch.write("out/tree/other", b"old");
    let outside = scratch.write("outside", b"old");
    symlink(&outside, scratch.join("out/tree/b")).unwrap();
    send(&tree, &scratch.join("out"), with(Clash::Overwrite)).unwrap();
    let read = |name: &str| fs::read(scratch.join("out/tree").join(name)).unwrap();
    assert_eq!(
        (read("a"), read("b"), read("other")),
        (b"new".to_vec(), b"new".to_vec(), b"old".to_vec())
    );
    assert_eq!(
        fs::read(outside).unwrap(),
        b"old",
        "the link was replaced, not what it leads to"
    );
}

#[test]
fn a_directory_never_replaces_a_file_nor_a_file_a_directory() {
    let scratch = Scratch::new();
    let tree = scratch.write("in/tree", b"file").to_path_buf();
    scratch.write("out/tree/a", b"old");
    for clash in [Clash::Refuse, Clash::Overwrite, Clash::SkipSame] {
        let error = send(&tree, &scratch.join("out"), with(clash)).unwrap_err();
        assert_eq!(error.problem, Problem::Exists, "{clash:?}");
        let error = send(&scratch.join("out/tree"), &scratch.join("in"), with(clash)).unwrap_err();
        assert_eq!(error.problem, Problem::Exists, "{clash:?}");
    }
}

#[test]
fn what_is_the_same_is_not_sent_again() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    for number in 0..5 {
        scratch.write(&format!("in/tree/{number}"), noise(number, 1000));
    }
    symlink("3", tree.join("link")).unwrap();
    let out = scratch.directory("out");
    send(&tree, &out, Options::default()).unwrap();
    fs::remove_file(out.join("tree/2")).unwrap();
    let report = send(&tree, &out, with(Clash::SkipSame)).unwrap();
    assert_eq!(report.files, 1);
    assert_eq!(contents(&out), contents(&scratch.join("in")));
    scratch.write("out/tree/4", b"changed");
    let error = send(&tree, &out, with(Clash::SkipSame)).unwrap_err();
    assert_eq!((error.problem, &*error.path), (Problem::Exists, "tree/4"));
}

/// As after a sender that was killed when everything had arrived, and before it could report that.
#[test]
fn a_refusal_says_whether_all_of_it_is_there_already() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", noise(1, 1000));
    scratch.directory("in/tree/empty");
    symlink("a", tree.join("link")).unwrap();
    let single = scratch.write("in/single", b"single");
    let out = scratch.directory("out");
    let again = |options| send_all(&[&single, &tree], &out, options).unwrap_err();
    send_all(&[&single, &tree], &out, Options::default()).unwrap();
    let same = again(Options::default());
    assert_eq!((same.problem, &*same.path), (Problem::AllThere, "single"));
    assert!(same.to_string().contains("exists"), "{same}");
    let unless = |is_changed: bool, what: &str| {
        let expected = if is_changed {
            Problem::Exists
        } else {
            Problem::AllThere
        };
        assert_eq!(again(Options::default()).problem, expected, "{what}");
    };
    fs::remove_dir(out.join("tree/empty")).unwrap();
    unless(true, "no directory");
    fs::create_dir(out.join("tree/empty")).unwrap();
    unless(false, "all");
    fs::remove_file(out.join("tree/link")).unwrap();
    unless(true, "no link");
    let no_links = Options {
        symlinks: Symlinks::Skip,
        ..Options::default()
    };
    assert_eq!(again(no_links).problem, Problem::AllThere);
    symlink("b", out.join("tree/link")).unwrap();
    unless(true, "another link");
    fs::remove_file(out.join("tree/link")).unwrap();
    symlink("a", out.join("tree/link")).unwrap();
    unless(false, "all");
    fs::write(out.join("tree/a"), noise(2, 1000)).unwrap();
    unless(true, "another time");
    fs::remove_dir_all(out.join("tree")).unwrap();
    unless(true, "one of two");
}

#[test]
fn two_paths_of_one_name_are_refused() {
    let scratch = Scratch::new();
    let (one, other) = (scratch.write("in/1/a", b"1"), scratch.write("in/2/a", b"2"));
    let error = send_all(
        &[&one, &other],
        &scratch.directory("out"),
        Options::default(),
    )
    .unwrap_err();
    assert_eq!(error.problem, Problem::SameName);
}
