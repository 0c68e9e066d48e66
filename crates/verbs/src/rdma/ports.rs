//! Ports that identifiers of this process hold, by port space.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::abi::rdma_port_space;
use crate::errno::Errno;

/// Who holds a port.
#[derive(Clone, Copy)]
struct Holder {
    cookie: u64,
    ip: IpAddr,
    /// Others may have it too (`RDMA_OPTION_ID_REUSEADDR`).
    reuse: bool,
}

type Table = HashMap<(rdma_port_space, u16), Vec<Holder>>;

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Ports that are given to those who do not ask for one: the range of IANA (RFC 6335).
const EPHEMERAL: std::ops::RangeInclusive<u16> = 49_152..=65_535;

fn table() -> MutexGuard<'static, Option<Table>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn overlap(a: IpAddr, b: IpAddr) -> bool {
    let wildcard = a.is_unspecified() || b.is_unspecified();
    a == b || (wildcard && a.is_ipv4() == b.is_ipv4())
}

/// Takes the port of an address for an identifier, or some free one for port 0; answers which.
///
/// # Errors
/// `EADDRINUSE`; `EADDRNOTAVAIL` when no port is left.
pub fn take(
    space: rdma_port_space,
    address: &SocketAddr,
    reuse: bool,
    cookie: u64,
) -> Result<u16, Errno> {
    let mut table = table();
    let table = table.get_or_insert_default();
    let holder = Holder {
        cookie,
        ip: address.ip(),
        reuse,
    };
    let port = if address.port() != 0 {
        let others = table.get(&(space, address.port()));
        let is_taken = others
            .into_iter()
            .flatten()
            .any(|other| overlap(other.ip, holder.ip) && !(other.reuse && reuse));
        if is_taken {
            return Err(Errno(libc::EADDRINUSE));
        }
        address.port()
    } else {
        free_port(table, space)?
    };
    table.entry((space, port)).or_default().push(holder);
    Ok(port)
}

/// From somewhere in the range, so that processes do not all begin with the same.
fn free_port(table: &Table, space: rdma_port_space) -> Result<u16, Errno> {
    let count = u32::from(EPHEMERAL.end() - EPHEMERAL.start()) + 1;
    let start = super::id::random() % count;
    (0..count)
        .map(|step| EPHEMERAL.start() + ((start + step) % count) as u16)
        .find(|port| !table.contains_key(&(space, *port)))
        .ok_or(Errno(libc::EADDRNOTAVAIL))
}

/// The identifier does not need its port any more.
pub fn give_back(space: rdma_port_space, port: u16, cookie: u64) {
    let mut table = table();
    let Some(table) = table.as_mut() else { return };
    if let Some(holders) = table.get_mut(&(space, port)) {
        holders.retain(|holder| holder.cookie != cookie);
        if holders.is_empty() {
            table.remove(&(space, port));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::abi::{RDMA_PS_TCP, RDMA_PS_UDP};
    use super::*;

    #[test]
    fn a_port_is_held_per_space_and_address() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let in_use = Err(Errno(libc::EADDRINUSE));
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), false, 1), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), false, 2), in_use);
        assert_eq!(take(RDMA_PS_TCP, &at("0.0.0.0:700"), true, 2), in_use);
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.2:700"), false, 3), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("[::]:700"), false, 4), Ok(700));
        assert_eq!(take(RDMA_PS_UDP, &at("10.0.0.1:700"), false, 5), Ok(700));
        give_back(RDMA_PS_TCP, 700, 1);
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), true, 6), Ok(700));
        assert_eq!(take(RDMA_PS_TCP, &at("10.0.0.1:700"), true, 7), Ok(700));
        for cookie in 1..=7 {
            give_back(RDMA_PS_TCP, 700, cookie);
            give_back(RDMA_PS_UDP, 700, cookie);
        }
    }

    #[test]
    fn who_asks_for_none_gets_one_of_its_own() {
        let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
        let first = take(RDMA_PS_TCP, &any, false, 11).unwrap();
        let second = take(RDMA_PS_TCP, &any, false, 12).unwrap();
        assert!(EPHEMERAL.contains(&first) && EPHEMERAL.contains(&second));
        assert_ne!(first, second);
        give_back(RDMA_PS_TCP, first, 11);
        give_back(RDMA_PS_TCP, second, 12);
    }
}
