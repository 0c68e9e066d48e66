//! Whether a peer that asked for a connection has shown that it is there: the source address of a request may be forged.

use airdma_wire::{Gid, Qpn};

use crate::Manager;

impl Manager {
    /// Whether the peer of a connection, between a queue pair of ours and one at an address, has answered what it was sent. `None`:
    /// there is no such connection, or none any more. A request may name a queue pair that is connected to another one of ours:
    /// what its peer has answered is no answer to this one.
    pub fn has_answered(&self, local: Qpn, remote: Gid, qpn: Qpn) -> Option<bool> {
        let id = self.by_remote_qpn.get(&(remote, qpn))?;
        let connection = self.connections.get(id)?;
        Some(!connection.state.is_half_open() && connection.local_qpn == local)
    }
}
