//! Multicast groups: which datagram queue pairs are attached to which group (IBTA 10.5,
//! `ibv_attach_mcast(3)`).

use crate::index::QpIndex;
use crate::{Error, LIMITS};
use airdma_wire::Neighbour;
use std::collections::BTreeMap;

/// The groups of a worker, and the positions of the queue pairs attached to each.
#[derive(Default)]
pub(crate) struct Multicast {
    groups: BTreeMap<Neighbour, Vec<QpIndex>>,
}

impl Multicast {
    /// The `nth` queue pair attached to `group`.
    pub(crate) fn member(&self, group: Neighbour, nth: usize) -> Option<QpIndex> {
        self.groups.get(&group)?.get(nth).copied()
    }

    /// Whether the queue pair is attached to any group.
    pub(crate) fn is_attached(&self, index: QpIndex) -> bool {
        self.groups.values().any(|members| members.contains(&index))
    }

    /// Attaches; `join` is called for the first member of a group. Attaching again changes nothing.
    ///
    /// # Errors
    /// `ENOMEM` at the limits; what `join` says.
    pub(crate) fn attach(
        &mut self,
        group: Neighbour,
        index: QpIndex,
        join: impl FnOnce() -> Result<(), Error>,
    ) -> Result<(), Error> {
        if let Some(members) = self.groups.get_mut(&group) {
            if members.contains(&index) {
                return Ok(());
            }
            if members.len() >= LIMITS.max_mcast_qp_attach as usize {
                return Err(Error::NoMemory(
                    "no more queue pairs in the group: see max_mcast_qp_attach of the device",
                ));
            }
            members.push(index);
            return Ok(());
        }
        if self.groups.len() >= LIMITS.max_mcast_grp as usize {
            return Err(Error::NoMemory(
                "no more multicast groups: see max_mcast_grp of the device",
            ));
        }
        join()?;
        self.groups.insert(group, vec![index]);
        Ok(())
    }

    /// Detaches, and says whether the group has no members left; `None` if the queue pair was not
    /// attached to it.
    pub(crate) fn detach(&mut self, group: Neighbour, index: QpIndex) -> Option<bool> {
        let members = self.groups.get_mut(&group)?;
        let position = members.iter().position(|&member| member == index)?;
        members.remove(position);
        let is_empty = members.is_empty();
        if is_empty {
            self.groups.remove(&group);
        }
        Some(is_empty)
    }

    /// A group that the queue pair is attached to.
    pub(crate) fn group_of(&self, index: QpIndex) -> Option<Neighbour> {
        let has = |members: &Vec<QpIndex>| members.contains(&index);
        let mut groups = self.groups.iter();
        groups.find_map(|(&group, members)| has(members).then_some(group))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn qp(place: u32) -> QpIndex {
        QpIndex::new(place)
    }

    #[test]
    fn a_group_is_joined_once_and_its_members_are_counted() {
        let mut table = Multicast::default();
        let group = Neighbour::from([239, 1, 2, 3]);
        let mut joined = 0;
        for index in (0..LIMITS.max_mcast_qp_attach).map(qp) {
            for _ in 0..2 {
                let join = || {
                    joined += 1;
                    Ok(())
                };
                table.attach(group, index, join).unwrap();
            }
        }
        assert_eq!(joined, 1);
        let full = table.attach(group, qp(1000), || Ok(())).unwrap_err();
        assert_eq!(full.errno(), libc::ENOMEM);
        assert_eq!(table.member(group, 1), Some(qp(1)));
        assert_eq!(table.detach(group, qp(1000)), None);
        assert_eq!(table.detach(Neighbour::from([239, 1, 2, 4]), qp(0)), None);
        for index in (0..LIMITS.max_mcast_qp_attach).map(qp) {
            assert_eq!(table.group_of(index), Some(group));
            let last = index == qp(LIMITS.max_mcast_qp_attach - 1);
            assert_eq!(table.detach(group, index), Some(last));
            assert!(!table.is_attached(index));
        }
        assert_eq!(table.member(group, 0), None);
    }

    #[test]
    fn a_group_that_cannot_be_joined_has_no_members() {
        let mut table = Multicast::default();
        let group = Neighbour::from([239, 1, 2, 3]);
        assert!(
            table
                .attach(group, qp(0), || Err(Error::Unsupported("joining")))
                .is_err()
        );
        assert!(!table.is_attached(qp(0)));
    }

    #[test]
    fn there_are_so_many_groups_and_no_more() {
        let mut table = Multicast::default();
        for number in 0..LIMITS.max_mcast_grp {
            let group = Neighbour::from((0xef00_0000 + number).to_be_bytes());
            table.attach(group, qp(0), || Ok(())).unwrap();
        }
        let full = table.attach(Neighbour::from([224, 1, 1, 1]), qp(0), || Ok(()));
        assert_eq!(full.unwrap_err().errno(), libc::ENOMEM);
    }
}
