//! `airdma devices`: the output of `ibv_devices` and `ibv_devinfo`, and the counters by name.

use std::fs;
use std::io::{self, Write};
use std::process::ExitCode;

use airdma_engine::{DeviceInfo, LIMITS, PathMtu, counters_of, devices};
use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::warn;

mod link;
pub mod metrics;
pub mod mode;

use mode::Mode;

/// Prints the devices. Without any, prints what to do and exits with 1.
pub fn print(verbose: bool, as_json: bool) -> Result<ExitCode> {
    let devices = devices().context("cannot list the network interfaces")?;
    let mode = Mode::look(&devices);
    let mut out = io::stdout().lock();
    if as_json {
        let all: Vec<Value> = devices
            .iter()
            .map(|info| document(info, &counters_of(info), &mode))
            .collect();
        writeln!(out, "{:#}", Value::Array(all))?;
    } else if verbose {
        for info in &devices {
            let link = link::facts(info.interface_index);
            write!(out, "{}", description(info, &link, &counters_of(info)))?;
        }
    } else if !devices.is_empty() {
        write!(out, "{}", table(&devices))?;
    }
    if !as_json && !devices.is_empty() {
        writeln!(out, "mode: {mode}")?;
    }
    out.flush()?;
    if devices.is_empty() {
        warn(&why_no_device());
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn table(devices: &[DeviceInfo]) -> String {
    let name_len = column(devices, "device", |info| &info.name);
    let interface_len = column(devices, "interface", |info| &info.interface);
    let mut text = format!(
        "{:name_len$}  {:16}  {:interface_len$}  {:5}  addresses\n",
        "device", "node GUID", "interface", "state"
    );
    for info in devices {
        text.push_str(&format!(
            "{:name_len$}  {:016x}  {:interface_len$}  {:5}  {}\n",
            info.name,
            info.guid,
            info.interface,
            state(info),
            addresses(info).join(" ")
        ));
    }
    text
}

fn column(devices: &[DeviceInfo], title: &str, text: impl Fn(&DeviceInfo) -> &String) -> usize {
    devices
        .iter()
        .map(|info| text(info).len())
        .fold(title.len(), usize::max)
}

fn description(
    info: &DeviceInfo,
    link: &[(String, String)],
    counters: &[(&'static str, u64)],
) -> String {
    let mut text = format!("hca_id: {}\n", info.name);
    let mut line = |indent: usize, label: &str, value: String| {
        let label = format!("{label}:");
        let padded = format!("{:indent$}{label:width$}{value}", "", width = 36 - indent);
        text.push_str(padded.trim_end());
        text.push('\n');
    };
    for (label, value) in attributes(info) {
        line(4, label, value);
    }
    line(4, "port", "1".to_owned());
    for (label, value) in port_attributes(info) {
        line(8, label, value);
    }
    for (index, row) in info.gids.iter().enumerate() {
        let value = format!("{}  RoCE v2  {}", row.gid, row.address);
        line(8, &format!("GID[{index}]"), value);
    }
    line(4, "link", String::new());
    for (label, value) in link {
        line(8, label, value.clone());
    }
    if !counters.is_empty() {
        line(4, "counters", String::new());
    }
    for (name, value) in counters {
        line(8, name, value.to_string());
    }
    text
}

fn attributes(info: &DeviceInfo) -> [(&'static str, String); 18] {
    [
        ("interface", info.interface.clone()),
        ("transport", "InfiniBand (0)".to_owned()),
        ("fw_ver", env!("CARGO_PKG_VERSION").to_owned()),
        ("node_guid", guid(info.guid)),
        ("sys_image_guid", guid(info.guid)),
        ("phys_port_cnt", LIMITS.ports.to_string()),
        ("max_mr_size", format!("{:#x}", LIMITS.max_mr_size)),
        ("max_qp", LIMITS.max_qp.to_string()),
        ("max_qp_wr", LIMITS.max_qp_wr.to_string()),
        ("max_sge", LIMITS.max_sge.to_string()),
        ("max_sge_rd", LIMITS.max_sge_rd.to_string()),
        ("max_inline_data", LIMITS.max_inline.to_string()),
        ("max_cq", LIMITS.max_cq.to_string()),
        ("max_cqe", LIMITS.max_cqe.to_string()),
        ("max_mr", LIMITS.max_mr.to_string()),
        ("max_pd", LIMITS.max_pd.to_string()),
        ("max_ah", LIMITS.max_ah.to_string()),
        ("max_qp_rd_atom", LIMITS.max_rd_atomic.to_string()),
    ]
}

fn port_attributes(info: &DeviceInfo) -> [(&'static str, String); 8] {
    let speed = info
        .speed_mbps
        .map_or_else(|| "unknown".to_owned(), |mbps| format!("{mbps} Mb/s"));
    [
        ("state", port_state(info).to_owned()),
        ("max_mtu", mtu(PathMtu::M4096)),
        ("active_mtu", mtu(info.path_mtu)),
        ("interface_mtu", info.mtu.to_string()),
        ("speed", speed),
        ("link_layer", "Ethernet".to_owned()),
        ("max_msg_sz", format!("{:#x}", LIMITS.max_message)),
        ("gid_tbl_len", info.gids.len().to_string()),
    ]
}

fn document(info: &DeviceInfo, counters: &[(&'static str, u64)], mode: &Mode) -> Value {
    let counters: serde_json::Map<String, Value> = counters
        .iter()
        .map(|(name, value)| ((*name).to_owned(), json!(value)))
        .collect();
    let gids: Vec<Value> = info
        .gids
        .iter()
        .map(|row| json!({ "gid": row.gid.to_string(), "address": row.address.to_string(), "type": "RoCE v2" }))
        .collect();
    json!({
        "name": info.name,
        "interface": info.interface,
        "interface_index": info.interface_index,
        "state": state(info),
        "mac": mac(info.mac),
        "node_guid": guid(info.guid),
        "interface_mtu": info.mtu,
        "active_mtu": info.path_mtu.bytes(),
        "speed_mbps": info.speed_mbps,
        "gids": gids,
        "daemon": mode.daemon(),
        "daemon_refuses": mode.refusal(),
        "counters": counters,
    })
}

fn addresses(info: &DeviceInfo) -> Vec<String> {
    info.gids
        .iter()
        .map(|row| row.address.to_string())
        .collect()
}

fn state(info: &DeviceInfo) -> &'static str {
    if info.up { "up" } else { "down" }
}

fn port_state(info: &DeviceInfo) -> &'static str {
    if info.up {
        "PORT_ACTIVE (4)"
    } else {
        "PORT_DOWN (1)"
    }
}

fn mtu(mtu: PathMtu) -> String {
    format!("{} ({})", mtu.bytes(), mtu as u8)
}

fn mac(mac: [u8; 6]) -> String {
    mac.map(|byte| format!("{byte:02x}")).join(":")
}

fn guid(guid: u64) -> String {
    let group = |shift: u32| format!("{:04x}", (guid >> shift) & 0xffff);
    [48, 32, 16, 0].map(group).join(":")
}

/// Names of the interfaces of this network namespace.
fn interfaces() -> Vec<String> {
    let table = fs::read_to_string("/proc/net/dev").unwrap_or_default();
    names(&table)
}

/// The names in the text of `/proc/net/dev`: what precedes the colon, after two title lines.
fn names(table: &str) -> Vec<String> {
    table
        .lines()
        .skip(2)
        .filter_map(|line| line.split_once(':'))
        .map(|(name, _)| name.trim().to_owned())
        .collect()
}

/// Why there is no device, and what to do.
pub fn why_no_device() -> String {
    why_none(&interfaces())
}

fn why_none(interfaces: &[String]) -> String {
    let others: Vec<&str> = interfaces
        .iter()
        .map(String::as_str)
        .filter(|name| *name != "lo")
        .collect();
    let advice = match others.first() {
        None => "only the loopback interface is here: set AIRDMA_LOOPBACK=1 to use it".to_owned(),
        Some(first) => format!(
            "of {} none is up with an IP address: `ip link set {first} up` and \
             `ip address add ADDRESS/LENGTH dev {first}`, or set AIRDMA_LOOPBACK=1 to use lo",
            others.join(", ")
        ),
    };
    format!("no device. Every interface that is up and has an IP address is one; {advice}")
}

#[cfg(test)]
mod tests;
