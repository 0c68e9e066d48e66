//! Requests about objects that are not the client's, or that are in use; objects that come and go.

use super::raw::{CAPACITY, RELEASED, STRIDE, fill, key_of, word};
use super::{Running, in_network};
use crate::Qpn;
use crate::control::{MemoryControl, QueueControl};
use airdma_shm::{Arena, Cqe, SendWqe};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

#[test]
fn a_completion_queue_in_use_is_not_destroyed() {
    in_network(
        "objects::a_completion_queue_in_use_is_not_destroyed",
        || {
            let running = Running::start("busy");
            let raw = running.raw("veth1");
            let cq = raw.create_cq(&raw.arena, 16).unwrap();
            let qp = raw.create_qp(&raw.arena, raw.domain(), &cq, 16).unwrap();
            let refused = raw.destroy_cq(&cq).unwrap_err();
            assert_eq!(refused.errno(), libc::EBUSY);
            raw.destroy_qp(&qp);
            raw.destroy_cq(&cq).unwrap();
            assert_eq!(raw.destroy_cq(&cq).unwrap_err().errno(), libc::EINVAL);
        },
    );
}

#[test]
fn keys_of_regions_and_windows_are_told_apart() {
    in_network(
        "objects::keys_of_regions_and_windows_are_told_apart",
        || {
            let running = Running::start("keys-apart");
            let raw = running.raw("veth1");
            let pd = raw.domain();
            let memory = [0_u64; 8];
            let address = memory.as_ptr().expose_provenance() as u64;
            let region = raw.register(pd, address, 64);
            let call = MemoryControl::AllocateWindow { pd, type_two: true };
            let window = key_of(&raw.memory(call).unwrap());
            let refused = [
                MemoryControl::FreeWindow { key: region },
                MemoryControl::Deregister { key: region ^ 1 },
                MemoryControl::Deregister { key: window },
                MemoryControl::CloseWindows { key: window },
            ];
            for call in refused {
                let errno = raw.memory(call).map_err(|error| error.errno());
                assert_eq!(errno, Err(libc::EINVAL), "{call:?}");
            }
            // None of them was forgotten.
            raw.memory(MemoryControl::Deregister { key: region })
                .unwrap();
            raw.memory(MemoryControl::FreeWindow { key: window })
                .unwrap();
            // Nor is another client's reached.
            let other = running.raw("veth1");
            let region = raw.register(pd, address, 64);
            let call = MemoryControl::Deregister { key: region };
            assert_eq!(other.memory(call).unwrap_err().errno(), libc::EINVAL);
            raw.memory(call).unwrap();
        },
    );
}

#[test]
fn a_ring_keeps_the_shape_that_it_was_made_with() {
    in_network(
        "objects::a_ring_keeps_the_shape_that_it_was_made_with",
        || {
            let running = Running::start("shape");
            let raw = running.raw("veth1");
            let mut cq = raw.create_cq(&raw.arena, 64).unwrap();
            let mut qp = raw.create_qp(&raw.arena, raw.domain(), &cq, 16).unwrap();
            raw.to_error(&qp);
            for block in [cq.producer.block(), qp.send.0.block(), qp.recv.0.block()] {
                let stride = word(block, STRIDE).load(Ordering::Relaxed);
                word(block, STRIDE).store(2 * stride, Ordering::Relaxed);
                word(block, CAPACITY).store(4, Ordering::Relaxed);
            }
            for wr_id in 0..16 {
                let mut slot = qp.send.0.slot(0).unwrap();
                slot.write_header(&SendWqe {
                    wr_id,
                    ..SendWqe::default()
                });
                qp.send.0.publish(1);
            }
            raw.ring(qp.handle);
            raw.flush().unwrap();
            for wr_id in 0..16 {
                let number = cq.consumer.take().expect("a completion");
                let cqe: Cqe = cq.consumer.slot(number).read_header();
                assert_eq!(cqe.wr_id, wr_id);
                cq.consumer.release(1);
            }
            let call = QueueControl::PurgeCompletions {
                cq: cq.handle,
                of: Qpn::new(2),
            };
            assert_eq!(raw.queue(call).unwrap_err().errno(), libc::EINVAL);
        },
    );
}

#[test]
fn queues_that_come_and_go_leave_nothing() {
    in_network("objects::queues_that_come_and_go_leave_nothing", || {
        let running = Running::start("cycles");
        let raw = running.raw("veth1");
        let pd = raw.domain();
        let memory = [0_u64; 8];
        let address = memory.as_ptr().expose_provenance() as u64;
        let mut first = (0, 0);
        for cycle in 0..300 {
            // Another file each time, as for a program whose arena shrinks and grows.
            let arena = Arena::new();
            let cq = raw.create_cq(&arena, 16).unwrap();
            let qp = raw.create_qp(&arena, pd, &cq, 16).unwrap();
            let key = raw.register(pd, address, 64);
            raw.memory(MemoryControl::Deregister { key }).unwrap();
            raw.destroy_qp(&qp);
            raw.destroy_cq(&cq).unwrap();
            let now = (running.mapped(), running.descriptors());
            if cycle == 10 {
                first = now;
            }
        }
        // What has no part any more is unmapped when the next file comes.
        let last = (running.mapped(), running.descriptors());
        assert_eq!(first, last);
    });
}

/// Those of the last ones refuse what their peers request for ten seconds.
#[test]
fn clients_that_come_and_go_leave_nothing() {
    in_network("objects::clients_that_come_and_go_leave_nothing", || {
        let mut running = Running::start("gone");
        let memory = [0_u64; 8];
        let address = memory.as_ptr().expose_provenance() as u64;
        let leave_some = || {
            for _ in 0..40 {
                let raw = running.raw("veth1");
                let (pd, cq) = (raw.domain(), raw.create_cq(&raw.arena, 16).unwrap());
                raw.create_qp(&raw.arena, pd, &cq, 16).unwrap();
                raw.register(pd, address, 64);
                let type_two = true;
                raw.memory(MemoryControl::AllocateWindow { pd, type_two })
                    .unwrap();
            }
        };
        leave_some();
        let descriptors = running.descriptors();
        leave_some();
        leave_some();
        let start = Instant::now();
        // Keys go at once.
        while running.objects("veth1")[0] > 0 {
            assert!(start.elapsed() < Duration::from_secs(5), "keys are left");
            std::thread::yield_now();
        }
        let [_, queues, queue_pairs] = running.objects("veth1");
        assert!((1..=64).contains(&queues) && (1..=64).contains(&queue_pairs));
        let start = Instant::now();
        while running.objects("veth1") != [0; 3] {
            assert!(start.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(100));
        }
        // That of the device itself stays.
        assert_eq!(running.mapped(), 1);
        assert!(running.descriptors() <= descriptors);
        running.raw("veth1").flush().unwrap();
    });
}

#[test]
fn indices_that_lead_nowhere_end_their_queue_alone() {
    in_network(
        "objects::indices_that_lead_nowhere_end_their_queue_alone",
        || {
            let mut running = Running::start("nowhere");
            let (raw, other) = (running.raw("veth1"), running.raw("veth1"));
            let cq = raw.create_cq(&raw.arena, 64).unwrap();
            let qp = raw.create_qp(&raw.arena, raw.domain(), &cq, 16).unwrap();
            raw.to_error(&qp);
            for block in [qp.send.0.block(), qp.recv.0.block(), cq.producer.block()] {
                fill(block, 1 << 30);
                word(block, RELEASED).store(0x8765_4321, Ordering::Relaxed);
            }
            // Doorbells of queue pairs that are not the client's, too.
            for bit in 0..300 {
                raw.doorbells.ring(bit);
            }
            raw.ring(qp.handle);
            raw.flush().unwrap();
            other.flush().unwrap();
            raw.destroy_qp(&qp);
            raw.destroy_cq(&cq).unwrap();
            assert!(running.daemon.is_alive());
        },
    );
}
