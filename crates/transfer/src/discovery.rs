//! Receivers on the local network, by name: multicast DNS (RFC 6762, 6763), service `_airdma._udp`.
//!
//! What comes this way is anybody's word. It says where to connect, and which kept key to expect there; who it is, the handshake says.

use airdma_files::printable;
use airdma_files::session::PublicKey;
use mdns_sd::{ResolvedService, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const SERVICE: &str = "_airdma._udp.local.";
/// The key's place in the TXT record.
const KEY: &str = "key";
/// Receivers that are looked at.
const FOUND_MAX: usize = 256;
/// How long the end of an announcement may take to be sent.
const GOODBYE: Duration = Duration::from_millis(300);
/// Bytes of a name: a label of DNS has 63, and a number may be added to it.
const NAME_BYTES_MAX: usize = 52;

/// Why nobody can be found by name.
#[derive(Debug, thiserror::Error)]
#[error(
    "receivers cannot be found by name here ({0}): use addresses, or let multicast to UDP port 5353 pass"
)]
pub struct NoMulticast(#[from] mdns_sd::Error);

/// A receiver that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// As it calls itself, printable.
    pub name: String,
    /// Where it listens, the best first.
    pub addresses: Vec<SocketAddr>,
    /// The key that it says it has.
    pub key: Option<PublicKey>,
}

/// A receiver's word to the network; taken back when it is dropped.
pub(crate) struct Announcement {
    daemon: ServiceDaemon,
    full_name: String,
}

impl Announcement {
    /// Says that `name` listens at these addresses.
    pub fn start(
        name: &str,
        key: PublicKey,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<Self, NoMulticast> {
        let daemon = ServiceDaemon::new()?;
        let host = format!("airdma-{}.local.", &key.to_string()[..16]);
        let reachable: Vec<IpAddr> = addresses.iter().copied().filter(is_reachable).collect();
        let properties = [(KEY, key.to_string())];
        let fits = |(at, _): &(usize, char)| *at <= NAME_BYTES_MAX;
        let name: String = name
            .char_indices()
            .take_while(fits)
            .map(|(_, letter)| letter)
            .collect();
        let service =
            ServiceInfo::new(SERVICE, &name, &host, &reachable[..], port, &properties[..])?;
        let full_name = service.get_fullname().to_owned();
        daemon.register(service)?;
        Ok(Self { daemon, full_name })
    }
}

impl Drop for Announcement {
    fn drop(&mut self) {
        // Those who were told forget it by themselves after two minutes.
        if let Ok(ended) = self.daemon.unregister(&self.full_name) {
            let _ = ended.recv_timeout(GOODBYE);
        }
        let _ = self.daemon.shutdown();
    }
}

/// The receivers that answer within `limit`, or until one is who is looked for.
///
/// # Errors
/// There is no multicast here.
pub fn neighbours(
    limit: Duration,
    is_wanted: impl Fn(&Neighbour) -> bool,
) -> Result<Vec<Neighbour>, NoMulticast> {
    let daemon = ServiceDaemon::new()?;
    let events = daemon.browse(SERVICE)?;
    let deadline = Instant::now() + limit;
    let mut found: Vec<Neighbour> = Vec::new();
    while let Ok(event) = events.recv_deadline(deadline) {
        let ServiceEvent::ServiceResolved(service) = event else {
            continue;
        };
        let Some(neighbour) = described(&service) else {
            continue;
        };
        let is_last = is_wanted(&neighbour) || found.len() >= FOUND_MAX;
        // It may have told more of itself meanwhile.
        found.retain(|known| known.name != neighbour.name);
        found.push(neighbour);
        if is_last {
            break;
        }
    }
    // Its thread ends with the program at the latest.
    let _ = daemon.shutdown();
    Ok(found)
}

fn described(service: &ResolvedService) -> Option<Neighbour> {
    let name = service.fullname.strip_suffix(SERVICE)?.strip_suffix('.')?;
    let key = service.txt_properties.get(KEY);
    let mut addresses: Vec<IpAddr> = service
        .addresses
        .iter()
        .map(mdns_sd::ScopedIp::to_ip_addr)
        .filter(is_reachable)
        .collect();
    addresses.sort();
    (!addresses.is_empty()).then(|| Neighbour {
        name: printable(name.replace('\\', "").as_bytes()),
        addresses: addresses
            .into_iter()
            .map(|address| SocketAddr::new(address, service.port))
            .collect(),
        key: key.and_then(|key| key.val_str().parse().ok()),
    })
}

/// From another host, without saying over which interface.
fn is_reachable(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !address.is_loopback() && !address.is_unspecified(),
        IpAddr::V6(address) => {
            !address.is_loopback() && !address.is_unspecified() && !address.is_unicast_link_local()
        }
    }
}
