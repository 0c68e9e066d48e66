//! Wake-ups and events, of clients that take none and of clients that break their descriptors.

use super::raw::{RawCq, RawQp, drain, fill, word};
use super::{Raw, Running, in_network};
use crate::queues::shared_page::SharedPage;
use crate::remote::protocol::Event;
use airdma_shm::SendWqe;
use airdma_transport::QpEvent;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A queue pair in ERROR, which completes what is posted at once.
fn in_error(raw: &Raw, slots: u32) -> (RawCq, RawQp) {
    let cq = raw.create_cq(&raw.arena, 4096).unwrap();
    let qp = raw.create_qp(&raw.arena, raw.domain(), &cq, slots).unwrap();
    raw.to_error(&qp);
    (cq, qp)
}

#[test]
fn wake_ups_that_are_not_taken_block_no_call() {
    in_network("waking::wake_ups_that_are_not_taken_block_no_call", || {
        let running = Running::start("untaken");
        let (hostile, other) = (running.raw("veth1"), running.raw("veth1"));
        let (cq, qp) = in_error(&hostile, 16);
        hostile.page.will_sleep();
        let start = Instant::now();
        // Some 300 of them fill the socket.
        let mut wake_ups = 0;
        while wake_ups < 3000 {
            assert!(start.elapsed() < Duration::from_secs(60), "{wake_ups}");
            hostile.page.note_armed();
            hostile.page.take_signal();
            fill(qp.send.0.block(), 16);
            hostile.ring(qp.handle);
            other.flush().unwrap();
            wake_ups += u32::from(hostile.page.is_signalled());
            drain(cq.producer.block());
        }
    });
}

/// The client could empty it first, and make a read of it block.
#[test]
fn the_daemon_reads_no_descriptor_that_is_the_clients_too() {
    in_network(
        "waking::the_daemon_reads_no_descriptor_that_is_the_clients_too",
        || {
            let running = Running::start("unread");
            let (hostile, other) = (running.raw("veth1"), running.raw("veth1"));
            let fd = hostile.wake_daemon.fd();
            for fd in [fd, hostile.wake_us.fd()] {
                // SAFETY: plain integers.
                assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, 0) }, 0);
            }
            for _ in 0..20 {
                await_sleep(&hostile.page);
                hostile.wake_daemon.signal();
                hostile.flush().unwrap();
                other.flush().unwrap();
            }
            let mut poll = libc::pollfd {
                fd,
                events: libc::POLLIN,
                revents: 0,
            };
            // SAFETY: one pollfd, and a call that does not wait.
            assert_eq!(unsafe { libc::poll(&raw mut poll, 1, 0) }, 1, "it was read");
            let mut count = 0_u64;
            // SAFETY: room for the eight bytes that are there.
            unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
            assert_eq!(count, 20);
        },
    );
}

#[test]
fn events_wait_for_a_client_that_takes_none() {
    const EVENTS: usize = 1000;
    in_network("waking::events_wait_for_a_client_that_takes_none", || {
        let running = Running::start("events");
        let raw = running.raw("veth1");
        let (cq, mut qp) = in_error(&raw, 16);
        for _ in 0..EVENTS {
            // A request that no library writes is a fatal error of its queue pair.
            let mut slot = qp.send.0.slot(0).unwrap();
            slot.write_header(&SendWqe {
                operation: 0xff,
                ..SendWqe::default()
            });
            qp.send.0.publish(1);
            raw.ring(qp.handle);
            raw.flush().unwrap();
            drain(cq.producer.block());
        }
        let expected = Event::Qp(qp.number.get(), QpEvent::Fatal);
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut taken = 0;
        let mut packet = [0; 64];
        while taken < EVENTS {
            assert!(Instant::now() < deadline, "{taken} of {EVENTS}");
            match raw.events.receive(&mut packet, false) {
                Ok(Some(got)) => {
                    assert_eq!(Event::decode(&packet[..got.length]), Some(expected.clone()));
                    taken += 1;
                }
                Ok(None) => panic!("the daemon has closed the connection"),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
        raw.flush().unwrap();
    });
}

/// Waits until the daemon says that it sleeps.
fn await_sleep(page: &SharedPage) {
    let start = Instant::now();
    // Its word is the first one.
    while word(page.block(), 0).load(Ordering::SeqCst) == 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "it never sleeps");
        std::thread::yield_now();
    }
}

#[test]
fn a_daemon_that_sleeps_says_so_and_is_woken() {
    in_network("waking::a_daemon_that_sleeps_says_so_and_is_woken", || {
        let running = Running::start("sleeps");
        let raw = running.raw("veth1");
        let (mut cq, mut qp) = in_error(&raw, 16);
        let mut times: Vec<Duration> = (0..20)
            .map(|_| {
                await_sleep(&raw.page);
                // It has looked for doorbells after it said so, and does sleep now.
                std::thread::sleep(Duration::from_millis(2));
                qp.send.0.slot(0).unwrap().write_header(&SendWqe::default());
                qp.send.0.publish(1);
                let start = Instant::now();
                raw.ring(qp.handle);
                while cq.consumer.take().is_none() {
                    assert!(start.elapsed() < Duration::from_secs(10), "no completion");
                    std::thread::yield_now();
                }
                cq.consumer.release(1);
                start.elapsed()
            })
            .collect();
        times.sort();
        // Without a wake-up it would look after 500 ms.
        let median = times[times.len() / 2];
        assert!(median < Duration::from_millis(100), "{times:?}");
    });
}
