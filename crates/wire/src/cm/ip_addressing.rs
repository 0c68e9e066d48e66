//! IP addressing, 36 bytes at the front of the private data of a request (IBTA A11.4).
//!
//! ```text
//!   0  version (0)   1  IP version (4), reserved (4)   2  source port (16)
//!   4  source address, 16 bytes                       20  destination address, 16 bytes
//! ```
//!
//! An IPv4 address is in the last four of its sixteen bytes, behind zeros.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::field;
use crate::mad::MadError;

/// IP addresses of both ends and the source port. The destination port is in the service id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IpAddressing {
    /// Between IPv4 addresses.
    V4 {
        /// Source port.
        src_port: u16,
        /// Source address.
        src: Ipv4Addr,
        /// Destination address.
        dst: Ipv4Addr,
    },
    /// Between IPv6 addresses.
    V6 {
        /// Source port.
        src_port: u16,
        /// Source address.
        src: Ipv6Addr,
        /// Destination address.
        dst: Ipv6Addr,
    },
}

impl IpAddressing {
    /// Length in bytes.
    pub const LEN: usize = 36;

    /// Addressing between these; `None` if they are of different families.
    pub fn new(src: IpAddr, src_port: u16, dst: IpAddr) -> Option<Self> {
        match (src, dst) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4 { src_port, src, dst }),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src_port, src, dst }),
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => None,
        }
    }

    /// Source port.
    pub const fn src_port(&self) -> u16 {
        match *self {
            Self::V4 { src_port, .. } | Self::V6 { src_port, .. } => src_port,
        }
    }

    /// Source address.
    pub const fn src(&self) -> IpAddr {
        match *self {
            Self::V4 { src, .. } => IpAddr::V4(src),
            Self::V6 { src, .. } => IpAddr::V6(src),
        }
    }

    /// Destination address.
    pub const fn dst(&self) -> IpAddr {
        match *self {
            Self::V4 { dst, .. } => IpAddr::V4(dst),
            Self::V6 { dst, .. } => IpAddr::V6(dst),
        }
    }

    /// Reads the addressing.
    ///
    /// # Errors
    /// [`MadError::AddressingVersion`] and [`MadError::IpVersion`].
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Result<Self, MadError> {
        let [version, ip_version] = field::get::<0, 2, _>(bytes);
        if version != 0 {
            return Err(MadError::AddressingVersion(version));
        }
        let src_port = u16::from_be_bytes(field::get::<2, 2, _>(bytes));
        match ip_version >> 4 {
            4 => Ok(Self::V4 {
                src_port,
                src: field::get::<16, 4, _>(bytes).into(),
                dst: field::get::<32, 4, _>(bytes).into(),
            }),
            6 => Ok(Self::V6 {
                src_port,
                src: field::get::<4, 16, _>(bytes).into(),
                dst: field::get::<20, 16, _>(bytes).into(),
            }),
            other => Err(MadError::IpVersion(other)),
        }
    }

    /// The addressing as it is sent.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        field::set::<2, 2, _>(&mut bytes, self.src_port().to_be_bytes());
        match self {
            Self::V4 { src, dst, .. } => {
                field::set::<1, 1, _>(&mut bytes, [4 << 4]);
                field::set::<16, 4, _>(&mut bytes, src.octets());
                field::set::<32, 4, _>(&mut bytes, dst.octets());
            }
            Self::V6 { src, dst, .. } => {
                field::set::<1, 1, _>(&mut bytes, [6 << 4]);
                field::set::<4, 16, _>(&mut bytes, src.octets());
                field::set::<20, 16, _>(&mut bytes, dst.octets());
            }
        }
        bytes
    }
}
