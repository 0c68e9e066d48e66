//! A sender that wants to write elsewhere, and others who change the directory meanwhile.

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
fn links_that_lead_out_are_refused_before_anything_is_written() {
    for target in ["/etc/passwd", "../../up", "a/../../..", ".."] {
        let scratch = Scratch::new();
        let link = Kind::Symlink(target.as_bytes().into());
        let offer = manifest(&[entry(0, "a", file(1)), entry(0, "link", link)]);
        let error = open(scratch.path(), &offer, Options::default()).unwrap_err();
        assert_eq!(error.problem, Problem::Link, "{target}");
        assert!(contents(scratch.path()).is_empty());
        let all = Options {
            symlinks: Symlinks::All,
            ..Options::default()
        };
        assert!(open(scratch.path(), &offer, all).is_ok());
    }
}

#[test]
fn sizes_that_no_disk_has_are_refused_before_anything_is_written() {
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
