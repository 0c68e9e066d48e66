//! A process ends, and with it the repetition of lost messages: its peers are notified all the
//! same.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{
    Accept, ConnectionId, Event, PortSpace, RejReason, ServiceId, Takes,
};
use airdma_engine::*;
use airdma_port::{Capabilities, Port, PortCounters, Received, TransmitBatch, sim};
use common::*;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A port that loses this number of DREQs.
struct Losing<P> {
    port: P,
    dreqs: Arc<Dreqs>,
}

#[derive(Default)]
struct Dreqs {
    to_lose: AtomicU32,
    is_answered: AtomicBool,
    sent_after_answer: AtomicU32,
}

/// `AttributeID` of a DREQ and its answer, and its offset: behind BTH, DETH and 16 bytes of the
/// MAD's header (IBTA 13.4.2, 12.6.10).
const DREQ: [u8; 2] = [0, 0x15];
const DREP: [u8; 2] = [0, 0x16];
const ATTRIBUTE: usize = 12 + 8 + 16;

fn is_mad(packet: &[u8], attribute: [u8; 2]) -> bool {
    packet.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&attribute)
}

impl<P: Port> Port for Losing<P> {
    fn capabilities(&self) -> Capabilities {
        self.port.capabilities()
    }

    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        let dreqs = &self.dreqs;
        if batch.packets().any(|(packet, _)| is_mad(packet, DREQ)) {
            let left = dreqs.to_lose.load(Ordering::Relaxed).checked_sub(1);
            if let Some(left) = left {
                dreqs.to_lose.store(left, Ordering::Relaxed);
                batch.clear();
            }
            if dreqs.is_answered.load(Ordering::Relaxed) {
                dreqs.sent_after_answer.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.port.transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        let dreqs = &self.dreqs;
        self.port.receive(budget, &mut |received| {
            if is_mad(received.bytes, DREP) {
                dreqs.is_answered.store(true, Ordering::Relaxed);
            }
            handle(received);
        })
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        self.port.wait_descriptors(out);
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 7471);

/// A connection, and the number of DREQs of its active end that will be lost.
struct Connected {
    active: End,
    id: ConnectionId,
    passive: End,
    hears: Arc<CmChannel>,
    dreqs: Arc<Dreqs>,
    asks: Arc<CmChannel>,
}

impl Connected {
    fn new() -> Self {
        let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
        let (port, far) = sim::pair(&[left], &[right]).unwrap();
        let dreqs = Arc::new(Dreqs::default());
        let losing = Losing {
            port,
            dreqs: Arc::clone(&dreqs),
        };
        let (left, right) = wired_on((left, Box::new(losing)), (right, Box::new(far)));
        let active = End::new(&left, QpType::Rc, 64);
        let passive = End::new(&right, QpType::Rc, 64);
        let (asks, hears) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
        right
            .cm_listen(SERVICE, Takes::RC, None, 8, &hears, 1)
            .unwrap();
        let id = left
            .cm_connect(
                &request_from(&active, passive.path().gid, SERVICE),
                &asks,
                2,
            )
            .unwrap();
        let Event::ConnectRequest(request) = next_event(&hears) else {
            panic!("no request")
        };
        passive.connect(&active);
        right.cm_accept(request.id, &accepting(&passive)).unwrap();
        assert!(matches!(next_event(&asks), Event::ConnectResponse(_)));
        active.connect(&passive);
        left.cm_ready(id, &[]).unwrap();
        assert!(matches!(next_event(&hears), Event::Established { .. }));
        Connected {
            active,
            id,
            passive,
            hears,
            dreqs,
            asks,
        }
    }
}

fn accepting(end: &End) -> Accept<'static> {
    Accept {
        qpn: end.qp.number(),
        psn: PSN,
        responder_resources: 4,
        initiator_depth: 4,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    }
}

fn next_event(channel: &CmChannel) -> Event {
    let mut event = None;
    wait_until("an event comes", || {
        event = channel.pop();
        event.is_some()
    });
    match event {
        Some((_, CmNews::Event(event))) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_lost_dreq_is_said_again_before_the_device_is_closed() {
    let connected = Connected::new();
    connected.dreqs.to_lose.store(2, Ordering::Relaxed);
    connected.active.device.cm_destroy(connected.id);
    drop(connected.active);
    let heard = next_event(&connected.hears);
    assert!(matches!(heard, Event::Disconnected { .. }), "{heard:?}");
    drop(connected.passive);
}

#[test]
fn a_lost_dreq_is_said_again_before_the_process_ends() {
    let connected = Connected::new();
    connected.dreqs.to_lose.store(2, Ordering::Relaxed);
    let device = &connected.active.device;
    device.cm_exit();
    let again = counter(device, "cm_retransmits");
    assert!((2..=3).contains(&again), "{again}");
    assert_eq!(connected.dreqs.to_lose.load(Ordering::Relaxed), 0);
    let after = connected.dreqs.sent_after_answer.load(Ordering::Relaxed);
    assert_eq!(after, 0, "whoever has answered is left alone");
    let heard = next_event(&connected.hears);
    assert!(matches!(heard, Event::Disconnected { .. }), "{heard:?}");
}

#[test]
fn a_request_to_an_ending_process_is_rejected_at_once() {
    let connected = Connected::new();
    connected.passive.device.cm_exit();
    let late = End::new(&connected.active.device, QpType::Rc, 64);
    let heard = next_event(&connected.asks);
    assert!(matches!(heard, Event::Disconnected { .. }), "{heard:?}");
    let asked = request_from(&late, connected.passive.path().gid, SERVICE);
    let id = late.device.cm_connect(&asked, &connected.asks, 3).unwrap();
    let mut heard = next_event(&connected.asks);
    if matches!(heard, Event::TimewaitExit { .. }) {
        heard = next_event(&connected.asks);
    }
    let Event::Rejected { id: of, reason, .. } = heard else {
        panic!("{heard:?}")
    };
    assert_eq!((of, reason), (id, RejReason::INVALID_SERVICE_ID));
}

#[test]
fn nobody_waits_long_for_a_peer_that_is_gone() {
    let connected = Connected::new();
    connected.dreqs.to_lose.store(u32::MAX, Ordering::Relaxed);
    connected.active.device.cm_destroy(connected.id);
    let start = Instant::now();
    drop(connected.active);
    assert!(start.elapsed() < Duration::from_secs(1));
}
