//! Cost of impairments: retransmitted packets, and waits for the timer.

use airdma_sim::{Link, Pair, SendWr, Setup, Side};
use airdma_transport::{Counter, Time};
use airdma_wire::PathMtu;

use crate::scene::{
    clean, connected_over, count, ms, open_access, pattern, post, read_from, us, write_to,
};

const MESSAGE_BYTES: usize = 64 << 10;
const MESSAGES: u64 = 32;
const WINDOW_BYTES: u32 = 128 << 10;

/// Packets of data without any loss.
const PACKETS: u64 = MESSAGES * MESSAGE_BYTES as u64 / PathMtu::M1024.bytes() as u64;

/// Packets in a window, and the piece of a READ that it may be exceeded by.
const WINDOW_PACKETS: u64 = (WINDOW_BYTES as u64 + (64 << 10)) / PathMtu::M1024.bytes() as u64;

struct Cost {
    /// Packets that the sender of the data sent.
    sent: u64,
    /// Packets that were dropped or held back, both ways.
    disturbed: u64,
    timeouts: u64,
    end: Time,
}

/// Moves 2 MiB by WRITE or READ.
fn transfer(read: bool, link: impl Fn() -> Link) -> Cost {
    let (mut pair, qp) = connected_over(link(), link(), &Setup::default());
    pair[Side::A].window_bytes = WINDOW_BYTES;
    let data = pattern(MESSAGE_BYTES, 1);
    let near = pair[Side::A].register(&data, open_access());
    let far = pair[Side::B].register(&data, open_access());
    for wr_id in 0..MESSAGES {
        let operation = if read {
            read_from(&far)
        } else {
            write_to(&far)
        };
        post(&mut pair, qp, wr_id, operation, &near);
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    let sender = if read { Side::B } else { Side::A };
    let disturbed = Side::BOTH.map(|side| {
        let counters = pair.link(side).counters();
        counters.dropped + counters.held_back
    });
    Cost {
        sent: pair[sender].port_counters().sent,
        disturbed: disturbed.iter().sum(),
        timeouts: count(&pair, Side::A, qp, Counter::Timeouts),
        end: pair.now(),
    }
}

#[test]
fn a_clean_or_doubling_link_repeats_nothing_and_is_filled() {
    for read in [false, true] {
        for chance in [0.0, 0.1] {
            let cost = transfer(read, || clean().duplicate(chance));
            assert_eq!(cost.sent, PACKETS);
            assert_eq!(cost.timeouts, 0);
            // 2 MiB at 10 Gb/s take 1.68 ms; headers and the delay are the rest.
            assert!(cost.end < Time::ZERO + us(1_900), "{:?}", cost.end);
        }
    }
}

#[test]
fn a_loss_costs_a_window_and_rarely_a_timeout() {
    for read in [false, true] {
        for chance in [0.001, 0.01, 0.03] {
            let cost = transfer(read, || clean().drop(chance));
            assert!(cost.disturbed > 0);
            assert!(cost.sent <= PACKETS + cost.disturbed * WINDOW_PACKETS);
            assert!(cost.timeouts <= 1 + cost.disturbed / 10);
            assert!(cost.end < Time::ZERO + ms(20), "{:?}", cost.end);
        }
    }
}

#[test]
fn a_reordering_costs_a_window_and_never_a_timeout() {
    for read in [false, true] {
        for chance in [0.001, 0.01] {
            let cost = transfer(read, || clean().reorder(chance));
            assert!(cost.disturbed > 0);
            assert!(cost.sent <= PACKETS + cost.disturbed * WINDOW_PACKETS);
            assert_eq!(cost.timeouts, 0);
        }
    }
}

/// Moves 4 MiB by unsignalled WRITEs of several queue pairs that share one window.
fn shared_transfer(queue_pairs: u64) -> Time {
    let mut pair = Pair::new(1, clean(), clean());
    pair[Side::A].window_bytes = 256 << 10;
    let data = pattern(4096, 1);
    let near = pair[Side::A].register(&data, open_access());
    let far = pair[Side::B].register(&data, open_access());
    let requests = 1024 / queue_pairs;
    for _ in 0..queue_pairs {
        let qp = pair.connect(&Setup::default());
        for wr_id in 0..requests {
            let wr = SendWr::new(wr_id, write_to(&far), vec![near.all()]);
            pair[Side::A].post_send(qp, wr.signalled_if(wr_id == requests - 1));
        }
    }
    pair.run_until_idle();
    pair.assert_nothing_left();
    pair.now()
}

/// Bytes that one queue pair has in flight without a requested acknowledgement are not available to
/// the others.
#[test]
fn sixteen_queue_pairs_fill_the_link_as_well_as_one() {
    let (one, sixteen) = (shared_transfer(1), shared_transfer(16));
    assert!(
        sixteen.as_nanos() < one.as_nanos() * 11 / 10,
        "{one:?} {sixteen:?}"
    );
}
