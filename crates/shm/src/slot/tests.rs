#![allow(clippy::unwrap_used)]

use super::*;
use crate::{Cqe, RecvWqe, SendWqe};

const STRIDE: u32 = SendWqe::stride(2, 0);

/// A slot between two guard words, in memory of the test's own.
struct Guarded {
    words: Vec<u64>,
}

impl Guarded {
    fn new() -> Self {
        Self {
            words: vec![GUARD; STRIDE as usize / WORD + 2],
        }
    }

    fn base(&mut self) -> NonNull<u64> {
        NonNull::new(self.words[1..].as_mut_ptr()).unwrap()
    }

    fn slot_mut(&mut self) -> SlotMut<'_> {
        // SAFETY: STRIDE bytes from `base` on belong to `self`, which stays borrowed.
        unsafe { SlotMut::new(self.base(), STRIDE) }
    }

    fn slot(&mut self) -> SlotRef<'_> {
        // SAFETY: as above.
        unsafe { SlotRef::new(self.base(), STRIDE) }
    }

    fn guards(&self) -> (Option<&u64>, Option<&u64>) {
        (self.words.first(), self.words.last())
    }
}

const GUARD: u64 = 0x5a5a_5a5a_5a5a_5a5a;

fn request() -> SendWqe {
    SendWqe {
        wr_id: 0x1122_3344_5566_7788,
        operation: 3,
        flags: SendWqe::SIGNALLED,
        sge_count: 2,
        length: 77,
        imm: [1, 2, 3, 4],
        rkey: 0xaabb_ccdd,
        remote_va: u64::MAX - 5,
        swap_add: 6,
        compare: 7,
        dest_gid: std::array::from_fn(|n| n as u8),
        dest_qpn: 8,
        dest_qkey: 9,
        flow_label: 10,
        sgid_index: 11,
        traffic_class: 12,
        hop_limit: 13,
        pad: 0,
        srqn: 14,
        bind_lkey: 15,
        bind_rkey: 16,
        reserved: 17,
    }
}

#[test]
fn headers_and_lists_come_back_as_written() {
    let mut memory = Guarded::new();
    let list = [0u64, 1].map(|n| Sge {
        addr: n << 40 | 1,
        length: 5 + n as u32,
        lkey: 6,
    });
    let mut slot = memory.slot_mut();
    slot.write_header(&request());
    for (index, sge) in list.iter().enumerate() {
        slot.write_sge::<SendWqe>(index as u32, sge);
    }
    let slot = memory.slot();
    assert_eq!(slot.read_header::<SendWqe>(), request());
    assert_eq!(slot.sge::<SendWqe>(0), Ok(list[0]));
    assert_eq!(slot.sge::<SendWqe>(1), Ok(list[1]));
    assert_eq!(memory.guards(), (Some(&GUARD), Some(&GUARD)));
}

#[test]
fn a_layout_is_the_bytes_it_says() {
    let mut memory = Guarded::new();
    memory.slot_mut().write_header(&Cqe {
        wr_id: 1,
        status: 2,
        opcode: 3,
        flags: 4,
        byte_len: 5,
        ..Cqe::default()
    });
    assert_eq!(memory.words[1], 1);
    assert_eq!(memory.words[2].to_ne_bytes()[..4], [2, 3, 4, 0]);
    assert_eq!(memory.words[2].to_ne_bytes()[4..], 5u32.to_ne_bytes());
}

#[test]
fn inline_bytes_come_back_and_no_other_byte_changes() {
    let room = STRIDE as usize - size_of::<SendWqe>();
    let bytes: Vec<u8> = (1..=room as u8).collect();
    for offset in 0..=room {
        for len in 0..=room - offset {
            let mut memory = Guarded::new();
            memory
                .slot_mut()
                .write_inline::<SendWqe>(offset as u32, &bytes[..len]);
            let mut expected = [GUARD.to_ne_bytes(); 4].concat();
            expected[offset..offset + len].copy_from_slice(&bytes[..len]);

            let mut all = vec![0; room];
            memory.slot().copy_inline::<SendWqe>(0, &mut all).unwrap();
            assert_eq!(all, expected, "wrote {len} at {offset}");
            let mut part = vec![0; len];
            memory
                .slot()
                .copy_inline::<SendWqe>(offset as u32, &mut part)
                .unwrap();
            assert_eq!(part, bytes[..len], "read {len} at {offset}");
            assert_eq!(memory.guards(), (Some(&GUARD), Some(&GUARD)));
        }
    }
}

#[test]
fn what_lies_beyond_the_slot_is_refused() {
    let mut memory = Guarded::new();
    let slot = memory.slot();
    assert_eq!(
        (slot.sges_max::<SendWqe>(), slot.inline_max::<SendWqe>()),
        (2, 32)
    );
    assert_eq!(slot.sges_max::<RecvWqe>(), 7);
    for index in [2, 3, 1 << 28, u32::MAX] {
        assert_eq!(slot.sge::<SendWqe>(index), Err(Corrupt::SlotBounds));
    }
    let mut out = [1; 33];
    for (offset, len) in [(0, 33), (32, 1), (33, 0), (u32::MAX, 1), (u32::MAX, 0)] {
        assert_eq!(
            slot.copy_inline::<SendWqe>(offset, &mut out[..len]),
            Err(Corrupt::SlotBounds)
        );
    }
    assert_eq!(out, [1; 33], "a refused copy leaves the buffer alone");
}

#[test]
#[should_panic(expected = "list beyond the slot")]
fn writing_a_list_beyond_the_slot_is_a_bug_of_ours() {
    Guarded::new()
        .slot_mut()
        .write_sge::<SendWqe>(2, &Sge::default());
}

#[test]
#[should_panic(expected = "inline data beyond the slot")]
fn writing_inline_data_beyond_the_slot_is_a_bug_of_ours() {
    Guarded::new()
        .slot_mut()
        .write_inline::<SendWqe>(1, &[0; 32]);
}
