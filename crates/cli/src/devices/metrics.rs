//! `airdma devices --metrics`: the counters of all devices, as OpenMetrics over HTTP.
//!
//! The counters lie in files that programs count in anyway, and are read when they are asked for:
//! programs pay nothing for this. What node_exporter's collector `infiniband` has for an RDMA NIC
//! has the same name here.

use std::fmt::Write as _;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use airdma_engine::{DeviceInfo, counters_of, devices};
use anyhow::{Result, anyhow};

use crate::warn;

/// Where it listens if no address is given: on this host alone.
pub const ADDRESS: &str = "127.0.0.1:9479";

/// Answers requests, one after the other, until the process is ended.
pub fn serve(address: SocketAddr) -> Result<ExitCode> {
    let listener = TcpListener::bind(address).map_err(|error| refusal(address, &error))?;
    let bound = listener.local_addr()?;
    warn(&format!("metrics at http://{bound}/metrics"));
    for stream in listener.incoming() {
        // A scraper that breaks off concerns only itself.
        if let Ok(mut stream) = stream {
            let _ = answer(&mut stream);
        } else {
            // Descriptors may be short: a loop without a pause would take a core.
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn refusal(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    let port = address.port();
    if error.kind() == io::ErrorKind::AddrInUse {
        let next = SocketAddr::new(address.ip(), port.checked_add(1).unwrap_or(9479));
        return anyhow!(
            "cannot serve metrics at {address}: another program has the port (`ss -ltnp sport = :{port}` says which); \
             end it, or give another address: --metrics {next}"
        );
    }
    if error.kind() == io::ErrorKind::AddrNotAvailable {
        return anyhow!(
            "cannot serve metrics at {address}: no interface of this host has that address (`ip address` lists them)"
        );
    }
    anyhow!("cannot serve metrics at {address}: {error}")
}

fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let deadline = Instant::now() + PATIENCE;
    let request = first_line(stream, deadline)?;
    let (status, content, body) = match request.split(' ').collect::<Vec<_>>()[..] {
        ["GET", "/metrics", ..] => match devices() {
            Ok(devices) => ("200 OK", OPEN_METRICS, text(&sampled(&devices))),
            Err(error) => ("500 Internal Server Error", PLAIN, format!("{error}\n")),
        },
        ["GET", ..] => ("404 Not Found", PLAIN, "metrics are at /metrics\n".into()),
        _ => ("405 Method Not Allowed", PLAIN, "only GET\n".into()),
    };
    stream.set_write_timeout(Some(PATIENCE))?;
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {content}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes())
}

/// The request's first line, after its whole head was read: a socket that is closed with unread
/// bytes resets the connection, and the answer with it.
fn first_line(stream: &mut TcpStream, deadline: Instant) -> io::Result<String> {
    let mut head = Vec::new();
    let mut buffer = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || head.len() > HEAD_BYTES_MAX {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_read_timeout(Some(left))?;
        match stream.read(&mut buffer)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            length => head.extend_from_slice(&buffer[..length]),
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    Ok(String::from_utf8_lossy(line).into_owned())
}

/// Reads a value of a device that has it.
type Gauge = fn(&DeviceInfo) -> Option<u64>;
type Sample<'d> = (&'d DeviceInfo, Vec<(&'static str, u64)>);

fn sampled(devices: &[DeviceInfo]) -> Vec<Sample<'_>> {
    let counters = devices.iter().map(|info| (info, counters_of(info)));
    counters.collect()
}

/// All families of all devices: each family in one piece, as the format has it.
fn text(samples: &[Sample<'_>]) -> String {
    let mut out = String::new();
    let gauges: [(&str, &str, Gauge); 3] = [
        (
            "node_infiniband_state_id",
            "State of the port (1: down, 4: active)",
            |info| Some(if info.up { 4 } else { 1 }),
        ),
        (
            "node_infiniband_rate_bytes_per_second",
            "Speed of the link",
            |info| Some(u64::from(info.speed_mbps?) * 125_000),
        ),
        ("airdma_path_mtu_bytes", "Active path MTU", |info| {
            Some(info.path_mtu.bytes() as u64)
        }),
    ];
    for (name, help, value) in gauges {
        head(&mut out, name, "gauge", help);
        for (info, _) in samples {
            if let Some(value) = value(info) {
                line(&mut out, name, &info.name, value);
            }
        }
    }
    let names = samples.first().map_or(&[][..], |(_, counters)| counters);
    for (at, (counter, _)) in names.iter().enumerate() {
        let own = format!("airdma_{counter}");
        let (family, help) = SHARED
            .iter()
            .find(|(ours, ..)| ours == counter)
            .map_or((own.as_str(), *counter), |(_, family, help)| {
                (*family, *help)
            });
        head(&mut out, family, "counter", help);
        for (info, counters) in samples {
            if let Some((_, value)) = counters.get(at) {
                line(&mut out, &format!("{family}_total"), &info.name, *value);
            }
        }
    }
    out.push_str("# EOF\n");
    out
}

fn head(out: &mut String, family: &str, kind: &str, help: &str) {
    // Writing to a string does not fail.
    let _ = writeln!(out, "# TYPE {family} {kind}\n# HELP {family} {help}");
}

/// A sample, with the labels of node_exporter.
fn line(out: &mut String, name: &str, device: &str, value: u64) {
    let device = device.replace('\\', "\\\\").replace('"', "\\\"");
    let _ = writeln!(out, "{name}{{device=\"{device}\",port=\"1\"}} {value}");
}

/// Counters that node_exporter has for an RDMA NIC, the name of each there, and what it counts.
const SHARED: [(&str, &str, &str); 4] = [
    (
        "rx_bytes",
        "node_infiniband_port_data_received_bytes",
        "Bytes of UDP payload received, ICRC included",
    ),
    (
        "tx_bytes",
        "node_infiniband_port_data_transmitted_bytes",
        "Bytes of UDP payload sent, ICRC included",
    ),
    (
        "rx_packets",
        "node_infiniband_port_packets_received",
        "Packets received with a correct ICRC",
    ),
    (
        "tx_packets",
        "node_infiniband_port_packets_transmitted",
        "Packets handed to the kernel",
    ),
];
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
/// How long a request may take: others wait for it.
const PATIENCE: Duration = Duration::from_secs(2);
const HEAD_BYTES_MAX: usize = 16 << 10;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_taken_port_is_named_with_a_free_neighbour() {
        let address: SocketAddr = "127.0.0.1:9479".parse().unwrap();
        let taken = refusal(address, &io::ErrorKind::AddrInUse.into()).to_string();
        assert!(taken.contains("127.0.0.1:9479"), "{taken}");
        assert!(taken.contains("sport = :9479") && taken.contains("--metrics 127.0.0.1:9480"));
        let elsewhere = refusal(address, &io::ErrorKind::AddrNotAvailable.into()).to_string();
        assert!(elsewhere.contains("ip address"), "{elsewhere}");
    }

    #[test]
    fn names_of_interfaces_cannot_break_a_line() {
        let mut out = String::new();
        line(&mut out, "x_total", "airdma_a\"b\\", 7);
        assert_eq!(out, "x_total{device=\"airdma_a\\\"b\\\\\",port=\"1\"} 7\n");
    }
}
