//! A datagram queue pair and its multicast groups (IBTA 10.5, `ibv_attach_mcast(3)`).

use crate::control::QueuePairControl;
use crate::core::Core;
use crate::{Error, Gid, Qp, QpType};
use std::net::IpAddr;

/// All members of a group would have to agree on keys, and each could write what another is said to
/// have written.
pub(crate) const NO_SEALED_GROUP: Error =
    Error::Unsupported("multicast beside AIRDMA_SECRET, which seals between two queue pairs,");

impl Qp {
    /// Attaches a datagram queue pair to a multicast group: from now on it gets a copy of each
    /// datagram for the group, also of those this host sends. Attaching again changes nothing, as
    /// with rxe.
    ///
    /// # Errors
    /// `EOPNOTSUPP` beside `AIRDMA_SECRET`; `EINVAL` for other queue pairs, and for a GID that is
    /// no IPv6 group (`ff00::/8`) and no mapped IPv4 group (`::ffff:224.0.0.0/100`); `ENOMEM` at
    /// the limits; those of the system (`EMFILE`).
    pub fn attach_multicast(&self, gid: Gid) -> Result<(), Error> {
        let group = self.check_group(gid)?;
        self.ask(QueuePairControl::Attach { group })?;
        Ok(())
    }

    /// Detaches it.
    ///
    /// # Errors
    /// `EINVAL` when it is not attached to that group.
    pub fn detach_multicast(&self, gid: Gid) -> Result<(), Error> {
        let group = self.check_group(gid)?;
        self.ask(QueuePairControl::Detach { group })?;
        Ok(())
    }

    fn check_group(&self, gid: Gid) -> Result<Gid, Error> {
        self.core().check_process()?;
        if self.shared.seals_datagrams {
            return Err(NO_SEALED_GROUP);
        }
        if self.qp_type() != QpType::Ud {
            return Err(Error::Invalid(
                "only datagram queue pairs can be attached to a multicast group",
            ));
        }
        let group = gid.to_ip();
        if !group.is_multicast() {
            return Err(Error::Invalid("the GID is no multicast group"));
        }
        check_scope(self.core(), group)?;
        Ok(gid)
    }
}

/// Whether packets to a group leave the host: the kernel drops those of a scope within the
/// interface (RFC 4291, 2.7: 0 is reserved, 1 interface-local), but for the loopback interface,
/// which has no outside.
///
/// # Errors
/// `EADDRNOTAVAIL`, with what to do.
pub(crate) fn check_scope(core: &Core, address: IpAddr) -> Result<(), Error> {
    const LINK_LOCAL: u16 = 2;
    let IpAddr::V6(group) = address else {
        return Ok(());
    };
    let scope = group.segments()[0] & 0xf;
    if !group.is_multicast() || scope >= LINK_LOCAL || core.info.interface == LOOPBACK {
        return Ok(());
    }
    Err(Error::System {
        message: format!(
            "no packet to {group} leaves {}, since groups of ff0{scope:x}:: are within an interface: take one of ff02:: (the link), or of a \
             wider scope",
            core.info.interface
        ),
        errno: libc::EADDRNOTAVAIL,
    })
}

const LOOPBACK: &str = "lo";
