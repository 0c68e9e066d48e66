//! Delays the end of a connection while its completions are unread: some programs stop reading when
//! they are notified of the end (libvalkey lost the last reply). On hardware the last data is in
//! the completion queue long before the kernel's connection manager reports the end; here both may
//! come in one round.

use crate::index::CqIndex;
use crate::queues::cm_channel::Subject;
use crate::tables::cq_table::CqTable;
use crate::tables::qp_table::QpTable;
use airdma_cm::Event;
use airdma_transport::{QpState, Time};
use airdma_wire::Qpn;
use std::collections::VecDeque;
use std::time::Duration;

/// Longest delay of an end: a program may poll its completion queue only once it was notified of
/// the end.
const WITHHELD_TIME_MAX: Duration = Duration::from_millis(500);
/// Interval of checks whether the completions were taken, where no poll finds the queue empty.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);
/// Ends that each round of the worker checks in between.
const LOOKS_MAX: usize = 16;

/// The delayed events.
#[derive(Default)]
pub(crate) struct Withheld {
    ends: VecDeque<End>,
    /// Time of the next check of all ends.
    next_look: Time,
}

struct End {
    subject: Subject,
    qpn: Qpn,
    cq: CqIndex,
    /// Number of the first completion of the queue that need not be taken.
    mark: u32,
    until: Time,
    event: Event,
}

impl Withheld {
    /// Delays the end of a connection if completions of its queue pair are unread; returns the
    /// event otherwise.
    pub(crate) fn take(
        &mut self,
        now: Time,
        subject: Subject,
        qpn: Option<Qpn>,
        event: Event,
        (qps, cqs): (&mut QpTable, &mut CqTable),
    ) -> Option<Event> {
        let Some((qpn, cq)) = qpn.and_then(|qpn| Some((qpn, receiving(qps, qpn)?))) else {
            return Some(event);
        };
        let Some(mark) = cqs.end_of_waiting(cq) else {
            return Some(event);
        };
        self.ends.push_back(End {
            subject,
            qpn,
            cq,
            mark,
            until: now + WITHHELD_TIME_MAX,
            event,
        });
        None
    }

    /// Takes the events whose delay is over: the completions were taken, the program ended the
    /// connection itself, the time is over, or a thread sleeps until the event comes.
    pub(crate) fn take_due(
        &mut self,
        now: Time,
        (qps, cqs): (&mut QpTable, &mut CqTable),
        is_awaited: impl Fn(Subject) -> bool,
    ) -> Vec<Event> {
        self.sweep(now, |end| {
            end.until <= now
                || is_awaited(end.subject)
                || receiving(qps, end.qpn) != Some(end.cq)
                || cqs.is_taken(end.cq, end.mark)
        })
    }

    /// Checks all ends when [`LOOK_INTERVAL`] is over, and some of them in other rounds: a process
    /// may have thousands of connections that end at once, and rounds every few microseconds.
    fn sweep(&mut self, now: Time, mut is_due: impl FnMut(&End) -> bool) -> Vec<Event> {
        let mut looks = self.ends.len();
        if looks == 0 {
            return Vec::new();
        }
        if now < self.next_look {
            looks = looks.min(LOOKS_MAX);
        } else {
            self.next_look = now + LOOK_INTERVAL;
        }
        let mut due = Vec::new();
        for end in self.ends.drain(..looks).collect::<Vec<_>>() {
            if is_due(&end) {
                due.push(end.event);
            } else {
                self.ends.push_back(end);
            }
        }
        due
    }

    /// Takes the delayed events of the subjects that are meant, the oldest first: a later event of
    /// theirs, which must not precede them, is due.
    pub(crate) fn take_of(&mut self, mut is_meant: impl FnMut(Subject) -> bool) -> Vec<Event> {
        let (meant, others): (VecDeque<End>, VecDeque<End>) = std::mem::take(&mut self.ends)
            .into_iter()
            .partition(|end| is_meant(end.subject));
        self.ends = others;
        let mut meant = Vec::from(meant);
        meant.sort_by_key(|end| end.until);
        meant.into_iter().map(|end| end.event).collect()
    }

    /// Whether no event is delayed.
    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Time of the next check; `None` if no event is delayed.
    pub(crate) fn next_look(&self) -> Option<Time> {
        (!self.ends.is_empty()).then_some(self.next_look)
    }
}

/// The queue of a queue pair that may still receive.
fn receiving(qps: &mut QpTable, qpn: Qpn) -> Option<CqIndex> {
    let index = qps.find(qpn)?;
    let slot = qps.slot(index)?;
    match slot.qp.state() {
        QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrain => {
            Some(slot.side.recv_cq)
        }
        QpState::Reset | QpState::Init | QpState::SendQueueError | QpState::Error => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use airdma_cm::ConnectionId;

    #[test]
    fn a_round_looks_at_few_of_many_ends_until_it_is_time() {
        let end = |number: u32| End {
            subject: Subject::Connection(ConnectionId(number)),
            qpn: Qpn::new(number),
            cq: CqIndex::new(0),
            mark: 0,
            until: Time::ZERO + WITHHELD_TIME_MAX,
            event: Event::TimewaitExit {
                id: ConnectionId(number),
            },
        };
        let mut withheld = Withheld {
            ends: (0..1000).map(end).collect(),
            next_look: Time::ZERO,
        };
        let looks_at = |now, withheld: &mut Withheld| {
            let mut looks = 0;
            withheld.sweep(now, |_| {
                looks += 1;
                false
            });
            looks
        };
        assert_eq!(looks_at(Time::ZERO, &mut withheld), 1000);
        assert_eq!(looks_at(Time::ZERO, &mut withheld), LOOKS_MAX);
        let later = Time::ZERO + LOOK_INTERVAL;
        assert_eq!(withheld.next_look(), Some(later));
        assert_eq!(looks_at(later, &mut withheld), 1000);
        let due = withheld.sweep(later + LOOK_INTERVAL, |_| true);
        assert_eq!((due.len(), withheld.next_look()), (1000, None));
    }
}
