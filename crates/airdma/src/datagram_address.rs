//! Addresses of endpoints without connections.

use crate::{Error, Result};
use airdma_engine::{Gid, Qkey, Qpn, random_u32};
use std::net::IpAddr;

/// Address of a [`DatagramEndpoint`](crate::DatagramEndpoint), for the sources that write to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DatagramAddress {
    pub(crate) gid: Gid,
    pub(crate) qpn: Qpn,
    pub(crate) qkey: Qkey,
}

/// First bytes of the encoding, which tell it from other messages: name and version.
const MAGIC: [u8; 4] = *b"aiD1";

impl DatagramAddress {
    /// A new address of a multicast group, such as 239.1.2.3 or ff02::1234. Send
    /// [`DatagramAddress::to_bytes`] to its members
    /// ([`Device::group_endpoint`](crate::Device::group_endpoint)) and to its sources, which write
    /// to it as to any other.
    ///
    /// It holds a random number, without which no message reaches a member: two of one group are
    /// different.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): the address is not of a multicast group.
    pub fn of_group(group: IpAddr) -> Result<DatagramAddress> {
        if !group.is_multicast() {
            return Err(Error::you(format!(
                "{group} is no multicast group: give one as 239.1.2.3 or ff02::1234"
            )));
        }
        Ok(DatagramAddress {
            gid: Gid::from(group),
            qpn: Qpn::MULTICAST,
            qkey: random_qkey(),
        })
    }

    /// Length of [`DatagramAddress::to_bytes`].
    pub const BYTES: usize = 28;

    /// The bytes to send to a source.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&self.qpn.get().to_be_bytes());
        bytes[8..12].copy_from_slice(&self.qkey.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.gid.0);
        bytes
    }

    /// Decodes the target's bytes.
    ///
    /// # Errors
    /// [`Blame::You`](crate::Blame::You): they are anything else.
    pub fn from_bytes(bytes: &[u8]) -> Result<DatagramAddress> {
        let wrong = || {
            Error::you(format!(
                "{} bytes that are not a `DatagramAddress`: the target must send the result of `DatagramAddress::to_bytes`, {} bytes",
                bytes.len(),
                Self::BYTES
            ))
        };
        let (magic, rest) = bytes.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (number, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (qkey, rest) = rest.split_first_chunk::<4>().ok_or_else(wrong)?;
        let (gid, rest) = rest.split_first_chunk::<16>().ok_or_else(wrong)?;
        let number = u32::from_be_bytes(*number);
        let qpn = Qpn::new(number);
        if *magic != MAGIC || !rest.is_empty() || qpn.get() != number {
            return Err(wrong());
        }
        Ok(DatagramAddress {
            gid: Gid(*gid),
            qpn,
            qkey: Qkey(u32::from_be_bytes(*qkey)),
        })
    }

    /// Address of its host.
    pub fn ip(&self) -> IpAddr {
        self.gid.to_ip()
    }

    /// Its number, of the endpoints of its host.
    pub fn number(&self) -> u32 {
        self.qpn.get()
    }

    /// Whether it is of a multicast group.
    pub fn is_group(&self) -> bool {
        self.ip().is_multicast()
    }

    /// The same endpoint at another address of its host.
    #[must_use]
    pub fn at(self, ip: IpAddr) -> DatagramAddress {
        DatagramAddress {
            gid: Gid::from(ip),
            ..self
        }
    }
}

/// A Q_Key that no peer can guess.
pub(crate) fn random_qkey() -> Qkey {
    // The highest bit would mean the sender's own Q_Key (IBTA 10.2.5).
    Qkey(random_u32() & !(1 << 31))
}
