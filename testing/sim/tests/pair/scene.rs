//! Helpers of the tests: links, regions, and checks of results.

use core::time::Duration;

use airdma_sim::{Fate, Link, Pair, Random, Region, SendWr, Setup, Side, gbit};
use airdma_transport::{Access, Completion, Counter, Operation, QpState, Status};
use airdma_wire::Opcode;

pub fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// A link that loses nothing.
pub fn clean() -> Link {
    Link::new().delay(us(10)).rate(gbit(10))
}

/// A link with every impairment, each with probability `p`.
pub fn bad(p: f64) -> Link {
    clean().drop(p).duplicate(p).reorder(p).corrupt(p)
}

/// A connection over two clean links.
pub fn connected(setup: &Setup) -> (Pair, usize) {
    connected_over(clean(), clean(), setup)
}

/// A connection over these links.
pub fn connected_over(to_b: Link, to_a: Link, setup: &Setup) -> (Pair, usize) {
    let mut pair = Pair::new(1, to_b, to_a);
    let qp = pair.connect(setup);
    (pair, qp)
}

/// Bytes that differ from place to place.
pub fn pattern(len: usize, seed: u64) -> Vec<u8> {
    Random::new(seed).bytes(len)
}

/// Memory that a peer may use in every way.
pub fn open_access() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// Registers `len` zero bytes on `side` for every use.
pub fn open_region(pair: &mut Pair, side: Side, len: usize) -> Region {
    pair[side].register(&vec![0; len], open_access())
}

pub fn write_to(region: &Region) -> Operation {
    Operation::Write {
        va: region.va,
        rkey: region.rkey(),
    }
}

pub fn read_from(region: &Region) -> Operation {
    Operation::Read {
        va: region.va,
        rkey: region.rkey(),
    }
}

/// Posts a signalled request of A whose list is all of `region`.
pub fn post(pair: &mut Pair, qp: usize, wr_id: u64, operation: Operation, region: &Region) {
    let wr = SendWr::new(wr_id, operation, vec![region.all()]);
    pair[Side::A].post_send(qp, wr);
}

pub fn sends(pair: &Pair, side: Side, qp: usize) -> &[Completion] {
    &pair[side].rings(qp).send_completions
}

pub fn receives(pair: &Pair, side: Side, qp: usize) -> &[Completion] {
    &pair[side].rings(qp).receive_completions
}

/// Identifier and status of completions.
pub fn outcomes(completions: &[Completion]) -> Vec<(u64, Status)> {
    completions.iter().map(|c| (c.wr_id, c.status)).collect()
}

pub fn count(pair: &Pair, side: Side, qp: usize, counter: Counter) -> u64 {
    pair[side].rings(qp).count(counter)
}

pub fn state(pair: &Pair, side: Side, qp: usize) -> QpState {
    pair[side].queue_pair(qp).state()
}

/// Packets with this opcode that queue pairs of `side` sent.
pub fn sent(pair: &Pair, side: Side, opcode: Opcode) -> usize {
    pair.trace().count(|record| {
        record.from == side
            && record.fate == Fate::Sent
            && record.headers.is_some_and(|h| h.bth.opcode == opcode)
    })
}

/// Counters that stay zero where nothing is lost, repeated or late.
pub const TROUBLE: [Counter; 16] = [
    Counter::NaksSent,
    Counter::NaksReceived,
    Counter::RnrNaksSent,
    Counter::RnrNaksReceived,
    Counter::ImpliedNaks,
    Counter::Retransmits,
    Counter::Timeouts,
    Counter::Duplicates,
    Counter::OutOfOrder,
    Counter::InvalidRequests,
    Counter::RemoteAccessErrors,
    Counter::DropBadState,
    Counter::DropBadPkey,
    Counter::DropBadQkey,
    Counter::DropMalformed,
    Counter::DropGhost,
];

/// Nothing was sent twice, refused, dropped or late on a clean connection.
pub fn assert_untroubled(pair: &Pair, qp: usize) {
    for side in Side::BOTH {
        for counter in TROUBLE {
            assert_eq!(count(pair, side, qp, counter), 0, "{side:?} {counter:?}");
        }
    }
}
