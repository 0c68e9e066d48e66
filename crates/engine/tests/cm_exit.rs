//! A signal's handler ends the process in the middle of a wait, while packets come.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{Accept, Event, PortSpace, ServiceId, Takes};
use airdma_engine::*;
use airdma_port::{Capabilities, Port, PortCounters, Received, TransmitBatch, sim};
use common::*;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const NAME: &str = "a_handler_that_exits_during_a_wait_ends_the_process";
const AFTER: &str = "AIRDMA_TEST_EXITS_AFTER_US";
const ENDED: i32 = 7;
/// One in twenty hung when the exit waited for the lock of its own channel.
const ROUNDS: u64 = 20;
static DEVICE: OnceLock<Arc<Device>> = OnceLock::new();

extern "C" fn ends(_: libc::c_int) {
    // SAFETY: ends the process, as programs should not do in a handler.
    unsafe { libc::exit(ENDED) }
}

extern "C" fn at_exit() {
    DEVICE.get().unwrap().cm_exit();
}

/// A port that loses all DREPs.
struct Deaf<P>(P);

/// `AttributeID` of a DREP, and its offset: behind BTH, DETH and 16 bytes of the MAD's header (IBTA
/// 13.4.2, 12.6.10).
const DREP: [u8; 2] = [0, 0x16];
const ATTRIBUTE: usize = 12 + 8 + 16;
const QP1: [u8; 3] = [0, 0, 1];

impl<P: Port> Port for Deaf<P> {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        self.0.transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        self.0.receive(budget, &mut |received| {
            let bytes = received.bytes;
            let is_drep = bytes[5..8] == QP1 && bytes[ATTRIBUTE..ATTRIBUTE + 2] == DREP;
            if !is_drep {
                handle(received);
            }
        })
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        self.0.wait_descriptors(out);
    }

    fn counters(&self) -> PortCounters {
        self.0.counters()
    }
}

/// Waits for the events of two completion queues on one channel, to which a peer sends all the
/// time, also during the exit's wait for the answer to a DREQ, which is lost.
/// the answer to a DREQ, which is lost.
fn waits(after: Duration) {
    let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
    let (port, far) = sim::pair(&[left], &[right]).unwrap();
    let (left, right) = wired_on((left, Box::new(Deaf(port))), (right, Box::new(far)));
    DEVICE.set(Arc::clone(&left)).ok();
    let ends_of = |device: &Arc<Device>| {
        let first = End::new(device, QpType::Rc, 64);
        let mut second = End::new(device, QpType::Rc, 64);
        let channel = Arc::clone(&first.channel);
        second.cq = device
            .create_cq(512, Some((Arc::clone(&channel), 43)))
            .unwrap();
        second.qp = create_qp(&second.pd, &second.cq, QpType::Rc, CAPS);
        second.channel = channel;
        [first, second]
    };
    let ours = ends_of(&left);
    let theirs = ends_of(&right);
    for (one, other) in ours.iter().zip(&theirs) {
        one.connect(other);
        other.connect(one);
        for wr_id in 0..32 {
            one.recv(wr_id, 0, 8);
        }
    }
    let (asks, hears) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
    let service = ServiceId::of_port(PortSpace::TCP, 7471);
    right
        .cm_listen(service, Takes::RC, None, 8, &hears, 1)
        .unwrap();
    let wanted = request_from(&ours[0], theirs[0].path().gid, service);
    let id = left.cm_connect(&wanted, &asks, 2).unwrap();
    let event = |channel: &CmChannel| {
        let start = Instant::now();
        loop {
            match channel.pop() {
                Some((_, CmNews::Event(event))) => return event,
                _ => assert!(start.elapsed() < PATIENCE),
            }
        }
    };
    let Event::ConnectRequest(request) = event(&hears) else {
        panic!()
    };
    let with = Accept {
        qpn: theirs[0].qp.number(),
        psn: PSN,
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    };
    right.cm_accept(request.id, &with).unwrap();
    event(&asks);
    left.cm_ready(id, &[]).unwrap();
    event(&hears);
    // SAFETY: plain functions; the handler of an otherwise unused signal.
    let waiter = unsafe {
        libc::atexit(at_exit);
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = ends as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut());
        libc::pthread_self()
    };
    for their in theirs {
        std::thread::spawn(move || {
            loop {
                their.send(Operation::Send, 0, 8);
                their.ok();
            }
        });
    }
    let started: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    std::thread::spawn(move || {
        while !started.load(Ordering::Relaxed) {}
        std::thread::sleep(after);
        // SAFETY: that thread runs until the process ends.
        unsafe { libc::pthread_kill(waiter, libc::SIGUSR1) };
    });
    loop {
        for end in &ours {
            while end.try_complete().is_some() {
                end.recv(0, 0, 8);
            }
            end.cq.arm(false).unwrap();
        }
        ours[0].channel.wait_event().unwrap();
        started.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_handler_that_exits_during_a_wait_ends_the_process() {
    if let Ok(after) = std::env::var(AFTER) {
        return waits(Duration::from_micros(after.parse().unwrap()));
    }
    for round in 0..ROUNDS {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([NAME, "--exact", "--nocapture"])
            .env(AFTER, (2000 + round * 37).to_string())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        let status = loop {
            match child.try_wait().unwrap() {
                Some(status) => break Some(status),
                None if start.elapsed() > PATIENCE => break None,
                None => std::thread::sleep(Duration::from_millis(1)),
            }
        };
        if status.is_none() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let code = status.and_then(|status| status.code());
        assert_eq!(code, Some(ENDED), "round {round}");
    }
}
