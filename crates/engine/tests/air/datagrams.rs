//! Datagrams beside a connection, on a line slower than the hosts.

use crate::common::*;
use crate::rate::{line, pair, saturate, wires};
use crate::wires::{Wires, reset};
use airdma_engine::*;
use std::sync::Arc;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const QKEY: Qkey = Qkey(0x1234);
/// Bytes of the line in a millisecond.
const BYTES_PER_MS: usize = 12_500;
const RECORD: usize = 100_000;
const SEND: usize = 1000;
const LEARNS_MS: usize = 200;
const MEASURED_MS: usize = 400;
const BYTES: usize = 1 << 20;

/// Datagram queue pairs of both hosts.
struct Datagrams {
    from: End,
    to: End,
    region: Arc<Mr>,
    under_way: u32,
}

impl Datagrams {
    fn new(wires: &Wires) -> Self {
        let [from, to] =
            (wires.hosts.each_ref()).map(|host| End::new(host.device.device(), QpType::Ud, BYTES));
        datagram_to_rts(&from.qp, QKEY);
        datagram_to_rts(&to.qp, QKEY);
        to.qp.enable_records(RecordConfig::default()).unwrap();
        let region = to.pd.reg_record_mr(to.memory.address(), BYTES, None);
        Datagrams {
            from,
            to,
            region: region.unwrap(),
            under_way: 0,
        }
    }

    /// Keeps requests of this kind posted, and takes what arrives.
    fn keep_busy(&mut self, operation: Operation) {
        while self.from.try_complete().is_some() {
            self.under_way -= 1;
        }
        let is_send = matches!(operation, Operation::Send);
        let length = if is_send { SEND } else { RECORD };
        while self.under_way < 16 {
            let mut wr = signalled(operation, self.from.memory.sge(0, length));
            wr.datagram = Some(Datagram {
                path: self.to.path(),
                qpn: self.to.qp.number(),
                qkey: QKEY,
            });
            self.from.qp.post_send(&wr).unwrap();
            self.under_way += 1;
        }
        while let Some(completion) = self.to.try_complete() {
            self.to.qp.free_record(RecordHandle(completion.wr_id));
        }
    }

    fn record(&self) -> Operation {
        Operation::Record {
            va: self.to.memory.address(),
            rkey: self.region.rkey(),
        }
    }

    /// Bytes that the left host has sent to it.
    fn sent(&self, wires: &Wires) -> usize {
        let number = self.to.qp.number().get().to_be_bytes();
        let is_to = |(from, bytes): &&(usize, Vec<u8>)| *from == 0 && bytes[5..8] == number[1..];
        let sent = wires.sent.iter().filter(is_to);
        sent.map(|(_, bytes)| bytes.len()).sum()
    }
}

/// Datagrams, and a connection that has much to send or nothing: the share of the line that is used
/// and that of the datagrams, the longest queue in ms, and the drops.
fn beside(has_much: bool, records: bool) -> (f64, f64, usize, usize) {
    let mut wires = wires(RateControl::Buffers, line(true));
    let (left, right) = pair(&wires);
    let mut writes = 0;
    let mut datagrams = Datagrams::new(&wires);
    let operation = if records {
        datagrams.record()
    } else {
        Operation::Send
    };
    let (mut carried, mut before) = (0, 0);
    for ms in 0..LEARNS_MS + MEASURED_MS {
        if ms == LEARNS_MS {
            before = datagrams.sent(&wires);
            let line = wires.line.as_mut().unwrap();
            (line.longest, line.dropped) = (0, 0);
            carried = line.carried;
        }
        datagrams.keep_busy(operation);
        while let Some(completion) = left.try_complete() {
            assert_eq!(completion.status, Status::Success);
            writes -= 1;
        }
        while has_much && writes < 4 {
            left.qp.post_send(&left.write(&right, 0, RECORD)).unwrap();
            writes += 1;
        }
        wires.quietly(MS);
    }
    let of_line = |bytes: usize| bytes as f64 / (MEASURED_MS * BYTES_PER_MS) as f64;
    let share = of_line(datagrams.sent(&wires) - before);
    let line = wires.line.unwrap();
    (
        of_line(line.carried - carried),
        share,
        line.longest / BYTES_PER_MS,
        line.dropped,
    )
}

#[test]
fn records_beside_a_connection_do_not_overfill_the_queue() {
    let (used, share, longest_ms, dropped) = beside(true, true);
    assert_eq!(dropped, 0);
    assert!(longest_ms < 12, "{longest_ms} ms");
    assert!(used > 0.9, "{used}");
    assert!((0.3..0.7).contains(&share), "{share}");
}

#[test]
fn sends_beside_a_connection_do_not_overfill_the_queue() {
    let (used, share, longest_ms, dropped) = beside(true, false);
    assert_eq!(dropped, 0);
    assert!(longest_ms < 12, "{longest_ms} ms");
    assert!(used > 0.9, "{used}");
    assert!(share > 0.1, "{share}");
}

#[test]
fn datagrams_alone_fill_the_line_and_not_the_queue() {
    for records in [true, false] {
        let (used, _, longest_ms, dropped) = beside(false, records);
        assert_eq!(dropped, 0);
        assert!(longest_ms < 12, "{longest_ms} ms");
        assert!(used > 0.85, "{used}");
    }
}

#[test]
fn without_a_connection_datagrams_wait_for_no_pacer() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut datagrams = Datagrams::new(&wires);
    for _ in 0..20 {
        datagrams.keep_busy(Operation::Send);
        wires.quietly(MS);
    }
    // They wait for the pacer, since there is always more to send.
    assert!(wires.hosts[0].device.inventory().waiting > 0);
    for end in &wires.ends {
        reset(end);
    }
    wires.quietly(20 * MS);
    while datagrams.from.try_complete().is_some() {
        datagrams.under_way -= 1;
    }
    assert_eq!(datagrams.under_way, 0);
}

#[test]
fn a_datagram_queue_pair_that_is_gone_takes_no_turn() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let (left, right) = pair(&wires);
    let mut datagrams = Datagrams::new(&wires);
    saturate(&mut wires, &[(&left, &right)], 20 * MS);
    for _ in 0..20 {
        datagrams.keep_busy(datagrams.record());
        wires.quietly(MS);
    }
    datagrams.from.qp.destroy().unwrap();
    let used = saturate(&mut wires, &[(&left, &right)], 200 * MS);
    assert!(used > 0.9, "{used}");
}

/// Room in the window of a host is of no use to a queue pair that has nothing more to send there.
#[test]
fn room_that_a_queue_pair_does_not_need_is_passed_on() {
    let mut wires = Wires::with([None; 2], BYTES);
    // Answers come after 4 ms.
    wires.away = 20;
    let datagrams = Datagrams::new(&wires);
    let sources = [(); 42].map(|()| {
        let end = End::new(wires.hosts[0].device.device(), QpType::Ud, BYTES);
        datagram_to_rts(&end.qp, QKEY);
        end
    });
    let post = |source: &End, length| {
        let mut wr = signalled(datagrams.record(), source.memory.sge(0, length));
        wr.datagram = Some(Datagram {
            path: datagrams.to.path(),
            qpn: datagrams.to.qp.number(),
            qkey: QKEY,
        });
        source.qp.post_send(&wr).unwrap();
    };
    let [first, others @ .., last] = &sources;
    post(first, RECORD);
    wires.quietly(MS / 10);
    for source in others {
        post(source, SEND);
    }
    wires.quietly(MS / 10);
    post(last, SEND);
    wires.quietly(MS / 10);
    for source in others {
        reset(source);
    }
    // Long before silence would let all of them go.
    wires.quietly(9 * MS);
    assert!(first.try_complete().is_some());
    assert!(last.try_complete().is_some());
}
