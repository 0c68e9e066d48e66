use super::*;
use crate::job::{FilePath, Order, State};
use std::sync::atomic::{AtomicU32, Ordering};

static FOLDERS: AtomicU32 = AtomicU32::new(0);

/// A folder for one test, removed with it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Folder {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-journal-{}-{number}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Folder(folder)
    }

    fn file(&self) -> PathBuf {
        self.0.join(NAME)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn job(id: u64, state: State) -> Job {
    let order = Order {
        paths: vec![FilePath(format!("/file {id}\n").into())],
        to: "anna".into(),
        code: None,
        key: None,
        priority: 50,
    };
    let queue = crate::queue::Queue::restore(id - 1, []);
    let job = queue.job_for(order, 7).unwrap();
    Job { state, ..job }
}

/// What a service that starts now reads.
fn found(folder: &Folder) -> Recovered {
    Journal::open(&folder.0).unwrap().1
}

#[test]
fn what_was_recorded_is_there_again_and_the_last_counts() {
    let folder = Folder::new();
    let (mut journal, recovered) = Journal::open(&folder.0).unwrap();
    assert_eq!((recovered.last_id, recovered.jobs.len()), (0, 0));
    for job in [
        job(1, State::Queued),
        job(2, State::Queued),
        job(1, State::Running),
    ] {
        journal.record(&job).unwrap();
    }
    drop(journal);
    for _ in 0..3 {
        let recovered = found(&folder);
        let states = recovered.jobs.values().map(|job| (job.id, job.state));
        let states: Vec<_> = states.collect();
        assert_eq!(states, [(1, State::Running), (2, State::Queued)]);
        assert_eq!((recovered.last_id, recovered.damaged_lines), (2, 0));
    }
}

#[test]
fn killed_at_any_byte_it_loses_only_the_unfinished_line() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    let mut ends = vec![std::fs::metadata(folder.file()).unwrap().len()];
    for id in 1..=4 {
        journal.record(&job(id, State::Queued)).unwrap();
        ends.push(std::fs::metadata(folder.file()).unwrap().len());
    }
    drop(journal);
    let whole = std::fs::read(folder.file()).unwrap();
    assert_eq!(ends.last(), Some(&(whole.len() as u64)));
    for cut in 0..=whole.len() {
        let recovered = read(&whole[..cut]);
        let expected = ends[1..].iter().filter(|&&end| end <= cut as u64).count();
        let ids: Vec<u64> = recovered.jobs.keys().copied().collect();
        let first: Vec<u64> = (1..=expected as u64).collect();
        assert_eq!((ids, recovered.damaged_lines), (first, 0), "cut at {cut}");
        // Syncing a disk is slow: only some positions are tried there.
        if cut % 29 != 0 {
            continue;
        }
        std::fs::write(folder.file(), &whole[..cut]).unwrap();
        let (mut journal, recovered) = Journal::open(&folder.0).unwrap();
        assert_eq!(recovered.jobs.len(), expected, "cut at {cut}");
        // The journal can still be written.
        journal.record(&job(9, State::Done)).unwrap();
        drop(journal);
        assert_eq!(found(&folder).jobs.len(), expected + 1, "cut at {cut}");
    }
}

#[test]
fn killed_while_it_is_written_anew_it_has_what_it_had() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    journal.record(&job(1, State::Queued)).unwrap();
    drop(journal);
    std::fs::write(folder.0.join(NEW), b"00000000 {\"last").unwrap();
    assert_eq!(found(&folder).jobs.len(), 1);
}

#[test]
fn a_damaged_line_is_lost_alone_and_the_file_is_kept() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    for id in 1..=3 {
        journal.record(&job(id, State::Queued)).unwrap();
    }
    drop(journal);
    let text = std::fs::read_to_string(folder.file()).unwrap();
    let damaged = text.replace("file 2", "file 7");
    std::fs::write(folder.file(), &damaged).unwrap();
    let recovered = found(&folder);
    assert_eq!(recovered.jobs.keys().collect::<Vec<_>>(), [&1, &3]);
    assert_eq!(recovered.damaged_lines, 1);
    assert_eq!(
        std::fs::read_to_string(folder.0.join(DAMAGED)).unwrap(),
        damaged
    );
    assert_eq!(found(&folder).damaged_lines, 0, "it is written anew");
}

#[test]
fn garbage_is_no_journal() {
    for garbage in [
        &b"\0\0\0\0"[..],
        b"\n\n\n",
        b"zzzzzzzz {}\n",
        b"00000000",
        b"00000000 {}\n",
        b"\xff\xfe\n{\"job\":{}}\n",
    ] {
        assert_eq!(read(garbage).jobs.len(), 0);
    }
    // Valid JSON with a checksum, but not a job.
    let json = br#"{"job":{"id":-1}}"#;
    let mut line = format!("{:08x} ", crc32fast::hash(json)).into_bytes();
    line.extend(json);
    line.push(b'\n');
    assert_eq!(read(&line).damaged_lines, 1);
}

#[test]
fn two_services_do_not_share_a_journal() {
    let folder = Folder::new();
    let first = Journal::open(&folder.0).unwrap();
    let error = Journal::open(&folder.0).unwrap_err().to_string();
    assert!(
        error.starts_with("another `airdma serve` keeps its jobs in"),
        "{error}"
    );
    drop(first);
    Journal::open(&folder.0).unwrap();
}

#[test]
fn only_its_user_can_read_it() {
    use std::os::unix::fs::PermissionsExt;
    let folder = Folder::new();
    let inner = folder.0.join("state");
    drop(Journal::open(&inner).unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&inner), mode(&inner.join(NAME))), (0o700, 0o600));
}

#[test]
fn a_write_that_fails_is_told_and_leaves_the_journal_as_it_was() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    journal.record(&job(1, State::Queued)).unwrap();
    let file = journal.file.try_clone().unwrap();
    journal.refuse_writes();
    assert!(journal.record(&job(2, State::Queued)).is_err());
    // The rest of a longer line that a full disk leaves.
    file.write_all_at(
        b"0123456789 half a line of what was to be written",
        journal.length,
    )
    .unwrap();
    journal.file = file;
    journal.record(&job(3, State::Queued)).unwrap();
    drop(journal);
    assert_eq!(found(&folder).jobs.keys().collect::<Vec<_>>(), [&1, &3]);
}

#[test]
fn it_stays_short() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    let job = job(1, State::Queued);
    let mut rewritten = 0;
    for _ in 0..3 * SPARE_LINES {
        journal.record(&job).unwrap();
        if journal.is_long(1) {
            journal.rewrite(1, [&job].into_iter()).unwrap();
            rewritten += 1;
        }
    }
    assert_eq!(rewritten, 2);
    drop(journal);
    assert_eq!(found(&folder).jobs.len(), 1);
}

#[test]
fn it_is_never_longer_than_what_is_read() {
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    let paths = vec![FilePath(format!("/{}", "a".repeat(1 << 20)).into())];
    let large = Job {
        order: Order {
            paths,
            ..job(1, State::Queued).order
        },
        ..job(1, State::Queued)
    };
    // With this many small jobs, the number of lines alone would let a large one fill the disk
    // again and again.
    let jobs = crate::queue::JOBS_MAX;
    let mut tries = 0;
    while !journal.is_long(jobs) {
        assert!(journal.length < BYTES_MAX / 4, "after {tries}");
        journal.record(&large).unwrap();
        tries += 1;
    }
    journal.rewrite(1, [&large].into_iter()).unwrap();
    assert!(!journal.is_long(jobs));
    // Nor is it rewritten if all of it is necessary.
    journal.length = BYTES_MAX - 1;
    let error = journal.record(&large).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    drop(journal);
    assert_eq!(found(&folder).jobs[&1], large);
}

#[test]
fn files_writable_by_others_and_links_are_not_read() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = Folder::new();
    let (mut journal, _) = Journal::open(&folder.0).unwrap();
    journal.record(&job(1, State::Queued)).unwrap();
    drop(journal);
    let refused = |words: &str| {
        let error = Journal::open(&folder.0).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let set = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    set(&folder.0, 0o777);
    refused("other users may write it");
    set(&folder.0, 0o755);
    set(&folder.file(), 0o620);
    refused("other users may write it");
    set(&folder.file(), 0o600);
    // A sparse file that does not fit into memory.
    let large = std::fs::read(folder.file()).unwrap();
    File::create(folder.file())
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    refused("more than");
    let precious = folder.0.join("precious");
    std::fs::write(&precious, &large).unwrap();
    std::fs::remove_file(folder.file()).unwrap();
    symlink(&precious, folder.file()).unwrap();
    refused(NAME);
    std::fs::remove_file(folder.file()).unwrap();
    // Nor does a write follow a link.
    symlink(&precious, folder.0.join(NEW)).unwrap();
    assert_eq!(found(&folder).jobs.len(), 0);
    assert_eq!(std::fs::read(&precious).unwrap(), large);
}
