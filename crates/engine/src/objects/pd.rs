//! Protection domains.

use crate::control::{Control, MemoryControl, Reply, WRONG_REPLY};
use crate::core::Core;
use crate::index::PdIndex;
use crate::memory::{faults, files, populate};
use crate::objects::multicast::check_scope;
use crate::queues::use_count::UseCount;
use crate::{
    Access, Ah, Device, Dm, Error, Gid, Mr, Mw, MwType, Path, Qp, QpInit, Rkey, Sge, Srq,
    SrqAttributes, SrqExtension,
};
use std::sync::Arc;

/// A protection domain: queue pairs of one domain reach the memory regions of the same domain only.
pub struct Pd {
    pub(crate) device: Arc<Device>,
    /// Never used for two domains of one device, but for a parent domain, which has its domain's.
    pub(crate) id: PdIndex,
    pub(crate) users: UseCount,
    /// For a parent domain: the domain that it stands for, which cannot be deallocated meanwhile.
    of: Option<Arc<Pd>>,
}

/// One user of a domain: see [`Pd::hold_parent`].
pub struct PdUse(Arc<Pd>);

impl Drop for PdUse {
    fn drop(&mut self) {
        self.0.users.release();
    }
}

impl Pd {
    pub(crate) fn new(device: Arc<Device>) -> Self {
        let id = PdIndex::new(device.core().next_serial());
        Pd {
            device,
            id,
            users: UseCount::default(),
            of: None,
        }
    }

    /// A parent domain (`ibv_alloc_parent_domain(3)`): its objects are objects of this domain.
    ///
    /// # Errors
    /// `EINVAL` when the domain was given back.
    pub fn parent_domain(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        self.users.acquire("the protection domain")?;
        Ok(Arc::new(Pd {
            device: Arc::clone(&self.device),
            id: self.id,
            users: UseCount::default(),
            of: Some(Arc::clone(self)),
        }))
    }

    /// Keeps a parent domain from being given back: something was created with it.
    ///
    /// # Errors
    /// `EINVAL` for a domain that is no parent, or was given back.
    pub fn hold_parent(self: &Arc<Self>) -> Result<PdUse, Error> {
        if self.of.is_none() {
            return Err(Error::Invalid("the protection domain is no parent domain"));
        }
        self.users.acquire("the parent domain")?;
        Ok(PdUse(Arc::clone(self)))
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Registers `length` bytes at `addr` under keys that stand for the addresses from `iova` on
    /// (from 0 on with [`Access::ZERO_BASED`]). `lkey` and `rkey` are the same number. The memory
    /// must stay mapped until [`Mr::deregister`]; the application may go on reading and writing it.
    /// Memory of a file may be cut off meanwhile: requests behind the new end fail.
    ///
    /// # Errors
    /// `EINVAL` for a zero length, an address range that wraps, unknown access bits, or remote
    /// write or atomic access without local write access (`ibv_reg_mr(3)`); `EFAULT` for memory
    /// that is not mapped, or not writable though local write access is asked for; `ENOMEM` at
    /// [`crate::Limits::max_mr`].
    pub fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let can_be_cut = !access.contains(Access::ON_DEMAND) && files::can_be_cut(addr, length);
        let call = MemoryControl::Register {
            pd: self.id,
            address: addr,
            length,
            iova,
            access,
            can_be_cut,
        };
        self.register((addr, length), access, None, call)
    }

    /// As [`Pd::reg_mr`], for memory that cannot be cut off, though it is a file's
    /// (`F_SEAL_SHRINK`).
    ///
    /// # Errors
    /// As [`Pd::reg_mr`].
    pub fn reg_sealed_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let call = MemoryControl::Register {
            pd: self.id,
            address: addr,
            length,
            iova: addr,
            access,
            can_be_cut: false,
        };
        self.register((addr, length), access, None, call)
    }

    /// Registers memory for records: peers write messages to it by datagrams
    /// ([`Qp::enable_records`](crate::Qp::enable_records)), and its key opens it for nothing else.
    /// With a `source` only that host may.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`].
    pub fn reg_record_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        source: Option<Gid>,
    ) -> Result<Arc<Mr>, Error> {
        self.register_records(
            (addr, length),
            source,
            (false, files::can_be_cut(addr, length)),
        )
    }

    /// Registers memory that peers may read by datagrams
    /// ([`Qp::read_record`](crate::Qp::read_record)) from queue pairs of this domain that take
    /// records; its key opens it for nothing else. With a `source` only that host may.
    ///
    /// # Errors
    /// As [`Pd::reg_mr`].
    pub fn reg_record_read_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        source: Option<Gid>,
    ) -> Result<Arc<Mr>, Error> {
        self.register_records(
            (addr, length),
            source,
            (true, files::can_be_cut(addr, length)),
        )
    }

    /// As [`Pd::reg_record_mr`], for memory that no process can truncate ([`Pd::reg_sealed_mr`]).
    ///
    /// # Errors
    /// As [`Pd::reg_mr`].
    pub fn reg_sealed_record_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        source: Option<Gid>,
    ) -> Result<Arc<Mr>, Error> {
        self.register_records((addr, length), source, (false, false))
    }

    /// As [`Pd::reg_record_read_mr`], for memory that no process can truncate
    /// ([`Pd::reg_sealed_mr`]).
    ///
    /// # Errors
    /// As [`Pd::reg_mr`].
    pub fn reg_sealed_record_read_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        source: Option<Gid>,
    ) -> Result<Arc<Mr>, Error> {
        self.register_records((addr, length), source, (true, false))
    }

    fn register_records(
        self: &Arc<Self>,
        (address, length): (u64, usize),
        source: Option<Gid>,
        (is_read, can_be_cut): (bool, bool),
    ) -> Result<Arc<Mr>, Error> {
        let call = MemoryControl::RegisterRecords {
            pd: self.id,
            address,
            length,
            source,
            is_read,
            can_be_cut,
        };
        let access = if is_read {
            Access::empty()
        } else {
            Access::LOCAL_WRITE
        };
        self.register((address, length), access, None, call)
    }

    /// As [`Pd::reg_record_mr`], for messages to a multicast group
    /// ([`Qp::attach_multicast`](crate::Qp::attach_multicast)), whose members agree on a key and on
    /// an address space from 0 on. Messages to this group reach the region by `key`, at queue pairs
    /// of this domain; with a key of 0 one is drawn at random. That is its `rkey`, and opens
    /// nothing else; `lkey` is another one. Whatever is sent to the group by a host that knows the
    /// key is written, so draw it at random, or name the `source`.
    ///
    /// # Errors
    /// `EINVAL` for a GID that is no group; `EEXIST` if the domain has a region with that key of
    /// the group; otherwise as [`Pd::reg_mr`].
    pub fn reg_group_record_mr(
        self: &Arc<Self>,
        addr: u64,
        length: usize,
        (group, key): (Gid, Rkey),
        source: Option<Gid>,
    ) -> Result<Arc<Mr>, Error> {
        if !group.to_ip().is_multicast() {
            return Err(Error::Invalid("the GID is no multicast group"));
        }
        let call = MemoryControl::RegisterGroupRecords {
            pd: self.id,
            address: addr,
            length,
            source,
            group,
            key: key.0,
            can_be_cut: files::can_be_cut(addr, length),
        };
        let mr = self.open((addr, length), Access::LOCAL_WRITE, None, call)?;
        let rkey = if key.0 == 0 { mr.rkey() } else { key };
        Ok(Arc::new(mr.named(rkey)))
    }

    /// Registers nothing: reads give zeros, and what is written vanishes, whatever the address. For
    /// the application's own requests only (`ibv_alloc_null_mr(3)`).
    ///
    /// # Errors
    /// `ENOMEM` at [`crate::Limits::max_mr`].
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        let call = MemoryControl::RegisterNull { pd: self.id };
        self.register((0, 0), Access::LOCAL_WRITE, None, call)
    }

    /// Registers `length` bytes of device memory from `offset` on, for the addresses from 0 on.
    ///
    /// # Errors
    /// `EINVAL` beyond its end, without [`Access::ZERO_BASED`], with a right that device memory
    /// does not know, or for memory of another device; otherwise as [`Pd::reg_mr`].
    pub fn reg_dm_mr(
        self: &Arc<Self>,
        dm: &Arc<Dm>,
        offset: u64,
        length: usize,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        let possible = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC
            | Access::ZERO_BASED
            | Access::RELAXED_ORDERING;
        if !access.contains(Access::ZERO_BASED) || !possible.contains(access) {
            return Err(Error::Invalid(
                "regions of device memory are zero-based, and know neither windows nor paging",
            ));
        }
        if !dm.device().is_same_worker(&self.device) {
            return Err(Error::Invalid("the memory belongs to another device"));
        }
        let at = dm.part(offset, length)?.expose_provenance() as u64;
        dm.users.acquire("the device memory")?;
        let call = if length == 0 {
            MemoryControl::RegisterEmpty { pd: self.id }
        } else {
            MemoryControl::Register {
                pd: self.id,
                address: at,
                length,
                iova: 0,
                access,
                can_be_cut: false,
            }
        };
        let registered = self.register((0, length), access, Some(Arc::clone(dm)), call);
        registered.inspect_err(|_| dm.users.release())
    }

    fn register(
        self: &Arc<Self>,
        range: (u64, usize),
        access: Access,
        dm: Option<Arc<Dm>>,
        call: MemoryControl,
    ) -> Result<Arc<Mr>, Error> {
        self.open(range, access, dm, call).map(Arc::new)
    }

    fn open(
        self: &Arc<Self>,
        range: (u64, usize),
        access: Access,
        dm: Option<Arc<Dm>>,
        call: MemoryControl,
    ) -> Result<Mr, Error> {
        let core = self.device.core();
        core.check_process()?;
        self.users.acquire("the protection domain")?;
        let present = if dm.is_some() || access.contains(Access::ON_DEMAND) {
            Ok(())
        } else {
            faults::catch();
            populate::check(range.0, range.1, access)
        };
        let key = present.and_then(|()| ask_for_key(core, call));
        let key = key.inspect_err(|_| self.users.release())?;
        Ok(Mr::new(Arc::clone(self), key, range, access, dm))
    }

    /// Asks for the pages of on-demand regions, as `ibv_advise_mr(3)` does: a hint, unless
    /// `flush`ed. `sges` are addresses in this process and local keys.
    ///
    /// # Errors
    /// With `flush`, `EFAULT` for a part that is not there, not writable though that was asked for,
    /// or outside its region.
    pub fn prefetch(&self, sges: &[Sge], pages: Prefetch, flush: bool) -> Result<(), Error> {
        let core = self.device.core();
        core.check_process()?;
        let right = match pages {
            Prefetch::Write => Access::LOCAL_WRITE,
            Prefetch::Read | Prefetch::Present => Access::empty(),
        };
        for sge in sges {
            let call = MemoryControl::Locate {
                pd: self.id,
                key: sge.lkey,
                va: sge.addr,
                length: sge.length,
                right,
            };
            let Reply::Address { address } = core.ask(Control::Memory { call })? else {
                return Err(WRONG_REPLY);
            };
            let here = match address {
                Some(_) if pages == Prefetch::Present => Ok(()),
                Some(address) => populate::check(address, sge.length as usize, right),
                None => Err(Error::System {
                    message: "a part to prefetch lies outside its memory region".to_owned(),
                    errno: libc::EFAULT,
                }),
            };
            if flush {
                here?;
            }
        }
        Ok(())
    }

    /// Allocates a memory window.
    ///
    /// # Errors
    /// `ENOMEM` at [`crate::Limits::max_mr`].
    pub fn alloc_mw(self: &Arc<Self>, mw_type: MwType) -> Result<Arc<Mw>, Error> {
        let core = self.device.core();
        core.check_process()?;
        self.users.acquire("the protection domain")?;
        let call = MemoryControl::AllocateWindow {
            pd: self.id,
            type_two: mw_type == MwType::Two,
        };
        let key = ask_for_key(core, call);
        let key = key.inspect_err(|_| self.users.release())?;
        Ok(Arc::new(Mw::new(Arc::clone(self), mw_type, key)))
    }

    /// Creates a shared receive queue; with `extension` one of extended connections.
    ///
    /// # Errors
    /// `EINVAL` above the limits or for objects of another device; `ENOMEM`.
    pub fn create_srq(
        self: &Arc<Self>,
        attributes: SrqAttributes,
        extension: Option<SrqExtension>,
    ) -> Result<Arc<Srq>, Error> {
        Srq::create(self, attributes, extension)
    }

    /// Creates a queue pair in state RESET. The first one of a device binds its sockets and starts
    /// its helper thread.
    ///
    /// # Errors
    /// `EINVAL` above the limits or for queues of another device; the bind errors of the port with
    /// their `errno` (`EADDRINUSE` when another process holds the port); `ENOMEM`.
    pub fn create_qp(self: &Arc<Self>, init: QpInit) -> Result<Arc<Qp>, Error> {
        self.device.core().check_process()?;
        Qp::create(self, init)
    }

    /// Creates an address handle: checks the path and keeps it.
    ///
    /// # Errors
    /// `EINVAL` when the source GID index is outside the table or its entry empty, or the
    /// destination is not of its address family.
    pub fn create_ah(self: &Arc<Self>, path: Path) -> Result<Arc<Ah>, Error> {
        self.device.core().check_process()?;
        check_path(self.device.core(), &path)?;
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
            match &self.of {
                Some(domain) => domain.users.release(),
                None => self.device.give_back_pd(),
            }
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

fn ask_for_key(core: &Core, call: MemoryControl) -> Result<u32, Error> {
    let Reply::Key { key } = core.ask(Control::Memory { call })? else {
        return Err(WRONG_REPLY);
    };
    Ok(key)
}

/// Which pages [`Pd::prefetch`] asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefetch {
    /// All, to be read.
    Read,
    /// All, to be written.
    Write,
    /// None: those that are there already need nothing.
    Present,
}

/// Whether packets can take this path, given the addresses that the interface has now.
pub(crate) fn check_path(core: &Core, path: &Path) -> Result<(), Error> {
    core.take_link_changes();
    let source = core.address(path.sgid_index);
    check_families(source.map(|source| source.is_ipv4()), path)?;
    check_scope(core, path.gid.to_ip())
}

/// The same at no cost, for a path that may be older: a source address that is gone is not noticed,
/// as by hardware.
pub(crate) fn check_posted_path(core: &Core, path: &Path) -> Result<(), Error> {
    check_families(core.source_was_ipv4(path.sgid_index), path)
}

fn check_families(source_is_ipv4: Option<bool>, path: &Path) -> Result<(), Error> {
    let Some(source_is_ipv4) = source_is_ipv4 else {
        return Err(Error::Invalid(
            "the source GID index is outside the GID table, or its entry is empty",
        ));
    };
    let destination = path.gid.to_ip();
    if destination.is_ipv4() != source_is_ipv4 {
        return Err(Error::Invalid(
            "the destination GID is of another address family than the source GID",
        ));
    }
    if destination.is_unspecified() {
        return Err(Error::Invalid("the destination GID is all zero"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::simulated::{Simulated, interface};
    use airdma_port::sim;
    use std::net::{IpAddr, Ipv4Addr};
    use std::sync::atomic::Ordering;

    /// After 2^32 objects another domain would open the memory of the first one.
    #[test]
    fn a_domain_of_a_process_that_has_made_very_many_is_another_one() {
        let [here, there] = [1, 2].map(|host| IpAddr::V4(Ipv4Addr::new(192, 0, 2, host)));
        let (port, _far) = sim::pair(&[here], &[there]).unwrap();
        let simulated = Simulated::open(interface("here", 1, here), Box::new(port), 1).unwrap();
        let device = simulated.device();
        let first = device.alloc_pd().unwrap();
        let serial = &device.core().serial;
        serial.store((1 << 32) + first.id.serial(), Ordering::Relaxed);
        assert_ne!(device.alloc_pd().unwrap().id, first.id);
    }
}
