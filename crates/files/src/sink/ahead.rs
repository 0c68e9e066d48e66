//! Small files are made ahead of what is written to them, by a thread: to make a file costs a file system as much as all that is done with it
//! then, so the two halves of the work go on beside each other.
//!
//! Only files of the chunk that is being written are made, so none is there that the next checkpoint would have to know of.

use super::{NEW_MODE, create};
use rustix::fs::{Mode, OFlags};
use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

/// A chunk of fewer files is not worth waking a thread.
pub(super) const FILES_MIN: usize = 16;
/// Files that are handed over at once, so that not each of them wakes somebody.
pub(super) const HANDFUL: usize = 16;
/// Handfuls that are ordered and not taken at most: each of their files holds a descriptor, its directory's or its own.
const HANDFULS_MAX: usize = 4;

/// A file that is to be made.
#[derive(Debug)]
pub(super) struct Wanted {
    pub entry: u32,
    pub directory: Arc<OwnedFd>,
    pub name: Box<[u8]>,
    pub how: OFlags,
    /// The permissions that it is to have.
    pub mode: Option<Mode>,
    pub in_batch: bool,
}

/// One that was made.
#[derive(Debug)]
pub(super) struct Made {
    pub entry: u32,
    pub in_batch: bool,
    /// Whether it was made with the permissions that it is to have.
    pub has_mode: bool,
    pub file: io::Result<File>,
}

/// The thread, and what it has made. Who drops it waits for the thread, which has directories open.
#[derive(Debug)]
pub(super) struct Ahead {
    hands: Option<Hands>,
    thread: Option<JoinHandle<()>>,
    made: VecDeque<Made>,
    /// Files that were ordered and not taken.
    ordered: usize,
}

/// The way to the thread, and back.
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

    /// Has a handful made, in this order, which is that in which they are taken.
    pub fn order(&mut self, handful: Vec<Wanted>) {
        self.ordered += handful.len();
        if let Some((orders, _)) = &self.hands {
            // A thread that has ended is noticed by who waits for it.
            let _ = orders.send(handful);
        }
    }

    /// The next one; none if no more were ordered.
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
            // What it did not make is not missed.
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
