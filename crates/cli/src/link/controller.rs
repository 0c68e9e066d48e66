//! `airdma link controller`: the box between a plain RoCEv2 host and a radio.

use std::io::{self, Write};
use std::process::ExitCode;

use airdma_pfc_box::{Controller, Options};

#[derive(clap::Args)]
pub struct ControllerOptions {
    /// Interface to the plain host
    #[arg(long, value_name = "IFACE")]
    host: String,
    /// Interface to the air: an access point's or a station's with `4addr on`, an emulated link's,
    /// or the cable to one
    #[arg(long, value_name = "IFACE")]
    radio: String,
    /// Rate of the radio in Mb/s [default: measured at its queue, or its driver's estimate]
    #[arg(long, value_name = "MBIT", allow_hyphen_values = true)]
    rate: Option<f64>,
    /// Capacity of the queue in bytes; the host is paused at 256 KiB
    #[arg(long, value_name = "BYTES", default_value_t = 16 << 20)]
    queue: usize,
    /// Priority that carries the host's RoCE, 0 to 7
    #[arg(long, value_name = "PRIORITY", default_value_t = PRIORITY)]
    pfc: u8,
    /// Print nothing but the counters at the end, as JSON
    #[arg(long)]
    json: bool,
}

/// The priority of most RoCE guides.
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

/// Forwards until a signal arrives.
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

/// Passes frames until a signal arrives.
pub fn nic(options: &NicOptions) -> anyhow::Result<ExitCode> {
    let held = airdma_pfc_box::nic(&options.inside, &options.cable, options.pfc)?;
    writeln!(io::stdout(), "{}", serde_json::to_string(&held)?)?;
    Ok(ExitCode::SUCCESS)
}
