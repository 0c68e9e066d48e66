//! A process ends, and with it whoever would repeat what is lost: its peers hear of it all the same.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectionId, Event, IpAddressing, PortSpace, Route, ServiceId, Takes,
    TransportService,
};
use airdma_engine::*;
use airdma_port::{Port, PortCounters, Received, TransmitBatch, sim};
use common::*;
use std::io;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// A port that loses so many DREQs.
struct Losing<P> {
    port: P,
    dreqs: Arc<AtomicU32>,
}

/// `AttributeID` of a DREQ, and where it is: behind BTH, DETH and 16 bytes of the MAD's header (IBTA 13.4.2, 12.6.10).
const DREQ: [u8; 2] = [0, 0x15];
const ATTRIBUTE: usize = 12 + 8 + 16;

impl<P: Port> Port for Losing<P> {
    fn transmit(&mut self, batch: &mut TransmitBatch) -> io::Result<()> {
        let is_dreq = |packet: &[u8]| packet.get(ATTRIBUTE..ATTRIBUTE + 2) == Some(&DREQ);
        if batch.packets().any(|(packet, _)| is_dreq(packet)) {
            let left = self.dreqs.load(Ordering::Relaxed).checked_sub(1);
            if let Some(left) = left {
                self.dreqs.store(left, Ordering::Relaxed);
                batch.clear();
            }
        }
        self.port.transmit(batch)
    }

    fn receive(
        &mut self,
        budget: usize,
        handle: &mut dyn FnMut(Received<'_>),
    ) -> io::Result<usize> {
        self.port.receive(budget, handle)
    }

    fn wait_descriptors(&self, out: &mut Vec<RawFd>) {
        self.port.wait_descriptors(out);
    }

    fn counters(&self) -> PortCounters {
        self.port.counters()
    }
}

/// A connection, and how many DREQs of its active end will be lost.
struct Connected {
    active: End,
    id: ConnectionId,
    passive: End,
    hears: Arc<CmChannel>,
    lost: Arc<AtomicU32>,
    _asks: Arc<CmChannel>,
}

impl Connected {
    fn new() -> Self {
        let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
        let (port, far) = sim::pair(&[left], &[right]).unwrap();
        let lost = Arc::new(AtomicU32::new(0));
        let losing = Losing {
            port,
            dreqs: Arc::clone(&lost),
        };
        let (left, right) = wired_on((left, Box::new(losing)), (right, Box::new(far)));
        let active = End::new(&left, QpType::Rc, 64);
        let passive = End::new(&right, QpType::Rc, 64);
        let (asks, hears) = (CmChannel::new().unwrap(), CmChannel::new().unwrap());
        let service = ServiceId::of_port(PortSpace::TCP, 7471);
        right
            .cm_listen(service, Takes::RC, None, 8, &hears, 1)
            .unwrap();
        let id = left
            .cm_connect(&wanted(service, &active, &passive), &asks, 2)
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
            lost,
            _asks: asks,
        }
    }
}

fn wanted(service_id: ServiceId, from: &End, to: &End) -> Connect<'static> {
    let (local, remote) = (from.path().gid, to.path().gid);
    Connect {
        route: Route {
            local,
            remote,
            traffic_class: 0,
        },
        service_id,
        transport: TransportService::Rc,
        qpn: from.qp.number(),
        psn: PSN,
        path_mtu: PathMtu::M1024,
        responder_resources: 4,
        initiator_depth: 4,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: 14,
        flow_label: 0,
        addressing: IpAddressing::new(local.to_ip(), 4711, remote.to_ip()),
        private_data: &[],
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
    connected.lost.store(2, Ordering::Relaxed);
    connected.active.device.cm_destroy(connected.id);
    drop(connected.active);
    let heard = next_event(&connected.hears);
    assert!(matches!(heard, Event::Disconnected { .. }), "{heard:?}");
    drop(connected.passive);
}

#[test]
fn a_lost_dreq_is_said_again_before_the_process_ends() {
    let connected = Connected::new();
    connected.lost.store(2, Ordering::Relaxed);
    let device = &connected.active.device;
    device.cm_farewell();
    assert_eq!(counter(device, "cm_retransmits"), 2);
    let heard = next_event(&connected.hears);
    assert!(matches!(heard, Event::Disconnected { .. }), "{heard:?}");
}

#[test]
fn nobody_waits_long_for_a_peer_that_is_gone() {
    let connected = Connected::new();
    connected.lost.store(u32::MAX, Ordering::Relaxed);
    connected.active.device.cm_destroy(connected.id);
    let start = Instant::now();
    drop(connected.active);
    assert!(start.elapsed() < Duration::from_secs(1));
}
