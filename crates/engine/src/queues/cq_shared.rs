//! The state of a completion queue that the worker and the application share beside its ring.

use crate::queues::alarm::Alarm;
use crate::queues::async_event::AsyncEvents;
use crate::queues::cq_watch::CqWatch;
use crate::queues::event_queue::EventQueue;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The events of a completion channel: the queue that raised each.
pub(crate) type ChannelEvents = EventQueue<Arc<CqShared>>;

/// What a completion queue does beyond the ordinary.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CqOptions {
    /// Notes when each completion is made; that costs a look at the clock.
    pub timestamps: bool,
    /// Completions that find no room are lost without an error.
    pub ignore_overrun: bool,
}

/// What the worker and the application share of a completion queue beside its ring.
pub(crate) struct CqShared {
    /// Unique in this process: whose events these are.
    pub(crate) id: u64,
    pub(crate) cookie: AtomicU64,
    pub(crate) alarm: Alarm,
    /// A completion was lost because the ring was full.
    pub(crate) overrun: AtomicBool,
    pub(crate) channel: Option<Arc<ChannelEvents>>,
    pub(crate) events: Arc<AsyncEvents>,
    pub(crate) options: CqOptions,
    /// How its completions are noticed, if a daemon adds them.
    pub(crate) watch: Option<CqWatch>,
}

impl CqShared {
    pub(crate) fn new(
        id: u64,
        channel: Option<(Arc<ChannelEvents>, u64)>,
        events: Arc<AsyncEvents>,
        options: CqOptions,
    ) -> Self {
        let cookie = channel.as_ref().map_or(0, |&(_, cookie)| cookie);
        CqShared {
            id,
            cookie: AtomicU64::new(cookie),
            alarm: Alarm::new(),
            overrun: AtomicBool::new(false),
            channel: channel.map(|(channel, _)| channel),
            events,
            options,
            watch: None,
        }
    }

    /// A completion was published: raises the event if one was asked for, and returns whether it
    /// did.
    pub(crate) fn notify(self: &Arc<Self>, solicited: bool) -> bool {
        let is_due = self.channel.is_some() && self.alarm.completed(solicited);
        if is_due {
            self.raise();
        }
        is_due
    }

    /// Raises the events of completions that a daemon has added since the last look. Returns
    /// whether there are some.
    pub(crate) fn look(self: &Arc<Self>) -> bool {
        let added = self.watch.as_ref().and_then(CqWatch::look);
        if let Some(added) = &added {
            self.notify(added.solicited);
        }
        added.is_some()
    }

    /// Raises the event that [`Alarm`] says is due.
    pub(crate) fn raise(self: &Arc<Self>) {
        if let Some(channel) = &self.channel {
            channel.push(Arc::clone(self));
        }
    }

    /// The program has fetched an event of this queue, which carries the returned cookie.
    pub(crate) fn fetched(&self) -> u64 {
        self.alarm.fetched();
        self.cookie.load(Ordering::Relaxed)
    }
}
