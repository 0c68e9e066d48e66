//! Batches of requests are posted as a whole or not at all.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;

fn write(peer: &End, offset: usize) -> Operation {
    Operation::Write {
        va: peer.memory.address() + offset as u64,
        rkey: peer.memory.mr.rkey(),
    }
}

fn datagram(peer: &End) -> Datagram {
    Datagram {
        path: peer.path(),
        qpn: peer.qp.number(),
        qkey: Qkey(0),
    }
}

#[test]
fn a_batch_does_what_its_requests_say_in_their_order() {
    let (left, right) = pair(256);
    left.memory.fill(0, b"from a list");
    right.recv(7, 100, 16);
    let mut batch = left.qp.begin_batch();
    batch.begin(1, write(&right, 0), SendFlags::SIGNALLED);
    batch.set_sges(&[left.memory.sge(0, 4), left.memory.sge(4, 7)]);
    batch.begin(2, write(&right, 32), SendFlags::SIGNALLED);
    {
        let mut text = *b"copied at once";
        batch.set_inline([&text[..6], &text[6..]]);
        text.fill(0);
    }
    batch.begin(3, Operation::SendImm([9; 4]), SendFlags::SIGNALLED);
    assert_eq!(left.cq.poll(1, |_| ()).unwrap(), 0, "nothing is posted yet");
    batch.commit().unwrap();
    assert_eq!(
        [left.ok().wr_id, left.ok().wr_id, left.ok().wr_id],
        [1, 2, 3]
    );
    assert_eq!(right.ok().imm, Some([9; 4]));
    assert_eq!(right.memory.bytes(0, 11), b"from a list");
    assert_eq!(right.memory.bytes(32, 14), b"copied at once");
}

#[test]
fn a_batch_with_a_mistake_leaves_nothing() {
    let (left, right) = pair(256);
    left.memory.fill(0, &[1; 64]);
    let long = [0u8; 4096];
    let five = [left.memory.sge(0, 1); 5];
    type Mistake<'a> = &'a dyn Fn(&mut SendBatch<'_>);
    let mistakes: [(Mistake<'_>, i32); 5] = [
        (&|batch| batch.set_sges(&five), libc::EINVAL),
        (&|batch| batch.set_inline([&long[..]]), libc::ENOMEM),
        (&|batch| batch.set_datagram(datagram(&right)), libc::EINVAL),
        (
            &|batch| batch.fail(Error::Unsupported("on purpose")),
            libc::EOPNOTSUPP,
        ),
        (
            &|batch| {
                batch.begin(
                    9,
                    Operation::FetchAdd {
                        va: 0,
                        rkey: Rkey(0),
                        add: 1,
                    },
                    SendFlags::empty(),
                )
            },
            libc::EINVAL,
        ),
    ];
    for (mistake, errno) in mistakes {
        let mut batch = left.qp.begin_batch();
        batch.begin(1, write(&right, 0), SendFlags::SIGNALLED);
        batch.set_sges(&[left.memory.sge(0, 8)]);
        batch.begin(2, write(&right, 8), SendFlags::SIGNALLED);
        mistake(&mut batch);
        batch.begin(3, write(&right, 16), SendFlags::SIGNALLED);
        assert_eq!(batch.commit().unwrap_err().errno(), errno);
    }
    // Data before any request, and an aborted batch.
    let mut batch = left.qp.begin_batch();
    batch.set_sges(&[]);
    assert_eq!(batch.commit().unwrap_err().errno(), libc::EINVAL);
    let mut batch = left.qp.begin_batch();
    batch.begin(4, write(&right, 0), SendFlags::SIGNALLED);
    batch.set_sges(&[left.memory.sge(0, 8)]);
    drop(batch);

    left.qp
        .post_send(&SendWr {
            wr_id: 5,
            ..left.write(&right, 40, 8)
        })
        .unwrap();
    assert_eq!(left.ok().wr_id, 5, "the first completion");
    assert_eq!(right.memory.bytes(0, 32), [0; 32]);
}

#[test]
fn an_oversized_batch_is_refused_and_the_queue_stays_usable() {
    let (left, right) = pair(64);
    let room = left.qp.caps().max_send_wr;
    let mut batch = left.qp.begin_batch();
    for id in 0..=u64::from(room) {
        batch.begin(id, write(&right, 0), SendFlags::SIGNALLED);
    }
    assert_eq!(batch.commit().unwrap_err().errno(), libc::ENOMEM);
    let mut batch = left.qp.begin_batch();
    for id in 0..u64::from(room) {
        batch.begin(id, write(&right, 0), SendFlags::SIGNALLED);
    }
    batch.commit().unwrap();
    for id in 0..u64::from(room) {
        assert_eq!(left.ok().wr_id, id);
    }
}

#[test]
fn other_threads_post_before_or_after_a_batch_never_within() {
    let (left, right) = pair(64);
    let mut batch = left.qp.begin_batch();
    batch.begin(1, write(&right, 0), SendFlags::SIGNALLED);
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let wr = left.write(&right, 0, 8);
            left.qp.post_send(&SendWr { wr_id: 3, ..wr }).unwrap();
        });
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!other.is_finished());
        batch.begin(2, write(&right, 0), SendFlags::SIGNALLED);
        batch.commit().unwrap();
    });
    assert_eq!(
        [left.ok().wr_id, left.ok().wr_id, left.ok().wr_id],
        [1, 2, 3]
    );
}

#[test]
fn completions_are_stamped_where_that_was_asked_for() {
    let (left, right) = wired();
    for timestamps in [false, true] {
        let pd = left.alloc_pd().unwrap();
        let options = CqOptions {
            timestamps,
            ..CqOptions::default()
        };
        let cq = left.create_cq_with(16, None, options).unwrap();
        let (qp, peer) = (
            create_qp(&pd, &cq, QpType::Rc, CAPS),
            End::new(&right, QpType::Rc, 64),
        );
        connect(&qp, peer.qp.number(), peer.path());
        let path = Path {
            gid: left.info().gids[0].gid,
            hop_limit: 64,
            ..Path::default()
        };
        connect(&peer.qp, qp.number(), path);
        let before = monotonic();
        let wr = SendWr {
            sges: &[],
            ..peer.write(&peer, 0, 0)
        };
        qp.post_send(&wr).unwrap();
        let mut stamps = Vec::new();
        while stamps.is_empty() {
            peer.cq.poll(1, |_| ()).unwrap();
            cq.poll_stamped(1, |done, stamp| {
                assert_eq!(done.status, Status::Success);
                stamps.push(stamp);
            })
            .unwrap();
        }
        let within = (before..=monotonic()).contains(&stamps[0]);
        assert_eq!((within, stamps[0] == 0), (timestamps, !timestamps));
    }
}

#[test]
fn an_ignored_overrun_only_loses_completions() {
    let (left, right) = wired();
    let pd = left.alloc_pd().unwrap();
    let options = CqOptions {
        ignore_overrun: true,
        ..CqOptions::default()
    };
    let cq = left.create_cq_with(2, None, options).unwrap();
    let (qp, peer) = (
        create_qp(&pd, &cq, QpType::Rc, CAPS),
        End::new(&right, QpType::Rc, 64),
    );
    connect(&qp, peer.qp.number(), peer.path());
    let path = Path {
        gid: left.info().gids[0].gid,
        hop_limit: 64,
        ..Path::default()
    };
    connect(&peer.qp, qp.number(), path);
    for wr_id in 0..8 {
        let wr = SendWr {
            wr_id,
            sges: &[],
            ..peer.write(&peer, 0, 0)
        };
        qp.post_send(&wr).unwrap();
    }
    // Both progress threads do the rest, without polls.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let mut seen = Vec::new();
    for _ in 0..100 {
        cq.poll(8, |done| seen.push(done.wr_id)).unwrap();
    }
    assert_eq!(seen[..2], [0, 1]);
    assert!(seen.len() < 8, "{seen:?}");
    assert_eq!(qp.state(), QpState::ReadyToSend);
}
