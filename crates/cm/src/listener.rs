//! Listeners: which services are offered, at which addresses.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_wire::Gid;
use airdma_wire::cm::{ServiceId, TransportService};

use crate::calls::CmError;
use crate::config::SOURCE_SHARE_MIN;
use crate::half_open::{Line, Turn};

/// Id of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// The requests that a listener accepts. Others for its service are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Connections of this kind.
    Connections(TransportService),
    /// Requests for the queue pair of a datagram service (SIDR).
    Datagrams,
}

impl Takes {
    /// Reliable connections.
    pub const RC: Self = Takes::Connections(TransportService::Rc);
}

#[derive(Debug)]
struct Listener {
    takes: Takes,
    service_id: ServiceId,
    local: Option<Gid>,
    backlog: usize,
    /// Requests that the program has not taken.
    pending: Line,
    answered_max: usize,
    /// Replies whose RTU has not arrived.
    answered: Line,
    /// Both kinds, by their source address.
    by_source: HashMap<Gid, Line>,
}

#[derive(Debug, Default)]
pub(crate) struct Listeners {
    by_id: BTreeMap<ListenerId, Listener>,
    by_service: BTreeMap<(ServiceId, Option<Gid>), ListenerId>,
    last_id: u32,
}

impl Listeners {
    pub(crate) fn add(
        &mut self,
        service_id: ServiceId,
        takes: Takes,
        local: Option<Gid>,
        backlog: usize,
    ) -> Result<ListenerId, CmError> {
        if self.by_service.contains_key(&(service_id, local)) {
            return Err(CmError::ServiceInUse);
        }
        loop {
            self.last_id = self.last_id.wrapping_add(1);
            if !self.by_id.contains_key(&ListenerId(self.last_id)) {
                break;
            }
        }
        let id = ListenerId(self.last_id);
        let listener = Listener {
            takes,
            service_id,
            local,
            backlog: backlog.max(1),
            pending: Line::default(),
            answered_max: usize::MAX,
            answered: Line::default(),
            by_source: HashMap::new(),
        };
        self.by_id.insert(id, listener);
        self.by_service.insert((service_id, local), id);
        Ok(id)
    }

    pub(crate) fn remove(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.remove(&id) {
            let key = (listener.service_id, listener.local);
            self.by_service.remove(&key);
        }
    }

    /// The listener for a service at a local address.
    ///
    /// A listener at the address itself precedes one for its family, and that one a listener for
    /// all addresses.
    pub(crate) fn find(&self, service_id: ServiceId, local: Gid) -> Option<ListenerId> {
        let family = match local.to_ip() {
            IpAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
        };
        [Some(local), Some(Gid::from(family)), None]
            .into_iter()
            .find_map(|local| self.by_service.get(&(service_id, local)))
            .copied()
    }

    pub(crate) fn takes(&self, id: ListenerId) -> Option<Takes> {
        self.by_id.get(&id).map(|listener| listener.takes)
    }

    pub(crate) fn limit_answered(&mut self, id: ListenerId, max: usize) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.answered_max = max.max(1);
        }
    }

    /// Requests that the program has not taken, and the most that may wait.
    pub(crate) fn pending_line(&self, id: ListenerId) -> Option<(&Line, usize)> {
        let listener = self.by_id.get(&id)?;
        Some((&listener.pending, listener.backlog))
    }

    /// Replies that wait for the peer's RTU, and the most that may wait.
    pub(crate) fn answered_line(&self, id: ListenerId) -> Option<(&Line, usize)> {
        let listener = self.by_id.get(&id)?;
        Some((&listener.answered, listener.answered_max))
    }

    /// Requests of one source that wait for the program at a listener, and the most that may.
    ///
    /// The limit applies once half of the places are taken.
    pub(crate) fn own_line(&self, id: ListenerId, source: Gid) -> Option<(&Line, usize)> {
        let listener = self.by_id.get(&id)?;
        if listener.pending.len() < listener.backlog / 2 {
            return None;
        }
        let max = (listener.backlog / 4).max(SOURCE_SHARE_MIN);
        Some((listener.by_source.get(&source)?, max))
    }

    pub(crate) fn line_up(&mut self, id: ListenerId, source: Gid, turn: Turn, answered: bool) {
        let Some(listener) = self.by_id.get_mut(&id) else {
            return;
        };
        if answered {
            listener.answered.add(turn);
        } else {
            listener.pending.add(turn);
            listener.by_source.entry(source).or_default().add(turn);
        }
    }

    pub(crate) fn step_out(&mut self, id: ListenerId, source: Gid, turn: Turn, answered: bool) {
        let Some(listener) = self.by_id.get_mut(&id) else {
            return;
        };
        if answered {
            listener.answered.remove(turn);
            return;
        }
        listener.pending.remove(turn);
        if let Some(line) = listener.by_source.get_mut(&source) {
            line.remove(turn);
            if line.is_empty() {
                listener.by_source.remove(&source);
            }
        }
    }
}
