//! Processes that share addresses: reads of the registry without its lock during changes under it.
//! A thread stands for a process; one thread makes all changes under the lock.

use crate::rows::{ListenerRow, MemberRow, Rounds, SeatRow, Socket};
use loom::sync::{Arc, mpsc};
use loom::thread;

/// Two addresses that differ in one of their words, as those of one interface do.
const HERE: u128 = 0xfe80 << 112 | 5;
const THERE: u128 = 0x2001 << 112 | 5;

fn socket(owner: u32) -> Socket {
    Socket {
        owner,
        place: owner as u16 + 10,
        address: if owner == 1 { HERE } else { THERE },
    }
}

#[test]
fn who_sees_the_owner_of_a_socket_sees_where_it_is() {
    loom::model(|| {
        let row = Arc::new(SeatRow::default());
        let changed = Arc::clone(&row);
        let changer = thread::spawn(move || {
            changed.enter(socket(1));
            changed.clear();
            changed.enter(socket(2));
        });
        let seen = row.read();
        // The content may be the second owner's by now.
        if seen.is_some_and(|seen| seen.owner == 2) {
            assert_eq!(seen, Some(socket(2)));
        }
        changer.join().unwrap();
        assert_eq!(row.read(), Some(socket(2)));
    });
}

/// The number of a dead process with a connection manager is given to one without.
#[test]
fn a_reader_of_a_socket_knows_if_its_owner_has_a_manager() {
    loom::model(|| {
        let rows = Arc::new((MemberRow::default(), SeatRow::default()));
        rows.0.take();
        rows.0.manage();
        let changed = Arc::clone(&rows);
        let changer = thread::spawn(move || {
            changed.0.give_back();
            changed.0.take();
            changed.1.enter(socket(1));
        });
        if rows.1.read().is_some() {
            assert!(!rows.0.manages());
        }
        changer.join().unwrap();
    });
}

#[test]
fn who_sees_the_owner_of_a_listener_sees_what_it_listens_to() {
    loom::model(|| {
        let row = Arc::new(ListenerRow::default());
        row.enter(1, 7, HERE);
        row.close(1, 7, HERE);
        let changed = Arc::clone(&row);
        let changer = thread::spawn(move || changed.enter(2, 9, THERE));
        if let Some(seen) = row.read() {
            assert_eq!(seen.is_closed, seen.owner == 1);
            if seen.owner == 2 {
                assert_eq!((seen.service, seen.address), (9, THERE));
            }
        }
        changer.join().unwrap();
    });
}

/// A process closes a listener, and reads a row that it closed before and that gets another owner
/// at this moment: half of its content matches.
/// what it reads there is what it looks for.
#[test]
fn who_closes_a_listener_closes_none_but_its_own() {
    loom::model(|| {
        let rows = Arc::new([ListenerRow::default(), ListenerRow::default()]);
        rows[0].enter(1, 7, HERE);
        rows[0].close(1, 7, HERE);
        rows[1].enter(1, 9, HERE);
        let theirs = Arc::clone(&rows);
        let other = thread::spawn(move || theirs[0].enter(2, 9, THERE));
        for row in &*rows {
            row.close(1, 9, HERE);
        }
        other.join().unwrap();
        let [given, closed] = [&rows[0], &rows[1]].map(|row| row.read().unwrap());
        assert!(given.owner == 2 && !given.is_closed);
        assert!(closed.owner == 1 && closed.is_closed);
    });
}

/// A process answers the probe of a round while one of the previous round comes late. The reader is
/// the spawned thread, because loom tries all values of a load that it runs last, and not of one
/// that it runs first.
fn probes(come: [(u64, u16); 2]) {
    loom::model(move || {
        let shared = Arc::new((Rounds::default(), SeatRow::default()));
        shared.0.start();
        shared.1.enter(socket(1));
        let (send, probes) = mpsc::channel();
        let asking = Arc::clone(&shared);
        let asker = thread::spawn(move || {
            assert_eq!(asking.0.next(), 2);
            send.send(()).unwrap();
            assert!(asking.1.answer(2).is_none_or(|place| place == 3));
        });
        for (epoch, place) in come {
            // The probe of the second round comes after that has begun.
            if epoch == 2 {
                probes.recv().unwrap();
            }
            shared.1.probed(&shared.0, epoch, place);
        }
        asker.join().unwrap();
        assert_eq!(shared.1.answer(2), Some(3));
    });
}

#[test]
fn an_answer_of_another_round_is_none() {
    probes([(1, 5), (2, 3)]);
}

#[test]
fn an_answer_is_not_undone_by_a_probe_that_comes_late() {
    probes([(2, 3), (1, 5)]);
}

#[test]
fn the_lowest_place_of_a_round_is_the_true_one() {
    loom::model(|| {
        let shared = Arc::new((Rounds::default(), SeatRow::default()));
        shared.0.start();
        shared.1.enter(socket(1));
        let asking = Arc::clone(&shared);
        let asker = thread::spawn(move || {
            assert!(asking.1.answer(1).is_none_or(|place| place == 3));
        });
        for place in [3, 8] {
            shared.1.probed(&shared.0, 1, place);
        }
        asker.join().unwrap();
        assert_eq!(shared.1.answer(1), Some(3));
    });
}
