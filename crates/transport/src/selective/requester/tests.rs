use super::*;

const MS: u64 = 1_000_000;

fn at(ms: u64) -> Time {
    Time::from_nanos(ms * MS)
}

fn all(repair: &mut Repair, acked: u64) -> Vec<u64> {
    let mut found = Vec::new();
    while let Some(sequence) = repair.next(acked) {
        found.push(sequence);
        repair.sent(sequence, 1, 0, at(1));
    }
    found
}

/// A host may have thousands of them, idle.
#[test]
fn a_connection_that_loses_nothing_holds_no_bitmaps() {
    assert!(size_of::<Repair>() <= 704, "{}", size_of::<Repair>());
}

#[test]
fn what_is_missing_is_sent_again_in_order_all_around_the_window() {
    for acked in [0, 1, 63, 64, 65, 8_191, 8_192, 10_000_000_037] {
        let mut repair = Repair::new(ReorderMemory::new(1 << 20));
        let missing = [0, 1, 62, 63, 64, 200, 4_000, 8_190, 8_191];
        for ahead in missing {
            repair.note_missing(acked + ahead, acked, at(1));
        }
        assert_eq!(all(&mut repair, acked), missing.map(|ahead| acked + ahead));
        assert!(repair.is_empty());
    }
}

#[test]
fn once_in_a_round_trip() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(4), Duration::from_millis(1));
    repair.note_missing(7, 0, at(1));
    repair.sent(7, 1, 0, at(2));
    repair.note_missing(7, 0, at(6));
    assert!(repair.is_empty(), "said before it came");
    repair.note_missing(7, 0, at(7));
    assert_eq!(repair.next(0), Some(7));
}

#[test]
fn a_retransmission_before_an_arrived_one_is_lost_again() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(4), Duration::from_millis(1));
    for sequence in [7, 9, 12] {
        repair.note_missing(sequence, 0, at(1));
    }
    assert_eq!(all(&mut repair, 0), [7, 9, 12]);
    let soon = Time::from_nanos(MS + 400_000);
    repair.note_arrived(8..12, soon);
    let is_lost = repair.note_missing(7, 0, soon);
    assert!(!is_lost, "it was the first 9 that came");
    repair.note_arrived(8..12, at(4));
    assert!(repair.note_missing(7, 0, at(4)));
    assert!(!repair.note_missing(7, 0, at(4)), "that is known");
    assert!(!repair.note_missing(12, 0, at(4)), "12 may still come");
    repair.sent(7, 1, 0, at(4));
    assert!(!repair.note_missing(7, 0, at(5)), "9 was sent before it");
    assert!(repair.is_empty());
}

#[test]
fn a_request_that_is_there_says_nothing_of_another_ones_answer() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(4), Duration::from_millis(1));
    for sequence in [7, 9] {
        repair.note_missing_answer(sequence, 0, at(1));
    }
    assert_eq!(all(&mut repair, 0), [7, 9]);
    repair.note_arrived(8..12, at(4));
    assert!(!repair.note_missing_answer(7, 0, at(4)));
    assert!(repair.note_missing_answer(7, 0, at(6)));
}

#[test]
fn answers_that_arrive_in_sequence_are_not_requested_again() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(4), Duration::from_millis(1));
    repair.sent(5, 20, 0, at(1));
    repair.note_heard(7, at(5));
    repair.note_heard(9, at(9));
    assert!(!repair.note_missing_answer(10, 0, at(13)));
    assert!(
        repair.note_missing_answer(8, 0, at(13)),
        "9 has overtaken it"
    );
    assert!(repair.note_missing_answer(10, 0, at(14)));
}

#[test]
fn answers_that_come_backwards_are_no_work_each() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(4), Duration::from_millis(1));
    assert_eq!(repair.note_answered(900, 100, at(10)), 100);
    assert_eq!(repair.note_answered(901, 100, at(10)), 901);
    let looked = |sequence: u64| {
        let now = Time::from_nanos(20 * MS + (900 - sequence) * 10_000);
        sequence - repair.note_answered(sequence, 100, now)
    };
    // 6 ms, with a search in each.
    assert!(
        (300..900)
            .rev()
            .map(looked)
            .filter(|&looked| looked > 0)
            .count()
            == 6
    );
    repair.clear(100);
    assert_eq!(repair.note_answered(400, 100, at(40)), 100, "all is new");
}

#[test]
fn what_is_answered_is_not_missing() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.note_missing_answer(7, 0, at(1));
    repair.note_answered(7, 0, at(1));
    assert!(repair.is_empty());
}

#[test]
fn the_round_trip_is_measured_without_retransmissions() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.time(5, at(10));
    // Another one is in flight.
    repair.time(6, at(11));
    repair.take_timing(4, at(12));
    assert_eq!(repair.measured_rtt(), RTT_START);
    repair.take_timing(7, at(13));
    assert_eq!(repair.measured_rtt(), Duration::from_millis(3));
    repair.time(9, at(20));
    repair.sent(8, 1, 0, at(21));
    repair.take_timing(9, at(40));
    assert_eq!(repair.measured_rtt(), Duration::from_millis(3));
    repair.time(10, at(50));
    repair.take_timing(10, at(61));
    assert_eq!(repair.measured_rtt(), Duration::from_millis(4));
}

#[test]
fn what_is_acknowledged_meanwhile_is_not_sent() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    for sequence in 10..200 {
        repair.note_missing(sequence, 10, at(1));
    }
    assert_eq!(repair.next(150), Some(150));
    assert_eq!(repair.next(200), None);
    assert!(repair.is_empty());
    // The bits belong to other packets now.
    assert_eq!(repair.next(200 + 8_192), None);
}

#[test]
fn the_timer_leaves_twice_the_peers_reporting_delay() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    let ms = Duration::from_millis;
    repair.set_rtt(ms(2), ms(1));
    assert_eq!(repair.timeout_min(), ms(44));
    repair.set_rtt(ms(2), ms(41));
    assert_eq!(repair.timeout_min(), ms(86));
}

#[test]
fn probes_follow_two_silent_round_trips_and_get_rarer() {
    let mut repair = Repair::new(ReorderMemory::new(1 << 20));
    repair.set_rtt(Duration::from_millis(2), Duration::from_millis(1));
    repair.restart_probe(at(0), false);
    assert!(!repair.take_probe(at(4)));
    assert!(repair.take_probe(at(5)));
    assert_eq!(repair.probe_at(), Some(at(15)));
    assert!(repair.take_probe(at(15)));
    assert_eq!(repair.probe_at(), Some(at(35)));
    repair.restart_probe(at(20), false);
    assert_eq!(repair.probe_at(), Some(at(25)));
    repair.stop_probe();
    assert!(!repair.take_probe(at(99)));
    // A peer that knows that a report is awaited reports sooner.
    repair.set_rtt(Duration::from_millis(2), Duration::from_millis(11));
    repair.restart_probe(at(100), false);
    assert_eq!(repair.probe_at(), Some(at(115)));
    repair.restart_probe(at(100), true);
    assert_eq!(repair.probe_at(), Some(at(105)));
}
