//! Checks of devices and their port.

use airdma_engine::{DeviceInfo, PathMtu, devices, runtime_dir};

use super::Finding;
use crate::devices::why_no_device;
use crate::run::ports::{self, Verdict};

/// Devices, the port at each address, path MTUs, and where processes meet.
pub fn findings() -> Vec<Finding> {
    let devices = match devices() {
        Ok(devices) => devices,
        Err(error) => {
            let says = format!("cannot list the network interfaces: {error}");
            return vec![Finding::bad("devices", says, None)];
        }
    };
    let mut findings = vec![presence(&devices)];
    findings.extend(ports::verdicts(&devices).into_iter().map(port));
    findings.extend(devices.iter().filter_map(mtu));
    findings.push(match runtime_dir::shared_directory() {
        Ok(path) => Finding::ok("runtime", format!("processes meet in {}", path.display())),
        Err(error) => Finding::bad("runtime", error.to_string(), None),
    });
    findings
}

fn presence(devices: &[DeviceInfo]) -> Finding {
    let up: Vec<&str> = devices
        .iter()
        .filter(|device| device.up)
        .map(|device| device.name.as_str())
        .collect();
    match (devices.first(), up.is_empty()) {
        (None, _) => Finding::bad("devices", why_no_device(), None),
        (Some(first), true) => Finding::bad(
            "devices",
            "every device is down",
            Some(format!(
                "`ip link set {} up`, or look at the cable",
                first.interface
            )),
        ),
        (Some(_), false) => Finding::ok("devices", up.join(" ")),
    }
}

fn port(verdict: Verdict) -> Finding {
    match verdict {
        Verdict::Fine(text) => Finding::ok("port", text),
        Verdict::Careful { says, remedy } => Finding::hint("port", says, remedy),
        Verdict::Problem { says, remedy } => Finding::bad("port", says, Some(remedy)),
    }
}

/// The path MTU of a device, unless its packets are as long as those of any interface.
fn mtu(device: &DeviceInfo) -> Option<Finding> {
    let (name, interface) = (&device.name, &device.interface);
    let says = format!(
        "{name}: packets of {} bytes, of an interface with MTU {}",
        device.path_mtu.bytes(),
        device.mtu
    );
    let usual = PathMtu::M1024.bytes();
    if device.path_mtu.bytes() >= usual {
        return Some(Finding::ok("mtu", says));
    }
    let remedy = format!("`ip link set {interface} mtu 1500`, if the link carries that");
    Some(Finding::hint("mtu", says, remedy))
}
