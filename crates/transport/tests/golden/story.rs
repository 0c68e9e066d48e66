//! What the recorded requests do to memory, worked out from the record alone.

use std::collections::BTreeMap;

use airdma_transport::{Operation, QpType};
use airdma_wire::GRH_LEN;

use crate::memory::Memory;
use crate::record::{End, Posted, Record};

#[derive(Default)]
pub struct Story {
    a: Memories,
    b: Memories,
    /// By request: what a READ or an atomic brings.
    pub results: BTreeMap<u64, Vec<u8>>,
}

#[derive(Default)]
struct Memories {
    before: Memory,
    after: Memory,
}

impl Story {
    pub fn of(record: &Record) -> Self {
        let mut story = Story::default();
        for posted in record.posted() {
            if let Some((va, found)) = &posted.found {
                story.at(posted.from.peer()).before.write(*va, found);
            }
        }
        for memories in [&mut story.a, &mut story.b] {
            memories.after.clone_from(&memories.before);
        }
        for posted in record.posted().filter(|posted| record.succeeded(posted)) {
            story.apply(record, posted);
        }
        story
    }

    pub fn before(&self, end: End) -> &Memory {
        match end {
            End::A => &self.a.before,
            End::B => &self.b.before,
        }
    }

    pub fn after(&self, end: End) -> &Memory {
        match end {
            End::A => &self.a.after,
            End::B => &self.b.after,
        }
    }

    fn at(&mut self, end: End) -> &mut Memories {
        match end {
            End::A => &mut self.a,
            End::B => &mut self.b,
        }
    }

    fn apply(&mut self, record: &Record, posted: &Posted) {
        let peer = posted.from.peer();
        let length = posted.length as usize;
        if let Some((va, put)) = &posted.put {
            self.at(peer).after.write(*va, put);
        }
        match posted.operation {
            Operation::Send | Operation::SendImm(_) => {
                let header = if record.service == QpType::Ud {
                    GRH_LEN
                } else {
                    0
                };
                let va = record.receive_va(peer, posted.wr_id) + header as u64;
                self.at(peer).after.write(va, &posted.message);
            }
            Operation::Write { va, .. } | Operation::WriteImm { va, .. } => {
                self.at(peer).after.write(va, &posted.message);
            }
            Operation::Read { va, .. } => {
                let brought = self.at(peer).after.read(va, length);
                self.results.insert(posted.wr_id, brought);
            }
            Operation::FetchAdd { va, add, .. } => {
                self.apply_atomic(record, posted, va, |value| value.wrapping_add(add));
            }
            Operation::CompareSwap {
                va, compare, swap, ..
            } => {
                let change = |value| if value == compare { swap } else { value };
                self.apply_atomic(record, posted, va, change);
            }
            Operation::SendInvalidate(_)
            | Operation::AtomicWrite { .. }
            | Operation::Flush { .. }
            | Operation::Record { .. }
            | Operation::RecordImm { .. }
            | Operation::BindWindow(_)
            | Operation::LocalInvalidate(_) => panic!("never recorded"),
        }
    }

    fn apply_atomic(
        &mut self,
        record: &Record,
        posted: &Posted,
        va: u64,
        change: impl FnOnce(u64) -> u64,
    ) {
        let memory = &mut self.at(posted.from.peer()).after;
        let found = memory.read_u64(va);
        let left = change(found).to_ne_bytes();
        memory.write(va, &left);
        let found = found.to_ne_bytes();
        if let Some(recorded) = posted.returned {
            assert_eq!(found, recorded, "the story of {} goes wrong", record.name);
            assert_eq!(left, posted.remote_after.unwrap());
        }
        self.results.insert(posted.wr_id, found.to_vec());
    }
}
