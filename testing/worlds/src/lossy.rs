//! Write-Records over a network that loses packets, in virtual time: the share of the sent bytes
//! that their target declares valid. The figures are the same on every machine.
//!
//! Requester and target are those of the transport; the network between them is a chance for each
//! packet.

use crate::datagrams::{self, NoMemory, arrival, queue_pair};
use airdma_sim::Random;
use airdma_transport::{
    Counter, Operation, RecordConfig, RecordHost, RecordOrigin, RecordTarget, RemoteFault,
    SendRequest, Time,
};
use airdma_wire::{Neighbour, PathMtu, Qpn, RecordPacket, Rkey};
use core::time::Duration;

const KEY: Rkey = Rkey(0x5eed_0001);
const SOURCE: Qpn = Qpn::new(0x100);
const TARGET: Qpn = Qpn::new(1);
/// The interface of both ends.
const INTERFACE_MTU: u32 = 1500;
/// Longer than a message stays open without a packet.
const PAUSE: Duration = Duration::from_millis(25);
const PACKET_TIME: Duration = Duration::from_micros(1);
const SEED: u64 = 11;

/// What the target declared.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Declared {
    /// Share of the sent bytes that are valid.
    pub valid: f64,
    /// Share of the messages that arrived whole.
    pub whole: f64,
    /// Packets of a message.
    pub packets: u32,
}

/// Sends `messages` messages of `length` bytes, and loses `loss` of their packets.
pub fn declared(length: u32, loss: f64, strict_last: bool, messages: u32) -> Declared {
    let config = RecordConfig {
        strict_last,
        ..RecordConfig::default()
    };
    let mut target = RecordTarget::new(config, [SEED, !SEED]).expect("valid limits");
    let mut requester = queue_pair(SOURCE, PathMtu::M1024, INTERFACE_MTU);
    let responder = queue_pair(TARGET, PathMtu::M1024, INTERFACE_MTU);
    let arrival = arrival([10, 0, 0, 2].into(), target_address());
    let (mut random, mut now, mut out) = (Random::new(SEED), Time::ZERO, vec![0; 2048]);
    let (mut memory, mut declared) = (Memory::default(), Declared::default());
    let (mut valid, mut whole) = (0_u64, 0_u32);
    for _ in 0..messages {
        requester.post_send(request(length), &mut NoMemory);
        declared.packets = 0;
        while let Some(sent) = requester.poll_transmit(now, 0, &mut NoMemory, &mut out) {
            now = now + PACKET_TIME;
            declared.packets += 1;
            if random.chance(loss) {
                continue;
            }
            let packet = RecordPacket::parse(&out[..sent.len]).expect("a record");
            responder.handle_record(now, &arrival, &packet, &mut target, &mut memory);
        }
        now = now + PAUSE;
        target.handle_timeout(now, &mut memory);
        let mut of_message = 0;
        while let Some(handle) = target.poll_record() {
            of_message += target.record(handle).map_or(0, |record| record.valid_bytes);
            target.free(handle);
        }
        assert!(u64::from(of_message) <= memory.placed, "valid, not placed");
        memory.placed = 0;
        valid += u64::from(of_message);
        whole += u32::from(of_message == length);
    }
    let messages = f64::from(messages);
    declared.valid = valid as f64 / (messages * f64::from(length));
    declared.whole = f64::from(whole) / messages;
    declared
}

fn target_address() -> Neighbour {
    [10, 0, 0, 1].into()
}

fn request(length: u32) -> SendRequest {
    let operation = Operation::Record { va: 0, rkey: KEY };
    datagrams::request(0, operation, length, target_address(), TARGET)
}

/// The memory of the target: only the bytes placed are counted.
#[derive(Default)]
struct Memory {
    placed: u64,
}

impl RecordHost for Memory {
    fn check_record(
        &mut self,
        _: RecordOrigin,
        rkey: Rkey,
        _: u64,
        _: u32,
    ) -> Result<(), RemoteFault> {
        (rkey == KEY).then_some(()).ok_or(RemoteFault::Access)
    }

    fn write_record(
        &mut self,
        _: RecordOrigin,
        _: Rkey,
        _: u64,
        data: &[u8],
    ) -> Result<(), RemoteFault> {
        self.placed += data.len() as u64;
        Ok(())
    }

    fn count_record(&mut self, _: Counter) {}
}

/// Share of the bytes that the datagram-iWARP paper's stack would declare, computed: a message in
/// datagrams of 64 KB, which IP cuts into fragments; a datagram without all of its fragments is
/// lost, and a message without its last datagram.
pub fn of_the_paper(length: u32, loss: f64) -> f64 {
    let length = f64::from(length);
    let datagrams = (length / DATAGRAM).ceil();
    let last = length - (datagrams - 1.0) * DATAGRAM;
    let arrives = |data: f64| (1.0 - loss).powf(fragments(data));
    arrives(last) * (last / length + (length - last) / length * arrives(DATAGRAM))
}

/// Share of the messages that a SEND in such datagrams delivers, each whole or not at all.
pub fn of_sends(length: u32, loss: f64) -> f64 {
    let length = f64::from(length);
    let datagrams = (length / DATAGRAM).ceil();
    let last = length - (datagrams - 1.0) * DATAGRAM;
    let all = (datagrams - 1.0) * fragments(DATAGRAM) + fragments(last);
    (1.0 - loss).powf(all)
}

/// Data of the largest datagram.
const DATAGRAM: f64 = 65_477.0;

/// Fragments of a datagram at MTU 1500: UDP's header and 30 bytes of the paper's before the data.
fn fragments(data: f64) -> f64 {
    ((8.0 + data + 30.0) / 1480.0).ceil()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Message, per cent lost, per cent declared: a send, the paper's rule.
    const KNOWN: [(u32, f64, f64, f64); 8] = [
        (1 << 10, 0.1, 99.9, 99.9),
        (16 << 10, 1.0, 88.6, 88.6),
        (63 << 10, 5.0, 10.5, 10.5),
        (256 << 10, 0.5, 40.4, 79.4),
        (256 << 10, 5.0, 0.0, 9.5),
        (1 << 20, 1.0, 0.1, 63.0),
        (4 << 20, 0.1, 5.6, 95.3),
        (4 << 20, 5.0, 0.0, 8.6),
    ];

    #[test]
    fn the_paper_loses_what_its_figures_lose() {
        for (length, percent, send, strict) in KNOWN {
            let loss = percent / 100.0;
            let found = [of_sends(length, loss), of_the_paper(length, loss)];
            for (found, known) in found.into_iter().zip([send, strict]) {
                let found = found * 100.0;
                assert!((found - known).abs() < 0.06, "{length} {percent} {found}");
            }
        }
    }

    #[test]
    fn what_arrives_is_valid() {
        for (percent, length) in [(1.0, 16 << 10), (5.0, 1 << 10), (5.0, 256 << 10)] {
            let loss = percent / 100.0;
            let found = declared(length, loss, false, 200_000 / length.div_ceil(1416));
            let left = 1.0 - loss;
            assert!((found.valid - left).abs() < 0.005, "{length} {found:?}");
            // The same bytes, if the last packet arrived.
            let strict = declared(length, loss, true, 200_000 / length.div_ceil(1416));
            let others = 1.0 - 1.0 / f64::from(strict.packets);
            let left = left * (1.0 - others * loss);
            assert!((strict.valid - left).abs() < 0.01, "{length} {strict:?}");
        }
    }
}
