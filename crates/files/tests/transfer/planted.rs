//! Files at the place of a journal that this receiver did not write.

use crate::scratch::{Scratch, contents, copy, key, noise, open, source};
use airdma_files::{
    CHUNK_BYTES, JournalKey, Manifest, Options, Problem, Sink, Source, Unwanted, sealed,
};
use std::fs;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SETTLED: u64 = 1 << 63;

/// The body of a journal, behind its beginning.
fn fields(names: &[(u32, &[u8])], ranges: &[(u32, u32)]) -> Vec<u8> {
    let mut out = (names.len() as u32).to_be_bytes().to_vec();
    for (index, name) in names {
        out.extend_from_slice(&index.to_be_bytes());
        out.push(name.len() as u8);
        out.extend_from_slice(name);
    }
    out.extend_from_slice(&(ranges.len() as u32).to_be_bytes());
    for (start, end) in ranges {
        out.extend_from_slice(&start.to_be_bytes());
        out.extend_from_slice(&end.to_be_bytes());
    }
    out
}

/// Plants a journal with valid seals of this user, as if the key were known to others.
fn plant(out: &Path, manifest: &Manifest, fields: &[u8], chunks: u64) -> PathBuf {
    let place = out.canonicalize().unwrap();
    let (name, journal) = sealed(&key(), manifest.id(), &place, fields, [(1, chunks), (0, 0)]);
    let staging = out.join(name);
    make_private(&staging);
    fs::write(staging.join("journal"), journal).unwrap();
    staging
}

fn make_private(path: &Path) {
    fs::DirBuilder::new().mode(0o700).create(path).unwrap();
}

fn finish(out: &Path, from: &Path, manifest: &Arc<Manifest>) {
    let sink = open(out, manifest, Options::default()).unwrap();
    let walked = airdma_files::walk(&[from], airdma_files::Limits::default()).unwrap();
    let source = Source::new(&walked, sink.unwanted(), sink.next());
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    sink.finish().unwrap();
}

#[test]
fn a_sealed_journal_says_nothing_that_its_offer_cannot_name() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", noise(1, 100));
    let (_, manifest) = source(&tree);
    let inside: &[u8] = b"tree (1)";
    for (number, (names, ranges, chunks)) in [
        (vec![(0, &b"../victim"[..])], vec![], 0),
        (vec![(0, &b"/victim"[..])], vec![], 0),
        (vec![(0, &b".."[..])], vec![], 0),
        (vec![(0, &b"other"[..])], vec![], 0),
        (vec![(0, &b".airdma-x"[..])], vec![], 0),
        (vec![(1, &b"a (1)"[..])], vec![], 0),
        (vec![(7, inside)], vec![], 0),
        (vec![], vec![(0, 1)], 0),
        (vec![], vec![(1, 3)], 0),
        (vec![], vec![(5, u32::MAX)], 0),
        (vec![], vec![], 2),
        (vec![], vec![], u64::MAX >> 1),
        (vec![], vec![], SETTLED),
    ]
    .into_iter()
    .enumerate()
    {
        let out = scratch.directory(&format!("room-{number}/out"));
        plant(&out, &manifest, &fields(&names, &ranges), chunks);
        finish(&out, &tree, &manifest);
        assert_eq!(contents(&out), contents(&scratch.join("in")), "{number}");
        let room = fs::read_dir(out.parent().unwrap()).unwrap();
        assert_eq!(room.count(), 1, "{number}: something is beside it");
    }
    // Contents that it can name are believed.
    let out = scratch.directory("believed");
    plant(&out, &manifest, &fields(&[(0, inside)], &[]), 0);
    finish(&out, &tree, &manifest);
    assert!(out.join("tree (1)/a").is_file());
}

#[test]
fn a_journal_of_another_user_offer_or_directory_is_none() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 3 * CHUNK_BYTES as usize));
    let (from, manifest) = source(&file);
    let out = scratch.directory("out");
    let (mut sink, _) = copy(from, open(&out, &manifest, Options::default()).unwrap(), 2).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let goes_on = |out: &Path, key: &JournalKey| {
        let options = Options::default();
        let preview = Sink::preview(out, &manifest, manifest.id(), &options, key);
        preview.unwrap().goes_on
    };
    assert!(goes_on(&out, &key()));
    // Another path to the same directory.
    symlink(&out, scratch.join("link")).unwrap();
    assert!(goes_on(&scratch.join("link"), &key()));
    let copied = scratch.directory("copy");
    let staging = key().staging_name(manifest.id());
    make_private(&copied.join(&staging));
    for name in ["journal", "0"] {
        fs::copy(
            out.join(&staging).join(name),
            copied.join(&staging).join(name),
        )
        .unwrap();
    }
    assert!(!goes_on(&copied, &key()));
    let another = JournalKey::derive(b"another user");
    make_private(&out.join(another.staging_name(manifest.id())));
    let journal = out.join(&staging).join("journal");
    let planted = out
        .join(another.staging_name(manifest.id()))
        .join("journal");
    fs::copy(journal, planted).unwrap();
    assert!(!goes_on(&out, &another));
}

#[test]
fn a_journal_that_is_not_our_own_file_is_ignored() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 100));
    let (_, manifest) = source(&file);
    let tricks: [fn(&Path, &Path); 5] = [
        |journal, _| make_pipe(journal),
        |journal, _| fs::create_dir(journal).unwrap(),
        |journal, outside| symlink(outside, journal).unwrap(),
        |journal, outside| fs::hard_link(outside, journal).unwrap(),
        // Larger than any journal: nothing beyond that length is read.
        |journal, _| fs::File::create(journal).unwrap().set_len(1 << 40).unwrap(),
    ];
    for (number, trick) in tricks.into_iter().enumerate() {
        let out = scratch.directory(&format!("out-{number}"));
        let staging = plant(&out, &manifest, &fields(&[], &[]), 0);
        let outside = scratch.write(&format!("outside-{number}"), b"mine");
        fs::remove_file(staging.join("journal")).unwrap();
        trick(&staging.join("journal"), &outside);
        finish(&out, &file, &manifest);
        assert_eq!(contents(&out), contents(&scratch.join("in")), "{number}");
        assert_eq!(fs::read(outside).unwrap(), b"mine", "{number}");
    }
}

pub fn make_pipe(path: &Path) {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
}

#[test]
fn what_is_removed_with_a_planted_directory_is_in_it() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 100));
    let (_, manifest) = source(&file);
    let out = scratch.directory("out");
    let outside = scratch.directory("outside");
    scratch.write("outside/file", b"mine");
    let before = contents(&outside);
    let staging = plant(&out, &manifest, b"nonsense", 0);
    symlink(&outside, staging.join("1")).unwrap();
    symlink(&outside, staging.join("0")).unwrap();
    fs::create_dir_all(staging.join("5/deep/er")).unwrap();
    fs::hard_link(outside.join("file"), staging.join("5/deep/er/file")).unwrap();
    symlink(&outside, staging.join("5/deep/er/link")).unwrap();
    finish(&out, &file, &manifest);
    assert_eq!(contents(&out), contents(&scratch.join("in")));
    assert_eq!(contents(&outside), before);
    // Deeper than a transfer creates.
    let out = scratch.directory("deep");
    let staging = plant(&out, &manifest, b"nonsense", 0);
    fs::create_dir_all(staging.join("1/".repeat(200))).unwrap();
    assert!(open(&out, &manifest, Options::default()).is_err());
    assert!(!out.join("a").exists());
}

/// Where others may write to the receiving directory, they can give the name of an unfinished
/// directory to another directory of the user.
#[test]
fn a_user_directory_renamed_to_an_unfinished_one_stays() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 3 * CHUNK_BYTES as usize));
    let (from, manifest) = source(&file);
    let out = scratch.directory("out");
    let (mut sink, _) = copy(from, open(&out, &manifest, Options::default()).unwrap(), 2).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let staging = out.join(key().staging_name(manifest.id()));
    fs::rename(&staging, scratch.join("away")).unwrap();
    make_private(&out.join("photos"));
    scratch.write("out/photos/holiday", b"mine");
    fs::rename(out.join("photos"), &staging).unwrap();
    let options = Options::default();
    let preview = Sink::preview(&out, &manifest, manifest.id(), &options, &key());
    assert_eq!(preview.unwrap_err().problem, Problem::Tampered);
    let opened = open(&out, &manifest, Options::default());
    assert_eq!(opened.unwrap_err().problem, Problem::Tampered);
    assert_eq!(fs::read(staging.join("holiday")).unwrap(), b"mine");
    // The remains of an end while one was being created are not such a directory.
    fs::remove_dir_all(&staging).unwrap();
    make_private(&staging);
    fs::write(staging.join("journal.new"), b"half").unwrap();
    finish(&out, &file, &manifest);
    assert_eq!(contents(&out), contents(&scratch.join("in")));
}

#[test]
fn a_file_that_goes_on_is_a_file_of_ours_alone() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 3 * CHUNK_BYTES as usize));
    let (_, manifest) = source(&file);
    let tricks: [fn(&Path, &Path); 3] = [
        |unfinished, _| make_pipe(unfinished),
        |unfinished, outside| symlink(outside, unfinished).unwrap(),
        |unfinished, outside| fs::hard_link(outside, unfinished).unwrap(),
    ];
    // Interrupted in the middle, and complete.
    for chunks in [1, 4] {
        for (number, trick) in tricks.into_iter().enumerate() {
            let out = scratch.directory(&format!("out-{chunks}-{number}"));
            let staging = plant(&out, &manifest, &fields(&[], &[]), chunks);
            let outside = scratch.write(&format!("outside-{chunks}-{number}"), b"mine");
            trick(&staging.join("0"), &outside);
            let opened = open(&out, &manifest, Options::default());
            let is_refused = opened.is_err_and(|error| error.problem == Problem::Tampered);
            // A hard link can get a name: that is a copy, and nothing is written to it.
            assert_eq!(is_refused, chunks == 1 || number != 2);
            assert_eq!(fs::read(outside).unwrap(), b"mine");
        }
    }
    let plan = airdma_files::Plan::new(&manifest, &Unwanted::default());
    assert_eq!(plan.chunks(), 4);
}

#[test]
fn the_unfinished_directory_is_for_its_user_alone() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 2 * CHUNK_BYTES as usize));
    let (_, manifest) = source(&file);
    let out = scratch.directory("out");
    let _sink = open(&out, &manifest, Options::default()).unwrap();
    let staging = out.join(key().staging_name(manifest.id()));
    let mode = fs::metadata(staging).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}
