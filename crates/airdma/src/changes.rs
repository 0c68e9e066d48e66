//! What happens to the interfaces of this host.

use crate::{Error, Result};
use airdma_engine::News;

/// Hears of interfaces and addresses that come and go: when to look at [`Device::interfaces`](crate::Device::interfaces) again.
pub struct Changes(News);

impl Changes {
    /// From now on, in the network namespace of the calling thread.
    ///
    /// # Errors
    /// The system's: descriptors, a sandbox that forbids it.
    pub fn from_now() -> Result<Changes> {
        let news = News::of_all();
        let news = news.map_err(|error| Error::system("hearing of interfaces", &error))?;
        Ok(Changes(news))
    }

    /// Whether anything has changed since the last look. Does not wait.
    pub fn any(&self) -> bool {
        self.0.drain()
    }
}

impl std::fmt::Debug for Changes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Changes")
    }
}
