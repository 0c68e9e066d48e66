//! A connection of the Linux kernel's rping (captured between two rxe 6.1, `crates/captures/vectors/rxe-6.1/cm_rping`):
//! asked the same, we send the same.

use std::net::Ipv4Addr;

use airdma_cm::*;
use airdma_transport::Time;
use airdma_wire::cm::*;
use airdma_wire::{PathMtu, Psn, Qpn};

/// Each body without the zeros at its end.
const REQ: &str = "296bce89000000000000000001061c06000000fffe00050100000000000000000000110100000001000000a07d8b50a7ffff\
    37f0ffffffff00000000000000000000ffff0a05000100000000000000000000ffff0a050002221d10000040009800000000\
    00000000000000000000000000000000000000000000000000000000000000000000000000000000004094d5000000000000\
    0000000000000a0500010000000000000000000000000a050002";
const REP: &str = "2a6bce89296bce89000000000000110000000000be36f900010178e0000000fffe000502";
const RTU: &str = "296bce892a6bce89";
const DREQ: &str = "296bce892a6bce89000011";
const DREP: &str = "2a6bce89296bce89";

const KERNEL_A: u32 = 0x296b_ce89;
const KERNEL_B: u32 = 0x2a6b_ce89;
const A: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 1);
const B: Ipv4Addr = Ipv4Addr::new(10, 5, 0, 2);

/// The datagram of a captured body, in which our id stands instead of a kernel's.
fn captured(attribute: u8, body: &str, kernel_id: u32, our_id: ConnectionId) -> [u8; 256] {
    let digits: Vec<_> = body.bytes().filter(u8::is_ascii_hexdigit).collect();
    let byte = |pair: &[u8]| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap();
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, 7, 2, 3]);
    mad[17] = attribute;
    for (at, pair) in digits.chunks(2).enumerate() {
        mad[24 + at] = byte(pair);
    }
    // The ids are the first two words; in a request the second is reserved.
    for at in [24, 28] {
        if mad[at..at + 4] == kernel_id.to_be_bytes() {
            mad[at..at + 4].copy_from_slice(&our_id.0.to_be_bytes());
        }
    }
    mad
}

/// What is sent, without its transaction id.
fn sent(manager: &mut Manager) -> [u8; 256] {
    let (_, mut mad) = manager.poll_transmit().unwrap();
    mad[8..16].fill(0);
    mad
}

fn route(local: Ipv4Addr, remote: Ipv4Addr) -> Route {
    Route {
        local: local.into(),
        remote: remote.into(),
        traffic_class: 0,
    }
}

#[test]
fn we_ask_the_kernel_as_it_asks_itself() {
    let now = Time::ZERO;
    let mut manager = Manager::new(Config::new(1, 0xff_fe00_0501));
    let wanted = Connect {
        route: route(A, B),
        service_id: ServiceId::of_port(PortSpace::TCP, 7174),
        transport: TransportService::Rc,
        qpn: Qpn::new(0x11),
        psn: Psn::new(0x7d_8b50),
        path_mtu: PathMtu::M1024,
        responder_resources: 1,
        initiator_depth: 1,
        retry_count: 7,
        rnr_retry_count: 7,
        srq: false,
        ack_timeout: 19,
        flow_label: 0x22_1d1,
        addressing: IpAddressing::new(A.into(), 0x94d5, B.into()),
        private_data: &[],
    };
    let id = manager.connect(now, &wanted).unwrap();
    let of = |attribute, body| captured(attribute, body, KERNEL_A, id);
    assert_eq!(sent(&mut manager), of(0x10, REQ));
    manager.handle_mad(now, route(A, B), &of(0x13, REP));
    let Some(Event::ConnectResponse(response)) = manager.poll_event() else {
        panic!("no response");
    };
    assert_eq!((response.id, response.qpn), (id, Qpn::new(0x11)));
    manager.ready(id, &[]).unwrap();
    assert_eq!(sent(&mut manager), of(0x14, RTU));
    manager.disconnect(now, id, &[]).unwrap();
    assert_eq!(sent(&mut manager), of(0x15, DREQ));
    manager.handle_mad(now, route(A, B), &of(0x16, DREP));
    assert!(matches!(
        manager.poll_event(),
        Some(Event::Disconnected { .. })
    ));
}

#[test]
fn we_answer_the_kernel_as_it_answers_itself() {
    let now = Time::ZERO;
    let mut manager = Manager::new(Config::new(1, 0xff_fe00_0502));
    let service_id = ServiceId::of_port(PortSpace::TCP, 7174);
    manager.listen(service_id, Takes::RC, None, 1).unwrap();
    let mut id = ConnectionId(0);
    manager.handle_mad(now, route(B, A), &captured(0x10, REQ, KERNEL_B, id));
    if let Some(Event::ConnectRequest(request)) = manager.poll_event() {
        id = request.id;
    }
    let with = Accept {
        qpn: Qpn::new(0x11),
        psn: Psn::new(0xbe_36f9),
        responder_resources: 1,
        initiator_depth: 1,
        rnr_retry_count: 7,
        srq: false,
        private_data: &[],
    };
    manager.accept(now, id, &with).unwrap();
    let of = |attribute, body| captured(attribute, body, KERNEL_B, id);
    assert_eq!(sent(&mut manager), of(0x13, REP));
    manager.handle_mad(now, route(B, A), &of(0x14, RTU));
    assert!(matches!(
        manager.poll_event(),
        Some(Event::Established { .. })
    ));
    manager.handle_mad(now, route(B, A), &of(0x15, DREQ));
    assert_eq!(sent(&mut manager), of(0x16, DREP));
    assert!(matches!(
        manager.poll_event(),
        Some(Event::Disconnected { .. })
    ));
}
