//! How connections end.

use std::net::Ipv4Addr;

use airdma_cm::*;
use airdma_wire::cm::*;
use airdma_wire::{Gid, Qpn};

use crate::bench::*;

#[test]
fn disconnect_waits_for_the_answer_then_for_late_messages() {
    let mut b = Bench::connected();
    b.manager.disconnect(b.now, b.id, b"bye").unwrap();
    assert_eq!(b.sends(), ["DREQ us 7 0x22"]);
    assert_eq!(b.next_timer(), RESPONSE_MS);
    assert_eq!(b.sends(), ["DREQ us 7 0x22"]);
    b.arrives(b.drep());
    b.arrives(b.drep());
    assert_eq!(b.events(), ["Disconnected 224"]);
    assert_eq!(b.manager.disconnect(b.now, b.id, b""), Ok(()));
    assert_eq!(b.next_timer(), TIMEWAIT_MS);
    assert_eq!(b.events(), ["TimewaitExit"]);
    assert!(b.manager.is_idle());
    let gone = b.manager.disconnect(b.now, b.id, b"");
    assert_eq!(gone, Err(CmError::Unknown));
}

#[test]
fn who_is_disconnected_answers_at_once_and_again() {
    for mut b in [Bench::established(), Bench::connected()] {
        b.arrives(b.dreq());
        assert_eq!(b.sends(), ["DREP us 7"]);
        b.arrives(b.dreq());
        assert_eq!(b.sends(), ["DREP us 7"]);
        assert_eq!(b.events(), ["Disconnected 220"]);
        assert_eq!(b.next_timer(), TIMEWAIT_MS);
        assert_eq!(b.events(), ["TimewaitExit"]);
        assert!(b.manager.is_idle());
        // Even when the connection is no longer kept.
        b.arrives(b.dreq());
        assert_eq!(b.sends(), ["DREP us 7"]);
    }
}

#[test]
fn both_disconnect_at_once() {
    let mut b = Bench::connected();
    b.manager.disconnect(b.now, b.id, b"").unwrap();
    b.arrives(b.dreq());
    b.arrives(b.drep());
    assert_eq!(b.sends(), ["DREQ us 7 0x22", "DREP us 7"]);
    assert_eq!(b.events(), ["Disconnected 220"]);
    b.next_timer();
    assert_eq!(b.events(), ["TimewaitExit"]);
    assert!(b.manager.is_idle());
}

#[test]
fn a_silent_peer_is_disconnected_after_fifteen_repetitions() {
    let mut b = Bench::established();
    b.manager.disconnect(b.now, b.id, b"").unwrap();
    for _ in 0..15 {
        b.next_timer();
    }
    assert_eq!(b.sends().len(), 16);
    assert_eq!(b.events(), [""; 0]);
    b.next_timer();
    assert_eq!(b.events(), ["Disconnected 0"]);
    b.next_timer();
    assert_eq!(b.events(), ["TimewaitExit"]);
    assert_eq!(b.counted(Counter::GaveUp), 1);
    assert!(b.manager.is_idle());
}

#[test]
fn a_refusal_of_an_open_connection_ends_it() {
    let mut b = Bench::connected();
    b.arrives(b.rej(RejReason::TIMEOUT));
    assert_eq!(b.events(), ["Disconnected 0"]);
    let mut b = Bench::accepted();
    b.arrives(b.rej(RejReason::CONSUMER));
    assert_eq!(b.events(), ["Rejected consumer (28) 148"]);
}

#[test]
fn what_is_destroyed_tells_the_peer_and_no_one_else() {
    type Start = fn() -> Bench;
    let told: [(Start, &str); 6] = [
        (Bench::connecting, "REJ us 0 Other timeout (4)"),
        (Bench::answered, "REJ us 7 Rep consumer (28)"),
        (Bench::connected, "DREQ us 7 0x22"),
        (Bench::requested, "REJ us 7 Req consumer (28)"),
        (Bench::accepted, "REJ us 7 Other consumer (28)"),
        (Bench::established, "DREQ us 7 0x22"),
    ];
    for (start, line) in told {
        let mut b = start();
        b.manager.destroy(b.now, b.id);
        assert_eq!(b.sends(), [line]);
        b.manager.destroy(b.now, b.id);
        while b.manager.poll_timeout().is_some() {
            b.next_timer();
            b.sends();
        }
        assert_eq!(b.events(), [""; 0], "{line}");
        assert!(b.manager.is_idle(), "{line}");
    }
}

#[test]
fn strangers_cannot_touch_a_connection() {
    let stranger = Gid::from(Ipv4Addr::new(10, 0, 0, 3));
    let mut b = Bench::established();
    b.arrives_from(stranger, b.dreq());
    b.arrives_from(stranger, b.drep());
    b.arrives_from(stranger, b.rej(RejReason::CONSUMER));
    b.arrives_from(stranger, b.rtu());
    b.arrives_from(stranger, b.rep());
    b.arrives_from(stranger, b.mra(About::Rep));
    assert_eq!(b.counted(Counter::DropWrongPeer), 3);
    assert_eq!(b.counted(Counter::RejectedInvalidId), 2);
    assert_eq!(b.sends().len(), 3, "as if nobody had the id");
    let mut dreq = b.dreq();
    dreq.remote_qpn = Qpn::new(0x12);
    b.arrives(dreq);
    dreq = b.dreq();
    dreq.local_id = 8;
    b.arrives(dreq);
    let mut rej = b.rej(RejReason::CONSUMER);
    rej.local_id = 0;
    b.arrives(rej);
    assert_eq!(b.counted(Counter::DropWrongId), 3);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn a_closed_listener_refuses_what_the_program_has_not_seen() {
    let mut b = Bench::new();
    let listener = b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
    b.arrives(b.req());
    b.manager.close(b.now, listener);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.sends().len(), 1);
    b.next_timer();
    assert!(b.manager.is_idle());
}

#[test]
fn a_closed_listener_refuses_what_was_polled_and_not_taken() {
    for is_taken in [false, true] {
        let mut b = Bench::new();
        let listener = b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
        b.arrives(b.req());
        assert_eq!(b.events(), ["ConnectRequest"]);
        if is_taken {
            b.manager.taken(b.id);
        }
        let refused = b.manager.close(b.now, listener);
        let accepted = b.manager.accept(b.now, b.id, &accept());
        if is_taken {
            assert_eq!((refused, accepted), ((Vec::new(), Vec::new()), Ok(())));
            assert_eq!(b.sends(), ["REP us 7"]);
        } else {
            assert_eq!(
                (refused, accepted),
                ((vec![b.id], Vec::new()), Err(CmError::Unknown))
            );
            assert_eq!(b.sends(), ["REJ us 7 Req consumer (28)"]);
        }
    }
}

#[test]
fn what_cannot_leave_is_given_up_at_once() {
    let unsendable = |b: &mut Bench| {
        let (_, mad) = b.manager.poll_transmit().unwrap();
        b.manager.unsendable(b.now, &mad);
    };
    let mut b = Bench::new();
    b.connect();
    unsendable(&mut b);
    assert_eq!(b.events(), ["Unreachable"]);
    b.sends();
    assert!(b.manager.is_idle());

    let mut b = Bench::requested();
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    unsendable(&mut b);
    assert_eq!(b.events(), ["Unreachable"]);

    let mut b = Bench::established();
    b.manager.disconnect(b.now, b.id, &[]).unwrap();
    unsendable(&mut b);
    assert_eq!(b.events(), ["Disconnected 0"]);
    b.next_timer();
    assert_eq!(b.events(), ["TimewaitExit"]);
    assert!(b.manager.is_idle());

    // No program waits for answers to the others, nor to notices for other processes.
    let mut b = Bench::answered();
    b.manager.ready(b.id, b"").unwrap();
    unsendable(&mut b);
    b.manager.send_orphan_notice(
        b.now,
        &OrphanNotice {
            route: b.route,
            local_id: b.id.0 ^ 1,
            remote_id: PEER,
            remote_qpn: PEER_QPN,
            is_proven: true,
        },
    );
    unsendable(&mut b);
    assert_eq!(b.events(), [""; 0]);
}

#[test]
fn an_orphan_notice_is_repeated_until_it_is_answered() {
    for is_heard in [false, true] {
        let mut b = Bench::new();
        b.id = ConnectionId(0x1234_5678);
        let notice = OrphanNotice {
            route: b.route,
            local_id: b.id.0,
            remote_id: PEER,
            remote_qpn: PEER_QPN,
            is_proven: true,
        };
        b.manager.send_orphan_notice(b.now, &notice);
        b.manager.send_orphan_notice(b.now, &notice);
        let dreq = format!("DREQ us 7 {PEER_QPN}");
        assert_eq!(b.sends(), [dreq.as_str()]);
        if is_heard {
            b.arrives(b.drep());
        } else {
            for _ in 0..2 {
                assert_eq!(b.next_timer(), 1_073);
                assert_eq!(b.sends(), [dreq.as_str()]);
            }
            b.next_timer();
        }
        b.next_timer();
        assert_eq!(b.sends(), [""; 0]);
        assert_eq!(b.events(), [""; 0]);
        assert!(b.manager.is_idle());
    }
}
