//! The programs of ours that are measured: `airdma bench-end ...`, started in the hosts by `airdma bench`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::peer::ManyPairs;

mod idle_pairs;
mod many_pairs;
mod pipe;
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
    /// Makes queue pairs that a writer connects to.
    PairsServe {
        /// Where it finds us (TCP).
        port: u16,
        /// How many.
        pairs: u32,
        /// The same as the writer's.
        load: ManyPairs,
    },
    /// Writes over many queue pairs, and says how much.
    PairsWrite {
        /// The other end.
        to: SocketAddr,
        /// How many.
        pairs: u32,
        /// What is on its way.
        load: ManyPairs,
        /// For how long.
        seconds: u32,
    },
    /// Writes what comes over one connection of TCP.
    PipeReceive {
        /// Bound to any address.
        port: u16,
        /// A file or a pipe.
        into: PathBuf,
    },
    /// Sends over one connection of TCP.
    PipeSend {
        /// The receiver.
        to: SocketAddr,
        /// A file or a pipe, to its end.
        from: PathBuf,
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
        End::PairsServe { port, pairs, load } => {
            many_pairs::serve(port, load, pairs).context("being written to")
        }
        End::PairsWrite {
            to,
            pairs,
            load,
            seconds,
        } => print(&many_pairs::write(to, load, pairs, seconds).context("writing")?),
        End::PipeReceive { port, ref into } => pipe::receive(port, into).context("receiving"),
        End::PipeSend { to, ref from } => pipe::send(to, from).context("sending"),
    }
}

fn print(found: &impl Serialize) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", serde_json::to_string(found)?)?;
    Ok(())
}
