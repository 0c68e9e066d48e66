//! A sender that tries to write elsewhere, and concurrent changes of the directory.

use crate::scratch::{Scratch, contents, copy, key, noise, open, send, source};
use airdma_files::manifest::{Builder, Content, Entry, Kind};
use airdma_files::{
    CHUNK_BYTES, Clash, Flaw, Limits, Manifest, Modified, Options, Problem, Symlinks,
};
use std::fs;
use std::os::unix::fs::symlink;
use std::sync::Arc;

fn entry(depth: u8, name: &str, kind: Kind) -> Entry {
    let modified = Modified {
        seconds: 0,
        nanos: 0,
    };
    Entry {
        parent: None,
        depth,
        name: name.as_bytes().into(),
        mode: 0o755,
        modified,
        kind,
    }
}

fn manifest(entries: &[Entry]) -> Arc<Manifest> {
    let mut builder = Builder::new(Limits::default());
    for entry in entries {
        builder.push(entry.clone()).unwrap();
    }
    Arc::new(builder.finish())
}

fn file(size: u64) -> Kind {
    Kind::File(Content {
        size,
        stamp: 0,
        extents: None,
    })
}

#[test]
fn nothing_is_written_through_a_link_that_is_in_the_way() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/inner/file", b"new");
    let outside = scratch.directory("outside");
    let out = scratch.directory("out");
    symlink(&outside, out.join("tree")).unwrap();
    for clash in [Clash::Refuse, Clash::Overwrite, Clash::SkipSame] {
        let error = send(
            &tree,
            &out,
            Options {
                clash,
                ..Options::default()
            },
        )
        .unwrap_err();
        assert_eq!(error.problem, Problem::Exists, "{clash:?}");
    }
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_link_that_appears_while_files_come_is_not_followed() {
    let scratch = Scratch::new();
    scratch.write("in/tree/a", noise(1, 2 * CHUNK_BYTES as usize));
    scratch.write("in/tree/inner/b", noise(2, 100));
    let (source, manifest) = source(&scratch.join("in/tree"));
    let (out, outside) = (scratch.directory("out"), scratch.directory("outside"));
    let sink = open(&out, &manifest, Options::default()).unwrap();
    let (mut sink, source) = copy(source, sink, 2).unwrap();
    sink.checkpoint().unwrap();
    fs::create_dir_all(out.join("tree")).unwrap();
    symlink(&outside, out.join("tree/inner")).unwrap();
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    let error = sink.finish().unwrap_err();
    assert_eq!(
        (error.problem, &*error.path),
        (Problem::NoDirectory, "tree/inner")
    );
    assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
}

#[test]
fn a_file_that_appears_while_files_come_is_not_replaced() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 100));
    let (source, manifest) = source(&file);
    let out = scratch.directory("out");
    let sink = open(&out, &manifest, Options::default()).unwrap();
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    scratch.write("out/a", b"mine");
    assert_eq!(sink.finish().unwrap_err().problem, Problem::Exists);
    assert_eq!(fs::read(out.join("a")).unwrap(), b"mine");
}

#[test]
fn links_that_lead_out_are_reported_and_all_else_arrives() {
    let with = |symlinks| Options {
        symlinks,
        ..Options::default()
    };
    for target in ["/etc/passwd", "../../up", "a/../../..", "../.."] {
        let scratch = Scratch::new();
        let tree = scratch.directory("in/tree");
        scratch.write("in/tree/a", b"a");
        symlink(target, tree.join("link")).unwrap();
        symlink("a", tree.join("within")).unwrap();
        let sent = |name, symlinks| send(&tree, &scratch.directory(name), with(symlinks));
        let report = sent("inside", Symlinks::Inside).unwrap();
        let told = (report.files, &*report.flaws);
        assert_eq!(told, (1, &[(2, Flaw::LeadsOut)][..]), "{target}");
        let made = |name: &str| scratch.join(name).join("tree/link").is_symlink();
        assert!(!made("inside") && scratch.join("inside/tree/within").is_symlink());
        assert_eq!(sent("all", Symlinks::All).unwrap().flaws, []);
        assert!(made("all"));
        let error = sent("refuse", Symlinks::Refuse).unwrap_err();
        assert_eq!((error.problem, &*error.path), (Problem::Link, "tree/link"));
        assert!(contents(&scratch.join("refuse")).is_empty());
    }
}

/// It is reported until the sender knows, also by a resumed transfer.
#[test]
fn omissions_are_reported_again_despite_existing_names() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", b"a");
    symlink("/etc/passwd", tree.join("link")).unwrap();
    let out = scratch.directory("out");
    scratch.write("out/tree/link", b"mine");
    let (from, manifest) = source(&tree);
    let options = Options {
        clash: Clash::SkipSame,
        ..Options::default()
    };
    let (mut sink, _) = copy(from, open(&out, &manifest, options).unwrap(), u64::MAX).unwrap();
    let report = sink.settle().unwrap();
    assert_eq!(report.flaws, [(2, Flaw::LeadsOut)]);
    drop(sink);
    let mut again = open(&out, &manifest, options).unwrap();
    assert_eq!(again.settle().unwrap(), report);
    again.forget().unwrap();
    assert_eq!(fs::read(out.join("tree/link")).unwrap(), b"mine");
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
}

#[test]
fn impossible_sizes_are_refused_before_anything_is_written() {
    let scratch = Scratch::new();
    let huge = (1 << 62) - 1;
    let offer = manifest(&[entry(0, "a", file(huge))]);
    let error = open(scratch.path(), &offer, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::NoSpace);
    let holes = Kind::File(Content {
        size: huge,
        stamp: 0,
        extents: Some([].into()),
    });
    let offer = manifest(&[entry(0, "a", holes)]);
    let error = open(
        scratch.path(),
        &offer,
        Options {
            holes: false,
            ..Options::default()
        },
    )
    .unwrap_err();
    assert_eq!(error.problem, Problem::NoSpace);
    assert!(contents(scratch.path()).is_empty());
}

#[test]
fn a_file_that_does_not_have_its_hash_never_gets_its_name() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 5000));
    let (mut source, manifest) = source(&file);
    let out = scratch.directory("out");
    let mut sink = open(&out, &manifest, Options::default()).unwrap();
    let mut chunk = vec![0; CHUNK_BYTES as usize];
    let length = source.read(&mut chunk);
    chunk[4000] ^= 1;
    sink.write(&chunk[..length]).unwrap();
    assert_eq!(sink.finish().unwrap().flaws, [(0, Flaw::Damaged)]);
    assert!(contents(&out).is_empty());
}

#[test]
fn a_staging_directory_that_is_not_ours_alone_is_not_used() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    let (_, offer) = source(&scratch.write("in/a", b"x"));
    let staging = format!("out/{}", key().staging_name(offer.id()));
    let path = scratch.directory(&staging);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).unwrap();
    let error = open(&scratch.join("out"), &offer, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::Tampered);
    fs::remove_dir(&path).unwrap();
    symlink("/tmp", &path).unwrap();
    let error = open(&scratch.join("out"), &offer, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::NoDirectory);
}
