//! The measured programs of this crate: `airdma bench-end ...`, which `airdma bench` starts in its
//! hosts.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context;
use serde::Serialize;

use crate::peer::{ManyPairs, RecordsLoad};

mod at_daemon;
mod idle_pairs;
mod many_pairs;
mod pipe;
mod records;
mod udp;
mod verbs;

/// A measured program and its arguments.
#[derive(Clone, Debug)]
pub enum End {
    /// Counts datagrams until the sender's last one.
    UdpReceive {
        /// Local port, bound at all addresses.
        port: u16,
        /// Datagrams are coalesced by the kernel (GRO).
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
        /// Duration of the run.
        seconds: u32,
        /// Datagrams are segmented by the kernel (GSO).
        offload: bool,
    },
    /// Makes queue pairs connected to themselves and reports how much the process grew.
    IdlePairs {
        /// Number of queue pairs.
        pairs: u64,
    },
    /// Makes queue pairs that a writer connects to.
    PairsServe {
        /// TCP port that the writer connects to.
        port: u16,
        /// Number of queue pairs.
        pairs: u32,
        /// Load of the run; the same as the writer's.
        load: ManyPairs,
    },
    /// Writes over many queue pairs and reports the bytes written.
    PairsWrite {
        /// Address of the [`End::PairsServe`].
        to: SocketAddr,
        /// Number of queue pairs.
        pairs: u32,
        /// Size and number of the messages in flight.
        load: ManyPairs,
        /// Duration of the run.
        seconds: u32,
    },
    /// Takes Write-Records.
    RecordsServe {
        /// TCP port that the source connects to.
        port: u16,
        /// Load of the run; the same as the source's.
        load: RecordsLoad,
    },
    /// Sends Write-Records.
    RecordsDrive {
        /// Address of the [`End::RecordsServe`].
        to: SocketAddr,
        /// Load of the run.
        load: RecordsLoad,
        /// Duration of the run.
        seconds: u32,
    },
    /// Writes the bytes received over one TCP connection.
    PipeReceive {
        /// Local port, bound at all addresses.
        port: u16,
        /// Destination: a file or a pipe.
        into: PathBuf,
    },
    /// Sends over one TCP connection.
    PipeSend {
        /// The receiver.
        to: SocketAddr,
        /// Source: a file or a pipe, read to its end.
        from: PathBuf,
    },
    /// Runs a program, and what belongs to it.
    AtDaemon {
        /// The socket of a daemon for it, which lives as long as the program; none is started
        /// without.
        socket: Option<PathBuf>,
        /// Whether it is stopped meanwhile.
        stop: Option<Stop>,
        /// The program and its arguments.
        command: Vec<String>,
    },
}

/// When a program is stopped (`SIGSTOP`).
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    /// Once a TCP connection to this port of the host stands.
    pub port: u16,
    /// For how long, in seconds.
    pub seconds: u32,
}

/// Runs the program; prints its result as one line of JSON.
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
        End::RecordsServe { port, load } => {
            print_if(records::serve(port, load).context("taking records")?)
        }
        End::RecordsDrive { to, load, seconds } => {
            print_if(records::drive(to, load, seconds).context("sending records")?)
        }
        End::PipeReceive { port, ref into } => pipe::receive(port, into).context("receiving"),
        End::PipeSend { to, ref from } => pipe::send(to, from).context("sending"),
        End::AtDaemon {
            ref socket,
            stop,
            ref command,
        } => at_daemon::run(socket.as_deref(), stop, command),
    }
}

/// Prints what this end knows; of some runs the other end has the result.
fn print_if(found: Option<impl Serialize>) -> anyhow::Result<()> {
    found.map_or(Ok(()), |found| print(&found))
}

fn print(found: &impl Serialize) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", serde_json::to_string(found)?)?;
    Ok(())
}
