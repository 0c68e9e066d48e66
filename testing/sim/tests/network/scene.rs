//! Helpers of the tests.

use core::time::Duration;

use airdma_sim::{Delivery, Frame, Network};
use airdma_transport::{Arrival, Time};
use airdma_wire::{Bth, Headers, Opcode, Psn, Qpn};

pub fn ns(n: u64) -> Duration {
    Duration::from_nanos(n)
}

pub fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// ECN-capable transport.
pub const ECT: u8 = 2;

/// Congestion experienced.
pub const CE: u8 = 3;

/// Bytes that link layer, IPv4 and UDP add to a frame on the line.
pub const OVERHEAD: usize = 66;

/// A frame of `len` bytes that are no packet.
pub fn frame(network: &Network, from: usize, to: usize, len: usize) -> Frame {
    Frame {
        source: network.address(from),
        destination: network.address(to),
        source_port: Frame::SOURCE_PORT,
        tos: ECT,
        ttl: 64,
        flow_label: 0,
        bytes: vec![from as u8; len],
    }
}

/// A real packet with a real ICRC, of this many bytes of payload.
pub fn packet(network: &Network, from: usize, to: usize, payload: &[u8]) -> Frame {
    let bth = Bth::new(Opcode::UcSendOnly, Qpn::new(0x11), Psn::new(7));
    let headers = Headers::new(bth);
    let mut transport = vec![0; headers.len()];
    headers.emit(&mut transport);
    transport.extend_from_slice(payload);
    let arrival = Arrival {
        source: network.address(from).into(),
        destination: network.address(to).into(),
        tos: ECT,
        ttl: 64,
        flow_label: 0,
    };
    Frame::seal(&arrival, &transport)
}

/// Runs the network until no event is left.
pub fn deliveries(network: &mut Network) -> Vec<Delivery> {
    let mut deliveries = Vec::new();
    while let Some(at) = network.next_event() {
        network.deliver(at, &mut |delivery| deliveries.push(delivery));
    }
    deliveries
}

/// Sends `count` frames of `len` bytes from host 0 to host 1 as fast as its port takes them, each
/// with its number in its first bytes; returns number, time of sending and delivery of each
/// arrival.
pub fn stream(network: &mut Network, count: u32, len: usize) -> Vec<(u32, Time, Delivery)> {
    let mut arrived = Vec::new();
    let mut now = Time::ZERO;
    let number = |delivery: &Delivery| {
        let bytes = delivery.frame.bytes.first_chunk::<4>();
        bytes.map_or(u32::MAX, |bytes| u32::from_be_bytes(*bytes))
    };
    let mut keep = |delivery: Delivery| arrived.push((number(&delivery), delivery.at, delivery));
    for sent in 0..count {
        now = now.max(network.ready_at(0));
        while let Some(at) = network.next_event().filter(|&at| at <= now) {
            network.deliver(at, &mut keep);
        }
        let mut frame = frame(network, 0, 1, len);
        frame.bytes[..4].copy_from_slice(&sent.to_be_bytes());
        network.send(now, 0, frame);
    }
    while let Some(at) = network.next_event() {
        network.deliver(at, &mut keep);
    }
    arrived
}
