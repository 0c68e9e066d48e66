//! The 40 bytes in front of a datagram: its IP header, for IPv4 in the last 20 bytes (IBTA annex
//! A17.4.5.1).

use super::GRH;
use crate::Verdict;
use std::net::IpAddr;

/// IP protocol number of UDP.
const UDP: u8 = 17;

/// Bytes around a message, from the UDP header to the ICRC: UDP, BTH, DETH, ICRC.
const WRAPPING: usize = 8 + 12 + 8 + 4;

/// Checks the bytes in front of a message of `bytes` bytes. TOS and TTL are ignored: nothing
/// protects them in flight.
///
/// # Errors
/// The bytes are wrong.
pub(super) fn check(
    head: &[u8],
    (from, to): (IpAddr, IpAddr),
    bytes: usize,
    immediate: bool,
) -> Verdict {
    let wrapped = WRAPPING + if immediate { 4 } else { 0 } + bytes.next_multiple_of(4);
    let word = |at: usize| usize::from(u16::from_be_bytes([head[at], head[at + 1]]));
    let right = match (from, to) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let sum: usize = (20..GRH).step_by(2).map(word).sum();
            head[20] == 0x45
                && word(22) == 20 + wrapped
                && head[29] == UDP
                && head[32..36] == from.octets()
                && head[36..40] == to.octets()
                && (sum & 0xffff) + (sum >> 16) == 0xffff
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            head[0] >> 4 == 6
                && word(4) == wrapped
                && head[6] == UDP
                && head[8..24] == from.octets()
                && head[24..40] == to.octets()
        }
        _ => false,
    };
    if right {
        return Ok(());
    }
    Err(format!(
        "the bytes before it are not those of a packet of {wrapped} bytes from {from} to {to}: {head:02x?}"
    ))
}
