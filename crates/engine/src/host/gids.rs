//! GID tables that follow the addresses of an interface.

use airdma_wire::Gid;
use std::net::{IpAddr, Ipv4Addr};

/// One row of a device's GID table. All rows are of type "RoCE v2".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID: the address itself, IPv4 mapped into IPv6. All zero in an empty row.
    pub gid: Gid,
    /// The address of the interface behind it; `0.0.0.0` in an empty row.
    pub address: IpAddr,
}

impl GidEntry {
    /// A row that had an address, or will have one.
    pub const EMPTY: GidEntry = GidEntry {
        gid: Gid([0; 16]),
        address: IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };

    /// Whether there is no address behind it.
    pub fn is_empty(&self) -> bool {
        self.address.is_unspecified()
    }
}

impl From<IpAddr> for GidEntry {
    fn from(address: IpAddr) -> Self {
        GidEntry {
            gid: Gid::from(address),
            address,
        }
    }
}

/// Most GIDs of a device: a GID index is a byte.
pub(crate) const GIDS_MAX: usize = 256;

/// Changes of a table that follow the addresses of its interface.
///
/// Rows do not move: a row whose address is gone becomes empty, and a new address takes its own
/// former row if that is free, else the first empty one, else a new one. `rows` is the table,
/// `former` the last address of each row, `addresses` the interface's present ones.
pub(crate) fn changes(
    rows: &[GidEntry],
    former: &[IpAddr],
    addresses: &[IpAddr],
) -> Vec<(u8, Option<IpAddr>)> {
    let mut taken: Vec<bool> = rows
        .iter()
        .map(|row| !row.is_empty() && addresses.contains(&row.address))
        .collect();
    let gone = rows
        .iter()
        .zip(&taken)
        .enumerate()
        .filter(|(_, (row, taken))| !row.is_empty() && !**taken);
    let mut changes: Vec<_> = gone.map(|(index, _)| (index as u8, None)).collect();
    let known = |address: &IpAddr| rows.iter().any(|row| row.address == *address);
    let mut strangers = Vec::new();
    for &address in addresses.iter().filter(|address| !known(address)) {
        let own = former.iter().position(|&former| former == address);
        match own.filter(|&row| !taken[row]) {
            Some(row) => {
                taken[row] = true;
                changes.push((row as u8, Some(address)));
            }
            None => strangers.push(address),
        }
    }
    for address in strangers {
        let free = taken.iter().position(|taken| !taken);
        let row = free.unwrap_or(taken.len());
        if row == GIDS_MAX {
            break;
        }
        taken.resize(taken.len().max(row + 1), false);
        taken[row] = true;
        changes.push((row as u8, Some(address)));
    }
    changes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    /// A table that is updated as by the engine.
    #[derive(Default)]
    struct Table {
        rows: Vec<GidEntry>,
        former: Vec<IpAddr>,
    }

    impl Table {
        fn follow(&mut self, addresses: &[u8]) -> Vec<u8> {
            let addresses: Vec<_> = addresses.iter().map(|&last| address(last)).collect();
            for (row, address) in changes(&self.rows, &self.former, &addresses) {
                let row = usize::from(row);
                if row == self.rows.len() {
                    self.rows.push(GidEntry::EMPTY);
                    self.former.push(GidEntry::EMPTY.address);
                }
                self.rows[row] = address.map_or(GidEntry::EMPTY, GidEntry::from);
                if let Some(address) = address {
                    self.former[row] = address;
                }
            }
            let last = |row: &GidEntry| match row.address {
                IpAddr::V4(address) => address.octets()[3],
                IpAddr::V6(_) => unreachable!(),
            };
            self.rows.iter().map(last).collect()
        }
    }

    #[test]
    fn rows_do_not_move_and_empty_ones_are_used_again() {
        let mut table = Table::default();
        assert_eq!(table.follow(&[1, 2, 3]), [1, 2, 3]);
        assert_eq!(table.follow(&[3, 1]), [1, 0, 3]);
        assert_eq!(table.follow(&[4, 3, 1]), [1, 4, 3]);
        assert_eq!(table.follow(&[5, 4, 3, 1]), [1, 4, 3, 5]);
        assert_eq!(table.follow(&[]), [0, 0, 0, 0]);
        assert_eq!(table.follow(&[5, 3]), [0, 0, 3, 5]);
        assert_eq!(table.follow(&[6, 3, 5, 1]), [1, 6, 3, 5]);
    }

    #[test]
    fn an_address_that_replaces_another_at_once_takes_its_row() {
        let mut table = Table::default();
        table.follow(&[1, 2]);
        assert_eq!(table.follow(&[2, 3]), [3, 2]);
    }

    #[test]
    fn more_addresses_than_a_byte_counts_are_left_out() {
        let addresses: Vec<_> = (0..300_u32)
            .map(|number| IpAddr::from((0x0a00_0001 + number).to_be_bytes()))
            .collect();
        assert_eq!(changes(&[], &[], &addresses).len(), GIDS_MAX);
    }
}
