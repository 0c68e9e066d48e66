//! Who listens on which service id, and where.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_wire::Gid;
use airdma_wire::cm::{ServiceId, TransportService};

use crate::calls::CmError;

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
    pending: usize,
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
            pending: 0,
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

    /// Counts one more request; false if the backlog is full.
    pub(crate) fn add_pending(&mut self, id: ListenerId) -> bool {
        let Some(listener) = self.by_id.get_mut(&id) else {
            return false;
        };
        let room = listener.pending < listener.backlog;
        listener.pending += usize::from(room);
        room
    }

    pub(crate) fn remove_pending(&mut self, id: ListenerId) {
        if let Some(listener) = self.by_id.get_mut(&id) {
            listener.pending -= 1;
        }
    }
}
