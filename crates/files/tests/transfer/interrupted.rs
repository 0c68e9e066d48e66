//! A receiver that is killed and resumes.

use crate::kept::everything;
use crate::scratch::{Scratch, contents, copy, key, noise, open, source};
use airdma_files::{
    CHUNK_BYTES, Clash, Flaw, Limits, Options, Preview, Problem, Sink, Source, Symlinks, Unwanted,
    walk,
};
use proptest::prelude::*;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// One run of a receiver: some chunks, perhaps a checkpoint, more chunks, and a sudden end.
#[derive(Clone, Debug)]
struct Life {
    before: u64,
    checkpoint: bool,
    after: u64,
    /// Whether data that is not durable is lost as well, as in a power failure.
    power: bool,
}

fn life() -> impl Strategy<Value = Life> {
    (0..4_u64, any::<bool>(), 0..3_u64, any::<bool>()).prop_map(
        |(before, checkpoint, after, power)| Life {
            before,
            checkpoint,
            after,
            power,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_transfer_cut_off_anywhere_resumes_from_what_is_durable(
        lives in proptest::collection::vec(life(), 20),
    ) {
        let scratch = Scratch::new();
        let tree = everything(&scratch);
        let out = scratch.directory("out");
        let walked = walk(&[&tree], Limits::default()).unwrap();
        let manifest = Arc::clone(&walked.manifest);
        let mut durable = 0;
        for life in lives {
            let sink = open(&out, &manifest, Options::default()).unwrap();
            prop_assert_eq!(sink.next(), durable, "nothing is sent again that was durable");
            let source = Source::new(&walked, sink.unwanted(), sink.next());
            let (mut sink, source) = copy(source, sink, life.before).unwrap();
            if life.checkpoint {
                sink.checkpoint().unwrap();
                durable = sink.next();
            }
            let (sink, _) = copy(source, sink, life.after).unwrap();
            drop(sink);
            if life.power {
                lose_what_is_not_durable(&out, &manifest, durable);
            }
            check_names(&scratch.join("in"), &out);
        }
        let sink = open(&out, &manifest, Options::default()).unwrap();
        let source = Source::new(&walked, sink.unwanted(), sink.next());
        let (sink, _) = copy(source, sink, u64::MAX).unwrap();
        prop_assert!(sink.finish().unwrap().flaws.is_empty());
        prop_assert_eq!(contents(&scratch.join("in")), contents(&out));
    }
}

/// Checks that every file with its final name is complete.
fn check_names(from: &Path, to: &Path) {
    let (sent, there) = (contents(from), contents(to));
    for (path, described) in there
        .iter()
        .filter(|(path, _)| !path.starts_with(b".airdma-"))
    {
        if !matches!(described.what, crate::scratch::What::Directory) {
            assert_eq!(
                Some(described),
                sent.get(path),
                "{}",
                String::from_utf8_lossy(path)
            );
        }
    }
}

/// Overwrites with noise what a disk may lose: unfinished files that the journal does not vouch
/// for.
fn lose_what_is_not_durable(out: &Path, manifest: &Arc<airdma_files::Manifest>, durable: u64) {
    let plan = airdma_files::Plan::new(manifest, &airdma_files::Unwanted::default());
    let position = durable * CHUNK_BYTES;
    let staging = out.join(key().staging_name(manifest.id()));
    for file in plan.files() {
        let path = Some(staging.join(file.entry.to_string())).filter(|path| path.exists());
        let path = path.unwrap_or_else(|| place_in_first_batch(&staging, manifest, file.entry));
        let content = manifest.entry(file.entry).content().unwrap();
        let kept = position.saturating_sub(file.start).min(file.data_bytes);
        if path.exists() && file.end() > position && kept < file.data_bytes {
            let (offset, _) = content.locate(kept);
            let file = fs::File::options().write(true).open(&path).unwrap();
            file.set_len(offset).unwrap();
            file.write_all_at(&noise(9, 5000), offset).unwrap();
        }
    }
}

/// Where a file lies until the first checkpoint: below the number of its top-level directory.
fn place_in_first_batch(staging: &Path, manifest: &airdma_files::Manifest, entry: u32) -> PathBuf {
    let path = manifest.path(entry);
    let top = manifest.ancestors(entry).last().unwrap_or(entry);
    let below = path.strip_prefix(&manifest.path(top)[..]).unwrap();
    let below = below.strip_prefix(b"/").unwrap_or(below);
    staging.join(top.to_string()).join(OsStr::from_bytes(below))
}

#[test]
fn a_file_that_did_not_arrive_is_not_forgotten() {
    let scratch = Scratch::new();
    for name in ["a", "b", "c"] {
        scratch.write(
            &format!("in/tree/{name}"),
            noise(1, 2 * CHUNK_BYTES as usize),
        );
    }
    let (source, manifest) = source(&scratch.join("in/tree"));
    fs::remove_file(scratch.join("in/tree/a")).unwrap();
    let out = scratch.directory("out");
    let (mut sink, source) = copy(
        source,
        open(&out, &manifest, Options::default()).unwrap(),
        3,
    )
    .unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let sink = open(&out, &manifest, Options::default()).unwrap();
    assert_eq!(sink.flaws(), [(1, Flaw::Changed)]);
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    assert_eq!(sink.finish().unwrap().flaws, [(1, Flaw::Changed)]);
    assert_eq!(contents(&out.join("tree")).len(), 2);
}

/// The data received for it was discarded, so it cannot be completed any more.
#[test]
fn an_interrupted_file_that_then_failed_is_reported() {
    let scratch = Scratch::new();
    for name in ["a", "b"] {
        let path = format!("in/tree/{name}");
        scratch.write(&path, noise(1, 2 * CHUNK_BYTES as usize));
    }
    let walked = walk(&[scratch.join("in/tree")], Limits::default()).unwrap();
    let from = |first| Source::new(&walked, &Unwanted::default(), first);
    let out = scratch.directory("out");
    let open = || open(&out, &walked.manifest, Options::default()).unwrap();
    let (mut sink, source) = copy(from(0), open(), 3).unwrap();
    sink.checkpoint().unwrap();
    fs::remove_file(scratch.join("in/tree/b")).unwrap();
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    assert_eq!(sink.flaws(), [(2, Flaw::Changed)]);
    drop(sink);
    let sink = open();
    assert_eq!((sink.next(), sink.flaws()), (3, &[][..]));
    let (sink, _) = copy(from(3), sink, u64::MAX).unwrap();
    let report = sink.finish().unwrap();
    assert_eq!((report.files, report.flaws), (1, vec![(2, Flaw::Changed)]));
    assert_eq!(contents(&out).len(), 2);
}

/// The sender can read it again by then, but the receiver has discarded what it had.
#[test]
fn an_interrupted_file_that_failed_keeps_its_first_reason() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/away/a", noise(1, 2 * CHUNK_BYTES as usize));
    let walked = walk(&[&tree], Limits::default()).unwrap();
    let from = |first| Source::new(&walked, &Unwanted::default(), first);
    let out = scratch.directory("out");
    let open = || open(&out, &walked.manifest, Options::default()).unwrap();
    let (mut sink, _) = copy(from(0), open(), 1).unwrap();
    sink.checkpoint().unwrap();
    fs::rename(tree.join("away"), scratch.join("in/else")).unwrap();
    let (sink, _) = copy(from(1), sink, u64::MAX).unwrap();
    assert_eq!(sink.flaws(), [(2, Flaw::Changed)]);
    drop(sink);
    fs::rename(scratch.join("in/else"), tree.join("away")).unwrap();
    let (sink, source) = copy(from(1), open(), u64::MAX).unwrap();
    assert_eq!(source.flaws(), []);
    assert_eq!(sink.finish().unwrap().flaws, [(2, Flaw::Changed)]);
}

/// Its trailer does not fit into the chunk in which it begins: no data of the file has come, and it
/// was not created.
#[test]
fn a_transfer_that_is_cut_off_at_a_file_without_data_goes_on() {
    let scratch = Scratch::new();
    let first = noise(1, CHUNK_BYTES as usize - 33 - 10);
    scratch.write("in/empty/a", &first);
    scratch.write("in/empty/b", b"");
    scratch.write("in/hole/a", &first);
    let hole = fs::File::create(scratch.join("in/hole/b")).unwrap();
    hole.set_len(CHUNK_BYTES).unwrap();
    scratch.directory("in/many");
    for number in 0..40_000 {
        fs::write(scratch.join(format!("in/many/{number}")), b"").unwrap();
    }
    for name in ["empty", "hole", "many"] {
        let tree = scratch.join("in").join(name);
        let walked = walk(&[&tree], Limits::default()).unwrap();
        let out = scratch.directory(&format!("out-{name}"));
        let open = || open(&out, &walked.manifest, Options::default()).unwrap();
        let from = |first| Source::new(&walked, &Unwanted::default(), first);
        let (mut sink, source) = copy(from(0), open(), 1).unwrap();
        assert_eq!(sink.plan().chunks(), 2);
        sink.checkpoint().unwrap();
        drop(sink);
        // Data that comes now is not vouched for, and is received again.
        drop(copy(source, open(), 1).unwrap());
        let (sink, _) = copy(from(1), open(), 1).unwrap();
        assert!(sink.finish().unwrap().flaws.is_empty());
        assert_eq!(contents(&out.join(name)), contents(&tree));
        assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
    }
}

#[test]
fn a_file_without_data_that_did_not_arrive_is_told_once() {
    let scratch = Scratch::new();
    scratch.write("in/tree/a", noise(1, CHUNK_BYTES as usize - 33 - 10));
    let empty = scratch.write("in/tree/b", b"");
    let walked = walk(&[scratch.join("in/tree")], Limits::default()).unwrap();
    let from = |first| Source::new(&walked, &Unwanted::default(), first);
    let out = scratch.directory("out");
    let open = || open(&out, &walked.manifest, Options::default()).unwrap();
    let (mut sink, source) = copy(from(0), open(), 1).unwrap();
    sink.checkpoint().unwrap();
    fs::remove_file(empty).unwrap();
    let (sink, _) = copy(source, sink, 1).unwrap();
    assert_eq!(sink.flaws(), [(2, Flaw::Changed)]);
    drop(sink);
    drop(open());
    let staging = out.join(key().staging_name(walked.manifest.id()));
    assert_eq!(fs::read_dir(staging).unwrap().count(), 1, "the journal");
    let (sink, _) = copy(from(1), open(), 1).unwrap();
    let report = sink.finish().unwrap();
    assert_eq!((report.files, report.flaws), (1, vec![(2, Flaw::Changed)]));
    assert_eq!(fs::read_dir(&out).unwrap().count(), 1);
}

#[test]
fn what_comes_becomes_durable_without_being_asked_for() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    for number in 0..8000 {
        fs::write(tree.join(number.to_string()), noise(number, 1000)).unwrap();
    }
    let (source, manifest) = source(&tree);
    let out = scratch.directory("out");
    // The directory exists already: its contents get their places file by file.
    scratch.directory("out/tree");
    let options = Options {
        clash: Clash::Overwrite,
        ..Options::default()
    };
    let sink = open(&out, &manifest, options).unwrap();
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    let durable = sink.durable();
    assert!(durable >= 2, "{durable}");
    drop(sink);
    check_names(&scratch.join("in"), &out);
    assert!(fs::read_dir(out.join("tree")).unwrap().count() >= 2000);
    let walked = walk(&[&tree], Limits::default()).unwrap();
    let sink = open(&out, &manifest, options).unwrap();
    // A checkpoint that was in progress at the end counts, too.
    let next = sink.next();
    assert!(next >= durable, "{next} {durable}");
    let source = Source::new(&walked, sink.unwanted(), next);
    copy(source, sink, u64::MAX).unwrap().0.finish().unwrap();
    assert_eq!(contents(&scratch.join("in")), contents(&out));
}

#[test]
fn slow_data_becomes_durable_in_the_background_on_request() {
    let scratch = Scratch::new();
    let path = scratch.write("file", noise(9, 3 * CHUNK_BYTES as usize));
    let out = scratch.directory("out");
    let (source, manifest) = source(&path);
    let sink = open(&out, &manifest, Options::default()).unwrap();
    let (mut sink, source) = copy(source, sink, 2).unwrap();
    assert_eq!(sink.durable(), 0);
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while sink.durable() < 2 && std::time::Instant::now() < patience {
        sink.checkpoint_beside().unwrap();
    }
    assert_eq!(sink.durable(), 2);
    let (sink, _) = copy(source, sink, u64::MAX).unwrap();
    assert_eq!(sink.finish().unwrap().files, 1);
}

#[test]
fn two_transfers_of_the_same_files_do_not_meet() {
    let scratch = Scratch::new();
    let (_, manifest) = source(&scratch.write("in/a", noise(1, 10)));
    let out = scratch.directory("out");
    let first = open(&out, &manifest, Options::default()).unwrap();
    assert_eq!(
        open(&out, &manifest, Options::default())
            .unwrap_err()
            .problem,
        Problem::Busy
    );
    drop(first);
    open(&out, &manifest, Options::default()).unwrap();
}

#[test]
fn a_transfer_goes_on_under_the_name_that_was_found_for_it() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", noise(1, 100));
    scratch.write("in/tree/b", noise(2, 3 * CHUNK_BYTES as usize));
    scratch.write("out/tree/a", b"old");
    let out = scratch.join("out");
    let options = Options {
        clash: Clash::Rename,
        ..Options::default()
    };
    let (from, manifest) = source(&tree);
    let (mut sink, from) = copy(from, open(&out, &manifest, options).unwrap(), 2).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    assert!(out.join("tree (1)/a").exists());
    let (sink, _) = copy(from, open(&out, &manifest, options).unwrap(), u64::MAX).unwrap();
    sink.finish().unwrap();
    assert_eq!(contents(&out.join("tree (1)")), contents(&tree));
    assert_eq!(fs::read(out.join("tree/a")).unwrap(), b"old");
}

#[test]
fn a_preview_tells_what_is_missing_and_writes_nothing() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 3 * CHUNK_BYTES as usize));
    let (from, manifest) = source(&file);
    let out = scratch.directory("out");
    let options = Options::default();
    let preview = || Sink::preview(&out, &manifest, manifest.id(), &options, &key());
    let bytes = from.plan().bytes();
    assert_eq!(
        preview(),
        Ok(Preview {
            goes_on: false,
            bytes
        })
    );
    assert!(contents(&out).is_empty());
    let (mut sink, _) = copy(from, open(&out, &manifest, options).unwrap(), 2).unwrap();
    sink.checkpoint().unwrap();
    assert_eq!(preview().unwrap_err().problem, Problem::Busy);
    drop(sink);
    let before = contents(&out);
    let bytes = bytes - 2 * CHUNK_BYTES;
    assert_eq!(
        preview(),
        Ok(Preview {
            goes_on: true,
            bytes
        })
    );
    assert_eq!(contents(&out), before);
}

#[test]
fn links_are_refused_also_by_who_goes_on_under_other_options() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    std::os::unix::fs::symlink("/etc/passwd", tree.join("link")).unwrap();
    scratch.write("in/tree/a", b"a");
    let (from, manifest) = source(&tree);
    let all = Options {
        symlinks: Symlinks::All,
        ..Options::default()
    };
    let out = scratch.directory("out");
    let (mut sink, _) = copy(from, open(&out, &manifest, all).unwrap(), 1).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let refused = Options {
        symlinks: Symlinks::Refuse,
        ..Options::default()
    };
    let error = open(&out, &manifest, refused).unwrap_err();
    assert_eq!(error.problem, Problem::Link);
    open(&out, &manifest, all).unwrap().finish().unwrap();
}

#[test]
fn a_journal_that_was_changed_is_not_believed() {
    let scratch = Scratch::new();
    let file = scratch.write("in/a", noise(1, 3 * CHUNK_BYTES as usize));
    let (from, manifest) = source(&file);
    let out = scratch.directory("out");
    let (mut sink, _) = copy(from, open(&out, &manifest, Options::default()).unwrap(), 2).unwrap();
    sink.checkpoint().unwrap();
    drop(sink);
    let journal = out.join(key().staging_name(manifest.id())).join("journal");
    let written = fs::read(&journal).unwrap();
    for at in 0..written.len() {
        let mut changed = written.clone();
        changed[at] ^= 1;
        fs::write(&journal, changed).unwrap();
        let sink = open(&out, &manifest, Options::default()).unwrap();
        assert!(sink.next() == 2 || sink.next() == 0, "byte {at}");
        drop(sink);
        fs::create_dir_all(journal.parent().unwrap()).unwrap();
        fs::write(&journal, &written).unwrap();
        let unfinished = fs::File::create(journal.with_file_name("0")).unwrap();
        unfinished.set_len(3 * CHUNK_BYTES).unwrap();
    }
    fs::remove_file(journal.with_file_name("0")).unwrap();
    let error = open(&out, &manifest, Options::default()).unwrap_err();
    assert_eq!(error.problem, Problem::Tampered);
}

/// A new journal is durable with the first checkpoint: after an earlier power failure, any part of
/// it may exist.
#[test]
fn a_journal_torn_before_the_first_checkpoint_starts_anew() {
    let scratch = Scratch::new();
    let tree = scratch.directory("in/tree");
    scratch.write("in/tree/a", noise(1, 100));
    scratch.write("in/tree/b", noise(2, 2 * CHUNK_BYTES as usize));
    // So that the journal holds a chosen name.
    scratch.write("out/tree/a", b"old");
    let out = scratch.join("out");
    let options = Options {
        clash: Clash::Rename,
        ..Options::default()
    };
    let (_, manifest) = source(&tree);
    let staging = out.join(key().staging_name(manifest.id()));
    let (journal, new) = (staging.join("journal"), staging.join("journal.new"));
    let cut_off = |tear: &dyn Fn(&[u8])| {
        let (from, _) = source(&tree);
        let sink = open(&out, &manifest, options).unwrap();
        assert_eq!(sink.next(), 0, "nothing was durable");
        drop(copy(from, sink, 2).unwrap());
        tear(&fs::read(&journal).unwrap());
        lose_what_is_not_durable(&out, &manifest, 0);
    };
    cut_off(&|_| fs::remove_file(&journal).unwrap());
    cut_off(&|written| fs::write(&journal, vec![0; written.len()]).unwrap());
    cut_off(&|written| {
        fs::rename(&journal, &new).unwrap();
        fs::write(&new, &written[..written.len() / 2]).unwrap();
    });
    for part in 0..20 {
        let torn = |written: &[u8]| written.len() * part / 20;
        cut_off(&|written| fs::write(&journal, &written[..torn(written)]).unwrap());
        // The file has its size, but not all of its blocks.
        cut_off(&|written| {
            let rest = vec![0; written.len() - torn(written)];
            fs::write(&journal, [&written[..torn(written)], &rest].concat()).unwrap();
        });
    }
    cut_off(&|written| {
        let name = b"tree (1)";
        let at = written.windows(name.len()).position(|part| part == name);
        let mut torn = written.to_vec();
        torn[at.unwrap() + name.len() / 2..].fill(0);
        fs::write(&journal, torn).unwrap();
    });
    let (from, _) = source(&tree);
    let (sink, _) = copy(from, open(&out, &manifest, options).unwrap(), u64::MAX).unwrap();
    assert_eq!(sink.finish().unwrap().files, 2);
    assert_eq!(contents(&out.join("tree (1)")), contents(&tree));
    assert_eq!(contents(&out).len(), 5, "and nothing else is left");
}

/// The process that [`kill_9_at_any_moment`] kills: receives with a checkpoint after each chunk,
/// slowly enough to be killed.
#[test]
#[ignore = "it is started by another test"]
fn receive_until_killed() {
    let (Ok(from), Ok(to)) = (
        std::env::var("AIRDMA_TEST_FROM"),
        std::env::var("AIRDMA_TEST_TO"),
    ) else {
        return;
    };
    let (_, manifest) = source(Path::new(&from));
    let walked = walk(&[&from], Limits::default()).unwrap();
    let mut sink: Sink = open(Path::new(&to), &manifest, Options::default()).unwrap();
    let mut source = Source::new(&walked, sink.unwanted(), sink.next());
    while sink.next() < sink.plan().chunks() {
        let copied = copy(source, sink, 1).unwrap();
        (sink, source) = copied;
        sink.checkpoint().unwrap();
    }
    sink.finish().unwrap();
}

#[test]
fn kill_9_at_any_moment() {
    let scratch = Scratch::new();
    let tree = everything(&scratch);
    scratch.write("in/tree/larger", noise(7, 30 * CHUNK_BYTES as usize));
    let (_, manifest) = source(&tree);
    let start = |out: &Path| {
        Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "interrupted::receive_until_killed"])
            .env("AIRDMA_TEST_FROM", &tree)
            .env("AIRDMA_TEST_TO", out)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    };
    let mut out = scratch.directory("out");
    let mut finished = false;
    for moment in 0..20_u64 {
        if finished {
            out = scratch.directory(&format!("out-{moment}"));
        }
        let mut receiver = start(&out);
        std::thread::sleep(Duration::from_millis(5 + moment * 7 % 60));
        receiver.kill().unwrap();
        let ended = receiver.wait().unwrap().success();
        // Killed at its very end, the offer would be refused, as its names exist. The remains at
        // the journal's place are removed here.
        let staging = out.join(key().staging_name(manifest.id()));
        let is_left = || {
            let mut left = contents(&out);
            let name = staging.file_name().unwrap().as_bytes();
            left.remove(name);
            left == contents(&scratch.join("in"))
        };
        finished = ended || is_left();
        if finished && staging.exists() {
            fs::remove_dir(&staging).unwrap();
        }
        check_names(&scratch.join("in"), &out);
    }
    if !finished {
        let last = start(&out).wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&last.stdout);
        assert!(last.status.success(), "{said}");
    }
    assert_eq!(contents(&scratch.join("in")), contents(&out));
}
