//! Ends of connections that the program does not hear of yet: completions of the connection wait in its completion queue, and a
//! program that hears of the end first looks no more at what came before it (libvalkey lost the last reply). On hardware the
//! last data is in the queue long before the kernel's connection manager has told the program anything; here both may come in
//! one round.

use crate::cq_table::CqTable;
use crate::gsi::Subject;
use crate::qp_table::QpTable;
use airdma_cm::Event;
use airdma_transport::{QpState, Time};
use airdma_wire::Qpn;
use std::time::Duration;

/// The longest that an end is withheld: a program may look at its completion queue only when it has heard of the end.
const WITHHELD_TIME_MAX: Duration = Duration::from_millis(500);
/// How often it is looked whether the completions were taken, where no poll finds the queue empty.
const LOOK_INTERVAL: Duration = Duration::from_millis(2);

/// Events that are withheld, the oldest first.
#[derive(Default)]
pub(crate) struct Withheld(Vec<End>);

struct End {
    subject: Subject,
    qpn: Qpn,
    cq: u32,
    /// Number of the first completion of the queue that need not be taken.
    mark: u32,
    until: Time,
    event: Event,
}

impl Withheld {
    /// Withholds the end of a connection if completions of its queue pair wait; gives the event back otherwise.
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
        self.0.push(End {
            subject,
            qpn,
            cq,
            mark,
            until: now + WITHHELD_TIME_MAX,
            event,
        });
        None
    }

    /// The oldest event that is withheld no longer: what waited was taken, the program has ended the connection itself, or the
    /// time is over.
    pub(crate) fn pop(
        &mut self,
        now: Time,
        (qps, cqs): (&mut QpTable, &mut CqTable),
    ) -> Option<Event> {
        let is_due = |end: &End| {
            end.until <= now
                || receiving(qps, end.qpn) != Some(end.cq)
                || cqs.is_taken(end.cq, end.mark)
        };
        let at = self.0.iter().position(is_due)?;
        Some(self.0.remove(at).event)
    }

    /// The event that is withheld of `subject`: another follows.
    pub(crate) fn pop_of(&mut self, subject: Subject) -> Option<Event> {
        let at = self.0.iter().position(|end| end.subject == subject)?;
        Some(self.0.remove(at).event)
    }

    /// When to look again.
    pub(crate) fn next_look(&self, now: Time) -> Option<Time> {
        let first = self.0.iter().map(|end| end.until).min()?;
        Some(first.min(now + LOOK_INTERVAL))
    }
}

/// The queue of a queue pair that may still receive.
fn receiving(qps: &mut QpTable, qpn: Qpn) -> Option<u32> {
    let index = qps.find(qpn)?;
    let slot = qps.slot(index)?;
    match slot.qp.state() {
        QpState::ReadyToReceive | QpState::ReadyToSend | QpState::SendQueueDrain => {
            Some(slot.side.recv_cq)
        }
        QpState::Reset | QpState::Init | QpState::SendQueueError | QpState::Error => None,
    }
}
