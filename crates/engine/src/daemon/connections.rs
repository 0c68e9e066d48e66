//! Connections of a client: requests about them, checked against what belongs to the client, and
//! their events on the way to it.
//!
//! All events of a client's come through one channel, and what has that channel for its owner in
//! the manager's table belongs to the client. So a number that a client makes up, or that was
//! another client's, stands for nothing. Numbers of connections repeat after 2^32 of them.

use super::client::Client;
use super::requests::{NOT_YOURS, source_is_known};
use crate::control::{Beside, CmControl, ConnectionControl, Control, Reply};
use crate::core::Core;
use crate::index::client_of;
use crate::queues::cm_channel::{CmChannel, CmNews, Subject};
use crate::remote::connections::made_by;
use crate::{Error, Qpn};
use airdma_cm::{Event, SidrId};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Requests that a listener keeps for its program.
const BACKLOG_MAX: usize = 1024;
const LISTENERS_MAX: usize = 1024;
/// Connections and resolutions of one client: a quarter of what the manager has room for.
const CONNECTIONS_MAX: usize = 16_384;

/// The connections of one client.
pub(super) struct ClientCm {
    pub(super) channel: Arc<CmChannel>,
    /// What the client made or was told of; some may be over.
    seen: HashSet<Subject>,
    /// Requests for a service that the client has fetched, and not answered.
    fetched: HashSet<SidrId>,
}

impl ClientCm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(ClientCm {
            channel: CmChannel::out_of_sight()?,
            seen: HashSet::new(),
            fetched: HashSet::new(),
        })
    }

    /// The next event that the client learns of.
    pub(super) fn next_event(&mut self) -> Option<Event> {
        let (_, news) = self.channel.pop()?;
        let CmNews::Event(event) = news else {
            return None;
        };
        match &event {
            Event::ConnectRequest(request) => {
                self.seen.insert(Subject::Connection(request.id));
            }
            Event::SidrRequest(request) => {
                self.seen.insert(Subject::Resolution(request.id));
            }
            Event::ConnectResponse(_)
            | Event::Established { .. }
            | Event::Disconnected { .. }
            | Event::SidrResponse(_) => {}
            Event::Rejected { id, .. } | Event::Unreachable { id } | Event::TimewaitExit { id } => {
                self.seen.remove(&Subject::Connection(*id));
            }
            Event::SidrUnreachable { id } | Event::SidrWithdrawn { id } => {
                self.seen.remove(&Subject::Resolution(*id));
            }
        }
        Some(event)
    }

    /// Whether events about `subject` come to this client.
    fn owns(&self, core: &Core, subject: Subject) -> bool {
        core.control(|worker, _| {
            let owner = worker.state.gsi.as_ref()?.owners.get(subject)?;
            Some(Arc::ptr_eq(&owner.channel, &self.channel))
        })
        .unwrap_or(false)
    }

    fn check(&self, core: &Core, subject: Subject) -> Result<(), Error> {
        self.owns(core, subject).then_some(()).ok_or(NOT_YOURS)
    }

    /// Whether the client may have one more.
    fn check_room(&mut self, core: &Core, what: Subject) -> Result<(), Error> {
        let is_listener = |subject: &Subject| matches!(subject, Subject::Listener(_));
        let kind = is_listener(&what);
        let max = if kind { LISTENERS_MAX } else { CONNECTIONS_MAX };
        let is_full = |seen: &HashSet<Subject>| {
            // Most often there are fewer of both kinds together.
            seen.len() >= max && seen.iter().filter(|one| is_listener(one) == kind).count() >= max
        };
        if is_full(&self.seen) {
            let mut seen = std::mem::take(&mut self.seen);
            seen.retain(|&subject| self.owns(core, subject));
            self.seen = seen;
        }
        if is_full(&self.seen) || self.fetched.len() >= CONNECTIONS_MAX {
            return Err(Error::NoMemory(
                "a client of a daemon has no more listeners or connections",
            ));
        }
        Ok(())
    }

    /// Ends all listeners, connections and resolutions: their peers are told.
    pub(super) fn end(&mut self, core: &Core) {
        let (listeners, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.seen)
            .into_iter()
            .partition(|subject| matches!(subject, Subject::Listener(_)));
        // Requests that wait are refused before others would be asked to answer them.
        for subject in listeners.into_iter().chain(others) {
            if !self.owns(core, subject) {
                continue;
            }
            let control = match subject {
                Subject::Listener(listener) => Control::Cm {
                    call: CmControl::Close { listener },
                },
                Subject::Connection(id) => Control::Connection {
                    call: ConnectionControl::Destroy { id },
                },
                Subject::Resolution(id) => Control::Connection {
                    call: ConnectionControl::Forget { id },
                },
            };
            core.ask(control).ok();
        }
        for id in self.fetched.drain() {
            let call = ConnectionControl::Forget { id };
            core.ask(Control::Connection { call }).ok();
        }
        while self.channel.pop().is_some() {}
    }
}

impl Client {
    pub(super) fn cm(&mut self, core: &Arc<Core>, call: CmControl) -> Result<Reply, Error> {
        match call {
            CmControl::Open { .. } => {
                core.bind_gsi()?;
                Ok(Reply::Done)
            }
            CmControl::Listen {
                service,
                takes,
                local,
                backlog,
                ..
            } => {
                self.cm
                    .check_room(core, Subject::Listener(airdma_cm::ListenerId(0)))?;
                let call = CmControl::Listen {
                    service,
                    takes,
                    local,
                    backlog: backlog.clamp(1, BACKLOG_MAX),
                    cookie: 0,
                };
                self.make(core, Control::Cm { call })
            }
            CmControl::Close { listener } => {
                let subject = Subject::Listener(listener);
                self.cm.check(core, subject)?;
                self.cm.seen.remove(&subject);
                core.ask(Control::Cm { call })
            }
            CmControl::ReportFirst => core.ask(Control::Cm { call }),
            CmControl::Exit => {
                core.ask(Control::Cm {
                    call: CmControl::ReportFirst,
                })?;
                self.cm.end(core);
                Ok(Reply::Done)
            }
            // The daemon goes on and repeats what was told, so this client has nothing to wait for.
            CmControl::IsEnding { .. } => Ok(Reply::Answer { yes: false }),
        }
    }

    pub(super) fn connection(
        &mut self,
        core: &Core,
        call: ConnectionControl<'_>,
    ) -> Result<Reply, Error> {
        let control = Control::Connection { call };
        match call {
            ConnectionControl::Connect { wanted, .. } => {
                self.check_number(core, wanted.qpn)?;
                source_is_known(core, wanted.route.local)?;
                self.cm
                    .check_room(core, Subject::Connection(airdma_cm::ConnectionId(0)))?;
                return self.make(core, control);
            }
            ConnectionControl::Resolve { wanted, .. } => {
                source_is_known(core, wanted.route.local)?;
                self.cm.check_room(core, Subject::Resolution(SidrId(0)))?;
                return self.make(core, control);
            }
            ConnectionControl::HandOver { id, .. } => {
                self.cm.check(core, Subject::Connection(id))?;
                let channel = Arc::clone(&self.cm.channel);
                return core.ask_with(control, Beside::Channel(&channel));
            }
            ConnectionControl::Accept { id, with } => {
                self.cm.check(core, Subject::Connection(id))?;
                self.check_number(core, with.qpn)?;
            }
            ConnectionControl::Destroy { id } => {
                let subject = Subject::Connection(id);
                self.cm.check(core, subject)?;
                self.cm.seen.remove(&subject);
            }
            ConnectionControl::Waits { id }
            | ConnectionControl::Ready { id, .. }
            | ConnectionControl::Reject { id, .. }
            | ConnectionControl::Disconnect { id, .. }
            | ConnectionControl::DataArrived { id } => {
                self.cm.check(core, Subject::Connection(id))?;
            }
            ConnectionControl::Fetched { id } => {
                let subject = Subject::Resolution(id);
                self.cm.check_room(core, subject)?;
                self.cm.check(core, subject)?;
                // Nothing owns it from now on.
                self.cm.seen.remove(&subject);
                self.cm.fetched.insert(id);
            }
            ConnectionControl::Answer { id, .. } | ConnectionControl::Forget { id } => {
                let subject = Subject::Resolution(id);
                if !self.cm.fetched.remove(&id) {
                    self.cm.check(core, subject)?;
                }
                self.cm.seen.remove(&subject);
            }
            ConnectionControl::LimitAnswered { listener, .. } => {
                self.cm.check(core, Subject::Listener(listener))?;
            }
            // All events of the client's come through one channel.
            ConnectionControl::MoveResolution { .. } | ConnectionControl::MoveListener { .. } => {
                return Err(NOT_YOURS);
            }
        }
        core.ask(control)
    }

    /// Makes what events of the client's will be about.
    fn make(&mut self, core: &Core, control: Control<'_>) -> Result<Reply, Error> {
        let channel = Arc::clone(&self.cm.channel);
        let reply = core.ask_with(control, Beside::Channel(&channel))?;
        self.cm.seen.extend(made_by(&reply));
        Ok(reply)
    }

    /// Whether the queue pair with this number is another client's.
    fn check_number(&self, core: &Core, number: Qpn) -> Result<(), Error> {
        let owner = core.control(|worker, _| {
            let index = worker.state.qps.find(number)?;
            Some(client_of(worker.state.qps.slot(index)?.side.serial))
        });
        let is_free = owner.is_none_or(|owner| owner == self.greeted.number);
        is_free.then_some(()).ok_or(NOT_YOURS)
    }
}
