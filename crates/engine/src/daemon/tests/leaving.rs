//! Clients that give up a daemon which was stopped.

use super::{Running, in_network, info_of, open};
use crate::common::{End, Process, connect};
use crate::{Operation, Path, QpType, Rkey, Status};
use std::fs::DirEntry;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Stops a process, and waits until all of its threads are.
fn stop(process: &Process) {
    process.signal(libc::SIGSTOP);
    let start = Instant::now();
    let threads = format!("/proc/{}/task", process.child.id());
    let is_stopped = |thread: io::Result<DirEntry>| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        stat.contains(") T ")
    };
    while !std::fs::read_dir(&threads).unwrap().all(is_stopped) {
        assert!(start.elapsed() < Duration::from_secs(10), "it runs on");
        std::thread::yield_now();
    }
}

#[test]
fn memory_that_was_given_up_is_left_alone() {
    in_network("leaving::memory_that_was_given_up_is_left_alone", || {
        for round in 0..5 {
            let running = Running::start(&format!("given-up-{round}"));
            let raw = running.raw("veth1");
            let peer = End::new(&open("veth0", None), QpType::Rc, 4096);
            let (pd, cq) = (raw.domain(), raw.create_cq(&raw.arena, 64).unwrap());
            let qp = raw.create_qp(&raw.arena, pd, &cq, 16).unwrap();
            raw.to_rtr(&qp, peer.qp.number(), path_to("veth0"));
            connect(&peer.qp, qp.number, path_to("veth1"));
            let memory = AtomicU64::new(0);
            let va = memory.as_ptr().expose_provenance() as u64;
            let rkey = Rkey(raw.register(pd, va, 8));
            peer.memory.fill(0, &[1; 8]);
            peer.send(Operation::Write { va, rkey }, 0, 8);
            peer.ok();
            assert_eq!(memory.swap(0, Ordering::Relaxed), 0x0101_0101_0101_0101);
            let (is_stopped, handle) = (AtomicBool::new(false), qp.handle);
            std::thread::scope(|scope| {
                // In the middle of a round: one that sleeps looks at its sockets first.
                scope.spawn(|| {
                    while !is_stopped.load(Ordering::Relaxed) {
                        raw.ring(handle);
                    }
                });
                std::thread::sleep(Duration::from_millis(20));
                stop(&running.daemon);
                is_stopped.store(true, Ordering::Relaxed);
            });
            peer.send(Operation::Write { va, rkey }, 0, 8);
            std::thread::sleep(Duration::from_millis(50));
            // Its page is zeroed, as when a program closes its device.
            drop(raw);
            running.daemon.signal(libc::SIGCONT);
            let status = peer.complete().status;
            assert_ne!(status, Status::Success);
            assert_eq!(memory.load(Ordering::Relaxed), 0, "it was written to");
        }
    });
}

fn path_to(interface: &str) -> Path {
    Path {
        gid: info_of(interface).gids[0].gid,
        hop_limit: 64,
        ..Path::default()
    }
}
