//! Whether a peer that asked for a connection has shown that it is there: whoever asks may do so in the name of another host.

use airdma_wire::{Gid, Qpn};

use crate::Manager;

impl Manager {
    /// Whether the peer of a connection, a queue pair at an address, has answered what it was sent. `None`: there is no such connection, or none any more.
    pub fn has_answered(&self, remote: Gid, qpn: Qpn) -> Option<bool> {
        let id = self.by_remote_qpn.get(&(remote, qpn))?;
        let connection = self.connections.get(id)?;
        Some(!connection.state.is_half_open())
    }
}
