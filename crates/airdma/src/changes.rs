//! Changes of this host's interfaces.

use crate::{Error, Result};
use airdma_engine::LinkMonitor;

/// Reports that interfaces or addresses have changed.
///
/// A program then calls [`Device::interfaces`](crate::Device::interfaces) again.
pub struct Changes(LinkMonitor);

impl Changes {
    /// Reports changes from now on, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`Blame::System`](crate::Blame::System): no descriptors, or a sandbox that forbids it.
    pub fn from_now() -> Result<Changes> {
        let news = LinkMonitor::of_all();
        let news = news.map_err(|error| Error::system("hearing of interfaces", &error))?;
        Ok(Changes(news))
    }

    /// Whether anything has changed since the last call. Does not wait.
    pub fn any(&self) -> bool {
        self.0.drain()
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changes")
    }
}
