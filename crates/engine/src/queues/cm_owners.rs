//! Which channel the events of a listener, a connection or a resolution come through.

use crate::Error;
use crate::queues::cm_channel::{CmChannel, Subject};
use airdma_cm::{ConnectionId, Event, ListenerId};
use std::collections::HashMap;
use std::sync::Arc;

/// Owner of an event's subject, with the owner's number for it.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) channel: Arc<CmChannel>,
    pub(crate) cookie: u64,
    /// The owner of a listener, for a request that was not handed over.
    is_listener: bool,
}

impl Owner {
    pub(crate) fn new(channel: Arc<CmChannel>, cookie: u64) -> Self {
        Owner {
            channel,
            cookie,
            is_listener: false,
        }
    }
}

/// The owners of all that events are about.
#[derive(Default)]
pub(crate) struct CmOwners(HashMap<Subject, Owner>);

impl CmOwners {
    /// From now on events about `subject` go to `owner`.
    pub(crate) fn own(&mut self, subject: Subject, owner: Owner) {
        self.0.insert(subject, owner);
    }

    /// Removes the owner of `subject`, which gets no more events.
    pub(crate) fn disown(&mut self, subject: Subject) {
        self.0.remove(&subject);
    }

    /// From now on events about `subject` come through another channel.
    ///
    /// # Errors
    /// `EINVAL` for what is over.
    pub(crate) fn redirect(
        &mut self,
        subject: Subject,
        channel: &Arc<CmChannel>,
    ) -> Result<(), Error> {
        let owner = self.0.get_mut(&subject);
        let owner = owner.ok_or(Error::Gone("what the events are about"))?;
        owner.channel = Arc::clone(channel);
        Ok(())
    }

    /// Events of a connection, those that wait included, come through another channel from now on,
    /// and carry another number. False for one that is over.
    pub(crate) fn hand_over(
        &mut self,
        id: ConnectionId,
        channel: &Arc<CmChannel>,
        cookie: u64,
    ) -> bool {
        let subject = Subject::Connection(id);
        let Some(former) = self.get(subject).map(|owner| Arc::clone(&owner.channel)) else {
            return false;
        };
        former.hand_over(subject, channel, cookie);
        self.own(subject, Owner::new(Arc::clone(channel), cookie));
        true
    }

    pub(crate) fn get(&self, subject: Subject) -> Option<&Owner> {
        self.0.get(&subject)
    }

    /// All that have an owner.
    pub(crate) fn subjects(&self) -> impl Iterator<Item = Subject> {
        self.0.keys().copied()
    }

    /// Brings an event to the owner of its subject.
    pub(crate) fn tell(&mut self, event: Event) {
        let subject = subject_of(&event);
        match &event {
            Event::ConnectRequest(request) => self.own_as_listener(subject, request.listener),
            Event::SidrRequest(request) => self.own_as_listener(subject, request.listener),
            Event::ConnectResponse(_)
            | Event::Established { .. }
            | Event::Disconnected { .. }
            | Event::Rejected { .. }
            | Event::Unreachable { .. }
            | Event::TimewaitExit { .. }
            | Event::SidrResponse(_)
            | Event::SidrUnreachable { .. }
            | Event::SidrWithdrawn { .. } => {}
        }
        let is_last = is_last(&event);
        if let Some(owner) = self.0.get(&subject) {
            if is_last && owner.is_listener {
                owner.channel.withdraw(owner.cookie, subject, event);
            } else {
                owner.channel.push(owner.cookie, subject, event);
            }
        }
        if is_last {
            self.0.remove(&subject);
        }
    }

    /// The events of a request are its listener's until the request is handed over.
    fn own_as_listener(&mut self, request: Subject, listener: ListenerId) {
        if let Some(owner) = self.0.get(&Subject::Listener(listener)) {
            let owner = Owner {
                is_listener: true,
                ..owner.clone()
            };
            self.0.insert(request, owner);
        }
    }
}

/// What an event is about.
pub(crate) fn subject_of(event: &Event) -> Subject {
    match event {
        Event::ConnectRequest(request) => Subject::Connection(request.id),
        Event::SidrRequest(request) => Subject::Resolution(request.id),
        Event::ConnectResponse(response) => Subject::Connection(response.id),
        Event::SidrResponse(response) => Subject::Resolution(response.id),
        Event::Established { id, .. }
        | Event::Disconnected { id, .. }
        | Event::Rejected { id, .. }
        | Event::Unreachable { id }
        | Event::TimewaitExit { id } => Subject::Connection(*id),
        Event::SidrUnreachable { id } | Event::SidrWithdrawn { id } => Subject::Resolution(*id),
    }
}

/// Whether the id of the subject is not valid any more.
fn is_last(event: &Event) -> bool {
    match event {
        Event::Rejected { .. }
        | Event::Unreachable { .. }
        | Event::TimewaitExit { .. }
        | Event::SidrResponse(_)
        | Event::SidrUnreachable { .. }
        | Event::SidrWithdrawn { .. } => true,
        Event::ConnectRequest(_)
        | Event::SidrRequest(_)
        | Event::ConnectResponse(_)
        | Event::Established { .. }
        | Event::Disconnected { .. } => false,
    }
}
