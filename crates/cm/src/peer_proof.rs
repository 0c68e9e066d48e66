//! Whether a peer that requested a connection has proven its address, which may be forged.

use airdma_wire::{Gid, Qpn};

use crate::Manager;

impl Manager {
    /// Whether the peer of a connection has answered a message that was sent to it.
    ///
    /// The connection is given by its local queue pair and the remote address and queue pair.
    /// `None` if there is no such connection: a request may name a queue pair that is connected to
    /// another local one, and what its peer has answered there proves nothing here.
    pub fn has_answered(&self, local: Qpn, remote: Gid, qpn: Qpn) -> Option<bool> {
        let id = self.by_remote_qpn.get(&(remote, qpn))?;
        let connection = self.connections.get(id)?;
        Some(!connection.state.is_half_open() && connection.local_qpn == local)
    }
}
