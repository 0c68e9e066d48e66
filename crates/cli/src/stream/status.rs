//! `airdma stream status`.

use super::board;
use crate::files::show::{Show, Side};
use crate::files::{UNREACHABLE, home};
use airdma_files::session::Role;
use airdma_transfer::{Service, neighbours};
use serde_json::{Value, json};
use std::io;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

pub const HELP: &str = "\
Examples:
  airdma stream status                 streams of this host, and receivers on this network
  airdma stream status --watch         streams of this host, each second
  airdma stream status --watch --json  the same as an object for each stream

Latencies are from capture to arrival, if the clocks of both hosts agree; the sender knows none.";

/// Time of the search, unless another is given.
const LOOK_S: u64 = 2;
/// Most receivers that are listed.
const LISTED_MAX: usize = 256;
/// Interval of `--watch`: that of the reports.
const EVERY: Duration = Duration::from_secs(1);

#[derive(clap::Args)]
pub struct Options {
    /// How long to search for receivers, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = LOOK_S)]
    within: u64,
    /// Do not search for receivers: only streams of this host
    #[arg(long, conflicts_with = "within")]
    here: bool,
    /// Show streams of this host again each second, until stopped
    #[arg(long, conflicts_with_all = ["within", "here"])]
    watch: bool,
    /// Print one JSON object for each stream and receiver
    #[arg(long)]
    json: bool,
}

pub fn status(options: &Options) -> ExitCode {
    let show = Show::new(Side::Sender, options.json, false, false);
    loop {
        let reports = board::reports();
        let says_none = reports.is_empty() && (options.watch || options.here);
        match show_all(&reports, says_none, &show) {
            Ok(()) => {}
            // `head` has enough.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return ExitCode::SUCCESS,
            Err(_) => return ExitCode::FAILURE,
        }
        if options.watch {
            thread::sleep(EVERY);
            continue;
        }
        if options.here {
            return ExitCode::SUCCESS;
        }
        return receivers(options, &show, !reports.is_empty());
    }
}

const NO_STREAM: &str = "no stream of this user runs on this host";

fn show_all(reports: &[Value], says_none: bool, show: &Show) -> io::Result<()> {
    for report in reports {
        show.try_object(report)?;
        for line in lines(report) {
            show.try_must(&line)?;
        }
    }
    if says_none {
        show.try_must(NO_STREAM)?;
    }
    Ok(())
}

/// A line for a stream, and one for each device.
fn lines(report: &Value) -> Vec<String> {
    let empty = Vec::new();
    let devices = report["devices"].as_array().unwrap_or(&empty);
    let (role, pid) = (report["role"].as_str().unwrap_or("?"), &report["pid"]);
    let mut lines = vec![format!("{role}, process {pid}: {} devices", devices.len())];
    for device in devices {
        let number = |name: &str| device[name].as_f64().unwrap_or_default();
        let mut line = format!(
            "  device {}: {:.1} frames/s, {:.1} Mb/s",
            device["device"],
            number("frames_per_second"),
            number("bits_per_second") / 1e6,
        );
        let latency = &device["latency_ms"];
        if let (Some(p50), Some(p99)) = (latency["p50"].as_f64(), latency["p99"].as_f64()) {
            line += &format!(", latency {p50:.1} ms (p99 {p99:.1})");
        }
        let counts = [
            "late", "replaced", "missing", "repeated", "restarts", "too_long",
        ];
        for name in counts {
            if let Some(count) = device[name].as_u64().filter(|count| *count > 0) {
                line += &format!(", {count} {}", name.replace('_', " "));
            }
        }
        lines.push(line);
    }
    lines
}

/// Lists the receivers on the network. It is a failure if there are none, and no streams.
fn receivers(options: &Options, show: &Show, has_streams: bool) -> ExitCode {
    let limit = Duration::from_secs(options.within.min(60));
    let found = match neighbours(Service::Streams, limit, LISTED_MAX, |_| true) {
        Ok(found) => found,
        Err(error) => {
            show.error("unreachable", UNREACHABLE, &error.to_string());
            return ExitCode::from(UNREACHABLE);
        }
    };
    let home = home(show).ok();
    for one in &found {
        let is_known = one.key.is_some_and(|key| {
            home.as_ref()
                .is_some_and(|home| home.knows(&key, Role::Receiver))
        });
        let addresses: Vec<_> = one.addresses.iter().map(ToString::to_string).collect();
        show.object(&json!({
            "event": "receiver",
            "name": one.name,
            "addresses": addresses,
            "known": is_known,
        }));
        let known = if is_known { "known" } else { "needs its code" };
        show.must(&format!("{}: {} ({known})", one.name, addresses.join(", ")));
    }
    if found.is_empty() && !has_streams {
        show.error(
            "unreachable",
            UNREACHABLE,
            "no `airdma stream recv` waits on this network",
        );
        return ExitCode::from(UNREACHABLE);
    }
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_omits_counts_of_zero() {
        let report = json!({"role": "recv", "pid": 7, "devices": [
            {"device": 0, "frames_per_second": 25.0, "bits_per_second": 8e6, "latency_ms": null,
             "missing": 0, "late": 2},
            {"device": 1, "latency_ms": {"p50": 1.0, "p99": 2.5}, "missing": 3},
        ]});
        assert_eq!(
            lines(&report),
            [
                "recv, process 7: 2 devices",
                "  device 0: 25.0 frames/s, 8.0 Mb/s, 2 late",
                "  device 1: 0.0 frames/s, 0.0 Mb/s, latency 1.0 ms (p99 2.5), 3 missing",
            ]
        );
    }
}
