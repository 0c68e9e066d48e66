//! FLUSH: what was written before is placed, and a READ response without data says so.

use airdma_transport::*;
use airdma_wire::*;

use crate::atomic_write::{answered, counts_as_a_read_in_flight};
use crate::bench::*;

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const GLOBAL: Feth = Feth {
    placement: Feth::GLOBAL,
    selectivity: Feth::RANGE,
};
const FLUSH: Operation = Operation::Flush {
    va: 0x9000,
    rkey: Rkey(5),
    length: 600,
    what: GLOBAL,
};

/// The bench's first PSN is 0xfffffe.
const P0: u32 = 0xff_fffe;

fn arrives(b: &mut Bench, psn: u32, (va, length): (u64, u32), what: Feth) {
    b.arrives(Opcode::RcFlush, psn, &[], |h| {
        h.feth = Some(what);
        h.reth = Some(Reth {
            va,
            rkey: RKEY,
            length,
        });
    });
}

/// A queue pair that grants these flushes.
fn granting(access: Access) -> Bench {
    let mut b = Bench::connected();
    let granting = QpAttributes {
        access: Access::REMOTE_WRITE | access,
        ..attributes()
    };
    b.qp.modify(&granting, AttrMask::ACCESS_FLAGS, &mut b.host)
        .unwrap();
    b
}

#[test]
fn it_is_one_packet_and_ended_by_a_response_without_data() {
    let mut b = Bench::connected();
    b.post(FLUSH, 0);
    let bytes = b.sends_bytes().unwrap();
    // BTH, FETH, RETH.
    assert_eq!(bytes.len(), 12 + 4 + 16);
    assert_eq!(bytes[0], 0x1c);
    assert_eq!(bytes[12..16], [0, 0, 0, 1]);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!(packet.headers.feth, Some(GLOBAL));
    assert_eq!(
        packet.headers.reth,
        Some(Reth {
            va: 0x9000,
            rkey: Rkey(5),
            length: 600
        })
    );
    assert!(packet.headers.bth.ack_request && packet.payload.is_empty());
    answered(&mut b, P0, &[]);
    assert_eq!(b.log(), ["send 0 Success"]);
    assert_eq!(b.qp.poll_timeout(), None);
}

#[test]
fn only_its_own_response_ends_it_and_data_is_bad() {
    let mut b = Bench::connected();
    b.post(FLUSH, 0);
    b.sends();
    b.acknowledged(P0, ACK);
    assert_eq!(b.log(), [""; 0]);
    answered(&mut b, P0, &[1; 8]);
    assert_eq!(b.log(), ["send 0 BadResponse"]);
}

#[test]
fn it_counts_as_a_read_in_flight_and_a_fence_waits_for_it() {
    counts_as_a_read_in_flight(FLUSH, 0, "Flush 0 A va=0x9000+600");
}

#[test]
fn it_is_executed_once_behind_the_writes_before_it() {
    let mut b = granting(Access::FLUSH_GLOBAL);
    // Before its turn it is not executed.
    arrives(&mut b, 101, (REGION_VA, 8), GLOBAL);
    assert_eq!(b.sends(), ["Acknowledge 100 NAK PsnSequenceError"]);
    assert_eq!(b.log(), [""; 0]);
    b.arrives(Opcode::RcWriteOnly, 100, &[7; 8], |h| {
        h.bth.ack_request = false;
        h.reth = Some(Reth {
            va: REGION_VA,
            rkey: RKEY,
            length: 8,
        });
    });
    arrives(&mut b, 101, (REGION_VA, 8), GLOBAL);
    assert_eq!(b.sends(), ["ReadResponseOnly 101 msn=2"]);
    let flushed = "flush FLUSH_GLOBAL of 8 bytes";
    assert_eq!(b.log(), [flushed]);
    // A duplicate is answered again, and not executed again.
    arrives(&mut b, 101, (REGION_VA, 8), GLOBAL);
    assert_eq!(b.sends(), ["ReadResponseOnly 101 msn=2"]);
    assert_eq!(b.log(), [""; 0]);
    // A READ at its PSN is no repetition of it.
    b.read_arrives(101, REGION_VA, 8);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn each_placement_type_needs_its_right() {
    let both = Feth {
        placement: Feth::GLOBAL | Feth::PERSISTENT,
        ..GLOBAL
    };
    let refused = "Acknowledge 100 NAK InvalidRequest";
    for (granted, what) in [
        (Access::REMOTE_READ, GLOBAL),
        (Access::FLUSH_PERSISTENT, GLOBAL),
        (Access::FLUSH_GLOBAL, both),
    ] {
        let mut b = granting(granted);
        arrives(&mut b, 100, (REGION_VA, 8), what);
        assert_eq!(b.sends(), [refused], "{granted:?}");
        assert_eq!(b.log(), ["event RequestError"]);
    }
    let mut b = granting(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
    arrives(&mut b, 100, (REGION_VA, 8), both);
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
    assert_eq!(
        b.log(),
        ["flush FLUSH_GLOBAL | FLUSH_PERSISTENT of 8 bytes"]
    );
}

#[test]
fn types_and_levels_without_meaning_are_invalid() {
    for what in [
        Feth {
            placement: 0,
            ..GLOBAL
        },
        Feth {
            placement: 0b101,
            ..GLOBAL
        },
        Feth {
            selectivity: 2,
            ..GLOBAL
        },
    ] {
        let mut b = granting(Access::FLUSH_GLOBAL | Access::FLUSH_PERSISTENT);
        arrives(&mut b, 100, (REGION_VA, 8), what);
        assert_eq!(
            b.sends(),
            ["Acknowledge 100 NAK InvalidRequest"],
            "{what:?}"
        );
    }
}

#[test]
fn a_range_lies_in_the_region_and_a_whole_region_needs_none() {
    let denied = "Acknowledge 100 NAK RemoteAccessError";
    let beyond = (REGION_VA, REGION_LEN as u32 + 1);
    let mut b = granting(Access::FLUSH_GLOBAL);
    arrives(&mut b, 100, beyond, GLOBAL);
    assert_eq!(b.sends(), [denied]);
    assert_eq!(b.log(), ["event AccessError"]);
    let mut b = granting(Access::FLUSH_GLOBAL);
    let whole = Feth {
        selectivity: Feth::REGION,
        ..GLOBAL
    };
    arrives(&mut b, 100, beyond, whole);
    assert_eq!(b.sends(), ["ReadResponseOnly 100 msn=1"]);
    assert_eq!(b.log(), ["flush FLUSH_GLOBAL of the region"]);
    // Also a FLUSH of no bytes needs a key.
    let mut b = granting(Access::FLUSH_GLOBAL);
    b.host.granted = false;
    arrives(&mut b, 100, (REGION_VA, 0), GLOBAL);
    assert_eq!(b.sends(), [denied]);
}

#[test]
fn the_responder_resources_bound_it_as_they_bound_reads() {
    let mut b = granting(Access::FLUSH_GLOBAL);
    for psn in 100..103 {
        arrives(&mut b, psn, (REGION_VA, 8), GLOBAL);
    }
    assert_eq!(b.sends()[2], "Acknowledge 102 NAK InvalidRequest");
}
