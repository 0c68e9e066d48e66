//! Sixteen hosts send to one, a mebibyte each, through a switch. Prints the topology and what
//! happened, and writes a capture of everything to the file that is named.

use core::time::Duration;
use std::io::Write;

use airdma_sim::{Frame, Link, Marking, Network, gbit};
use airdma_transport::Time;

const SENDERS: usize = 16;
const FRAMES: usize = 256;

fn main() -> std::io::Result<()> {
    let ns = Duration::from_nanos;
    let mut network = Network::star(
        7,
        SENDERS + 1,
        |_| Link::new().rate(gbit(100)).delay(ns(500)).jitter(ns(400)),
        |_| Link::new().marking_bottleneck(gbit(100), 1 << 20, Marking::Above(1 << 18)),
    );
    let file = std::env::args().nth(1);
    if file.is_some() {
        network.capture_everywhere();
    }
    let mut left = [FRAMES; SENDERS];
    let mut now = Time::ZERO;
    loop {
        network.deliver(now, &mut |_| ());
        for (left, host) in left.iter_mut().zip(1..) {
            while *left > 0 && network.ready_at(host) <= now {
                *left -= 1;
                network.send(now, host, frame(&network, host));
            }
        }
        let waiting = (1..=SENDERS).filter(|host| left[host - 1] > 0);
        let ready = waiting.map(|host| network.ready_at(host));
        let Some(next) = ready.chain(network.next_event()).min() else {
            break;
        };
        now = next;
    }
    let mut out = std::io::stdout().lock();
    writeln!(out, "{network:?}\n\n{}", network.table())?;
    match file {
        Some(file) => std::fs::write(file, network.captured_everywhere()),
        None => Ok(()),
    }
}

fn frame(network: &Network, host: usize) -> Frame {
    Frame {
        source: network.address(host),
        destination: network.address(0),
        source_port: Frame::SOURCE_PORT,
        tos: 2,
        ttl: 64,
        flow_label: 0,
        bytes: vec![0; 4096],
    }
}
