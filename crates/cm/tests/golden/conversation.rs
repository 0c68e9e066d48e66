//! The management datagrams of a capture.

use std::collections::BTreeSet;
use std::net::IpAddr;

use airdma_cm::Route;
use airdma_transport::Time;
use airdma_wire::cm::{CmMad, CmMessage};
use airdma_wire::{Packet, Qpn};

/// `a` is the active side, `b` the passive one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    A,
    B,
}

/// A datagram between the two queue pairs 1.
pub struct Datagram {
    pub at: Time,
    pub from: End,
    /// The route seen from its sender.
    pub route: Route,
    pub bytes: Vec<u8>,
    pub mad: CmMad,
}

impl Datagram {
    /// The route seen from its receiver.
    pub fn route_back(&self) -> Route {
        Route {
            local: self.route.remote,
            remote: self.route.local,
            traffic_class: 0,
        }
    }
}

/// The datagrams of a capture, in order.
pub fn datagrams(name: &str) -> Vec<Datagram> {
    let captured = airdma_captures::packets(name);
    let mut datagrams = Vec::new();
    let mut asking: BTreeSet<IpAddr> = BTreeSet::new();
    for packet in &captured {
        let parsed = Packet::parse(packet.transport()).unwrap();
        if parsed.headers.bth.dest_qpn != Qpn::GSI {
            continue;
        }
        let mad = CmMad::parse(parsed.payload).unwrap();
        if matches!(mad.message, CmMessage::Req(_) | CmMessage::SidrReq(_)) {
            asking.insert(packet.source());
        }
        datagrams.push(Datagram {
            at: Time::ZERO + packet.at,
            from: if asking.contains(&packet.source()) {
                End::A
            } else {
                End::B
            },
            route: Route {
                local: packet.source().into(),
                remote: packet.destination().into(),
                traffic_class: 0,
            },
            bytes: parsed.payload.to_vec(),
            mad,
        });
    }
    datagrams
}
