//! Rates of one thread in each step that a chunk goes through.
//!
//! `cargo bench -p airdma-files [DIRECTORY]` reads and writes files in DIRECTORY.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use airdma_files::session::{Cipher, DataKey, Opener, Sealer, TAG_BYTES};
use airdma_files::{CHUNK_BYTES, JournalKey, Limits, Options, Sink, Source, walk};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const CHUNKS: u64 = 1024;
const SMALL_FILES: usize = 20_000;
const SMALL_BYTES: usize = 4096;

fn main() {
    let directory = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    for cipher in [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305] {
        seal(cipher);
    }
    let bytes = vec![7; CHUNK_BYTES as usize];
    rate("BLAKE3", CHUNKS * CHUNK_BYTES, || {
        let mut hasher = blake3::Hasher::new();
        (0..CHUNKS).for_each(|_| {
            hasher.update(&bytes);
        });
        assert_ne!(hasher.finalize().as_bytes(), &[0; 32]);
    });
    let scratch = directory.join(format!("airdma-rates-{}", std::process::id()));
    fs::create_dir(&scratch).unwrap();
    fs::create_dir(scratch.join("large")).unwrap();
    fs::write(
        scratch.join("large/file"),
        vec![7; (CHUNKS * CHUNK_BYTES) as usize],
    )
    .unwrap();
    transfer(&scratch, "large");
    fs::create_dir(scratch.join("small")).unwrap();
    for number in 0..SMALL_FILES {
        fs::write(
            scratch.join(format!("small/{number}")),
            vec![7; SMALL_BYTES],
        )
        .unwrap();
    }
    transfer(&scratch, "small");
    fs::remove_dir_all(&scratch).unwrap();
}

fn seal(cipher: Cipher) {
    let key = DataKey::draw();
    let (mut sealer, mut opener) = (Sealer::new(cipher, &key, 0), Opener::new(cipher, &key, 0));
    let mut buffer = vec![7; CHUNK_BYTES as usize + TAG_BYTES];
    let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
    for _ in 0..CHUNKS {
        let begun = Instant::now();
        sealer.seal(&mut buffer, CHUNK_BYTES as usize);
        let sealed = Instant::now();
        opener.open(&mut buffer).unwrap();
        sealing += sealed - begun;
        opening += sealed.elapsed();
    }
    print(&format!("{cipher:?}, seal"), CHUNKS * CHUNK_BYTES, sealing);
    print(&format!("{cipher:?}, open"), CHUNKS * CHUNK_BYTES, opening);
}

/// Measures reading, then writing what was read.
fn transfer(scratch: &Path, name: &str) {
    let out = scratch.join(format!("{name}-out"));
    fs::create_dir(&out).unwrap();
    // All files are on the disk before anything is measured.
    rustix::fs::sync();
    let begun = Instant::now();
    let walked = walk(&[scratch.join(name)], Limits::default()).unwrap();
    let manifest = Arc::clone(&walked.manifest);
    println!(
        "{name}: {} entries walked in {:.0?}",
        manifest.entries().len(),
        begun.elapsed()
    );
    let mut sink = Sink::open(
        &out,
        Arc::clone(&manifest),
        manifest.id(),
        Options::default(),
        &JournalKey::derive(b"rates"),
    )
    .unwrap();
    let mut source = Source::new(&walked, sink.unwanted(), 0);
    let mut buffer = vec![0; CHUNK_BYTES as usize];
    let (mut reading, mut writing) = (Duration::ZERO, Duration::ZERO);
    while sink.next() < sink.plan().chunks() {
        let begun = Instant::now();
        let length = source.read(&mut buffer);
        reading += begun.elapsed();
        let begun = Instant::now();
        sink.write(&buffer[..length]).unwrap();
        writing += begun.elapsed();
    }
    let begun = Instant::now();
    sink.finish().unwrap();
    let finishing = begun.elapsed();
    print(
        &format!("{name}: read and hash"),
        manifest.content_bytes(),
        reading,
    );
    print(
        &format!("{name}: hash and write"),
        manifest.content_bytes(),
        writing,
    );
    println!("{name}: finish in {finishing:.0?}");
}

fn rate(what: &str, bytes: u64, work: impl FnOnce()) {
    let begun = Instant::now();
    work();
    print(what, bytes, begun.elapsed());
}

fn print(what: &str, bytes: u64, took: Duration) {
    println!(
        "{what}: {:.2} GB/s ({took:.0?})",
        bytes as f64 / took.as_secs_f64() / 1e9
    );
}
