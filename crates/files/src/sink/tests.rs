//! Interruptions between the steps of a checkpoint.

use super::*;
use crate::walk::Walked;
use crate::{Clash, JournalKey, Limits, Source, walk};
use rustix::fs::inotify;
use std::ffi::OsStr;
use std::fs;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;

struct Scratch(PathBuf);

fn key() -> JournalKey {
    JournalKey::derive(b"a user")
}

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("airdma-sink-{}-{name}", std::process::id()));
        fs::create_dir_all(path.join("out")).unwrap();
        fs::create_dir_all(path.join("tree/within")).unwrap();
        fs::write(path.join("a"), b"content").unwrap();
        fs::write(path.join("tree/first"), b"content").unwrap();
        let name = OsStr::from_bytes(b"not \xff text");
        fs::write(path.join("tree/within").join(name), b"content").unwrap();
        fs::write(
            path.join("tree/within/z"),
            vec![7; 2 * CHUNK_BYTES as usize],
        )
        .unwrap();
        Self(path)
    }

    /// A sink of one file, all chunks of which were written.
    fn sink(&self) -> Sink {
        self.sink_of("a", u64::MAX)
    }

    /// A sink for the path of this name, after the rest of `chunks` chunks was written.
    fn sink_of(&self, name: &str, chunks: u64) -> Sink {
        let walked = self.walk(name);
        let manifest = Arc::clone(&walked.manifest);
        let mut sink = Sink::open(
            &self.0.join("out"),
            Arc::clone(&manifest),
            manifest.id(),
            Options::default(),
            &key(),
        )
        .unwrap();
        self.write(&mut sink, name, chunks);
        sink
    }

    fn write(&self, sink: &mut Sink, name: &str, chunks: u64) {
        let mut source = Source::new(&self.walk(name), sink.unwanted(), sink.next());
        let mut buffer = vec![0; CHUNK_BYTES as usize];
        while sink.next() < sink.plan().chunks().min(chunks) {
            let length = source.read(&mut buffer);
            sink.write(&buffer[..length]).unwrap();
        }
    }

    fn walk(&self, name: &str) -> Walked {
        walk(&[self.0.join(name)], Limits::default()).unwrap()
    }

    /// Number of names below `out`, unfinished ones excluded.
    fn names(&self) -> usize {
        fn count(directory: &Path) -> usize {
            let entries = fs::read_dir(directory).unwrap().map(Result::unwrap);
            let shown = entries.filter(|entry| !entry.file_name().as_bytes().starts_with(b"."));
            shown.fold(0, |found, entry| match entry.path().is_dir() {
                true => found + 1 + count(&entry.path()),
                false => found + 1,
            })
        }
        count(&self.0.join("out"))
    }

    /// Number of hidden names that are left.
    fn hidden(&self) -> usize {
        let entries = fs::read_dir(self.0.join("out")).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name());
        names
            .filter(|name| name.as_bytes().starts_with(b"."))
            .count()
    }

    fn arrived(&self) -> bool {
        self.0.join("out/a").exists()
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_file_has_no_name_before_the_journal_vouches_for_it() {
    let scratch = Scratch::new("before");
    let mut sink = scratch.sink();
    sink.journal.lock().unwrap().refuse_writes();
    let error = sink.checkpoint().unwrap_err();
    assert!(!scratch.arrived());
    assert_eq!(sink.checkpoint(), Err(error), "an error stays");
    drop(sink);
    scratch.sink().finish().unwrap();
    assert!(scratch.arrived());
}

#[test]
fn a_journalled_file_gets_its_name_after_a_restart() {
    let scratch = Scratch::new("after");
    let mut sink = scratch.sink();
    sink.begin_checkpoint().unwrap();
    drop(sink);
    assert!(!scratch.arrived());
    let sink = scratch.sink();
    assert!(scratch.arrived());
    sink.finish().unwrap();
}

/// A file system that cannot rename without replacing gets a second name for the file first, then
/// loses its number.
#[test]
fn a_file_that_was_killed_between_two_names_keeps_the_right_one() {
    for clash in [Clash::Refuse, Clash::Overwrite] {
        let scratch = Scratch::new(&format!("between-{clash:?}"));
        let options = Options {
            clash,
            ..Options::default()
        };
        let out = scratch.0.join("out");
        let open = || {
            let manifest = Arc::clone(&scratch.walk("a").manifest);
            let id = manifest.id();
            Sink::open(&out, manifest, id, options, &key())
        };
        let mut sink = open().unwrap();
        scratch.write(&mut sink, "a", u64::MAX);
        sink.begin_checkpoint().unwrap();
        let staged = out.join(&sink.staging_name).join("0");
        drop(sink);
        // Until then the existing file is another one.
        if clash == Clash::Refuse {
            fs::write(out.join("a"), b"content").unwrap();
            assert_eq!(open().unwrap_err().problem, Problem::Exists);
            assert!(staged.exists());
            fs::remove_file(out.join("a")).unwrap();
        }
        fs::hard_link(&staged, out.join("a")).unwrap();
        let sink = open().unwrap();
        assert!(!staged.exists() && scratch.arrived());
        sink.finish().unwrap();
        assert_eq!((scratch.names(), scratch.hidden()), (1, 0));
    }
}

#[test]
fn the_first_checkpoint_places_a_new_directory_as_a_whole() {
    let scratch = Scratch::new("batch");
    let mut sink = scratch.sink_of("tree", 1);
    assert_eq!(scratch.names(), 0, "nothing is vouched for");
    sink.checkpoint().unwrap();
    assert_eq!(scratch.names(), 4, "the directories, and two files");
    assert!(scratch.0.join("out/tree/first").exists());
    scratch.write(&mut sink, "tree", u64::MAX);
    assert_eq!(
        scratch.names(),
        4,
        "what comes later is not whole without a checkpoint"
    );
    sink.finish().unwrap();
    assert_eq!(scratch.names(), 5);
    let arrived = fs::read(scratch.0.join("out/tree/within/z")).unwrap();
    assert_eq!(arrived, vec![7; 2 * CHUNK_BYTES as usize]);
}

#[test]
fn data_during_the_first_checkpoint_is_not_in_what_it_places() {
    let scratch = Scratch::new("beside");
    let mut sink = scratch.sink_of("tree", 1);
    sink.begin_checkpoint().unwrap();
    scratch.write(&mut sink, "tree", u64::MAX);
    sink.end_checkpoint().unwrap();
    assert_eq!((sink.durable(), scratch.names()), (1, 4));
    drop(sink);
    let sink = scratch.sink_of("tree", u64::MAX);
    assert_eq!(scratch.names(), 4);
    sink.finish().unwrap();
    assert_eq!(scratch.names(), 5);
}

#[test]
fn what_comes_while_the_journal_is_written_does_not_wait() {
    let scratch = Scratch::new("journal");
    let mut sink = scratch.sink_of("tree", 1);
    let journal = Arc::clone(&sink.journal);
    let slow = journal.lock().unwrap();
    sink.begin_checkpoint().unwrap();
    scratch.write(&mut sink, "tree", u64::MAX);
    sink.checkpoint_beside().unwrap();
    assert_eq!((sink.durable(), scratch.names()), (0, 0));
    drop(slow);
    sink.end_checkpoint().unwrap();
    assert_eq!((sink.durable(), scratch.names()), (1, 4));
    sink.finish().unwrap();
    assert_eq!(scratch.names(), 5);
}

#[test]
fn a_first_checkpoint_missing_in_the_journal_starts_anew() {
    let scratch = Scratch::new("anew");
    let mut sink = scratch.sink_of("tree", 1);
    sink.journal.lock().unwrap().refuse_writes();
    sink.checkpoint().unwrap_err();
    assert_eq!(scratch.names(), 0);
    drop(sink);
    let sink = scratch.sink_of("tree", 0);
    assert_eq!(sink.next(), 0);
    let left = names(&sink);
    assert_eq!(
        left,
        ["journal"],
        "and what came is gone, whatever its name"
    );
    drop(sink);
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!(scratch.names(), 5);
}

#[test]
fn a_journalled_first_checkpoint_is_placed_after_a_restart() {
    let scratch = Scratch::new("vouched");
    let mut sink = scratch.sink_of("tree", 1);
    sink.begin_checkpoint().unwrap();
    drop(sink);
    assert_eq!(scratch.names(), 0);
    let sink = scratch.sink_of("tree", 1);
    assert_eq!((sink.next(), scratch.names()), (1, 4));
    drop(sink);
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!(scratch.names(), 5);
}

#[test]
fn early_writes_to_the_disk_start_and_their_errors_count() {
    let scratch = Scratch::new("early");
    fs::write(
        scratch.0.join("tree/large"),
        vec![9; 17 * CHUNK_BYTES as usize],
    )
    .unwrap();
    let mut sink = scratch.sink_of("tree", 15);
    assert!(sink.early.is_none());
    scratch.write(&mut sink, "tree", 16);
    assert!(sink.early.is_some() && sink.checkpoint.is_none());
    assert_eq!((sink.durable(), scratch.names()), (0, 0));
    sink.early = Some(Syncing::start(|| Err(Errno::IO.into())).unwrap());
    assert_eq!(
        sink.checkpoint().unwrap_err().problem,
        Problem::Other(Errno::IO)
    );
    assert_eq!((sink.durable(), scratch.names()), (0, 0));
    drop(sink);
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!(scratch.names(), 6);
    // A file in a checkpoint of its own has its own sync.
    fs::write(scratch.0.join("a"), vec![9; 17 * CHUNK_BYTES as usize]).unwrap();
    assert!(scratch.sink().early.is_none());
}

#[test]
fn a_file_and_its_directory_are_durable_or_it_is_an_error() {
    let scratch = Scratch::new("sync");
    let open = |name: &str, how| {
        let path = scratch.0.join(name);
        rustix::fs::open(path, how | OFlags::CLOEXEC, Mode::empty()).unwrap()
    };
    // An `O_PATH` descriptor can be opened, but not synced.
    let sync = |of_directory, of_file| {
        let (directory, file) = (open("out", of_directory), File::from(open("a", of_file)));
        checkpoint::sync(&directory, &[], Some(&file)).is_ok()
    };
    assert!(sync(OFlags::RDONLY, OFlags::RDONLY));
    assert!(!sync(OFlags::PATH, OFlags::RDONLY));
    assert!(!sync(OFlags::RDONLY, OFlags::PATH));
}

#[test]
fn a_name_taken_meanwhile_is_not_replaced_by_a_directory() {
    let scratch = Scratch::new("taken");
    let mut sink = scratch.sink_of("tree", 1);
    let taken = scratch.0.join("out/tree");
    fs::create_dir(&taken).unwrap();
    assert_eq!(sink.checkpoint().unwrap_err().problem, Problem::Exists);
    drop(sink);
    fs::remove_dir(&taken).unwrap();
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!(scratch.names(), 5);
}

#[test]
fn a_sender_that_missed_the_end_learns_it_after_a_restart() {
    let scratch = Scratch::new("settled");
    std::os::unix::fs::symlink("first", scratch.0.join("tree/link")).unwrap();
    for name in ["a", "tree"] {
        let mut sink = scratch.sink_of(name, u64::MAX);
        let report = sink.settle().unwrap();
        let found = scratch.names();
        drop(sink);
        for _ in 0..2 {
            let mut sink = scratch.sink_of(name, 0);
            assert_eq!(sink.next(), sink.plan().chunks(), "nothing is to be sent");
            assert_eq!(sink.settle().as_ref(), Ok(&report));
        }
        scratch.sink_of(name, 0).finish().unwrap();
        assert_eq!((scratch.names(), scratch.hidden()), (found, 0));
    }
}

/// The file was reported as arrived: from then on it belongs to the user.
#[test]
fn changes_after_the_end_stay_when_the_sender_asks_again() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new("done");
    fs::create_dir(scratch.0.join("tree/nothing")).unwrap();
    std::os::unix::fs::symlink("first", scratch.0.join("tree/link")).unwrap();
    let report = scratch.sink_of("tree", u64::MAX).settle().unwrap();
    let tree = scratch.0.join("out/tree");
    let private = fs::Permissions::from_mode(0o700);
    fs::set_permissions(&tree, private.clone()).unwrap();
    fs::remove_dir(tree.join("nothing")).unwrap();
    fs::remove_file(tree.join("link")).unwrap();
    for _ in 0..2 {
        let mut sink = scratch.sink_of("tree", 0);
        assert_eq!(sink.settle().as_ref(), Ok(&report));
        let found = fs::metadata(&tree).unwrap().permissions().mode() & 0o777;
        assert_eq!(found, private.mode());
        assert_eq!(scratch.names(), 5);
    }
    // A mark that the disk has lost: everything is done again.
    let sink = scratch.sink_of("tree", 0);
    let chunks = sink.next();
    sink.journal.lock().unwrap().record(chunks).unwrap();
    drop(sink);
    assert_eq!(scratch.sink_of("tree", 0).finish(), Ok(report));
    assert_eq!((scratch.names(), scratch.hidden()), (7, 0));
}

/// On NFS an open file is renamed when it is removed, and its directory cannot be removed.
#[test]
fn the_journal_is_closed_before_it_is_removed() {
    let scratch = Scratch::new("closed");
    let mut sink = scratch.sink();
    sink.settle().unwrap();
    let staging = scratch.0.join("out").join(&sink.staging_name);
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let events = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::DELETE;
    inotify::add_watch(&watch, &staging, events).unwrap();
    sink.forget().unwrap();
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = inotify::Reader::new(&watch, &mut buffer);
    let mut next = || reader.next().unwrap().events();
    assert_eq!(next(), inotify::ReadFlags::CLOSE_WRITE);
    assert_eq!(next(), inotify::ReadFlags::DELETE);
}

#[test]
fn at_the_end_missing_files_are_fine_and_obstacles_are_errors() {
    let scratch = Scratch::new("gone");
    let settled = || {
        let mut sink = scratch.sink();
        sink.settle().unwrap();
        let staging = scratch.0.join("out").join(&sink.staging_name);
        (sink, staging)
    };
    let (sink, staging) = settled();
    fs::write(staging.join("another"), b"").unwrap();
    let is_full = Problem::Other(Errno::NOTEMPTY);
    assert_eq!(sink.forget().unwrap_err().problem, is_full);
    fs::remove_file(staging.join("another")).unwrap();
    fs::remove_file(scratch.0.join("out/a")).unwrap();
    let (sink, staging) = settled();
    fs::remove_dir_all(&staging).unwrap();
    sink.forget().unwrap();
    assert_eq!((scratch.arrived(), scratch.hidden()), (true, 0));
}

#[test]
fn what_did_not_arrive_is_told_again_too() {
    let scratch = Scratch::new("flawed");
    let walked = scratch.walk("tree");
    let mut source = Source::new(&walked, &Unwanted::default(), 0);
    fs::write(scratch.0.join("tree/first"), b"changed").unwrap();
    let open = || {
        let manifest = Arc::clone(&walked.manifest);
        let id = manifest.id();
        Sink::open(
            &scratch.0.join("out"),
            manifest,
            id,
            Options::default(),
            &key(),
        )
        .unwrap()
    };
    let mut sink = open();
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    while sink.next() < sink.plan().chunks() {
        let length = source.read(&mut buffer);
        sink.write(&buffer[..length]).unwrap();
    }
    let report = sink.settle().unwrap();
    assert_eq!(report.flaws, [(1, Flaw::Changed)]);
    drop(sink);
    assert_eq!(open().settle(), Ok(report));
    open().forget().unwrap();
    assert_eq!(scratch.hidden(), 0);
}

#[test]
fn removed_or_changed_files_are_not_reported_as_arrived() {
    let scratch = Scratch::new("removed");
    let open = || {
        let manifest = Arc::clone(&scratch.walk("tree").manifest);
        let id = manifest.id();
        Sink::open(
            &scratch.0.join("out"),
            manifest,
            id,
            Options::default(),
            &key(),
        )
    };
    scratch.sink_of("tree", u64::MAX).settle().unwrap();
    let first = scratch.0.join("out/tree/first");
    let whole = fs::read(&first).unwrap();
    fs::write(&first, b"something else").unwrap();
    assert_eq!(open().unwrap_err().problem, Problem::Exists);
    // It has the same size: only its time differs.
    fs::write(&first, &whole).unwrap();
    File::open(&first)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH)
        .unwrap();
    assert_eq!(open().unwrap_err().problem, Problem::Exists);
    fs::remove_file(&first).unwrap();
    assert_eq!(open().unwrap_err().problem, Problem::Exists);
    fs::remove_dir_all(scratch.0.join("out/tree")).unwrap();
    assert_eq!(open().unwrap().next(), 0);
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!((scratch.names(), scratch.hidden()), (5, 0));
}

/// The file existed and was not sent; now it must be.
#[test]
fn what_was_kept_and_is_gone_since_is_not_said_to_be_there() {
    let scratch = Scratch::new("unwanted");
    let (sent, kept) = (scratch.0.join("tree"), scratch.0.join("out/tree"));
    std::os::unix::fs::symlink("first", sent.join("link")).unwrap();
    fs::create_dir(&kept).unwrap();
    let mut copy = Command::new("cp");
    copy.args(["-a", "first", "link"]).arg(&kept);
    assert!(copy.current_dir(&sent).status().unwrap().success());
    let manifest = Arc::clone(&scratch.walk("tree").manifest);
    let (id, clash) = (manifest.id(), Clash::SkipSame);
    let open = || {
        let options = Options {
            clash,
            ..Options::default()
        };
        Sink::open(
            &scratch.0.join("out"),
            Arc::clone(&manifest),
            id,
            options,
            &key(),
        )
    };
    let mut sink = open().unwrap();
    assert_eq!(sink.unwanted().ranges().first(), Some(&(1..3)));
    scratch.write(&mut sink, "tree", u64::MAX);
    sink.settle().unwrap();
    drop(sink);
    let sink = open().unwrap();
    assert_eq!(sink.next(), sink.plan().chunks(), "all is there");
    drop(sink);
    fs::remove_file(kept.join("first")).unwrap();
    let mut sink = open().unwrap();
    assert_eq!(sink.next(), 0);
    scratch.write(&mut sink, "tree", u64::MAX);
    assert_eq!(sink.finish().unwrap().files, 1);
    assert_eq!(fs::read(kept.join("first")).unwrap(), b"content");
    assert_eq!(scratch.hidden(), 0);
}

/// The same before everything has come: the resumed transfer would report at its end that the file
/// arrived.
#[test]
fn a_kept_file_that_is_gone_at_the_resume_is_sent_after_all() {
    let scratch = Scratch::new("cut-off");
    let kept = scratch.0.join("out/tree");
    fs::create_dir(&kept).unwrap();
    let mut copy = Command::new("cp");
    copy.args(["-a", "first"]).arg(&kept);
    let sent = scratch.0.join("tree");
    assert!(copy.current_dir(&sent).status().unwrap().success());
    let manifest = Arc::clone(&scratch.walk("tree").manifest);
    let (id, clash) = (manifest.id(), Clash::SkipSame);
    let open = || {
        let options = Options {
            clash,
            ..Options::default()
        };
        Sink::open(
            &scratch.0.join("out"),
            Arc::clone(&manifest),
            id,
            options,
            &key(),
        )
    };
    let mut sink = open().unwrap();
    scratch.write(&mut sink, "tree", 1);
    sink.checkpoint().unwrap();
    drop(sink);
    assert_eq!(open().unwrap().next(), 1, "all that was kept is there");
    let first = kept.join("first");
    // It was kept because its time was equal to the nanosecond.
    let time = fs::metadata(&first).unwrap().modified().unwrap();
    let touch = |time| File::open(&first).unwrap().set_modified(time).unwrap();
    touch(time + std::time::Duration::from_nanos(1));
    assert_eq!(open().unwrap_err().problem, Problem::Exists);
    touch(time);
    assert_eq!(open().unwrap().next(), 1);
    fs::write(&first, b"something else").unwrap();
    let error = open().unwrap_err();
    assert_eq!(
        (error.problem, &*error.path),
        (Problem::Exists, "tree/first")
    );
    fs::remove_file(&first).unwrap();
    let mut sink = open().unwrap();
    assert_eq!(sink.next(), 0);
    scratch.write(&mut sink, "tree", u64::MAX);
    sink.finish().unwrap();
    assert_eq!(fs::read(&first).unwrap(), b"content");
    assert_eq!((scratch.names(), scratch.hidden()), (5, 0));
}

/// Its time is no longer the sender's; only that it is older than the journal counts.
#[test]
fn what_was_changed_since_is_noticed_without_times_too() {
    let scratch = Scratch::new("timeless");
    let manifest = Arc::clone(&scratch.walk("a").manifest);
    let (times, id) = (false, manifest.id());
    let open = || {
        let options = Options {
            times,
            ..Options::default()
        };
        Sink::open(
            &scratch.0.join("out"),
            Arc::clone(&manifest),
            id,
            options,
            &key(),
        )
    };
    let mut sink = open().unwrap();
    scratch.write(&mut sink, "a", u64::MAX);
    sink.settle().unwrap();
    drop(sink);
    assert_eq!(open().unwrap().next(), 1, "all is there");
    let changed = File::options()
        .write(true)
        .open(scratch.0.join("out/a"))
        .unwrap();
    changed.write_all_at(b"another", 0).unwrap();
    let now = changed.metadata().unwrap().modified().unwrap();
    let later = now + std::time::Duration::from_secs(10);
    changed.set_modified(later).unwrap();
    assert_eq!(open().unwrap_err().problem, Problem::Exists);
}

#[test]
fn a_staging_directory_in_which_nothing_is_says_nothing() {
    let scratch = Scratch::new("bare");
    let name = key().staging_name(scratch.walk("tree").manifest.id());
    let staging = scratch.0.join("out").join(name);
    fs::DirBuilder::new().mode(0o700).create(&staging).unwrap();
    scratch.sink_of("tree", u64::MAX).finish().unwrap();
    assert_eq!((scratch.names(), scratch.hidden()), (5, 0));
}

/// Names in the staging directory.
fn names(sink: &Sink) -> Vec<String> {
    let entries = rustix::fs::Dir::read_from(&sink.staging).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| !name.starts_with('.')).collect()
}
