//! Unknown hosts at queue pair 1: their datagrams are counted and bounded, and established
//! connections continue.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_cm::{Config, Connect, Manager, Route};
use airdma_engine::cm_protocol::{
    Accept, Event, IpAddressing, PortSpace, ServiceId, Takes, TransportService,
};
use airdma_engine::*;
use airdma_port::{Destination, Port, TransmitBatch, UdpConfig, UdpPort};
use airdma_transport::Time;
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, HEADERS_LEN_MAX, Headers, Opcode};
use common::*;
use std::net::IpAddr;
use std::sync::Arc;

const TCP_PORT: u16 = 7471;
const BACKLOG: usize = 8;
/// The port of `sockets`.
const UDP_PORT: u16 = 24_791;

/// An unknown host.
struct Stranger {
    gid: Gid,
    victim: IpAddr,
    port: UdpPort,
    batch: TransmitBatch,
    psn: Psn,
}

impl Stranger {
    fn new(address: &str, victim: &str) -> Self {
        let address: IpAddr = address.parse().unwrap();
        let config = UdpConfig {
            port: UDP_PORT,
            ..UdpConfig::default()
        };
        Stranger {
            gid: address.into(),
            victim: victim.parse().unwrap(),
            port: UdpPort::bind(&[address], 1, config).unwrap(),
            batch: TransmitBatch::with_capacity(1 << 16, 64),
            psn: Psn::new(0),
        }
    }

    /// Sends one datagram to queue pair 1, with a right ICRC whatever its content.
    fn send(&mut self, payload: &[u8], qkey: Qkey) {
        let bth = Bth::new(Opcode::UdSendOnly, Qpn::new(1), self.psn);
        self.psn = self.psn.add(1);
        let headers = Headers {
            deth: Some(Deth {
                qkey,
                src_qpn: Qpn::new(1),
            }),
            ..Headers::new(bth)
        };
        let mut bytes = vec![0; HEADERS_LEN_MAX];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(payload);
        self.batch
            .reserve(bytes.len())
            .unwrap()
            .copy_from_slice(&bytes);
        let destination = Destination {
            address: self.victim.into(),
            source_index: 0,
            tos: 0,
            hop_limit: 64,
            flow_label: 0,
            bundles: false,
        };
        self.batch.commit(bytes.len(), destination);
        self.port.transmit(&mut self.batch).unwrap();
    }

    /// Requests for a port, each from another queue pair.
    fn requests(&self, count: u32, port: u16) -> Vec<[u8; MAD_LEN]> {
        let mut config = Config::new(7, 1);
        config.transmits_max = count as usize;
        let mut manager = Manager::new(config);
        let local = self.gid;
        let remote = Gid::from(self.victim);
        for number in 0..count {
            let wanted = Connect {
                route: Route {
                    local,
                    remote,
                    traffic_class: 0,
                },
                service_id: ServiceId::of_port(PortSpace::TCP, port),
                transport: TransportService::Rc,
                qpn: Qpn::new(2 + number),
                psn: PSN,
                path_mtu: PathMtu::M1024,
                responder_resources: 1,
                initiator_depth: 1,
                retry_count: 7,
                rnr_retry_count: 7,
                srq: false,
                ack_timeout: 14,
                flow_label: 0,
                addressing: IpAddressing::new(local.to_ip(), 4711, remote.to_ip()),
                private_data: b"me too",
            };
            manager.connect(Time::ZERO, &wanted).unwrap();
        }
        std::iter::from_fn(|| manager.poll_transmit())
            .map(|(_, mad)| mad)
            .collect()
    }
}

/// Sends a message there and back: the connection works.
fn works(left: &End, right: &End, seed: u8) {
    let data = pattern(2048, seed);
    left.memory.fill(0, &data);
    left.qp.post_send(&left.write(right, 0, 2048)).unwrap();
    left.ok();
    assert_eq!(right.memory.bytes(0, 2048), data);
}

/// A device that listens at `right`, its channel, and a connection to it from `left`.
fn listening(left: &str, right: &str) -> (Arc<Device>, Arc<CmChannel>, End, End) {
    let (left, right) = sockets(left, right);
    let (active, passive) = pair_on(&left, &right, 4096);
    let answers = CmChannel::new().unwrap();
    let service = ServiceId::of_port(PortSpace::TCP, TCP_PORT);
    right
        .cm_listen(service, Takes::RC, None, BACKLOG, &answers, 1)
        .unwrap();
    (right, answers, active, passive)
}

#[test]
fn a_flood_of_requests_is_bounded_and_connections_go_on() {
    let (right, answers, active, passive) = listening("127.0.9.5", "127.0.9.6");
    let mut stranger = Stranger::new("127.0.9.7", "127.0.9.6");
    works(&active, &passive, 0);

    let requests = stranger.requests(2000, TCP_PORT);
    assert_eq!(requests.len(), 2000);
    for (number, mad) in requests.iter().enumerate() {
        stranger.send(mad, GSI_QKEY);
        if number % 100 == 0 {
            works(&active, &passive, (number / 100) as u8);
        }
    }
    // A request for a port without a listener is answered, and not recorded.
    for mad in stranger.requests(500, TCP_PORT + 1) {
        stranger.send(&mad, GSI_QKEY);
    }
    wait_until("the flood to be over", || {
        works(&active, &passive, 77);
        counter(&right, "cm_half_open_evicted") > 100
            && counter(&right, "cm_rejected_invalid_service") > 100
    });
    let mut requests = 0;
    while let Some((cookie, news)) = answers.pop() {
        assert_eq!(cookie, 1);
        match news {
            CmNews::Event(Event::ConnectRequest(request)) => right.cm_destroy(request.id),
            other @ (CmNews::Event(_) | CmNews::Own(_)) => panic!("{other:?}"),
        }
        requests += 1;
    }
    // One that gave way may be left: it was the only one then, and announced.
    assert!((1..=BACKLOG + 1).contains(&requests), "{requests}");
    works(&active, &passive, 78);
}

/// A thread has fetched the request, and waits for the worker to hand it over.
#[test]
fn a_request_that_was_fetched_outlives_younger_ones() {
    let (right, answers, active, passive) = listening("127.0.9.14", "127.0.9.15");
    let mut stranger = Stranger::new("127.0.9.16", "127.0.9.15");
    let requests = stranger.requests(1 + 3 * BACKLOG as u32, TCP_PORT);
    let (first, younger) = requests.split_first().unwrap();
    stranger.send(first, GSI_QKEY);
    let mut fetched = None;
    wait_until("the first request", || {
        works(&active, &passive, 1);
        fetched = answers.pop();
        fetched.is_some()
    });
    let Some((1, CmNews::Event(Event::ConnectRequest(request)))) = fetched else {
        panic!("{fetched:?}");
    };
    for (number, request) in younger.iter().enumerate() {
        stranger.send(request, GSI_QKEY);
        // Each comes to the channel.
        wait_until("it was taken", || {
            works(&active, &passive, 2);
            let evicted = counter(&right, "cm_half_open_evicted") as usize;
            evicted >= (number + 2).saturating_sub(BACKLOG)
        });
    }
    let own = CmChannel::new().unwrap();
    right.cm_hand_over(request.id, &own, 2).unwrap();
    let with = Accept {
        qpn: passive.qp.number(),
        psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private_data: b"",
    };
    right.cm_accept(request.id, &with).unwrap();
    // Nothing is left of younger ones that were evicted, and that nothing has fetched: repeated,
    // they are new. The only one that waited has stayed, since its event was announced.
    let evicted = counter(&right, "cm_half_open_evicted");
    let gone = younger.len() - BACKLOG;
    for request in &younger[..gone] {
        stranger.send(request, GSI_QKEY);
    }
    wait_until("they come again", || {
        works(&active, &passive, 3);
        counter(&right, "cm_half_open_evicted") >= evicted + gone as u64 - 1
    });
    assert!(counter(&right, "cm_duplicates") <= 1);
}

#[test]
fn what_is_malformed_or_somebody_elses_is_counted_and_dropped() {
    let (right, answers, active, passive) = listening("127.0.9.8", "127.0.9.9");
    let mut stranger = Stranger::new("127.0.9.10", "127.0.9.9");
    let counted = |name: &str, send: &mut dyn FnMut()| {
        let before = counter(&right, name);
        send();
        wait_until(name, || {
            works(&active, &passive, 3);
            counter(&right, name) > before
        });
    };
    let good = stranger.requests(2, TCP_PORT);
    counted("cm_drop_malformed", &mut || {
        stranger.send(&[0; MAD_LEN], GSI_QKEY);
    });
    counted("cm_drop_malformed", &mut || {
        stranger.send(&good[0][..100], GSI_QKEY);
    });
    counted("cm_drop_malformed", &mut || stranger.send(&[], GSI_QKEY));
    // Not with queue pair 1's key.
    counted("drop_unknown_qp", &mut || {
        stranger.send(&good[0], Qkey(0x1111_1111));
    });
    assert!(!answers.has_news());
    // A request from another address than its path names: spoofed, or relayed.
    let forged = Stranger {
        gid: Gid::from("127.0.9.66".parse::<IpAddr>().unwrap()),
        ..Stranger::new("127.0.9.11", "127.0.9.9")
    }
    .requests(1, TCP_PORT);
    counted("cm_drop_wrong_peer", &mut || {
        stranger.send(&forged[0], GSI_QKEY);
    });
    assert!(!answers.has_news());
    // A replayed one is valid.
    stranger.send(&good[1], GSI_QKEY);
    counted("cm_duplicates", &mut || {
        stranger.send(&good[1], GSI_QKEY);
    });
    assert!(matches!(
        answers.pop(),
        Some((1, CmNews::Event(Event::ConnectRequest(_))))
    ));
    assert!(!answers.has_news());
}
