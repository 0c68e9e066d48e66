//! Shared receive queues, extended connections, and their completions.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::sync::Arc;

/// Queue pairs on two devices; the right ones receive from one shared queue.
struct Shared {
    left: Vec<End>,
    right: End,
    qps: Vec<Arc<Qp>>,
    srq: Arc<Srq>,
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.map_or_else(|error| error.errno(), |_| 0)
}

fn shared(pairs: usize, max_wr: u32) -> Shared {
    let (a, b) = wired();
    let right = End::new(&b, QpType::Rc, 1 << 16);
    let attributes = SrqAttributes {
        max_wr,
        max_sge: 2,
        limit: 0,
    };
    let srq = right.pd.create_srq(attributes, None).unwrap();
    let left: Vec<End> = (0..pairs)
        .map(|_| End::new(&a, QpType::Rc, 1 << 16))
        .collect();
    let qps = left
        .iter()
        .map(|end| {
            let qp = right
                .pd
                .create_qp(QpInit {
                    qp_type: QpType::Rc,
                    send_cq: Arc::clone(&right.cq),
                    recv_cq: Arc::clone(&right.cq),
                    srq: Some(Arc::clone(&srq)),
                    caps: CAPS,
                    signal_all: false,
                })
                .unwrap();
            connect(&qp, end.qp.number(), end.path());
            connect(&end.qp, qp.number(), right.path());
            qp
        })
        .collect();
    Shared {
        left,
        right,
        qps,
        srq,
    }
}

impl Shared {
    fn receive(&self, wr_id: u64, offset: usize, length: usize) -> Result<(), Error> {
        let sges = [self.right.memory.sge(offset, length)];
        self.srq.begin_post().push(&RecvWr { wr_id, sges: &sges })
    }
}

#[test]
fn messages_of_several_peers_share_a_queue_without_delays() {
    let shared = shared(3, 8);
    let (big, small) = (8 << 10, 16);
    for number in 0..6 {
        shared.receive(number, number as usize * big, big).unwrap();
    }
    for round in 0..2u8 {
        for (number, end) in shared.left.iter().enumerate() {
            let length = if number == 0 { big } else { small };
            end.memory.fill(0, &pattern(length, number as u8 + round));
            end.send(Operation::Send, 0, length);
        }
        for _ in 0..3 {
            let received = shared.right.ok();
            let from = shared.qps.iter().position(|qp| qp.number() == received.qpn);
            let from = from.unwrap();
            let length = received.byte_len as usize;
            assert_eq!(length, if from == 0 { big } else { small });
            let place = received.wr_id as usize * big;
            assert_eq!(
                shared.right.memory.bytes(place, length),
                pattern(length, from as u8 + round)
            );
        }
        shared.left.iter().for_each(|end| {
            end.ok();
        });
    }
    // An empty queue answers "not ready", and continues once a receive is posted.
    shared.left[1].send(Operation::Send, 0, small);
    wait_until("a not-ready answer", || {
        shared
            .right
            .cq
            .poll(1, |_| panic!("nothing is posted"))
            .unwrap();
        counter(&shared.right.device, "rnr_naks_sent") > 0
    });
    shared.receive(9, 0, small).unwrap();
    assert_eq!(shared.right.ok().wr_id, 9);
    shared.left[1].ok();
}

#[test]
fn the_limit_is_told_of_once_and_can_be_set_again() {
    let shared = shared(1, 8);
    let limit = || {
        let event = shared.right.device.wait_async_event().unwrap();
        let AsyncEvent::SrqLimitReached { cookie } = event else {
            panic!("{event:?}")
        };
        cookie
    };
    shared.srq.set_cookie(77);
    for number in 0..4 {
        shared.receive(number, 0, 64).unwrap();
    }
    assert_eq!(errno(shared.srq.set_limit(9)), libc::EINVAL);
    shared.srq.set_limit(3).unwrap();
    assert_eq!(shared.srq.query().limit, 3);
    for _ in 0..3 {
        shared.left[0].send(Operation::Send, 0, 8);
        shared.right.ok();
        shared.left[0].ok();
    }
    assert_eq!(limit(), 77);
    assert_eq!(shared.srq.query().limit, 0, "it is raised once");
    // One is left: a limit of two is reached already.
    shared.srq.set_limit(2).unwrap();
    assert_eq!(limit(), 77);
}

#[test]
fn a_queue_in_use_is_busy_and_a_full_one_is_full() {
    let shared = shared(1, 2);
    let room = shared.srq.query().max_wr;
    for number in 0..room {
        shared.receive(number.into(), 0, 64).unwrap();
    }
    assert_eq!(errno(shared.receive(99, 0, 64)), libc::ENOMEM);
    let three = [shared.right.memory.sge(0, 8); 3];
    let too_many = RecvWr {
        wr_id: 1,
        sges: &three,
    };
    assert_eq!(errno(shared.srq.begin_post().push(&too_many)), libc::EINVAL);
    let own = RecvWr {
        wr_id: 1,
        sges: &three[..1],
    };
    assert_eq!(errno(shared.qps[0].post_recv(&own)), libc::EINVAL);
    assert_eq!(errno(shared.srq.destroy()), libc::EBUSY);
    assert_eq!(shared.qps[0].caps().max_recv_wr, 0);
    shared.qps[0].destroy().unwrap();
    shared.srq.destroy().unwrap();
    assert_eq!(errno(shared.receive(1, 0, 64)), libc::EINVAL);
}

#[test]
fn a_resized_queue_keeps_what_was_posted() {
    let shared = shared(1, 4);
    for number in 0..4 {
        shared.receive(number, number as usize * 64, 64).unwrap();
    }
    assert_eq!(errno(shared.srq.resize(2)), libc::EINVAL);
    assert_eq!(
        errno(shared.srq.resize(LIMITS.max_srq_wr + 1)),
        libc::EINVAL
    );
    shared.srq.resize(64).unwrap();
    assert_eq!(shared.srq.query().max_wr, 64);
    shared.receive(4, 256, 64).unwrap();
    for number in 0..5 {
        shared.left[0].memory.fill(0, &pattern(8, number as u8));
        shared.left[0].send(Operation::Send, 0, 8);
        shared.left[0].ok();
        assert_eq!(shared.right.ok().wr_id, number);
        assert_eq!(
            shared.right.memory.bytes(number as usize * 64, 8),
            pattern(8, number as u8)
        );
    }
}

#[test]
fn a_failed_queue_pair_releases_the_shared_queue_with_an_event() {
    let shared = shared(2, 8);
    shared.receive(1, 0, 64).unwrap();
    shared.receive(2, 64, 64).unwrap();
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    shared.qps[0].modify(&error, AttrMask::STATE).unwrap();
    let event = shared.right.device.wait_async_event().unwrap();
    let AsyncEvent::Qp { number, event, .. } = event else {
        panic!("{event:?}");
    };
    assert_eq!(number, shared.qps[0].number());
    assert_eq!(event, QpEvent::LastWqeReached);
    shared.left[1].send(Operation::Send, 0, 8);
    assert_eq!(shared.right.ok().wr_id, 1);
}

#[test]
fn extended_messages_go_to_the_queue_that_they_name() {
    let (a, b) = wired();
    let (left, right) = (
        End::new(&a, QpType::Rc, 4096),
        End::new(&b, QpType::Rc, 4096),
    );
    let domain = b.open_xrcd().unwrap();
    let queue = |domain: &Arc<Xrcd>| {
        let cq = b.create_cq(16, None).unwrap();
        let extension = SrqExtension {
            domain: Arc::clone(domain),
            cq: Arc::clone(&cq),
        };
        let attributes = SrqAttributes {
            max_wr: 4,
            max_sge: 1,
            limit: 0,
        };
        (
            right.pd.create_srq(attributes, Some(extension)).unwrap(),
            cq,
        )
    };
    let (first, first_cq) = queue(&domain);
    let (second, second_cq) = queue(&domain);
    let target = domain.create_target_qp().unwrap();
    let initiator = create_qp(&left.pd, &left.cq, QpType::XrcSend, CAPS);
    connect_initiator(&initiator, target.number(), right.path());
    connect_target(&target, initiator.number(), left.path());
    let send = |srqn: u32| {
        let wr = SendWr {
            srqn,
            ..signalled(Operation::Send, left.memory.sge(0, 100))
        };
        initiator.post_send(&wr).unwrap();
    };
    for (srq, cq, wr_id) in [(&second, &second_cq, 20), (&first, &first_cq, 10)] {
        let sges = [right.memory.sge(wr_id as usize * 100, 100)];
        srq.begin_post()
            .push(&RecvWr { wr_id, sges: &sges })
            .unwrap();
        left.memory.fill(0, &pattern(100, wr_id as u8));
        send(srq.number());
        let mut received = None;
        wait_until("a message", || {
            left.cq
                .poll(1, |completion| {
                    assert_eq!(completion.status, Status::Success)
                })
                .unwrap();
            cq.poll(1, |completion| received = Some(completion))
                .unwrap();
            received.is_some()
        });
        let received = received.unwrap();
        assert_eq!(received.status, Status::Success);
        assert_eq!((received.wr_id, received.qpn), (wr_id, target.number()));
        assert_eq!(
            right.memory.bytes(wr_id as usize * 100, 100),
            pattern(100, wr_id as u8)
        );
    }
    // A queue of another domain cannot be used, nor one that does not exist.
    assert_eq!(errno(domain.destroy()), libc::EBUSY);
    let (foreign, _) = queue(&b.open_xrcd().unwrap());
    send(foreign.number());
    let mut failed = None;
    wait_until("the refusal", || {
        first_cq
            .poll(1, |completion| panic!("{completion:?}"))
            .unwrap();
        left.cq
            .poll(1, |completion| {
                if completion.status != Status::Success {
                    failed = Some(completion.status);
                }
            })
            .unwrap();
        failed.is_some()
    });
    assert_eq!(failed, Some(Status::RemoteInvalidRequest));
}

/// A READ is answered from memory of its own queue's domain, though the next message names a queue
/// of another.
#[test]
fn an_answer_under_way_survives_a_message_to_another_queue() {
    let (a, b) = wired();
    let length = 256 << 10;
    let left = End::new(&a, QpType::Rc, length);
    let (first, second) = (
        End::new(&b, QpType::Rc, length),
        End::new(&b, QpType::Rc, 4096),
    );
    let domain = b.open_xrcd().unwrap();
    let [first_srq, second_srq] = [&first, &second].map(|end| {
        let extension = SrqExtension {
            domain: Arc::clone(&domain),
            cq: Arc::clone(&end.cq),
        };
        let attributes = SrqAttributes {
            max_wr: 4,
            max_sge: 1,
            limit: 0,
        };
        end.pd.create_srq(attributes, Some(extension)).unwrap()
    });
    let target = domain.create_target_qp().unwrap();
    let initiator = create_qp(&left.pd, &left.cq, QpType::XrcSend, CAPS);
    connect_initiator(&initiator, target.number(), first.path());
    connect_target(&target, initiator.number(), left.path());
    first.memory.fill(0, &pattern(length, 3));
    let sges = [second.memory.sge(0, 64)];
    let receive = RecvWr {
        wr_id: 1,
        sges: &sges,
    };
    second_srq.begin_post().push(&receive).unwrap();
    let read = Operation::Read {
        va: first.memory.address(),
        rkey: first.memory.mr.rkey(),
    };
    let mut post = initiator.begin_post_send();
    post.push(&SendWr {
        srqn: first_srq.number(),
        ..signalled(read, left.memory.sge(0, length))
    })
    .unwrap();
    post.push(&SendWr {
        srqn: second_srq.number(),
        ..signalled(Operation::Send, left.memory.sge(0, 8))
    })
    .unwrap();
    drop(post);
    let mut done = 0;
    wait_until("both", || {
        first
            .cq
            .poll(1, |completion| panic!("{completion:?}"))
            .unwrap();
        left.cq
            .poll(2, |completion| {
                assert_eq!(completion.status, Status::Success);
                done += 1;
            })
            .unwrap();
        done == 2
    });
    assert_eq!(left.memory.bytes(0, length), pattern(length, 3));
    assert_eq!(second.ok().wr_id, 1);
}

fn modify(qp: &Qp, mut attributes: QpAttributes, state: QpState, mask: AttrMask) {
    attributes.state = state;
    qp.modify(&attributes, mask | AttrMask::STATE).unwrap();
}

fn extended(peer: Qpn, path: Path) -> QpAttributes {
    QpAttributes {
        port: 1,
        access: ALL,
        path,
        path_mtu: PathMtu::M1024,
        dest_qpn: peer,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        min_rnr_timer: 1,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 7,
        ..QpAttributes::default()
    }
}

const INIT: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);
const TO_PEER: AttrMask = AttrMask::AV
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::DEST_QPN)
    .union(AttrMask::RQ_PSN);

fn connect_initiator(qp: &Qp, peer: Qpn, path: Path) {
    let attributes = extended(peer, path);
    modify(qp, attributes, QpState::Init, INIT);
    modify(qp, attributes, QpState::ReadyToReceive, TO_PEER);
    let sending = AttrMask::SQ_PSN
        | AttrMask::TIMEOUT
        | AttrMask::RETRY_CNT
        | AttrMask::RNR_RETRY
        | AttrMask::MAX_QP_RD_ATOMIC;
    modify(qp, attributes, QpState::ReadyToSend, sending);
}

fn connect_target(qp: &Qp, peer: Qpn, path: Path) {
    let attributes = extended(peer, path);
    modify(qp, attributes, QpState::Init, INIT);
    let receiving = TO_PEER | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    modify(qp, attributes, QpState::ReadyToReceive, receiving);
}

#[test]
fn a_resized_completion_queue_keeps_its_completions_in_order() {
    let (left, right) = pair(4096);
    for number in 0..8 {
        left.send(
            Operation::Write {
                va: right.memory.address(),
                rkey: right.memory.mr.rkey(),
            },
            number * 8,
            8,
        );
    }
    // The first write requests an acknowledgement, and is not polled: the progress thread or the
    // peer handles the others.
    wait_until("all answers", || {
        right.cq.poll(1, |_| ()).unwrap();
        left.device.counters();
        counter(&left.device, "messages_sent") == 8
    });
    let before = left.cq.capacity();
    assert_eq!(errno(left.cq.resize(4)), libc::EINVAL);
    assert_eq!(errno(left.cq.resize(LIMITS.max_cqe + 1)), libc::EINVAL);
    assert_eq!(left.cq.capacity(), before);
    left.cq.resize(16).unwrap();
    assert_eq!(left.cq.capacity(), 16);
    for _ in 0..8 {
        left.ok();
    }
    left.qp.post_send(&left.write(&right, 0, 8)).unwrap();
    left.ok();
}

#[test]
fn a_reset_removes_only_the_queue_pairs_own_completions() {
    let (left, right) = pair(4096);
    let other = create_qp(&left.pd, &left.cq, QpType::Rc, CAPS);
    for qp in [&left.qp, &other] {
        let error = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        let init = QpAttributes {
            state: QpState::Init,
            port: 1,
            ..QpAttributes::default()
        };
        if qp.state() == QpState::Reset {
            qp.modify(&init, AttrMask::STATE | INIT).unwrap();
        }
        let sges = [left.memory.sge(0, 8)];
        qp.post_recv(&RecvWr {
            wr_id: 5,
            sges: &sges,
        })
        .unwrap();
        qp.modify(&error, AttrMask::STATE).unwrap();
    }
    left.qp
        .modify(&QpAttributes::default(), AttrMask::STATE)
        .unwrap();
    let flushed = left.complete();
    assert_eq!(flushed.status, Status::WrFlushError);
    assert_eq!(flushed.qpn, other.number());
    assert_eq!(
        left.cq
            .poll(1, |completion| panic!("{completion:?}"))
            .unwrap(),
        0
    );
    drop(right);
}

/// The peer stops in the middle of a message, and the queue that it named is destroyed.
#[test]
fn a_receive_of_a_destroyed_extended_queue_never_completes() {
    let (a, b) = wired();
    let (left, right) = (
        End::new(&a, QpType::Rc, 1 << 16),
        End::new(&b, QpType::Rc, 1 << 16),
    );
    let domain = b.open_xrcd().unwrap();
    let cq = b.create_cq(16, None).unwrap();
    let extension = SrqExtension {
        domain: Arc::clone(&domain),
        cq: Arc::clone(&cq),
    };
    let attributes = SrqAttributes {
        max_wr: 4,
        max_sge: 1,
        limit: 0,
    };
    let srq = right.pd.create_srq(attributes, Some(extension)).unwrap();
    let target = domain.create_target_qp().unwrap();
    let initiator = create_qp(&left.pd, &left.cq, QpType::XrcSend, CAPS);
    connect_initiator(&initiator, target.number(), right.path());
    connect_target(&target, initiator.number(), left.path());
    let sges = [right.memory.sge(0, 1 << 16)];
    srq.begin_post()
        .push(&RecvWr {
            wr_id: 5,
            sges: &sges,
        })
        .unwrap();
    left.memory.fill(0, &pattern(4096, 9));
    // The second half has no memory, which is detected after the first has left.
    let sges = [
        left.memory.sge(0, 4096),
        Sge {
            lkey: 0,
            ..left.memory.sge(4096, 4096)
        },
    ];
    initiator
        .post_send(&SendWr {
            srqn: srq.number(),
            sges: &sges,
            ..signalled(Operation::Send, left.memory.sge(0, 0))
        })
        .unwrap();
    assert_eq!(left.complete().status, Status::LocalProtectionError);
    wait_until("the first half", || {
        right.cq.poll(1, |other| panic!("{other:?}")).unwrap();
        right.memory.bytes(0, 4096) == pattern(4096, 9)
    });
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    // It takes the number of the destroyed one.
    let other = b.create_cq(16, None).unwrap();
    modify(
        &target,
        QpAttributes::default(),
        QpState::Error,
        AttrMask::empty(),
    );
    other
        .poll(1, |foreign| panic!("{foreign:?} of a queue that is gone"))
        .unwrap();
}
