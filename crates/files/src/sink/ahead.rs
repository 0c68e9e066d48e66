//! A thread that creates small files ahead of their data.
//!
//! Creating a file costs a file system as much as everything after it, so both halves of the work
//! run in parallel.
//!
//! Only files of the current chunk are created, so the next checkpoint need not know of any other.

use super::{NEW_MODE, create};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// Least files of a chunk that are worth waking the thread.
pub(super) const FILES_MIN: usize = 16;
/// Files that are passed on at once, so that not each of them wakes a thread.
pub(super) const HANDFUL: usize = 16;
/// Most handfuls that are ordered and not taken: each file holds a descriptor, its directory's or
/// its own.
const HANDFULS_MAX: usize = 4;

/// A file to create.
#[derive(Debug)]
pub(super) struct Wanted {
    pub entry: u32,
    pub directory: Arc<OwnedFd>,
    pub name: Box<[u8]>,
    pub how: OFlags,
    /// Its final permissions, if it can have them at once.
    pub mode: Option<Mode>,
    pub in_batch: bool,
}

/// A file that was created.
#[derive(Debug)]
pub(super) struct Made {
    pub entry: u32,
    pub in_batch: bool,
    /// Whether it has its final permissions.
    pub has_mode: bool,
    pub file: io::Result<File>,
}

/// The thread and the files that it has created. Dropping it joins the thread, which has
/// directories open.
#[derive(Debug)]
pub(super) struct Ahead {
    hands: Option<Hands>,
    thread: Option<JoinHandle<()>>,
    made: VecDeque<Made>,
    /// Number of files that were ordered and not taken.
    ordered: usize,
}

/// Channels to the thread and back.
type Hands = (Sender<Vec<Wanted>>, Receiver<Vec<Made>>);

impl Ahead {
    pub fn start() -> io::Result<Self> {
        let (orders, to_make) = channel();
        let (give, made) = channel();
        let thread = thread::Builder::new().name("airdma-maker".into());
        let thread = thread.spawn(move || make(&to_make, &give))?;
        Ok(Self {
            hands: Some((orders, made)),
            thread: Some(thread),
            made: VecDeque::new(),
            ordered: 0,
        })
    }

    /// Whether another handful may be ordered.
    pub fn has_room(&self) -> bool {
        self.ordered <= HANDFUL * (HANDFULS_MAX - 1)
    }

    /// Orders a handful. Files are taken in the order in which they were ordered.
    pub fn order(&mut self, handful: Vec<Wanted>) {
        self.ordered += handful.len();
        if let Some((orders, _)) = &self.hands {
            // If the thread has ended, the receiver notices.
            let _ = orders.send(handful);
        }
    }

    /// The next file; `None` if no more were ordered.
    pub fn take(&mut self) -> Option<Made> {
        if self.ordered == 0 {
            return None;
        }
        if self.made.is_empty()
            && let Some((_, made)) = &self.hands
        {
            self.made.extend(made.recv().into_iter().flatten());
        }
        self.ordered -= 1;
        self.made.pop_front()
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.hands = None;
        if let Some(thread) = self.thread.take() {
            // Files that it has not created are not needed.
            let _ = thread.join();
        }
    }
}

fn make(orders: &Receiver<Vec<Wanted>>, give: &Sender<Vec<Made>>) {
    while let Ok(handful) = orders.recv() {
        let made = handful.into_iter().map(|wanted| Made {
            entry: wanted.entry,
            in_batch: wanted.in_batch,
            has_mode: wanted.mode.is_some(),
            file: create(
                wanted.directory.as_fd(),
                &wanted.name,
                wanted.how,
                wanted.mode.unwrap_or(NEW_MODE),
            ),
        });
        if give.send(made.collect()).is_err() {
            return;
        }
    }
}
