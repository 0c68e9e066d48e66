//! `airdma link traffic`: the ends of a measurement.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use airdma_link::traffic::Traffic;
use anyhow::Context;

#[derive(clap::Args)]
pub struct TrafficOptions {
    #[command(subcommand)]
    end: TrafficEnd,
}

#[derive(clap::Subcommand)]
enum TrafficEnd {
    UdpSend {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        seconds: f64,
        #[arg(long)]
        mbit: Option<f64>,
    },
    UdpReceive {
        #[arg(long)]
        port: u16,
        #[arg(long, default_value_t = 0)]
        answer_each: u64,
    },
    TcpSend {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        seconds: f64,
        #[arg(long, default_value_t = u64::MAX)]
        bytes: u64,
        #[arg(long, default_value = "cubic")]
        congestion: String,
        #[arg(long)]
        mbit: Option<f64>,
    },
    TcpReceive {
        #[arg(long)]
        port: u16,
    },
    Echo {
        #[arg(long)]
        port: u16,
    },
    Ping {
        #[arg(long)]
        to: SocketAddr,
        #[arg(long)]
        seconds: f64,
        #[arg(long, default_value_t = 0.01)]
        apart: f64,
        #[arg(long, default_value_t = 0)]
        after_bytes: u64,
    },
}

/// Runs one end, and prints its result.
pub fn traffic(options: TrafficOptions) -> anyhow::Result<ExitCode> {
    let time = |seconds: f64| Duration::try_from_secs_f64(seconds).context("a time");
    let traffic = match options.end {
        TrafficEnd::UdpSend { to, seconds, mbit } => Traffic::UdpSend {
            to,
            time: time(seconds)?,
            mbit,
        },
        TrafficEnd::UdpReceive { port, answer_each } => Traffic::UdpReceive { port, answer_each },
        TrafficEnd::TcpSend {
            to,
            seconds,
            bytes,
            congestion,
            mbit,
        } => Traffic::TcpSend {
            to,
            time: time(seconds)?,
            bytes,
            congestion,
            mbit,
        },
        TrafficEnd::TcpReceive { port } => Traffic::TcpReceive { port },
        TrafficEnd::Echo { port } => Traffic::Echo { port },
        TrafficEnd::Ping {
            to,
            seconds,
            apart,
            after_bytes,
        } => Traffic::Ping {
            to,
            time: time(seconds)?,
            apart: time(apart)?,
            after_bytes,
        },
    };
    let found = airdma_link::traffic::run(&traffic)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&found)?)?;
    Ok(ExitCode::SUCCESS)
}
