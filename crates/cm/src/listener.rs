//! Who listens on which service id, and where.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_wire::Gid;
use airdma_wire::cm::{ServiceId, TransportService};

use crate::calls::CmError;
use crate::config::SOURCE_SHARE_MIN;
use crate::half_open::{Line, Turn};

/// Names a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ListenerId(pub u32);

/// What a listener takes. Everything else that asks for its service is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Connections of this kind.
    Connections(TransportService),
    /// Who looks for the queue pair of a datagram service (SIDR).
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
    /// Replies whose RTU has not come.
    answered: Line,
    /// Both, by where they come from.
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

    /// Who takes requests for the service at that address: one who named the address goes before
    /// one who takes its family, and that before one who takes all.
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

    /// Requests that the program has not taken, and how many may wait.
    pub(crate) fn pending_line(&self, id: ListenerId) -> Option<(&Line, usize)> {
        let listener = self.by_id.get(&id)?;
        Some((&listener.pending, listener.backlog))
    }

    /// Replies that wait for the last word, and how many may.
    pub(crate) fn answered_line(&self, id: ListenerId) -> Option<(&Line, usize)> {
        let listener = self.by_id.get(&id)?;
        Some((&listener.answered, listener.answered_max))
    }

    /// What waits for the program at a listener and is from one source, and how much of it may: a share, once half of the places are taken.
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
