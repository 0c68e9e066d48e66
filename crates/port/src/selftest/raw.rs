//! A raw socket that sees the IP headers of arriving UDP packets.

use std::io;
use std::mem::size_of;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use airdma_wire::{ICRC_LEN, icrc_of_ip_packet};

/// Sees every UDP packet that comes to one local address, and picks those to one port.
pub(super) struct RawSocket {
    fd: OwnedFd,
    port: u16,
    buffer: Box<[u8]>,
}

/// What the ICRC depends on, as it arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) id: u16,
    pub(super) dont_fragment: bool,
    /// The ICRC at the end is the one for this very header.
    pub(super) icrc_right: bool,
}

/// Longest wait for a packet that loopback delivers at once.
const WAIT_MS: libc::c_int = 2000;

const IPV4_LEN: usize = 20;
const DONT_FRAGMENT: u8 = 0x40;

impl RawSocket {
    /// # Errors
    /// Without CAP_NET_RAW: EPERM.
    pub(super) fn open(address: Ipv4Addr, port: u16) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: plain integers.
        let fd = unsafe { libc::socket(libc::AF_INET, kind, libc::IPPROTO_UDP) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `socket` just returned it, and nothing else owns it.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let name = libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr {
                s_addr: u32::from_ne_bytes(address.octets()),
            },
            sin_zero: [0; 8],
        };
        let len = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        // SAFETY: `name` is a socket address of `len` bytes.
        let result = unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), len) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(RawSocket {
            fd,
            port,
            buffer: vec![0; 1 << 16].into_boxed_slice(),
        })
    }

    /// The next packet to the port, waiting for it a while.
    pub(super) fn next(&mut self) -> io::Result<Seen> {
        loop {
            match self.take() {
                Ok(Some(seen)) => return Ok(seen),
                Ok(None) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.wait()?,
                Err(error) => return Err(error),
            }
        }
    }

    /// Forgets what has arrived.
    pub(super) fn discard(&mut self) {
        while self.take().is_ok() {}
    }

    /// The next packet that has arrived; `None` if it is for another port.
    fn take(&mut self) -> io::Result<Option<Seen>> {
        let room = self.buffer.len();
        // SAFETY: the kernel writes at most `room` bytes into the buffer.
        let len = unsafe {
            libc::recv(
                self.fd.as_raw_fd(),
                self.buffer.as_mut_ptr().cast(),
                room,
                0,
            )
        };
        let len = usize::try_from(len).map_err(|_| io::Error::last_os_error())?;
        Ok(look(&self.buffer[..len.min(room)], self.port))
    }

    fn wait(&self) -> io::Result<()> {
        let mut descriptor = libc::pollfd {
            fd: self.fd.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one descriptor, ours.
        match unsafe { libc::poll(&raw mut descriptor, 1, WAIT_MS) } {
            0 => Err(io::Error::from_raw_os_error(libc::ETIMEDOUT)),
            _ => Ok(()),
        }
    }
}

/// Reads a whole IPv4 packet. `None` when it is not a UDP packet to `port`.
fn look(packet: &[u8], port: u16) -> Option<Seen> {
    let to = packet.get(IPV4_LEN + 2..IPV4_LEN + 4)?;
    if packet[0] != 0x45 || to != port.to_be_bytes() {
        return None;
    }
    let (covered, icrc) = packet.split_last_chunk::<ICRC_LEN>()?;
    Some(Seen {
        id: u16::from_be_bytes([packet[4], packet[5]]),
        dont_fragment: packet[6] & DONT_FRAGMENT != 0,
        icrc_right: icrc_of_ip_packet(covered) == Some(u32::from_le_bytes(*icrc)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A congestion notification captured on a ConnectX-4 Lx, with UDP port 4791 (wire-facts F3,
    /// vector b).
    const CNP: &str = "45c2003c718c4000401191610a0011010a001201000012b700280000\
                       8100ffff4000011800000000\
                       0000000000000000000000000000000082fd002a";

    fn bytes(hex: &str) -> Vec<u8> {
        let digits: Vec<char> = hex.chars().filter(|c| !c.is_whitespace()).collect();
        digits
            .chunks(2)
            .map(|pair| {
                let text: String = pair.iter().collect();
                u8::from_str_radix(&text, 16).expect("hexadecimal digits")
            })
            .collect()
    }

    #[test]
    fn a_captured_packet_is_read() {
        let packet = bytes(CNP);
        let seen = Seen {
            id: 0x718c,
            dont_fragment: true,
            icrc_right: true,
        };
        assert_eq!(look(&packet, 4791), Some(seen));
        assert_eq!(look(&packet, 4792), None);
        let mut changed = packet.clone();
        changed[5] ^= 1;
        let seen = look(&changed, 4791).expect("still to the port");
        assert!(!seen.icrc_right);
        for len in 0..packet.len() {
            let _ = look(&packet[..len], 4791);
        }
    }
}
