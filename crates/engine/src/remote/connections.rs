//! Connections whose manager is in the daemon: it sends their events, which come through the
//! channels of this process.
//!
//! The daemon knows what belongs to this process, and not by which channel or number. An event may
//! arrive before the reply to the request that made its subject, and waits until then.

use super::Remote;
use crate::Error;
use crate::control::{Beside, CmControl, ConnectionControl, Control, Reply, WRONG_BESIDE};
use crate::queues::cm_channel::{CmChannel, Subject};
use crate::queues::cm_owners::{CmOwners, Owner, subject_of};
use airdma_cm::{ConnectionId, Event};
use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

const GONE: Error = Error::Gone("the connection");

/// The listeners, connections and resolutions of this process.
#[derive(Default)]
pub(super) struct Connections {
    owners: CmOwners,
    /// Connections whose end is `Disconnected`.
    established: HashSet<ConnectionId>,
    /// Requests on their way that make a subject.
    makes: usize,
    /// Events of subjects that no reply has named yet.
    early: Vec<Event>,
}

impl Remote {
    pub(super) fn ask_cm(&self, call: CmControl, beside: Beside<'_>) -> Result<Reply, Error> {
        let control = Control::Cm { call };
        match call {
            CmControl::Listen { cookie, .. } => self.make(&control, beside, cookie),
            CmControl::Close { listener } => {
                let reply = self.call(&control, &[]);
                let mut connections = self.connections();
                connections.owners.disown(Subject::Listener(listener));
                reply
            }
            CmControl::Exit => {
                *self.connections() = Connections::default();
                self.call(&control, &[])
            }
            CmControl::Open { .. } | CmControl::ReportFirst => self.call(&control, &[]),
            // The daemon repeats what it has told the peers.
            CmControl::IsEnding { .. } => Ok(Reply::Answer { yes: false }),
        }
    }

    pub(super) fn ask_connection(
        &self,
        call: ConnectionControl<'_>,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        let control = Control::Connection { call };
        match call {
            ConnectionControl::Connect { cookie, .. }
            | ConnectionControl::Resolve { cookie, .. } => self.make(&control, beside, cookie),
            ConnectionControl::HandOver { id, cookie } => {
                let channel = channel_of(beside)?;
                self.call(&control, &[])?;
                let is_there = self.connections().owners.hand_over(id, channel, cookie);
                is_there.then_some(Reply::Done).ok_or(GONE)
            }
            ConnectionControl::MoveResolution { id } => {
                self.redirect(Subject::Resolution(id), channel_of(beside)?)
            }
            ConnectionControl::MoveListener { listener } => {
                self.redirect(Subject::Listener(listener), channel_of(beside)?)
            }
            ConnectionControl::Destroy { id } => {
                self.connections().forget(Subject::Connection(id));
                self.call(&control, &[])
            }
            ConnectionControl::Fetched { id }
            | ConnectionControl::Forget { id }
            | ConnectionControl::Answer { id, .. } => {
                let reply = self.call(&control, &[])?;
                self.connections().forget(Subject::Resolution(id));
                Ok(reply)
            }
            ConnectionControl::Ready { id, .. } => {
                let reply = self.call(&control, &[])?;
                self.connections().established.insert(id);
                Ok(reply)
            }
            ConnectionControl::Waits { .. }
            | ConnectionControl::Accept { .. }
            | ConnectionControl::Reject { .. }
            | ConnectionControl::Disconnect { .. }
            | ConnectionControl::DataArrived { .. }
            | ConnectionControl::LimitAnswered { .. } => self.call(&control, &[]),
        }
    }

    /// Ends what is left, and waits until the daemon has: the next program may listen at the same
    /// port.
    pub(crate) fn close_connections(&self) {
        if self.connections().owners.subjects().next().is_some() {
            drop(self.ask_cm(CmControl::Exit, Beside::Nothing));
        }
    }

    fn redirect(&self, subject: Subject, channel: &Arc<CmChannel>) -> Result<Reply, Error> {
        self.connections().owners.redirect(subject, channel)?;
        Ok(Reply::Done)
    }

    /// Sends a request that makes what events are about.
    fn make(&self, control: &Control<'_>, beside: Beside<'_>, cookie: u64) -> Result<Reply, Error> {
        let owner = Owner::new(Arc::clone(channel_of(beside)?), cookie);
        self.connections().makes += 1;
        let reply = self.call(control, &[]);
        let subject = reply.as_ref().ok().and_then(made_by);
        let mut connections = self.connections();
        if let Some(subject) = subject {
            connections.owners.own(subject, owner);
        }
        connections.makes = connections.makes.saturating_sub(1);
        for event in std::mem::take(&mut connections.early) {
            connections.tell(event);
        }
        reply
    }

    /// The daemon sent an event.
    pub(super) fn tell(&self, event: Event) {
        self.connections().tell(event);
    }

    /// The daemon has ended, and with it all connections.
    pub(super) fn end_connections(&self) {
        let mut connections = self.connections();
        let subjects: Vec<Subject> = connections.owners.subjects().collect();
        for subject in subjects {
            match subject {
                Subject::Connection(id) if connections.established.contains(&id) => {
                    let private_data = Vec::new();
                    connections.tell(Event::Disconnected { id, private_data });
                    connections.tell(Event::TimewaitExit { id });
                }
                Subject::Connection(id) => connections.tell(Event::Unreachable { id }),
                Subject::Resolution(id) => connections.tell(Event::SidrUnreachable { id }),
                Subject::Listener(_) => {}
            }
        }
    }

    /// The answer about a connection whose daemon has ended, if there is one.
    pub(super) fn end_connection_alone(&self, call: &ConnectionControl<'_>) -> Option<Reply> {
        let subject = if let ConnectionControl::Destroy { id } = *call {
            Subject::Connection(id)
        } else if let ConnectionControl::Forget { id } = *call {
            Subject::Resolution(id)
        } else {
            return None;
        };
        self.connections().forget(subject);
        Some(Reply::Done)
    }

    fn connections(&self) -> MutexGuard<'_, Connections> {
        let connections = self.connections.lock();
        connections.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn tell(&mut self, event: Event) {
        let of = if let Event::ConnectRequest(request) = &event {
            Subject::Listener(request.listener)
        } else if let Event::SidrRequest(request) = &event {
            Subject::Listener(request.listener)
        } else {
            subject_of(&event)
        };
        if self.owners.get(of).is_none() && self.makes > 0 {
            return self.early.push(event);
        }
        if let Event::Established { id, .. } = &event {
            self.established.insert(*id);
        } else if let Event::Disconnected { id, .. } = &event {
            self.established.remove(id);
        }
        self.owners.tell(event);
    }

    fn forget(&mut self, subject: Subject) {
        self.owners.disown(subject);
        if let Subject::Connection(id) = subject {
            self.established.remove(&id);
        }
    }
}

/// The end of what was made before the daemon ended.
pub(super) fn answer_alone(call: &CmControl) -> Option<Reply> {
    match call {
        CmControl::IsEnding { .. } => Some(Reply::Answer { yes: false }),
        CmControl::Exit | CmControl::ReportFirst | CmControl::Close { .. } => Some(Reply::Done),
        CmControl::Open { .. } | CmControl::Listen { .. } => None,
    }
}

/// What a reply has made that events are about.
pub(crate) fn made_by(reply: &Reply) -> Option<Subject> {
    match reply {
        Reply::Listener { id } => Some(Subject::Listener(*id)),
        Reply::Connection { id } => Some(Subject::Connection(*id)),
        Reply::Resolution { id } => Some(Subject::Resolution(*id)),
        Reply::Done
        | Reply::Failed { .. }
        | Reply::Answer { .. }
        | Reply::Key { .. }
        | Reply::Address { .. }
        | Reply::CompletionQueue { .. }
        | Reply::SharedReceiveQueue { .. }
        | Reply::QueuePair { .. }
        | Reply::Attributes { .. }
        | Reply::Binding { .. }
        | Reply::Record { .. } => None,
    }
}

fn channel_of(beside: Beside<'_>) -> Result<&Arc<CmChannel>, Error> {
    let Beside::Channel(channel) = beside else {
        return Err(WRONG_BESIDE);
    };
    Ok(channel)
}
