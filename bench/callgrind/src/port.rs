//! Packets without queue pairs: their sums, and their way to the kernel.

use crate::counted::{begin, end, far, near};
use crate::ends::{Wire, wire};
use crate::{Done, Scenario};
use airdma_port::icrc::{Flow, IcrcCache};
use airdma_port::{Destination, Port, TransmitBatch};
use std::hint::black_box;
use std::net::IpAddr;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "icrc_1k",
            what: "ICRC of a packet of 1,036 B",
            run: || icrc(1036),
        },
        Scenario {
            name: "icrc_4k",
            what: "ICRC of a packet of 4,108 B",
            run: || icrc(4108),
        },
        Scenario {
            name: "icrc_ack",
            what: "ICRC of an ACK, 16 B",
            run: || icrc(16),
        },
        Scenario {
            name: "udp_batch_1k",
            what: "a packet of 1,036 B, of 64 sealed and given to the kernel at once, and taken from it",
            run: || batch(1036),
        },
        Scenario {
            name: "udp_batch_64",
            what: "a packet of 92 B, likewise",
            run: || batch(92),
        },
    ]
}

const TIMES: u64 = 960;

fn icrc(length: usize) -> Done {
    let [near_address, far_address] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
    let flow = Flow::new(near_address, far_address, 4791, 4791).expect("one family");
    let mut cache = IcrcCache::new(usize::from(u16::MAX));
    let bytes = vec![0x5a_u8; length];
    let mut sum = |id| {
        black_box(cache.icrc(&flow, id, black_box(&bytes)));
    };
    for _ in 0..2 {
        sum(1);
    }
    begin();
    for _ in 0..TIMES {
        near(|| sum(1));
    }
    end();
    Done {
        times: TIMES,
        packets: TIMES,
    }
}

/// The middle of a WRITE to queue pair 0x12.
const BTH: [u8; 12] = [0x07, 0, 0xff, 0xff, 0, 0, 0, 0x12, 0, 0, 0, 0];

/// Packets of one burst.
const PACKETS: usize = 64;

fn batch(length: usize) -> Done {
    let [(_, mut left), (address, mut right)] = wire(Wire::Sockets);
    let destination = Destination {
        address: address.into(),
        source_index: 0,
        tos: 0,
        hop_limit: 64,
        flow_label: 0,
        bundles: false,
    };
    let mut batch = TransmitBatch::with_capacity(1 << 20, 1024);
    let mut burst = || {
        for number in 0..PACKETS {
            let packet = batch.reserve(length).expect("room");
            // For one queue pair, each with its own PSN, as the packets of a message are.
            packet[..BTH.len()].copy_from_slice(&BTH);
            packet[BTH.len() - 1] = number as u8;
            batch.commit(length, destination);
        }
        near(|| left.transmit(&mut batch).expect("a socket"));
        let mut count = 0;
        while count < PACKETS {
            far(|| count += take(&mut *right));
        }
    };
    for _ in 0..8 {
        burst();
    }
    let bursts = TIMES / PACKETS as u64;
    begin();
    for _ in 0..bursts {
        burst();
    }
    end();
    Done {
        times: bursts * PACKETS as u64,
        packets: bursts * PACKETS as u64,
    }
}

fn take(port: &mut dyn Port) -> usize {
    port.receive(64, &mut |received| {
        black_box(received.bytes);
    })
    .expect("a socket")
}
