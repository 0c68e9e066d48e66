//! Service ids, and how ports of RDMA CM map to them (IBTA A11.2).
//!
//! ```text
//!   63                      32 31      24 23      16 15             0
//!  +--------------------------+----------+----------+----------------+
//!  |            0             |    01    |  space   |      port      |
//!  +--------------------------+----------+----------+----------------+
//! ```

use std::fmt;

/// Names a service within a host: 64 bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceId(pub u64);

/// Port space of RDMA CM: one byte, an IP protocol number where there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PortSpace(pub u8);

impl PortSpace {
    /// Reliable connections: `RDMA_PS_TCP`.
    pub const TCP: Self = Self(0x06);
    /// Datagrams: `RDMA_PS_UDP`.
    pub const UDP: Self = Self(0x11);
    /// Any kind: `RDMA_PS_IB`.
    pub const IB: Self = Self(0x3f);
}

impl ServiceId {
    /// The service id of a port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self(RDMA_CM << 24 | (space.0 as u64) << 16 | port as u64)
    }

    /// The port space and port of the service id; `None` outside of RDMA CM's ids.
    ///
    /// Requests for such a service carry an [`IpAddressing`](super::IpAddressing).
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        if self.0 >> 24 == RDMA_CM {
            Some((PortSpace((self.0 >> 16) as u8), self.0 as u16))
        } else {
            None
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

const RDMA_CM: u64 = 1;
