//! Whether a program of this user can have RoCEv2's port at the addresses of its devices.

use std::collections::BTreeMap;

use airdma_engine::DeviceInfo;

pub use super::holder::PORT;
use super::holder::Port;

/// What is known of the port at one address, or of an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Fine(String),
    /// It works, with a limit.
    Careful {
        says: String,
        remedy: String,
    },
    /// It will not work.
    Problem {
        says: String,
        remedy: String,
    },
}

/// The verdicts on all addresses of the devices; the last one lists where the port is free.
pub fn verdicts(devices: &[DeviceInfo]) -> Vec<Verdict> {
    let port = Port::look();
    let (mut verdicts, mut free) = (Vec::new(), Vec::new());
    for row in devices.iter().flat_map(|device| &device.gids) {
        let place = format!("UDP {PORT} at {}", row.address);
        // A process that shares the address does not help if another does not.
        let (shared, others) = port.relations(row.address);
        if let Some(remedy) = others {
            let says = format!("{place} is taken");
            verdicts.push(Verdict::Problem { says, remedy });
        } else if let Some(process) = shared {
            verdicts.push(Verdict::Fine(format!("{place}: shared with {process}")));
        } else {
            free.push(row.address.to_string());
        }
    }
    for (address, owners) in shared_addresses(devices) {
        let names = owners.join(" and ");
        let says = format!(
            "{names} have one address, {address}, and only one of them can use it at a time"
        );
        let remedy = format!("give {} another", owners[owners.len() - 1]);
        verdicts.push(if free.contains(&address) {
            Verdict::Careful { says, remedy }
        } else {
            let says = format!("{says}, which another program does now");
            Verdict::Problem { says, remedy }
        });
    }
    if !free.is_empty() {
        let text = format!("UDP {PORT} is free at {}", free.join(" "));
        verdicts.push(Verdict::Fine(text));
    }
    verdicts
}

/// Addresses that several devices have, with the names of those.
fn shared_addresses(devices: &[DeviceInfo]) -> Vec<(String, Vec<&str>)> {
    let mut owners: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for device in devices {
        for row in device.gids.iter().filter(|row| !row.is_empty()) {
            owners.entry(row.address).or_default().push(&device.name);
        }
    }
    let several = owners.into_iter().filter(|(_, names)| names.len() > 1);
    several
        .map(|(address, names)| (address.to_string(), names))
        .collect()
}
