//! FLUSH: which keys, ranges and rights it needs.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;

const GLOBAL: Feth = Feth {
    placement: Feth::GLOBAL,
    selectivity: Feth::RANGE,
};
const WHOLE: Feth = Feth {
    selectivity: Feth::REGION,
    ..GLOBAL
};

/// A pair whose queue pairs grant flushes, and memory of the right one that can be flushed.
fn flushable() -> (End, End, Memory) {
    let (left, right) = pair(4096);
    let access = QpAttributes {
        access: ALL | Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT,
        ..QpAttributes::default()
    };
    right.qp.modify(&access, AttrMask::ACCESS_FLAGS).unwrap();
    let memory = Memory::new(&right.pd, 4096, ALL | Access::FLUSH_GLOBAL);
    (left, right, memory)
}

fn flush(left: &End, of: &Memory, (offset, length): (u64, u32), what: Feth) -> Status {
    let operation = Operation::Flush {
        va: of.address().wrapping_add(offset),
        rkey: of.mr.rkey(),
        length,
        what,
    };
    let wr = SendWr {
        wr_id: 3,
        operation,
        sges: &[],
        flags: SendFlags::SIGNALLED,
        datagram: None,
        srqn: 0,
    };
    left.qp.post_send(&wr).unwrap();
    let completion = left.complete();
    if completion.status == Status::Success {
        assert_eq!(completion.opcode, CompletionOpcode::Flush);
    }
    completion.status
}

#[test]
fn a_write_is_there_once_the_flush_behind_it_completes() {
    let (left, _right, memory) = flushable();
    left.memory.fill(0, &pattern(3000, 5));
    for unsignalled in [false, true] {
        let operation = Operation::Write {
            va: memory.address(),
            rkey: memory.mr.rkey(),
        };
        let mut wr = signalled(operation, left.memory.sge(0, 3000));
        if unsignalled {
            wr.flags = SendFlags::empty();
        }
        left.qp.post_send(&wr).unwrap();
        if !unsignalled {
            left.ok();
        }
        for (part, what) in [((0, 3000), GLOBAL), ((0, 0), GLOBAL), ((9999, 1), WHOLE)] {
            assert_eq!(flush(&left, &memory, part, what), Status::Success);
            assert_eq!(memory.bytes(0, 3000), pattern(3000, 5));
        }
    }
}

#[test]
fn other_ranges_and_memory_without_the_right_are_refused() {
    for part in [(0, 4097), (4097, 0), (u64::MAX, 1)] {
        let (left, _right, memory) = flushable();
        let refused = flush(&left, &memory, part, GLOBAL);
        assert_eq!(refused, Status::RemoteAccessError, "{part:?}");
    }
    for what in [GLOBAL, WHOLE] {
        let (left, right, _memory) = flushable();
        let refused = flush(&left, &right.memory, (0, 8), what);
        assert_eq!(refused, Status::RemoteAccessError);
    }
    // The queue pair grants both kinds, the memory is not persistent.
    let (left, _right, memory) = flushable();
    let persistent = Feth {
        placement: Feth::PERSISTENT,
        ..GLOBAL
    };
    let refused = flush(&left, &memory, (0, 8), persistent);
    assert_eq!(refused, Status::RemoteAccessError);
}

#[test]
fn memory_that_is_not_persistent_is_not_registered_as_such() {
    let (left, _right) = pair(4096);
    let address = left.memory.address();
    let access = ALL | Access::FLUSH_PERSISTENT;
    let refused = left.pd.reg_mr(address, 4096, address, access);
    assert_eq!(refused.err().unwrap().errno(), libc::EINVAL);
}

#[test]
fn a_window_opens_flushes_of_memory_that_has_them() {
    let (left, right, memory) = flushable();
    for flushes in [Access::FLUSH_GLOBAL, Access::empty()] {
        let at = memory.address();
        let access = ALL | Access::MW_BIND | flushes;
        let mr = right.pd.reg_mr(at, 4096, at, access).unwrap();
        let opens = Access::REMOTE_READ | Access::FLUSH_GLOBAL;
        let opened = Mw::open(&right.pd, &right.qp, &mr, (at, 64), opens);
        assert_eq!(opened.is_ok(), !flushes.is_empty());
        if let Ok((_window, rkey)) = opened {
            let operation = Operation::Flush {
                va: at,
                rkey,
                length: 64,
                what: GLOBAL,
            };
            left.send(operation, 0, 0);
            left.ok();
        }
    }
}
