//! What one process of a host gets from another that it shares a ring with: messages over the Unix
//! socket, probes over the network, and the ring itself, of which the other may write any byte.

use std::sync::atomic::{AtomicU32, Ordering};

use airdma_port::local::messages::{Grant, Request};
use airdma_shm::{PACKET_RING_BYTES, PacketConsumer, PacketProducer, PacketTag, packet_ring};
use airdma_wire::local_probe::LocalProbe;

use crate::input::Input;

/// Words at which a ring's flag, indices and first packets lie.
const NEAR: [u64; 8] = [0, 32, 64, 96, 97, 112, 113, 128];
/// Room of a reader. The longest packet is longer.
const ROOM: usize = 5000;
const PACKETS_MAX: usize = 9000;

/// `data`: a message, and what the other side writes into a ring.
pub fn run(data: &[u8]) {
    messages(data);
    ring(&mut Input::new(data));
}

fn messages(data: &[u8]) {
    for cut in [24, 44, 64, data.len()] {
        let message = &data[..cut.min(data.len())];
        if let Some(request) = Request::parse(message) {
            assert_eq!(request.to_bytes(), message);
        }
        if let Some(grant) = Grant::parse(message) {
            assert_eq!(grant.to_bytes(), message);
        }
        if let Some(probe) = LocalProbe::parse(message) {
            assert_eq!(LocalProbe::parse(&probe.to_bytes()), Some(probe));
        }
    }
}

fn ring(input: &mut Input<'_>) {
    let Ok((mut consumer, block)) = packet_ring() else {
        return; // out of descriptors
    };
    let Ok(mut producer) = PacketProducer::attach(block.clone()) else {
        panic!("a new ring has two ends");
    };
    while !input.is_empty() {
        match input.below(4) {
            0 => {
                let len = usize::from(input.u16() % 5000);
                producer.push(PacketTag(input.bytes()), &vec![input.byte(); len]);
            }
            1 => {
                producer.publish();
            }
            2 => {
                let word = input.number(&NEAR) as usize % (PACKET_RING_BYTES / 4);
                let value = input.number(&[1, 8192, 1 << 16, u64::from(u32::MAX)]) as u32;
                // SAFETY: within the block, aligned, and touched by atomics alone.
                let word =
                    unsafe { AtomicU32::from_ptr(block.ptr().as_ptr().cast::<u32>().add(word)) };
                word.store(value, Ordering::SeqCst);
            }
            _ => drain(&mut consumer),
        }
    }
    drain(&mut consumer);
    assert!(!producer.push(PacketTag::default(), &[0; PACKET_RING_BYTES]));
}

/// No more comes out than there is room for, however it is written.
fn drain(consumer: &mut PacketConsumer) {
    let mut room = vec![0; ROOM];
    let mut count = 0;
    while let Some((_, packet)) = consumer.pop(&mut room) {
        assert!(packet.len() <= ROOM, "a packet fits the room");
        count += 1;
        assert!(
            count <= PACKETS_MAX,
            "a ring holds a bounded number of packets"
        );
    }
    consumer.release();
    if consumer.check().is_err() {
        assert!(consumer.pop(&mut room).is_none(), "a corrupt ring is empty");
    }
}
