//! Objects are made and destroyed under their users, and under traffic.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn errno<T>(result: Result<T, Error>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.errno(),
    }
}

fn to_error(qp: &Qp) {
    let error = QpAttributes {
        state: QpState::Error,
        ..QpAttributes::default()
    };
    qp.modify(&error, AttrMask::STATE).unwrap();
}

#[test]
fn what_is_in_use_is_busy() {
    let (left, _right) = pair(256);
    let ah = left.pd.create_ah(left.path()).unwrap();
    assert_eq!(errno(left.pd.destroy()), libc::EBUSY);
    assert_eq!(errno(left.cq.destroy()), libc::EBUSY);
    assert_eq!(errno(left.channel.destroy()), libc::EBUSY);
    left.qp.destroy().unwrap();
    left.qp.destroy().unwrap();
    assert_eq!(errno(left.channel.destroy()), libc::EBUSY);
    left.cq.destroy().unwrap();
    left.channel.destroy().unwrap();
    assert_eq!(errno(left.pd.destroy()), libc::EBUSY);
    left.memory.mr.deregister().unwrap();
    assert_eq!(errno(left.pd.destroy()), libc::EBUSY);
    ah.destroy().unwrap();
    left.pd.destroy().unwrap();
    // A destroyed object takes no users.
    assert_eq!(errno(left.pd.reg_mr(0x1000, 8, 0, ALL)), libc::EINVAL);
    assert_eq!(
        errno(
            left.device
                .create_cq(1, Some((Arc::clone(&left.channel), 0)))
        ),
        libc::EINVAL
    );
    assert_eq!(errno(left.qp.query()), libc::EINVAL);
}

#[test]
fn deregistration_under_traffic_ends_access_at_once() {
    let (left, right) = pair(64 << 10);
    let stop = AtomicBool::new(false);
    let length = 64 << 10;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut seed = 1u8;
            let status = loop {
                left.memory.fill(0, &vec![seed; length]);
                left.qp.post_send(&left.write(&right, 0, length)).unwrap();
                let completion = left.complete();
                if completion.status != Status::Success {
                    break completion.status;
                }
                seed = seed % 250 + 1;
            };
            assert_eq!(status, Status::RemoteAccessError);
            stop.store(true, Ordering::SeqCst);
        });
        wait_until("data", || {
            right.cq.poll(1, |_| ()).unwrap();
            right.memory.byte(length - 1) > 20
        });
        right.memory.mr.deregister().unwrap();
        let after = right.memory.bytes(0, length);
        wait_until("the refusal", || {
            right.cq.poll(1, |_| ()).unwrap();
            stop.load(Ordering::SeqCst)
        });
        assert_eq!(right.memory.bytes(0, length), after);
    });
    assert_eq!(counter(&right.device, "remote_access_errors"), 1);
}

#[test]
fn a_receive_without_memory_ends_the_connection_at_both_ends() {
    let (left, right) = pair(256);
    right.recv(3, 0, 64);
    right.memory.mr.deregister().unwrap();
    left.send(Operation::Send, 0, 8);
    assert_eq!(left.complete().status, Status::RemoteOperationError);
    let failed = right.complete();
    assert_eq!(
        (failed.wr_id, failed.status),
        (3, Status::LocalProtectionError)
    );
    assert_eq!(right.memory.bytes(0, 64), [0; 64]);
}

#[test]
fn a_send_with_a_wrong_key_fails_and_flushes_the_rest() {
    let (left, _right) = pair(256);
    let mut sge = left.memory.sge(0, 8);
    sge.lkey ^= 1;
    let bad = signalled(Operation::Send, sge);
    let mut post = left.qp.begin_post_send();
    post.push(&bad).unwrap();
    post.push(&SendWr { wr_id: 8, ..bad }).unwrap();
    drop(post);
    assert_eq!(left.complete().status, Status::LocalProtectionError);
    let flushed = left.complete();
    assert_eq!((flushed.wr_id, flushed.status), (8, Status::WrFlushError));
    assert_eq!(left.qp.state(), QpState::Error);
}

#[test]
fn queue_pairs_may_be_destroyed_under_traffic() {
    let (left, right) = wired();
    for round in 0..20 {
        let (left, right) = pair_on(&left, &right, 64 << 10);
        for _ in 0..32 {
            left.qp.post_send(&left.write(&right, 0, 64 << 10)).unwrap();
        }
        let (first, second) = if round % 2 == 0 {
            (&left, &right)
        } else {
            (&right, &left)
        };
        first.qp.destroy().unwrap();
        second.qp.destroy().unwrap();
        assert!(left.cq.destroy().is_ok() && right.cq.destroy().is_ok());
    }
    // What was left over does not affect later users.
    let (left, right) = pair_on(&left, &right, 64);
    left.qp.post_send(&left.write(&right, 0, 64)).unwrap();
    left.ok();
}

#[test]
fn a_peer_that_is_gone_is_found_out() {
    let (left, right) = wired();
    let (left, right) = (
        End::new(&left, QpType::Rc, 64),
        End::new(&right, QpType::Rc, 64),
    );
    to_rtr(&left.qp, right.qp.number(), right.path());
    to_rts(&left.qp, 8);
    right.qp.destroy().unwrap();
    left.qp.post_send(&left.write(&right, 0, 8)).unwrap();
    assert_eq!(left.complete().status, Status::RetryExceeded);
    // Eight tries of four timers; more, if this host slept meanwhile.
    let timeouts = counter(&left.device, "timeouts");
    assert!((32..=64).contains(&timeouts), "{timeouts}");
    // The missing queue pair got the first packet, and one more for each but the last.
    wait_until("the drops", || {
        counter(&right.device, "drop_unknown_qp") == timeouts
    });
}

#[test]
fn in_the_error_state_everything_is_flushed_before_and_after() {
    let (_left, right) = pair(256);
    right.recv(1, 0, 8);
    right.recv(2, 0, 8);
    to_error(&right.qp);
    right.recv(3, 0, 8);
    right.send(Operation::Send, 0, 8);
    for wr_id in [1, 2, 3, 7] {
        let flushed = right.complete();
        assert_eq!(
            (flushed.wr_id, flushed.status),
            (wr_id, Status::WrFlushError)
        );
    }
}

#[test]
fn receives_posted_while_the_queue_pair_fails_are_all_flushed() {
    for _ in 0..200 {
        let (left, right) = pair(64);
        std::thread::scope(|scope| {
            scope.spawn(|| to_error(&right.qp));
            for wr_id in 0..64 {
                right.recv(wr_id, 0, 8);
            }
        });
        for wr_id in 0..64 {
            assert_eq!(right.complete().wr_id, wr_id);
        }
        drop(left);
    }
}

#[test]
fn a_reset_forgets_and_the_queue_pair_works_again() {
    let (left, right) = pair(256);
    let reset = QpAttributes {
        state: QpState::Reset,
        ..QpAttributes::default()
    };
    for _ in 0..3 {
        right.recv(1, 0, 8);
        for qp in [&left.qp, &right.qp] {
            qp.modify(&reset, AttrMask::STATE).unwrap();
            assert_eq!(qp.state(), QpState::Reset);
        }
        left.connect(&right);
        right.connect(&left);
        // Full rings fit again: no earlier request is left in them.
        for wr_id in 100..164 {
            right.recv(wr_id, 0, 8);
        }
        left.send(Operation::Send, 0, 8);
        left.ok();
        assert_eq!(right.ok().wr_id, 100);
    }
}

#[test]
fn posting_is_refused_as_the_manual_says() {
    let (left, _right) = pair(1024);
    let fresh = create_qp(&left.pd, &left.cq, QpType::Rc, CAPS);
    let sge = left.memory.sge(0, 8);
    let wr = signalled(Operation::Send, sge);
    let post = |qp: &Qp, wr: &SendWr<'_>| errno(qp.post_send(wr));
    assert_eq!(post(&fresh, &wr), libc::EINVAL);
    assert_eq!(
        errno(fresh.post_recv(&RecvWr {
            wr_id: 0,
            sges: &[sge]
        })),
        libc::EINVAL
    );
    to_rtr(&fresh, Qpn::new(5), left.path());
    assert_eq!(post(&fresh, &wr), libc::EINVAL);
    assert_eq!(
        errno(fresh.post_recv(&RecvWr {
            wr_id: 0,
            sges: &[sge]
        })),
        0
    );

    let many = [sge; 5];
    assert_eq!(post(&left.qp, &SendWr { sges: &many, ..wr }), libc::EINVAL);
    assert_eq!(
        errno(left.qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &many
        })),
        libc::EINVAL
    );
    let inline = [left.memory.sge(0, left.qp.caps().max_inline as usize + 1)];
    assert_eq!(
        post(
            &left.qp,
            &SendWr {
                sges: &inline,
                flags: SendFlags::INLINE,
                ..wr
            }
        ),
        libc::EINVAL
    );
    let read = Operation::Read {
        va: 0,
        rkey: Rkey(0),
    };
    assert_eq!(
        post(
            &left.qp,
            &SendWr {
                operation: read,
                flags: SendFlags::INLINE,
                ..wr
            }
        ),
        libc::EINVAL
    );
    let huge = [Sge {
        length: u32::MAX,
        ..sge
    }];
    assert_eq!(post(&left.qp, &SendWr { sges: &huge, ..wr }), libc::EINVAL);
    let small = [left.memory.sge(0, 7)];
    let atomic = Operation::FetchAdd {
        va: 0,
        rkey: Rkey(0),
        add: 1,
    };
    assert_eq!(
        post(
            &left.qp,
            &SendWr {
                operation: atomic,
                sges: &small,
                ..wr
            }
        ),
        libc::EINVAL
    );
    let datagram = Some(Datagram {
        path: left.path(),
        qpn: Qpn::new(5),
        qkey: Qkey(0),
    });
    assert_eq!(post(&left.qp, &SendWr { datagram, ..wr }), libc::EINVAL);

    let ud = create_qp(&left.pd, &left.cq, QpType::Ud, CAPS);
    datagram_to_rts(&ud, Qkey(1));
    assert_eq!(post(&ud, &wr), libc::EINVAL);
    assert_eq!(
        post(
            &ud,
            &SendWr {
                operation: read,
                datagram,
                ..wr
            }
        ),
        libc::EINVAL
    );
    let path = Path {
        sgid_index: 9,
        ..left.path()
    };
    let lost = Some(Datagram {
        path,
        qpn: Qpn::new(5),
        qkey: Qkey(0),
    });
    assert_eq!(
        post(
            &ud,
            &SendWr {
                datagram: lost,
                ..wr
            }
        ),
        libc::EINVAL
    );
}

#[test]
fn a_full_queue_is_enomem_and_nothing_is_overwritten() {
    let (left, right) = pair(256);
    for wr_id in 0..64 {
        left.recv(wr_id, 0, 8);
    }
    assert_eq!(
        errno(left.qp.post_recv(&RecvWr {
            wr_id: 64,
            sges: &[]
        })),
        libc::ENOMEM
    );
    // One list, so that the worker takes none before the queue is full.
    let mut post = left.qp.begin_post_send();
    for _ in 0..64 {
        post.push(&left.write(&right, 0, 8)).unwrap();
    }
    assert_eq!(errno(post.push(&left.write(&right, 0, 8))), libc::ENOMEM);
    drop(post);
    for _ in 0..64 {
        left.ok();
    }
    left.qp.post_send(&left.write(&right, 0, 8)).unwrap();
    left.ok();
}

#[test]
fn capabilities_and_attributes_beyond_the_device_are_refused() {
    let (left, _right) = pair(256);
    let create = |caps| {
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&left.cq),
            recv_cq: Arc::clone(&left.cq),
            srq: None,
            caps,
            signal_all: false,
        };
        errno(left.pd.create_qp(init))
    };
    assert_eq!(
        create(QpCaps {
            max_send_wr: LIMITS.max_qp_wr + 1,
            ..CAPS
        }),
        libc::EINVAL
    );
    assert_eq!(
        create(QpCaps {
            max_recv_wr: LIMITS.max_qp_wr + 1,
            ..CAPS
        }),
        libc::EINVAL
    );
    assert_eq!(
        create(QpCaps {
            max_send_sge: LIMITS.max_sge + 1,
            ..CAPS
        }),
        libc::EINVAL
    );
    assert_eq!(
        create(QpCaps {
            max_recv_sge: LIMITS.max_sge + 1,
            ..CAPS
        }),
        libc::EINVAL
    );
    assert_eq!(
        create(QpCaps {
            max_inline: LIMITS.max_inline + 1,
            ..CAPS
        }),
        libc::EINVAL
    );
    assert_eq!(create(QpCaps::default()), 0);
    let most = QpCaps {
        max_send_wr: LIMITS.max_qp_wr,
        max_recv_wr: LIMITS.max_qp_wr,
        max_send_sge: LIMITS.max_sge,
        max_recv_sge: LIMITS.max_sge,
        max_inline: LIMITS.max_inline,
    };
    assert_eq!(create(most), 0);
    assert_eq!(errno(left.device.create_cq(0, None)), libc::EINVAL);
    assert_eq!(
        errno(left.device.create_cq(LIMITS.max_cqe + 1, None)),
        libc::EINVAL
    );

    let set = |attributes, mask| errno(left.qp.modify(&attributes, mask));
    let base = QpAttributes::default();
    assert_eq!(
        set(QpAttributes { port: 2, ..base }, AttrMask::PORT),
        libc::EINVAL
    );
    assert_eq!(
        set(
            QpAttributes {
                pkey_index: 1,
                ..base
            },
            AttrMask::PKEY_INDEX
        ),
        libc::EINVAL
    );
    let path = Path {
        sgid_index: 1,
        ..left.path()
    };
    assert_eq!(
        set(QpAttributes { path, ..base }, AttrMask::AV),
        libc::EINVAL
    );
    let v6 = Path {
        gid: Gid::from("2001:db8::1".parse::<std::net::IpAddr>().unwrap()),
        ..left.path()
    };
    assert_eq!(errno(left.pd.create_ah(v6)), libc::EINVAL);
    assert_eq!(errno(left.pd.create_ah(Path::default())), libc::EINVAL);
}

#[test]
fn another_devices_queues_are_refused() {
    let (left, right) = pair(64);
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(&left.cq),
        recv_cq: Arc::clone(&right.cq),
        srq: None,
        caps: CAPS,
        signal_all: false,
    };
    assert_eq!(errno(left.pd.create_qp(init)), libc::EINVAL);
}

#[test]
fn a_destroyed_queue_pair_takes_no_more_work() {
    let (left, right) = pair(64);
    let write = left.write(&right, 0, 8);
    left.qp.post_send(&write).unwrap();
    left.ok();
    left.qp.destroy().unwrap();
    assert_eq!(errno(left.qp.post_send(&write)), libc::EINVAL);
    let sges = [left.memory.sge(0, 8)];
    let receive = RecvWr {
        wr_id: 0,
        sges: &sges,
    };
    assert_eq!(errno(left.qp.post_recv(&receive)), libc::EINVAL);
}

#[test]
fn memory_that_is_not_there_or_not_writable_is_not_registered() {
    let (left, _right) = pair(64);
    let unmapped = left.pd.reg_mr(0x1000, 8, 0x1000, ALL);
    assert_eq!(errno(unmapped), libc::EFAULT);
    // SAFETY: a fresh private mapping of one page, never touched through a reference.
    let page = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            4096,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(page, libc::MAP_FAILED);
    let address = page as u64;
    let writable = left.pd.reg_mr(address, 4096, address, ALL);
    assert_eq!(errno(writable), libc::EFAULT);
    let readable = left.pd.reg_mr(address, 4096, address, Access::REMOTE_READ);
    readable.unwrap().deregister().unwrap();
}
