//! What a target remembers of its sources, and how they share its entries.

use super::*;

#[test]
fn the_last_numbers_of_a_source_are_remembered() {
    let mut t = Target::small();
    for id in 0..70 {
        t.takes_all(&message(id));
        assert_eq!(t.told().len(), 1);
    }
    for id in 0..70 {
        t.takes_all(&message(id));
    }
    assert_eq!(t.told(), [""; 0], "neither those in the window nor older");
    assert_eq!(t.counted(Counter::DropRecordLate), 70 * 4);
}

#[test]
fn a_number_that_was_skipped_may_still_come() {
    let mut t = Target::small();
    for id in [u32::MAX - 1, 3, 1, u32::MAX] {
        t.takes_all(&message(id));
    }
    assert_eq!(t.told().len(), 4);
    t.takes_all(&message(1_000_000));
    assert_eq!(t.told().len(), 1);
    t.takes_all(&message(2));
    assert_eq!(t.told().len(), 1, "a jump takes nothing from the others");
    t.takes_all(&message(1 << 31));
    assert_eq!(t.told(), [""; 0], "too far ahead");
}

#[test]
fn what_was_forgotten_and_all_before_it_is_late() {
    let mut t = Target::small();
    for id in 0..40 {
        t.takes_all(&message(100 + 2 * id));
        assert_eq!(t.told().len(), 1);
    }
    // 32 are remembered: the last of the others is 114.
    for late in [101, 113, 114] {
        t.takes_all(&message(late));
        assert_eq!(t.told(), [""; 0], "{late}");
    }
    for id in [115, 177] {
        t.takes_all(&message(id));
        assert_eq!(t.told().len(), 1, "{id}");
    }
}

#[test]
fn a_new_instance_of_a_source_numbers_from_zero() {
    let mut t = Target::small();
    for id in 0..3 {
        t.takes_all(&message(id));
    }
    assert_eq!(t.told().len(), 3);
    let again = Message {
        instance: 2,
        ..message(0)
    };
    t.takes_all(&again);
    assert_eq!(t.told(), ["0 Whole 14 [0..14]"]);
}

#[test]
fn sources_are_told_apart_by_address_and_queue_pair() {
    let mut t = Target::small();
    let one = message(0);
    let other = Message { host: 3, ..one };
    let third = Message { qpn: 0x23, ..one };
    for unit in 0..4 {
        for message in [&one, &other, &third] {
            t.takes(message, unit);
        }
    }
    assert_eq!(t.told().len(), 3);
}

#[test]
fn a_source_that_opens_without_end_displaces_its_own() {
    let mut t = Target::small();
    let other = Message {
        host: 3,
        ..message(9)
    };
    t.takes(&other, 0);
    for id in 0..6 {
        t.takes(&message(id), 0);
    }
    let told = t.told();
    assert_eq!(told.len(), 1, "the share of its address is used then");
    assert_eq!(told[0], "0 Displaced 4 [0..4]");
    for unit in 1..4 {
        t.takes(&other, unit);
    }
    assert_eq!(t.told(), ["9 Whole 14 [0..14]"]);
}

#[test]
fn records_that_are_not_freed_cost_only_their_source() {
    let mut t = Target::small();
    for id in 0..10 {
        t.takes_all(&message(id));
    }
    let kept: Vec<_> = std::iter::from_fn(|| t.next()).collect();
    assert_eq!(kept.len(), 4, "half of the entries");
    assert_eq!(t.counted(Counter::DropRecordFull), 6 * 4);
    let other = Message {
        host: 3,
        ..message(0)
    };
    t.takes_all(&other);
    assert_eq!(t.told().len(), 1);
    assert!(t.records.free(kept[0]));
    t.takes_all(&message(20));
    assert_eq!(t.told(), ["20 Whole 14 [0..14]"]);
}

#[test]
fn without_a_free_entry_packets_are_dropped_and_none_is_lost() {
    let mut t = Target::small();
    for host in 2..10 {
        let one = Message { host, ..message(0) };
        t.takes_all(&one);
    }
    let kept: Vec<_> = std::iter::from_fn(|| t.next()).collect();
    assert_eq!(kept.len(), 8);
    let late = Message {
        host: 20,
        ..message(0)
    };
    t.takes_all(&late);
    assert_eq!(t.counted(Counter::DropRecordFull), 4);
    assert!(
        kept.iter()
            .all(|&handle| t.records.record(handle).is_some())
    );
}

#[test]
fn sources_beyond_the_table_replace_those_of_long_ago() {
    let mut t = Target::small();
    for qpn in 0..100 {
        t.takes_all(&Message { qpn, ..message(0) });
        assert_eq!(t.told().len(), 1);
    }
    t.takes_all(&Message {
        qpn: 99,
        ..message(0)
    });
    assert_eq!(t.counted(Counter::DropRecordLate), 4, "still remembered");
}
