//! Queues of connection events: the connection manager fills them, a front end empties them.

use crate::queues::event_queue::{EventQueue, Withdrawn};
use airdma_cm::{ConnectionId, Event, ListenerId, SidrId};
use airdma_preload::Process;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Subject {
    Listener(ListenerId),
    Connection(ConnectionId),
    Resolution(SidrId),
}

/// What a channel says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CmNews {
    /// From the connection manager.
    Event(Event),
    /// What the front end itself put in, by [`CmChannel::post`].
    Own(u32),
}

/// A queue of connection events behind a descriptor.
///
/// A thread that waits on the descriptor need not run the device's worker: the progress thread
/// does.
pub struct CmChannel {
    pub(crate) events: EventQueue<CmItem>,
    process: Process,
    /// No fetch blocks. Requests that ended are taken out, or told.
    never_blocks: bool,
    /// Threads that sleep until an event comes.
    waits: AtomicI32,
}

#[derive(Debug)]
pub(crate) struct CmItem {
    cookie: u64,
    /// Subject of a manager's event.
    subject: Option<Subject>,
    news: CmNews,
}

impl CmChannel {
    /// An empty one.
    ///
    /// # Errors
    /// Those of the system (descriptors).
    pub fn new() -> io::Result<Arc<CmChannel>> {
        CmChannel::make(false)
    }

    /// An empty one for a front end that fetches without blocking. It also tells when a request
    /// ended that was fetched and not yet handed over to a connection of its own.
    ///
    /// # Errors
    /// As [`CmChannel::new`].
    pub fn that_never_blocks() -> io::Result<Arc<CmChannel>> {
        CmChannel::make(true)
    }

    /// As [`CmChannel::that_never_blocks`], with a descriptor that no program sees.
    pub(crate) fn out_of_sight() -> io::Result<Arc<CmChannel>> {
        Ok(Self::with(EventQueue::out_of_sight()?, true))
    }

    fn make(never_blocks: bool) -> io::Result<Arc<CmChannel>> {
        Ok(Self::with(EventQueue::new()?, never_blocks))
    }

    fn with(events: EventQueue<CmItem>, never_blocks: bool) -> Arc<CmChannel> {
        Arc::new(CmChannel {
            events,
            process: Process::current(),
            never_blocks,
            waits: AtomicI32::new(0),
        })
    }

    pub(crate) fn count_waits(&self, more: i32) {
        self.waits.fetch_add(more, Ordering::Relaxed);
    }

    /// Whether a thread sleeps until an event comes.
    pub(crate) fn is_awaited(&self) -> bool {
        self.waits.load(Ordering::Relaxed) > 0
    }

    /// The descriptor, readable while an event waits, for `poll(2)` and `O_NONBLOCK`. Do not read
    /// it.
    pub fn fd(&self) -> RawFd {
        self.events.fd()
    }

    /// Whether an event waits.
    pub fn has_news(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next event, and the number under which its listener or connection was made; none in a
    /// child after fork.
    pub fn pop(&self) -> Option<(u64, CmNews)> {
        if !self.is_ours() {
            return None;
        }
        self.events.pop().map(|item| (item.cookie, item.news))
    }

    /// Puts in an event of the front end's own; not in a child after fork, whose descriptor is the
    /// parent's as well.
    pub fn post(&self, cookie: u64, number: u32) {
        if self.is_ours() {
            self.events.push(CmItem {
                cookie,
                subject: None,
                news: CmNews::Own(number),
            });
        }
    }

    /// Takes out what waits for `cookie`, the oldest first.
    pub fn take(&self, cookie: u64) -> Vec<CmNews> {
        let taken = self.extract(|item| item.cookie == cookie);
        taken.into_iter().map(|item| item.news).collect()
    }

    /// What waits for `cookie` goes to another channel, in front of what came there already.
    pub fn move_to(&self, other: &CmChannel, cookie: u64) {
        let moved = self.extract(|item| item.cookie == cookie);
        other.events.push_in_front(moved);
    }

    pub(crate) fn push(&self, cookie: u64, subject: Subject, event: Event) {
        self.events.push(CmItem {
            cookie,
            subject: Some(subject),
            news: CmNews::Event(event),
        });
    }

    /// A request of a listener ended before it was handed over. If it waits here it is taken out,
    /// unless it is all that waits: then it is fetched as an event that was announced, and what is
    /// done with it fails, as with the kernel. In a flood it is one of the oldest, and found at
    /// once.
    pub(crate) fn withdraw(&self, cookie: u64, subject: Subject, event: Event) {
        if !self.is_ours() {
            return;
        }
        let is_it = |item: &CmItem| item.subject == Some(subject);
        let withdrawn = self.events.withdraw(!self.never_blocks, is_it);
        if withdrawn == Withdrawn::Absent && self.never_blocks {
            self.push(cookie, subject, event);
        }
    }

    /// Takes out the request that was evicted, and returns whether it was there. It stays if it is
    /// all that waits, since the descriptor has announced it.
    pub(crate) fn take_back(&self, request: Subject) -> bool {
        let is_it = |item: &CmItem| item.subject == Some(request);
        !self.is_ours() || self.events.withdraw(!self.never_blocks, is_it) == Withdrawn::Removed
    }

    /// What waits and is about `subject` carries another cookie, and comes through another channel.
    pub(crate) fn hand_over(&self, subject: Subject, other: &CmChannel, cookie: u64) {
        for item in self.extract(|item| item.subject == Some(subject)) {
            other.events.push(CmItem { cookie, ..item });
        }
    }

    fn extract(&self, mut is_wanted: impl FnMut(&CmItem) -> bool) -> Vec<CmItem> {
        if !self.is_ours() {
            return Vec::new();
        }
        self.events.extract(|item| is_wanted(item))
    }

    /// Whether the application set `O_NONBLOCK` on the descriptor.
    pub(crate) fn is_nonblocking(&self) -> bool {
        self.events.is_nonblocking()
    }

    /// Whether this is the process that made it, and not a child of that.
    pub fn is_ours(&self) -> bool {
        self.process.is_current()
    }
}
