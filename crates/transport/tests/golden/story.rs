//! What the recorded requests do to memory, worked out from the record alone.

use std::collections::BTreeMap;

use airdma_transport::{Operation, QpType};
use airdma_wire::GRH_LEN;

use crate::record::{BUFFER_LEN, End, Posted, Record, pattern};

pub struct Story {
    a: Memories,
    b: Memories,
    /// By request: what a READ or an atomic brings.
    pub results: BTreeMap<u64, Vec<u8>>,
}

struct Memories {
    before: Vec<u8>,
    after: Vec<u8>,
}

impl Story {
    pub fn of(record: &Record) -> Self {
        let empty = || Memories {
            before: vec![0; BUFFER_LEN],
            after: Vec::new(),
        };
        let mut story = Story {
            a: empty(),
            b: empty(),
            results: BTreeMap::new(),
        };
        for posted in record.posted() {
            story.prepare(record, posted);
        }
        for memories in [&mut story.a, &mut story.b] {
            memories.after.clone_from(&memories.before);
        }
        for posted in record.posted().filter(|posted| record.succeeded(posted)) {
            story.apply(record, posted);
        }
        story
    }

    pub fn before(&self, end: End) -> &[u8] {
        match end {
            End::A => &self.a.before,
            End::B => &self.b.before,
        }
    }

    pub fn after(&self, end: End) -> &[u8] {
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

    /// The memory that a request finds.
    fn prepare(&mut self, record: &Record, posted: &Posted) {
        let peer = posted.from.peer();
        if let Operation::Read { va, .. } = posted.operation
            && let Some(range) = record.range(peer, va, posted.length)
            && record.setup.filled
        {
            let found = pattern(posted.seed, range.len());
            self.at(peer).before[range].copy_from_slice(&found);
        }
        // The first atomic says what it found; the others follow from it.
        if let Operation::FetchAdd { va, .. } = posted.operation
            && posted.wr_id == 0
        {
            let range = record.range(peer, va, 8).unwrap();
            self.at(peer).before[range].copy_from_slice(&posted.returned.unwrap());
        }
    }

    fn apply(&mut self, record: &Record, posted: &Posted) {
        let peer = posted.from.peer();
        let length = posted.length;
        match posted.operation {
            Operation::Send | Operation::SendImm(_) => {
                let header = if record.service == QpType::Ud {
                    GRH_LEN
                } else {
                    0
                };
                let start = record.receive_offset(posted.wr_id) as usize + header;
                let target = &mut self.at(peer).after[start..][..length as usize];
                target.copy_from_slice(&posted.message());
            }
            Operation::Write { va, .. } | Operation::WriteImm { va, .. } => {
                let range = record.range(peer, va, length).unwrap();
                self.at(peer).after[range].copy_from_slice(&posted.message());
            }
            Operation::Read { va, .. } => {
                let range = record.range(peer, va, length).unwrap();
                let brought = self.at(peer).after[range].to_vec();
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
        let peer = posted.from.peer();
        let range = record.range(peer, va, 8).unwrap();
        let cell = &mut self.at(peer).after[range];
        let found: [u8; 8] = (&*cell).try_into().unwrap();
        cell.copy_from_slice(&change(u64::from_ne_bytes(found)).to_ne_bytes());
        if let Some(returned) = posted.returned {
            assert_eq!(found, returned, "the story of {} goes wrong", record.name);
            assert_eq!(*cell, posted.remote_after.unwrap());
        }
        self.results.insert(posted.wr_id, found.to_vec());
    }
}
