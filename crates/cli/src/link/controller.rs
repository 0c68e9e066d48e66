//! `airdma link controller`: the box between a plain RoCEv2 host and a radio.

use std::io::{self, Write};
use std::process::ExitCode;

use airdma_pfc_box::{Controller, Options};

#[derive(clap::Args)]
pub struct ControllerOptions {
    /// The interface to the plain host.
    #[arg(long, value_name = "IFACE")]
    host: String,
    /// The interface to the air: an access point's or a station's with `4addr on`, an emulated link's, or the cable to one.
    #[arg(long, value_name = "IFACE")]
    radio: String,
    /// What the radio carries, in Mb/s [default: what leaves its queue, or what its driver says].
    #[arg(long, value_name = "MBIT", allow_hyphen_values = true)]
    rate: Option<f64>,
    /// What may wait here, in bytes; the host is asked to stop at 256 KiB.
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    queue: usize,
    /// Which priority of the host's carries RoCE, 0 to 7.
    #[arg(long, value_name = "PRIORITY", default_value_t = PRIORITY)]
    pfc: u8,
    /// Say nothing while it works, and all at the end, as JSON.
    #[arg(long)]
    json: bool,
}

/// What most guides to RoCE give it.
const PRIORITY: u8 = 3;

#[derive(clap::Args)]
pub struct NicOptions {
    #[arg(long)]
    inside: String,
    #[arg(long)]
    cable: String,
    #[arg(long, default_value_t = PRIORITY)]
    pfc: u8,
}

/// Forwards until a signal comes.
pub fn run(options: &ControllerOptions) -> anyhow::Result<ExitCode> {
    let mut controller = Controller::open(&Options {
        host: options.host.clone(),
        radio: options.radio.clone(),
        rate_mbit: options.rate,
        queue_bytes: options.queue,
        priority: options.pfc,
    })?;
    let mut out = io::stdout();
    if !options.json {
        let (host, radio, source) = (&options.host, &options.radio, controller.source());
        writeln!(
            out,
            "{host} and {radio} are joined, as fast as {source}; Ctrl-C ends it"
        )?;
    }
    let counters = controller.run(|counters| {
        if !options.json {
            let _ = writeln!(io::stdout(), "{counters}");
        }
    })?;
    match options.json {
        true => writeln!(out, "{}", serde_json::to_string(&counters)?)?,
        false => writeln!(out, "{counters}")?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes frames until a signal comes.
pub fn nic(options: &NicOptions) -> anyhow::Result<ExitCode> {
    let held = airdma_pfc_box::nic(&options.inside, &options.cable, options.pfc)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&held)?)?;
    Ok(ExitCode::SUCCESS)
}
