//! Requests about connections; [`crate::objects::cm`] has the order of calls.

use crate::control::{Beside, CmControl, ConnectionControl, Reply, WRONG_BESIDE};
use crate::queues::cm_channel::{CmChannel, Subject};
use crate::queues::cm_owners::Owner;
use crate::worker::Worker;
use crate::worker::gsi::Gsi;
use crate::{Error, Gid};
use airdma_cm::{CmError, ConnectionId, Takes};
use airdma_transport::Time;
use airdma_wire::cm::ServiceId;
use std::sync::Arc;

const NOT_OPEN: Error = Error::Gone("the connection");

impl From<CmError> for Error {
    fn from(error: CmError) -> Error {
        match error {
            CmError::PrivateDataTooLong { .. } => {
                Error::Invalid("more private data than the message holds")
            }
            CmError::ServiceInUse => Error::System {
                message: "the port has a listener already".to_owned(),
                errno: libc::EADDRINUSE,
            },
            CmError::Unknown => Error::Gone("the connection"),
            CmError::InvalidState => {
                Error::Invalid("the state of the connection does not allow this")
            }
            CmError::TooManyConnections => Error::NoMemory("too many connections"),
        }
    }
}

/// What a listener listens for.
struct Wanted {
    service: ServiceId,
    takes: Takes,
    local: Option<Gid>,
    backlog: usize,
}

impl Worker {
    pub(super) fn handle_cm(
        &mut self,
        now: Time,
        call: CmControl,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        match call {
            CmControl::Open {
                guid,
                path_mtu,
                interface_index,
            } => self.open_gsi(now, guid, path_mtu, interface_index),
            CmControl::Listen {
                service,
                takes,
                local,
                backlog,
                cookie,
            } => {
                let owner = Owner::new(Arc::clone(channel(beside)?), cookie);
                let wanted = Wanted {
                    service,
                    takes,
                    local,
                    backlog,
                };
                return self.begin_listening(now, &wanted, owner);
            }
            CmControl::Close { listener } => {
                let gsi = self.state.gsi.as_mut();
                if let Some((service, local)) = gsi.and_then(|gsi| gsi.close(now, listener)) {
                    self.give_back_service(service.0, local);
                }
            }
            CmControl::ReportFirst => self.state.air.report_first(now),
            CmControl::Exit => self.end_all_connections(now),
            CmControl::IsEnding { again } => {
                let gsi = self.state.gsi.as_mut().filter(|gsi| gsi.is_ending());
                let yes = gsi.is_some();
                if let Some(gsi) = gsi.filter(|_| again) {
                    gsi.end_again();
                }
                return Ok(Reply::Answer { yes });
            }
        }
        Ok(Reply::Done)
    }

    fn begin_listening(
        &mut self,
        now: Time,
        wanted: &Wanted,
        owner: Owner,
    ) -> Result<Reply, Error> {
        let (service, local) = (wanted.service, wanted.local);
        let gsi = self.state.gsi.as_mut().ok_or(NOT_OPEN)?;
        let id = (gsi.manager).listen(service, wanted.takes, local, wanted.backlog)?;
        gsi.owners.own(Subject::Listener(id), owner);
        gsi.services.insert(id, (service, local));
        let claimed = self.claim_service(now, service.0, local);
        if let (Err(_), Some(gsi)) = (&claimed, self.state.gsi.as_mut()) {
            gsi.close(now, id);
        }
        claimed.map(|()| Reply::Listener { id })
    }

    fn end_all_connections(&mut self, now: Time) {
        self.state.air.report_first(now);
        // A peer that asks from now on is refused at once, instead of after its retries.
        self.close_listeners(now);
        let Some(gsi) = self.state.gsi.as_mut() else {
            return;
        };
        for id in gsi.connections() {
            gsi.owners.disown(Subject::Connection(id));
            gsi.manager.destroy(now, id);
        }
        gsi.fill_outbox();
    }

    pub(super) fn handle_connection(
        &mut self,
        now: Time,
        call: ConnectionControl<'_>,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        let gsi = self.state.gsi.as_mut().ok_or(NOT_OPEN)?;
        let result = gsi.handle(now, call, beside);
        gsi.fill_outbox();
        result
    }
}

impl Gsi {
    fn handle(
        &mut self,
        now: Time,
        call: ConnectionControl<'_>,
        beside: Beside<'_>,
    ) -> Result<Reply, Error> {
        match call {
            ConnectionControl::Connect { wanted, cookie } => {
                let owner = Owner::new(Arc::clone(channel(beside)?), cookie);
                let id = self.manager.connect(now, &wanted)?;
                self.owners.own(Subject::Connection(id), owner);
                return Ok(Reply::Connection { id });
            }
            ConnectionControl::Waits { id } => self.manager.waits(id)?,
            ConnectionControl::HandOver { id, cookie } => {
                self.hand_over(id, channel(beside)?, cookie)?;
            }
            ConnectionControl::Accept { id, with } => {
                self.manager.accept(now, id, &with)?;
                self.note_connection(id);
            }
            ConnectionControl::Ready { id, private_data } => {
                self.manager.ready(id, private_data)?;
                self.note_connection(id);
            }
            ConnectionControl::Reject {
                id,
                reason,
                private_data,
            } => self.manager.reject(now, id, reason, private_data)?,
            ConnectionControl::Disconnect { id, private_data } => {
                self.manager.disconnect(now, id, private_data)?;
            }
            ConnectionControl::Destroy { id } => {
                self.owners.disown(Subject::Connection(id));
                self.manager.destroy(now, id);
                self.forget_connection(id);
            }
            ConnectionControl::DataArrived { id } => self.manager.data_arrived(now, id),
            ConnectionControl::Resolve { wanted, cookie } => {
                let owner = Owner::new(Arc::clone(channel(beside)?), cookie);
                let id = self.manager.resolve(now, &wanted)?;
                self.owners.own(Subject::Resolution(id), owner);
                return Ok(Reply::Resolution { id });
            }
            ConnectionControl::MoveResolution { id } => {
                self.owners
                    .redirect(Subject::Resolution(id), channel(beside)?)?;
            }
            ConnectionControl::Fetched { id } => {
                self.owners.disown(Subject::Resolution(id));
                self.manager.taken_sidr(id)?;
            }
            ConnectionControl::Forget { id } => {
                self.owners.disown(Subject::Resolution(id));
                self.manager.destroy_sidr(now, id);
            }
            ConnectionControl::Answer { id, with } => {
                self.manager.answer(now, id, &with)?;
                self.owners.disown(Subject::Resolution(id));
            }
            ConnectionControl::MoveListener { listener } => {
                self.owners
                    .redirect(Subject::Listener(listener), channel(beside)?)?;
            }
            ConnectionControl::LimitAnswered { listener, max } => {
                self.manager.limit_answered(listener, max);
            }
        }
        Ok(Reply::Done)
    }

    fn hand_over(
        &mut self,
        id: ConnectionId,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> Result<(), Error> {
        // A request that was fetched does not count against the backlog any more.
        self.manager.taken(id);
        let is_there = self.owners.hand_over(id, channel, cookie);
        is_there.then_some(()).ok_or(NOT_OPEN)
    }
}

fn channel(beside: Beside<'_>) -> Result<&Arc<CmChannel>, Error> {
    let Beside::Channel(channel) = beside else {
        return Err(WRONG_BESIDE);
    };
    Ok(channel)
}
