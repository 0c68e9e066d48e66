//! Protection domains.

use crate::memory::presence;
use crate::use_count::UseCount;
use crate::{Access, Ah, Device, Error, Mr, Path, Qp, QpInit};
use std::net::IpAddr;
use std::sync::Arc;

/// A protection domain: queue pairs of one domain reach the memory regions of the same domain only.
pub struct Pd {
    pub(crate) device: Arc<Device>,
    /// Never used for two domains of one device.
    pub(crate) id: u32,
    pub(crate) users: UseCount,
}

impl Pd {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let id = device.core().next_serial() as u32;
        Pd {
            device,
            id,
            users: UseCount::default(),
        }
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Registers `length` bytes at `addr` under keys that stand for the addresses from `iova` on
    /// (from 0 on with [`Access::ZERO_BASED`]). `lkey` and `rkey` are the same number. The memory must stay mapped until
    /// [`Mr::deregister`]; the application may go on reading and writing it.
    ///
    /// # Errors
    /// `EINVAL` for a zero length, an address range that wraps, unknown access bits, or remote write or atomic access
    /// without local write access (`ibv_reg_mr(3)`); `EFAULT` for memory that is not mapped, or not writable though local
    /// write access is asked for; `ENOMEM` at [`crate::Limits::max_mr`].
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let core = self.device.core();
        core.check_process()?;
        self.users.acquire("the protection domain")?;
        let key = presence::check(addr, length, access).and_then(|()| {
            core.control(|worker, _| {
                worker
                    .tables
                    .memory
                    .register(self.id, addr, length, iova, access)
            })
        });
        match key {
            Ok(key) => Ok(Arc::new(Mr::new(Arc::clone(self), key))),
            Err(error) => {
                self.users.release();
                Err(error)
            }
        }
    }

    /// Creates a queue pair in state RESET. The first one of a device binds its sockets and starts its helper thread.
    ///
    /// # Errors
    /// `EINVAL` above the limits or for queues of another device; the bind errors of the port with their `errno`
    /// (`EADDRINUSE` when another process holds the port); `ENOMEM`.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, Error> {
        self.device.core().check_process()?;
        Qp::create(self, init)
    }

    /// Creates an address handle: checks the path and keeps it.
    ///
    /// # Errors
    /// `EINVAL` when the source GID index is outside the table, or the destination is not of its address family.
    pub fn create_ah(self: &Arc<Self>, path: Path) -> Result<Arc<Ah>, Error> {
        self.device.core().check_process()?;
        check_path(&self.device.core().addresses, &path)?;
        self.users.acquire("the protection domain")?;
        if let Err(error) = self.device.take_ah() {
            self.users.release();
            return Err(error);
        }
        Ok(Arc::new(Ah::new(Arc::clone(self), path)))
    }

    /// Gives the domain back.
    ///
    /// # Errors
    /// `EBUSY` while memory regions, queue pairs or address handles of it exist.
    pub fn destroy(&self) -> Result<(), Error> {
        if self.users.destroy("the protection domain")? {
            self.device.give_back_pd();
        }
        Ok(())
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // Its users hold it, so it has none.
        self.destroy().ok();
    }
}

/// Whether packets can take this path, given the addresses of the GID table.
pub(crate) fn check_path(addresses: &[IpAddr], path: &Path) -> Result<(), Error> {
    let Some(source) = addresses.get(usize::from(path.sgid_index)) else {
        return Err(Error::Invalid(
            "the source GID index is outside the GID table",
        ));
    };
    let destination = path.gid.to_ip();
    if destination.is_ipv4() != source.is_ipv4() {
        return Err(Error::Invalid(
            "the destination GID is of another address family than the source GID",
        ));
    }
    if destination.is_unspecified() {
        return Err(Error::Invalid("the destination GID is all zero"));
    }
    Ok(())
}
