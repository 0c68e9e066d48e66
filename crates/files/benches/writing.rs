//! Write rates of a receiver's disk: plain calls by one thread and by several, and io_uring.
//!
//! `cargo bench -p airdma-files --bench writing -- DIRECTORY`. `docs/design/022-file-service.md`
//! has the results and conclusions.
//!
//! The ways take turns in each round. Times are medians: until all calls have returned, and until
//! the file system has written all data.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use io_uring::types::{DestinationSlot, Fd, Fixed};
use io_uring::{IoUring, opcode, squeue};
use rustix::fs::{Mode, OFlags};
use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

const ROUNDS: usize = 3;
const LARGE_BYTES: usize = 1 << 30;
/// As long as a chunk.
const PIECE_BYTES: usize = 1 << 20;
const SMALL_FILES: usize = 10_000;
const SMALL_BYTES: usize = 4096;
const THREADS: usize = 4;
/// Pieces, or files, in flight in a ring.
const DEPTH: u32 = 32;
/// Alignment that direct writes require.
const ALIGNMENT: usize = 4096;

/// Writes into an empty directory.
type Write = fn(&File, &'static [u8]) -> io::Result<()>;

const WAYS: [(&str, &str, Write); 8] = [
    ("large", "pwrite, 1 thread", large_by_thread),
    ("large", "pwrite, 4 threads", large_by_threads),
    ("large", "io_uring", large_by_ring),
    ("large", "pwrite, direct", large_directly),
    ("large", "io_uring, direct", large_directly_by_ring),
    ("small", "open, write, close, 1 thread", small_by_thread),
    ("small", "open, write, close, 4 threads", small_by_threads),
    ("small", "io_uring, linked", small_by_ring),
];

#[derive(Clone, Copy)]
struct Took {
    written: f64,
    durable: f64,
    cpu: f64,
}

fn main() {
    let directory = std::env::args()
        .skip(1)
        .find(|argument| !argument.starts_with('-'));
    let directory = directory.map_or_else(std::env::temp_dir, PathBuf::from);
    // Never freed, because requests in a ring point to it.
    let room: &'static [u8] = vec![7; PIECE_BYTES + ALIGNMENT].leak();
    let start = room.as_ptr().align_offset(ALIGNMENT);
    let piece = &room[start..start + PIECE_BYTES];
    let mut all = vec![Vec::new(); WAYS.len()];
    for _ in 0..ROUNDS {
        for ((_, name, write), results) in WAYS.iter().zip(&mut all) {
            // The second time counts: in a virtual machine the first one also gets memory from the
            // host.
            let once = measure(&directory, *write, piece);
            match once.and_then(|_| measure(&directory, *write, piece)) {
                Ok(took) => results.push(took),
                Err(error) => println!("{name}: {error}"),
            }
        }
    }
    println!("|  | how | written, s | durable, s | CPU, s |");
    for ((what, name, _), results) in WAYS.iter().zip(&all) {
        let median = |of: fn(&Took) -> f64| {
            let mut values: Vec<f64> = results.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let (written, durable) = (median(|took| took.written), median(|took| took.durable));
        let cpu = median(|took| took.cpu);
        println!("| {what} | {name} | {written:.2} | {durable:.2} | {cpu:.2} |");
    }
}

fn measure(directory: &Path, write: Write, piece: &'static [u8]) -> io::Result<Took> {
    let scratch = directory.join(format!("airdma-writing-{}", std::process::id()));
    fs::create_dir(&scratch)?;
    // Data written before is on the disk first.
    rustix::fs::sync();
    let opened = File::open(&scratch)?;
    let (cpu, begun) = (cpu_seconds(), Instant::now());
    let result = write(&opened, piece);
    let written = begun.elapsed();
    let synced = rustix::fs::syncfs(&opened);
    let durable = begun.elapsed();
    let cpu = cpu_seconds() - cpu;
    fs::remove_dir_all(&scratch)?;
    result?;
    synced?;
    Ok(Took {
        written: written.as_secs_f64(),
        durable: durable.as_secs_f64(),
        cpu,
    })
}

/// CPU time of this process with all its threads, those of its rings included.
fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap();
    let fields = stat.rsplit_once(") ").unwrap().1.split(' ');
    // User and system time (proc_pid_stat(5), 14 and 15), in hundredths of a second.
    let ticks = fields.skip(11).take(2).map(|field| field.parse::<u64>());
    ticks.map(Result::unwrap).sum::<u64>() as f64 / 100.0
}

fn create(directory: &File, name: &str, direct: bool) -> io::Result<File> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    let direct = if direct {
        OFlags::DIRECT
    } else {
        OFlags::empty()
    };
    let mode = Mode::from_raw_mode(0o600);
    Ok(rustix::fs::openat(directory, name, flags | direct, mode)?.into())
}

fn large_by_thread(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    let file = create(directory, "large", false)?;
    write_pieces(&file, piece, 0, 1)
}

fn large_directly(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    let file = create(directory, "large", true)?;
    write_pieces(&file, piece, 0, 1)
}

fn large_by_threads(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    let file = create(directory, "large", false)?;
    in_threads(|thread| write_pieces(&file, piece, thread, THREADS))
}

/// Writes every `of`-th piece, from `first` on.
fn write_pieces(file: &File, piece: &[u8], first: usize, of: usize) -> io::Result<()> {
    for number in (first..LARGE_BYTES / PIECE_BYTES).step_by(of) {
        file.write_all_at(piece, (number * PIECE_BYTES) as u64)?;
    }
    Ok(())
}

fn small_by_thread(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    write_files(directory, piece, 0, 1)
}

fn small_by_threads(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    in_threads(|thread| write_files(directory, piece, thread, THREADS))
}

fn write_files(directory: &File, piece: &[u8], first: usize, of: usize) -> io::Result<()> {
    for number in (first..SMALL_FILES).step_by(of) {
        let file = create(directory, &number.to_string(), false)?;
        file.write_all_at(&piece[..SMALL_BYTES], 0)?;
    }
    Ok(())
}

fn in_threads(work: impl Fn(usize) -> io::Result<()> + Sync) -> io::Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..THREADS)
            .map(|thread| scope.spawn(move || work(thread)))
            .collect();
        let ended = threads.into_iter().map(|thread| thread.join().unwrap());
        ended.collect::<io::Result<Vec<()>>>().map(drop)
    })
}

fn large_by_ring(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    ring_pieces(&create(directory, "large", false)?, piece)
}

fn large_directly_by_ring(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    ring_pieces(&create(directory, "large", true)?, piece)
}

fn ring_pieces(file: &File, piece: &'static [u8]) -> io::Result<()> {
    let mut ring = IoUring::new(DEPTH)?;
    let (mut next, mut under_way) = (0, 0);
    while next < LARGE_BYTES || under_way > 0 {
        while next < LARGE_BYTES && under_way < DEPTH {
            let write =
                opcode::Write::new(Fd(file.as_raw_fd()), piece.as_ptr(), PIECE_BYTES as u32);
            push(&mut ring, &write.offset(next as u64).build());
            next += PIECE_BYTES;
            under_way += 1;
        }
        under_way -= complete(&mut ring, |_, result| result == PIECE_BYTES as i32)?;
    }
    Ok(())
}

/// Each file is a chain of three requests, with a slot of its own in the ring's table of files.
fn small_by_ring(directory: &File, piece: &'static [u8]) -> io::Result<()> {
    let mut ring = IoUring::new(3 * DEPTH)?;
    ring.submitter().register_files_sparse(DEPTH)?;
    // The kernel reads a name when it executes the request, so names are never freed either.
    let names = (0..SMALL_FILES).map(|number| CString::new(number.to_string()).unwrap());
    let names: &'static [CString] = names.collect::<Vec<_>>().leak();
    let mut free: Vec<u32> = (0..DEPTH).collect();
    let (mut next, mut left) = (0, SMALL_FILES);
    while left > 0 {
        while next < SMALL_FILES
            && let Some(place) = free.pop()
        {
            let open = opcode::OpenAt::new(Fd(directory.as_raw_fd()), names[next].as_ptr())
                .flags(libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL)
                .mode(0o600)
                .file_index(Some(DestinationSlot::try_from_slot_target(place).unwrap()));
            let write = opcode::Write::new(Fixed(place), piece.as_ptr(), SMALL_BYTES as u32);
            let close = opcode::Close::new(Fixed(place));
            let links = squeue::Flags::IO_LINK;
            push(&mut ring, &open.build().flags(links));
            push(&mut ring, &write.build().flags(links));
            push(&mut ring, &close.build().user_data(u64::from(place) + 1));
            next += 1;
        }
        complete(&mut ring, |data, result| {
            if let Some(place) = data.checked_sub(1) {
                free.push(place as u32);
                left -= 1;
            }
            result >= 0
        })?;
    }
    Ok(())
}

fn push(ring: &mut IoUring, request: &squeue::Entry) {
    // SAFETY: pieces and names, which requests point to, are never freed.
    unsafe { ring.submission().push(request) }
        .expect("there is room for all that may be under way");
}

/// Waits for at least one completion, and returns their number.
///
/// Each must be `fine`, which gets its user data and result.
fn complete(ring: &mut IoUring, mut fine: impl FnMut(u64, i32) -> bool) -> io::Result<u32> {
    ring.submit_and_wait(1)?;
    let mut count = 0;
    for completion in ring.completion() {
        count += 1;
        let result = completion.result();
        assert!(fine(completion.user_data(), result), "it said {result}");
    }
    Ok(count)
}
