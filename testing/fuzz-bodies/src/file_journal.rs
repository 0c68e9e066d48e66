//! Contents of a receiving directory: a journal and an unfinished directory that peers, archives
//! or other users left, also with seals as if the user's key were known to them, and things in the
//! way of what is offered.

use crate::input::Input;
use airdma_files::manifest::{Builder, Content, Entry, Kind};
use airdma_files::{
    Clash, JournalKey, Limits, Manifest, Modified, Options, Permissions, Sink, Symlinks, sealed,
};
use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

const CHUNK_BYTES: u64 = airdma_files::CHUNK_BYTES;
/// Things that are planted.
const PLANTED_MAX: usize = 12;
const FIELDS_MAX: usize = 400;
/// Bytes of a file that has none: what reads it has to stop.
const ENDLESS: u64 = 1 << 40;
/// Directories within each other.
const DEPTH_MAX: usize = 200;
/// Names in the unfinished directory: entries of all kinds, what did not arrive, and what means
/// nothing.
const UNFINISHED: [&str; 14] = [
    "0",
    "1",
    "2",
    "3",
    "4",
    "99",
    "0.1",
    "1.4",
    "2.4",
    "3.3",
    "4.4",
    "journal.new",
    "2/a",
    "x",
];
/// Names of the offer, and others.
const TOPS: [&str; 6] = ["a", "link", "tree", "tree/a", "tree/within", "other"];

static FOLDERS: AtomicU64 = AtomicU64::new(0);

/// A place with a receiving directory and what must not change, gone with it.
struct Place(PathBuf);

impl Place {
    fn new() -> Self {
        let number = FOLDERS.fetch_add(1, Ordering::Relaxed);
        let name = format!("airdma-file-journal-{}-{number}", std::process::id());
        let memory = Path::new("/dev/shm");
        let place = match memory.is_dir() {
            true => memory.join(name),
            false => std::env::temp_dir().join(name),
        };
        for folder in ["out", "outside/within"] {
            fs::create_dir_all(place.join(folder)).expect("a directory is made");
        }
        for file in ["victim", "outside/file", "outside/within/file"] {
            fs::write(place.join(file), "mine").expect("a file is made");
        }
        Self(place)
    }

    fn out(&self) -> PathBuf {
        self.0.join("out")
    }

    /// All that is not in the receiving directory.
    fn outside(&self) -> BTreeMap<PathBuf, (u32, i64, Vec<u8>)> {
        let mut found = BTreeMap::new();
        describe(&self.0, &self.out(), &mut found);
        found
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn describe(directory: &Path, but: &Path, found: &mut BTreeMap<PathBuf, (u32, i64, Vec<u8>)>) {
    let entries = fs::read_dir(directory).expect("a directory is read");
    for path in entries.map(|entry| entry.expect("a directory is read").path()) {
        let metadata = fs::symlink_metadata(&path).expect("it is there");
        // The time of a directory changes with a name that is removed and comes again.
        let mut told = (metadata.mode(), metadata.mtime_nsec(), Vec::new());
        if path == but {
            continue;
        } else if metadata.is_dir() {
            describe(&path, but, found);
        } else if metadata.is_file() && metadata.len() < ENDLESS {
            told.2 = fs::read(&path).expect("a file is read");
        }
        found.insert(path, told);
    }
}

/// The first byte says what is planted in place of a journal.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let place = Place::new();
    let (out, manifest) = (place.out(), manifest());
    let key = JournalKey::derive(b"a user");
    let options = options(&mut input);
    plant(&mut input, &place, &key, &manifest);
    let before = place.outside();
    let id = manifest.id();
    let previewed = Sink::preview(&out, &manifest, id, &options, &key);
    assert_eq!(place.outside(), before, "a preview writes nothing");
    let opened = Sink::open(&out, Arc::clone(&manifest), id, options, &key);
    assert!(previewed.is_ok() || opened.is_err());
    if let Ok(mut sink) = opened {
        receive(&mut sink);
    }
    assert_eq!(place.outside(), before, "something outside was changed");
}

/// All that is still to come, as zeros.
fn receive(sink: &mut Sink) {
    let zeros = vec![0; CHUNK_BYTES as usize];
    assert!(sink.next() <= sink.plan().chunks());
    while sink.next() < sink.plan().chunks() {
        let length = sink.plan().chunk_bytes(sink.next());
        if sink.write(&zeros[..length]).is_err() {
            return;
        }
    }
    // What is in the way is an error.
    let _ = sink.settle();
}

fn options(input: &mut Input<'_>) -> Options {
    Options {
        clash: input.pick(&[
            Clash::Refuse,
            Clash::Rename,
            Clash::Overwrite,
            Clash::SkipSame,
        ]),
        permissions: input.pick(&[Permissions::Masked, Permissions::Exact, Permissions::New]),
        symlinks: input.pick(&[Symlinks::Inside, Symlinks::All, Symlinks::Skip]),
        ..Options::default()
    }
}

fn plant(input: &mut Input<'_>, place: &Place, key: &JournalKey, manifest: &Manifest) {
    let out = place.out();
    let staging = out.join(key.staging_name(manifest.id()));
    let made = DirBuilder::new().mode(0o700).create(&staging);
    made.expect("a directory is made");
    match input.below(8) {
        0 => {
            let bytes = input.take(FIELDS_MAX);
            fs::write(staging.join("journal"), bytes).expect("a file is written");
        }
        1 => put(input, place, &staging.join("journal")),
        _ => {
            let slots = [(); 2].map(|()| {
                let settled = u64::from(input.one_in(4)) << 63;
                (input.number(&[1, 2]), input.number(&[0, 1, 2]) ^ settled)
            });
            let fields = fields(input);
            let at = out.canonicalize().expect("it is there");
            let (_, journal) = sealed(key, manifest.id(), &at, &fields, slots);
            fs::write(staging.join("journal"), journal).expect("a file is written");
        }
    }
    for _ in 0..input.below(PLANTED_MAX) {
        let path = match input.one_in(4) {
            true => out.join(input.pick(&TOPS)),
            false => staging.join(input.pick(&UNFINISHED)),
        };
        put(input, place, &path);
    }
}

/// Names that were changed and ranges that are not wanted, or bytes as they are.
fn fields(input: &mut Input<'_>) -> Vec<u8> {
    if input.one_in(4) {
        return input.take(FIELDS_MAX).to_vec();
    }
    let names = input.below(3);
    let mut fields = (names as u32).to_be_bytes().to_vec();
    for _ in 0..names {
        let name = input.pick(&[
            &b"a (1)"[..],
            b"tree (2)",
            b"../victim",
            b"/dev/shm/victim",
            b"..",
            b"",
            b"tree (1)/../../victim",
            b".airdma-x",
        ]);
        fields.extend_from_slice(&(input.number(&[0, 1, 2, 3]) as u32).to_be_bytes());
        fields.push(name.len() as u8);
        fields.extend_from_slice(name);
    }
    let ranges = input.below(3);
    fields.extend_from_slice(&(ranges as u32).to_be_bytes());
    for _ in 0..2 * ranges {
        fields.extend_from_slice(&(input.number(&[0, 1, 3, 5]) as u32).to_be_bytes());
    }
    fields
}

/// Puts something there, if nothing is.
fn put(input: &mut Input<'_>, place: &Place, path: &Path) {
    let outside = place
        .0
        .join(input.pick(&["outside", "outside/file", "victim", "nowhere"]));
    // What is in the way already stays.
    match input.below(8) {
        0 => symlink(outside, path).ok(),
        1 => fs::hard_link(outside, path).ok(),
        2 => make_pipe(path),
        3 => fs::create_dir(path).ok(),
        4 => fs::create_dir_all(path.join("d/".repeat(1 + input.below(DEPTH_MAX)))).ok(),
        5 => File::create_new(path)
            .and_then(|file| file.set_len(ENDLESS))
            .ok(),
        6 => fs::create_dir(path)
            .and_then(|()| symlink(outside, path.join("a")))
            .ok(),
        _ => {
            let length = input.below(100);
            let bytes = input.take(length);
            let file = File::create_new(path);
            file.and_then(|mut file| file.write_all(bytes)).ok()
        }
    };
}

fn make_pipe(path: &Path) -> Option<()> {
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o600), 0).ok()
}

/// Files of less and of more than a chunk, a link, and directories.
fn manifest() -> Arc<Manifest> {
    let file = |size| {
        Kind::File(Content {
            size,
            stamp: 0,
            extents: None,
        })
    };
    let mut builder = Builder::new(Limits::default());
    for (depth, name, kind) in [
        (0, "a", file(100)),
        (0, "link", Kind::Symlink(b"tree/a".as_slice().into())),
        (0, "tree", Kind::Directory),
        (1, "a", file(CHUNK_BYTES + CHUNK_BYTES / 2)),
        (1, "within", Kind::Directory),
    ] {
        let entry = Entry {
            parent: None,
            depth,
            name: name.as_bytes().into(),
            mode: 0o777,
            modified: Modified {
                seconds: 0,
                nanos: 0,
            },
            kind,
        };
        builder.push(entry).expect("it is in order");
    }
    Arc::new(builder.finish())
}
