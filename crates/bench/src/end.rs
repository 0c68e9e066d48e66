//! The programs of ours that are measured: `airdma bench-end ...`, started in the hosts by `airdma bench`.

use std::io::{self, Write};
use std::net::SocketAddr;

use anyhow::Context;
use serde::Serialize;

mod idle_pairs;
mod udp;
mod verbs;

/// Which, and how.
#[derive(Clone, Debug)]
pub enum End {
    /// Counts datagrams until the sender says it was the last.
    UdpReceive {
        /// Bound to any address.
        port: u16,
        /// Coalesced by the kernel (GRO).
        offload: bool,
    },
    /// Sends datagrams as fast as it can.
    UdpSend {
        /// The receiver.
        to: SocketAddr,
        /// Payload of each, in bytes.
        datagram: usize,
        /// Bytes of one call.
        message: usize,
        /// For how long.
        seconds: u32,
        /// Segmented by the kernel (GSO).
        offload: bool,
    },
    /// Makes queue pairs connected to themselves, and says by how much the process grew.
    IdlePairs {
        /// How many.
        pairs: u64,
    },
}

/// Runs it; prints what it found as one line of JSON.
pub fn run(end: &End) -> anyhow::Result<()> {
    match *end {
        End::UdpReceive { port, offload } => {
            print(&udp::receive(port, offload).context("receiving datagrams")?)
        }
        End::UdpSend {
            to,
            datagram,
            message,
            seconds,
            offload,
        } => udp::send(to, datagram, message, seconds, offload).context("sending datagrams"),
        End::IdlePairs { pairs } => print(&idle_pairs::grow(pairs)?),
    }
}

fn print(found: &impl Serialize) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", serde_json::to_string(found)?)?;
    Ok(())
}
