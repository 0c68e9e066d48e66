//! Frames from one host to another, for `airdma bench streams`: by the credits of `airdma-stream`,
//! by the status bytes of the paper that it stems from, and by sliding windows.
//!
//! [`drive`] and [`take`] are the same program over each discipline, which [`ends`] describes.
//! [`credits`] is the product; [`paper`] and [`window`] are written against the verbs, as their
//! papers have them, without the overhead of a library. Each end prints what it found as one line
//! of JSON.

use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};

use clap::Parser;
use serde::Serialize;

mod credits;
mod drive;
mod ends;
mod load;
mod meeting;
mod paper;
mod queue_pair;
mod take;
mod tally;
#[cfg(test)]
mod tests;
mod window;

use ends::{Receiving, Sending};
use load::{Discipline, Load};
use meeting::Meeting;

/// One end of a measurement of `airdma bench streams`.
#[derive(Parser)]
#[command(name = "airdma-stream-peer", version)]
enum End {
    /// Takes frames until the sender has ended.
    Receive {
        /// An address of this host.
        #[arg(long)]
        at: IpAddr,
        /// Port of TCP, over which the ends meet.
        #[arg(long)]
        port: u16,
        #[command(flatten)]
        load: Load,
    },
    /// Sends frames.
    Send {
        /// The receiver.
        #[arg(long)]
        to: SocketAddr,
        #[command(flatten)]
        load: Load,
    },
}

fn main() -> anyhow::Result<()> {
    match End::parse() {
        End::Receive { at, port, load } => print(&receive(Meeting::await_peer(at, port)?, &load)?),
        End::Send { to, load } => print(&send(Meeting::with(to)?, &load)?),
    }
}

fn print(found: &impl Serialize) -> anyhow::Result<()> {
    writeln!(io::stdout(), "{}", serde_json::to_string(found)?)?;
    Ok(())
}

fn receive(mut meeting: Meeting, load: &Load) -> anyhow::Result<take::Came> {
    fn run(
        receiving: anyhow::Result<impl Receiving>,
        meeting: &mut Meeting,
        load: &Load,
    ) -> anyhow::Result<take::Came> {
        let mut receiving = receiving?;
        let came = take::take(&mut receiving, load)?;
        // The sender's queue pairs stay until all has been taken.
        meeting.say(&"done")?;
        meeting.wait_end()?;
        Ok(came)
    }
    load.check()?;
    match load.discipline {
        Discipline::Credits => {
            let receiving = credits::Receiver::open(&mut meeting, load);
            run(receiving, &mut meeting, load)
        }
        Discipline::Paper => {
            let receiving = paper::Receiver::open(&mut meeting, load);
            run(receiving, &mut meeting, load)
        }
        Discipline::Window | Discipline::WindowMerged | Discipline::WindowAny => {
            let receiving = window::Receiver::open(&mut meeting, load);
            run(receiving, &mut meeting, load)
        }
    }
}

fn send(mut meeting: Meeting, load: &Load) -> anyhow::Result<drive::Sent> {
    fn run(
        sending: anyhow::Result<impl Sending>,
        meeting: &mut Meeting,
        load: &Load,
    ) -> anyhow::Result<drive::Sent> {
        let mut sending = sending?;
        let sent = drive::drive(&mut sending, load)?;
        let _: String = meeting.hear()?;
        Ok(sent)
    }
    load.check()?;
    match load.discipline {
        Discipline::Credits => {
            let sending = credits::Sender::open(&mut meeting, load);
            run(sending, &mut meeting, load)
        }
        Discipline::Paper => {
            let sending = paper::Sender::open(&mut meeting, load);
            run(sending, &mut meeting, load)
        }
        Discipline::Window | Discipline::WindowMerged | Discipline::WindowAny => {
            let sending = window::Sender::open(&mut meeting, load);
            run(sending, &mut meeting, load)
        }
    }
}
