//! A program that reads slower than the line delivers, and reports the length of its buffer.

use crate::common::*;
use crate::rate::{line, wires};
use crate::wires::Wires;
use airdma_engine::*;
use airdma_transport::rate::Feedback;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
/// Bytes that the program takes at a time, of messages of this length: 4 MB/s of the line's 12.5.
const PIECE: usize = 64 * 1024;
const TAKES: u32 = 16;
/// Capacity of its buffer, in pieces.
const PIECES_MAX: u64 = 32;
const RECEIVES: u64 = 400;

struct Program {
    left: End,
    right: End,
    /// Whether it reports its buffer.
    tells: bool,
    /// Pieces in flight, waiting ones, the most that ever waited, and those taken.
    under_way: u32,
    waiting: u64,
    most: u64,
    taken: u64,
    /// Sum of the bytes in the line's queue at each sample, and number of samples.
    queued: (usize, usize),
    /// Until it takes the next piece.
    ms_left: u32,
}

impl Program {
    fn new(wires: &Wires, tells: bool) -> Self {
        let caps = QpCaps {
            max_recv_wr: RECEIVES as u32,
            ..CAPS
        };
        let [left, right] = (wires.hosts.each_ref())
            .map(|host| End::with_caps(host.device.device(), QpType::Rc, PIECE, caps));
        left.connect(&right);
        right.connect(&left);
        for receive in 0..RECEIVES {
            right.recv(receive, 0, PIECE);
        }
        Program {
            left,
            right,
            tells,
            under_way: 0,
            waiting: 0,
            most: 0,
            taken: 0,
            queued: (0, 0),
            ms_left: 0,
        }
    }

    /// The left host sends as fast as it can, and the program takes pieces if `takes`. Returns the
    /// number taken.
    fn run(&mut self, wires: &mut Wires, time: Duration, takes: bool) -> u64 {
        let before = self.taken;
        for _ in 0..time.as_millis() {
            while let Some(sent) = self.left.try_complete() {
                assert_eq!(sent.status, Status::Success);
                self.under_way -= 1;
            }
            while self.under_way < 4 {
                self.left.send(Operation::Send, 0, PIECE);
                self.under_way += 1;
            }
            while let Some(received) = self.right.try_complete() {
                self.right.recv(received.wr_id, 0, PIECE);
                self.waiting += 1;
            }
            self.most = self.most.max(self.waiting);
            self.ms_left = self.ms_left.saturating_sub(1);
            if takes && self.ms_left == 0 && self.waiting > 0 {
                (self.waiting, self.taken) = (self.waiting - 1, self.taken + 1);
                self.ms_left = TAKES;
            }
            if self.tells {
                let piece = PIECE as u64;
                let qp = &self.right.qp;
                qp.set_application_buffer(self.waiting * piece, PIECES_MAX * piece);
            }
            wires.quietly(MS);
            if let Some(line) = &wires.line {
                self.queued = (self.queued.0 + line.waiting(), self.queued.1 + 1);
            }
        }
        self.taken - before
    }

    /// Mean bytes in the line's queue since the last call.
    fn mean_queue(&mut self) -> usize {
        let (bytes, looks) = std::mem::take(&mut self.queued);
        bytes / looks
    }
}

/// Pieces that the program takes in this time if it never waits.
fn pieces_in(time: Duration) -> f64 {
    time.as_millis() as f64 / f64::from(TAKES)
}

#[test]
fn a_reporting_program_sets_the_rate_and_keeps_the_queue_short() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, true);
    program.run(&mut wires, 500 * MS, true);
    program.mean_queue();
    wires.line.as_mut().unwrap().carried = 0;
    let taken = program.run(&mut wires, 2000 * MS, true);
    let share = taken as f64 / pieces_in(2000 * MS);
    assert!(share > 0.97, "it always has something to take: {share}");
    assert!(program.most <= PIECES_MAX, "{} waited", program.most);
    let line = wires.line.unwrap();
    let carried = line.carried as f64 / (taken as usize * PIECE) as f64;
    assert!((0.9..1.2).contains(&carried), "{carried} of what is taken");
    // A quarter at most of the queue without reports (below).
    let queue = program.mean_queue();
    assert!(queue < 10_000, "{queue} bytes in the queue");
}

#[test]
fn a_program_without_reports_gets_the_lines_rate() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, false);
    program.run(&mut wires, 500 * MS, true);
    program.mean_queue();
    program.run(&mut wires, 500 * MS, true);
    assert!(program.most > 2 * PIECES_MAX, "{} waited", program.most);
    let queue = program.mean_queue();
    assert!(queue > 40_000, "{queue} bytes in the queue");
}

#[test]
fn a_stopped_program_stops_the_sender_until_it_continues() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, true);
    program.run(&mut wires, 500 * MS, true);
    program.run(&mut wires, 200 * MS, false);
    let before = wires.line.as_ref().unwrap().carried;
    program.run(&mut wires, 2000 * MS, false);
    // Now and then it is probed.
    let carried = wires.line.as_ref().unwrap().carried - before;
    assert!(carried < 160 * 1024, "{carried} bytes meanwhile");
    assert!(program.most <= PIECES_MAX, "{} waited", program.most);
    let taken = program.run(&mut wires, 1000 * MS, true);
    let share = taken as f64 / pieces_in(1000 * MS);
    assert!(share > 0.97, "{share}");
}

#[test]
fn a_stopped_program_delays_no_small_messages_of_others() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, true);
    let [left, right] = (wires.hosts.each_ref())
        .map(|host| End::with_caps(host.device.device(), QpType::Rc, PIECE, CAPS));
    left.connect(&right);
    right.connect(&left);
    program.run(&mut wires, 500 * MS, true);
    program.run(&mut wires, 400 * MS, false);
    let before = wires.line.as_ref().unwrap().carried;
    let mut late = 0;
    for message in 0..40 {
        right.recv(0, 0, PIECE);
        // The longer ones are as long as is admitted at once.
        let length = if message % 4 == 0 { 4120 } else { 64 };
        left.send(Operation::Send, 0, length);
        program.run(&mut wires, 5 * MS, false);
        late += usize::from(right.try_complete().is_none());
        program.run(&mut wires, 25 * MS, false);
        while left.try_complete().is_some() {}
    }
    assert_eq!(late, 0, "of 40");
    let carried = wires.line.as_ref().unwrap().carried - before;
    assert!(carried < 160 * 1024, "{carried} bytes meanwhile");
}

#[test]
fn many_small_messages_do_not_wait_for_a_stopped_program() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, true);
    let others: Vec<_> = (0..64)
        .map(|_| {
            let [left, right] = (wires.hosts.each_ref())
                .map(|host| End::with_caps(host.device.device(), QpType::Rc, PIECE, CAPS));
            left.connect(&right);
            right.connect(&left);
            right.recv(0, 0, PIECE);
            [left, right]
        })
        .collect();
    program.run(&mut wires, 500 * MS, true);
    program.run(&mut wires, 400 * MS, false);
    for [left, _] in &others {
        left.send(Operation::Send, 0, 1000);
    }
    program.run(&mut wires, 40 * MS, false);
    let came = others
        .iter()
        .filter(|[_, right]| right.try_complete().is_some());
    assert_eq!(came.count(), others.len());
}

#[test]
fn a_program_that_withdraws_its_buffer_gets_the_lines_rate() {
    let mut wires = wires(RateControl::Buffers, line(true));
    let mut program = Program::new(&wires, true);
    program.run(&mut wires, 500 * MS, true);
    program.tells = false;
    program.right.qp.set_application_buffer(0, 0);
    // As soon as some reports have shown it.
    program.run(&mut wires, 5 * Feedback::INTERVAL, true);
    let before = wires.line.as_ref().unwrap().carried;
    program.run(&mut wires, 400 * MS, true);
    let carried = wires.line.unwrap().carried - before;
    assert!(carried as f64 > 0.95 * 12_500_000.0 * 0.4, "{carried}");
}

#[test]
fn without_rate_control_by_buffers_no_packet_is_different() {
    for control in [None, Some(RateControl::Window)] {
        let sent = [true, false].map(|tells| {
            let mut wires = Wires::with([control; 2], 64);
            wires.quietly(5 * MS);
            wires.line = Some(line(true));
            let mut program = Program::new(&wires, tells);
            program.run(&mut wires, 300 * MS, true);
            wires.sent
        });
        assert!(!sent[0].is_empty() && sent[0] == sent[1], "{control:?}");
    }
}
