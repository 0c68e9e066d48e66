//! Receivers on the local network, by name: multicast DNS (RFC 6762, 6763).
//!
//! Announcements are not authenticated. They tell where to connect, and which known key to expect
//! there; the handshake proves the identity.

use airdma_files::printable;
use airdma_files::session::PublicKey;
use mdns_sd::{ResolvedService, ScopedIp, ServiceDaemon, ServiceEvent, ServiceInfo};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// What a receiver waits for. Each kind has a name and a default port of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Files: `_airdma._udp`.
    Files,
    /// Streams of frames: `_airdma-stream._udp`.
    Streams,
}

/// Properties of the TXT record: key and name.
const KEY: &str = "key";
const NAME: &str = "name";
/// Digits of the key in a receiver's instance name, which tell namesakes apart.
///
/// No host would notice namesakes on two links, and a host on both would combine the address of one
/// with the key of the other.
const KEY_DIGITS: usize = 8;
/// Time to wait for namesakes of a found receiver: answers to one question come within 120 ms (RFC
/// 6762, 6).
const NAMESAKES_WITHIN: Duration = Duration::from_millis(300);
/// Most records of others that a receiver's announcer may hold. It needs none, but keeps
/// unsolicited ones.
const HELD_MAX: i64 = 4096;
/// Interval at which those are counted.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Counters of the announcer for such records.
const HELD: [&str; 6] = [
    "cached-ptr",
    "cached-srv",
    "cached-addr",
    "cached-txt",
    "cached-nsec",
    "cached-subtype",
];
/// Time in which the withdrawal of an announcement must be sent.
const GOODBYE: Duration = Duration::from_millis(300);
/// Most bytes of a name: a DNS label has 63, and digits of the key and a number may be added.
const NAME_BYTES_MAX: usize = 48;

/// Why receivers cannot be found by name.
#[derive(Debug, thiserror::Error)]
#[error(
    "receivers cannot be found by name here ({0}): use addresses, or let multicast to UDP port 5353 pass"
)]
pub struct NoMulticast(#[from] mdns_sd::Error);

/// A receiver that waits for senders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Instance name of its records, which is unique.
    pub instance: String,
    /// Name that it gives itself, printable.
    pub name: String,
    /// Addresses where it listens, the best first.
    pub addresses: Vec<SocketAddr>,
    /// Key that it claims to have.
    pub key: Option<PublicKey>,
}

impl Service {
    /// Default port of its receivers, in the port space of RDMA CM.
    pub const fn port(self) -> u16 {
        match self {
            Service::Files => 7479,
            Service::Streams => 7480,
        }
    }

    const fn domain(self) -> &'static str {
        match self {
            Service::Files => "_airdma._udp.local.",
            Service::Streams => "_airdma-stream._udp.local.",
        }
    }
}

/// The announcement of a receiver; withdrawn when dropped.
pub(crate) struct Announcement {
    /// Sends the current addresses. Dropping it ends the thread.
    moves: Option<mpsc::Sender<Vec<IpAddr>>>,
    thread: Option<JoinHandle<()>>,
}

impl Announcement {
    /// Announces that `name` listens at these addresses.
    pub fn start(
        kind: Service,
        name: &str,
        key: PublicKey,
        addresses: &[IpAddr],
        port: u16,
    ) -> Result<Self, NoMulticast> {
        let name = name.to_owned();
        let described = move |addresses: &[IpAddr]| service(kind, &name, key, addresses, port);
        let service = described(addresses)?;
        let announcer = announcer(&service)?;
        let (moves, moved) = mpsc::channel();
        let thread = thread::Builder::new()
            .name("airdma-names".into())
            .spawn(move || announce(announcer, service, &moved, &described))
            .map_err(|error| mdns_sd::Error::Msg(error.to_string()))?;
        Ok(Self {
            moves: Some(moves),
            thread: Some(thread),
        })
    }

    /// Announces these addresses from now on.
    pub fn tell(&self, addresses: &[IpAddr]) {
        if let Some(moves) = &self.moves {
            // The thread ends only after this sender is dropped.
            let _ = moves.send(addresses.to_vec());
        }
    }
}

/// The announced service of a receiver.
fn service(
    kind: Service,
    name: &str,
    key: PublicKey,
    addresses: &[IpAddr],
    port: u16,
) -> Result<ServiceInfo, mdns_sd::Error> {
    let host = format!("airdma-{}.local.", &key.to_string()[..16]);
    let reachable: Vec<IpAddr> = addresses.iter().copied().filter(is_reachable).collect();
    let digits = &key.to_string()[..KEY_DIGITS];
    let fits = |(at, _): &(usize, char)| *at <= NAME_BYTES_MAX;
    let name: String = name
        .char_indices()
        .take_while(fits)
        .map(|(_, letter)| letter)
        .collect();
    let properties = [(KEY, key.to_string()), (NAME, name.clone())];
    let name = format!("{name} {digits}");
    ServiceInfo::new(
        kind.domain(),
        &name,
        &host,
        &reachable[..],
        port,
        &properties[..],
    )
}

impl Drop for Announcement {
    fn drop(&mut self) {
        drop(self.moves.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the announcer does not end the transfer.
            let _ = thread.join();
        }
    }
}

fn announcer(service: &ServiceInfo) -> Result<ServiceDaemon, mdns_sd::Error> {
    let daemon = ServiceDaemon::new()?;
    daemon.register(service.clone())?;
    Ok(daemon)
}

/// Runs until the announcement ends. An announcer that a flood has filled is replaced.
fn announce(
    first: ServiceDaemon,
    mut service: ServiceInfo,
    moved: &mpsc::Receiver<Vec<IpAddr>>,
    described: &dyn Fn(&[IpAddr]) -> Result<ServiceInfo, mdns_sd::Error>,
) {
    let mut daemon = Some(first);
    loop {
        match moved.recv_timeout(LOOK_EVERY) {
            Ok(addresses) => {
                // The service differs in its addresses only, so describing it again should succeed
                // as before.
                service = described(&addresses).unwrap_or(service);
                let told = daemon.as_ref().map(|it| it.register(service.clone()));
                // An announcer that fails is replaced.
                drop(daemon.take_if(|_| matches!(told, Some(Err(_)))));
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if let Some(full) = daemon.take_if(|daemon| held(daemon) > HELD_MAX) {
            // Two announcers of one name would conflict.
            end(&full);
        }
        // If none can be started now, a later attempt may succeed.
        daemon = daemon.or_else(|| announcer(&service).ok());
    }
    if let Some(daemon) = daemon {
        // Other hosts drop the record after two minutes in any case.
        if let Ok(ended) = daemon.unregister(service.get_fullname()) {
            let _ = ended.recv_timeout(GOODBYE);
        }
        end(&daemon);
    }
}

/// Ends an announcer. Its thread ends with the program at the latest.
fn end(daemon: &ServiceDaemon) {
    if let Ok(ended) = daemon.shutdown() {
        let _ = ended.recv_timeout(GOODBYE);
    }
}

/// Number of records of others. An announcer that does not answer counts as full: it cannot keep
/// up.
fn held(daemon: &ServiceDaemon) -> i64 {
    let metrics = daemon.get_metrics().ok();
    let metrics = metrics.and_then(|metrics| metrics.recv_timeout(LOOK_EVERY).ok());
    metrics.map_or(i64::MAX, |metrics| {
        let counts = HELD.iter().filter_map(|name| metrics.get(*name));
        counts.sum()
    })
}

/// The receivers for which `is_wanted` holds and that answer within `limit`, at most `count_max`.
///
/// Others are not kept, however many there are.
///
/// # Errors
/// There is no multicast here.
pub fn neighbours(
    kind: Service,
    limit: Duration,
    count_max: usize,
    is_wanted: impl Fn(&Neighbour) -> bool,
) -> Result<Vec<Neighbour>, NoMulticast> {
    look(kind, limit, limit, count_max, is_wanted)
}

/// As [`neighbours`], for a name that should be unique: waits a little for namesakes of the first.
///
/// # Errors
/// There is no multicast here.
pub(crate) fn namesakes(
    kind: Service,
    limit: Duration,
    count_max: usize,
    is_wanted: impl Fn(&Neighbour) -> bool,
) -> Result<Vec<Neighbour>, NoMulticast> {
    look(kind, limit, NAMESAKES_WITHIN, count_max, is_wanted)
}

fn look(
    kind: Service,
    limit: Duration,
    after_the_first: Duration,
    count_max: usize,
    is_wanted: impl Fn(&Neighbour) -> bool,
) -> Result<Vec<Neighbour>, NoMulticast> {
    let daemon = ServiceDaemon::new()?;
    let events = daemon.browse(kind.domain())?;
    let mut deadline = Instant::now() + limit;
    let mut found: Vec<Neighbour> = Vec::new();
    while found.len() < count_max
        && let Ok(event) = events.recv_deadline(deadline)
    {
        let ServiceEvent::ServiceResolved(service) = event else {
            continue;
        };
        if let Some(neighbour) = described(kind, &service).filter(&is_wanted) {
            // A later answer may have more of its records.
            found.retain(|known| known.instance != neighbour.instance);
            found.push(neighbour);
            deadline = deadline.min(Instant::now() + after_the_first);
        }
    }
    // Its thread ends with the program at the latest.
    let _ = daemon.shutdown();
    Ok(found)
}

fn described(kind: Service, service: &ResolvedService) -> Option<Neighbour> {
    let instance = service
        .fullname
        .strip_suffix(kind.domain())?
        .strip_suffix('.')?;
    let instance = printable(instance.replace('\\', "").as_bytes());
    let name = service.txt_properties.get(NAME);
    let name = name.map(|name| printable(name.val_str().as_bytes()));
    let key = service.txt_properties.get(KEY);
    let mut addresses: Vec<SocketAddr> = service
        .addresses
        .iter()
        .filter(|address| is_reachable(&address.to_ip_addr()))
        .filter_map(|address| at_port(address, service.port))
        .collect();
    // Link-local addresses sort last.
    addresses.sort();
    (!addresses.is_empty()).then(|| Neighbour {
        name: name.unwrap_or_else(|| instance.clone()),
        instance,
        addresses,
        key: key.and_then(|key| key.val_str().parse().ok()),
    })
}

/// A link-local address belongs to the interface on which the answer came.
fn at_port(address: &ScopedIp, port: u16) -> Option<SocketAddr> {
    let ip = address.to_ip_addr();
    if !is_link_local(&ip) {
        return Some(SocketAddr::new(ip, port));
    }
    let (ScopedIp::V6(heard), IpAddr::V6(ip)) = (address, ip) else {
        return None;
    };
    let interface = heard.scope_id().index;
    (interface != 0).then(|| SocketAddrV6::new(ip, port, 0, interface).into())
}

pub(crate) fn is_link_local(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// Whether other hosts can reach the address.
fn is_reachable(address: &IpAddr) -> bool {
    !address.is_loopback() && !address.is_unspecified()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::isolated::isolated;
    use airdma_files::session::Identity;
    use std::net::{Ipv4Addr, UdpSocket};

    const NETWORK: &str = "ip link add near type veth peer name far
        ip addr add 192.0.2.1/24 dev near
        ip link set near up; ip link set far up
        ip route add 224.0.0.0/4 dev near";
    const NAMES_A_PACKET: u16 = 20;
    const LOOK: Duration = Duration::from_secs(2);

    /// Header of an unsolicited answer with this number of records.
    fn answer(records: u16) -> Vec<u8> {
        let [high, low] = records.to_be_bytes();
        vec![0, 0, 0x84, 0, 0, 0, high, low, 0, 0, 0, 0]
    }

    /// Adds an address record of a host, valid for an hour.
    fn address(message: &mut Vec<u8>, number: u32) {
        let name = format!("host{number:08}");
        message.push(name.len() as u8);
        message.extend(name.bytes());
        message.extend(b"\x05local\0\0\x01\0\x01\0\0\x0e\x10\0\x04");
        message.extend([192, 0, 2, 9]);
    }

    /// A receiver with a generated name.
    fn receiver(number: u32) -> Vec<u8> {
        let mut message = answer(4);
        let service = b"\x07_airdma\x04_udp\x05local\0";
        let name = format!("n{number:08}");
        let mut instance = vec![name.len() as u8];
        instance.extend(name.bytes());
        instance.extend(service);
        let mut record = |name: &[u8], kind: u8, data: &[u8]| {
            message.extend(name);
            message.extend([0, kind, 0, 1, 0, 0, 0x0e, 0x10, 0, data.len() as u8]);
            message.extend(data);
        };
        record(service, 12, &instance);
        record(&instance, 33, b"\0\0\0\0\x1d\x37\x01x\x05local\0");
        record(&instance, 16, b"\0");
        record(b"\x01x\x05local\0", 1, &[192, 0, 2, 9]);
        message
    }

    fn say(message: &[u8]) {
        let socket = UdpSocket::bind((Ipv4Addr::new(192, 0, 2, 1), 0)).unwrap();
        let to = (Ipv4Addr::new(224, 0, 0, 251), 5353);
        socket.send_to(message, to).unwrap();
    }

    fn flood(packets: u32) {
        for packet in 0..packets {
            let mut message = answer(NAMES_A_PACKET);
            for name in 0..u32::from(NAMES_A_PACKET) {
                address(&mut message, packet * u32::from(NAMES_A_PACKET) + name);
            }
            say(&message);
            // As fast as it is read.
            thread::sleep(Duration::from_micros(500));
        }
    }

    #[test]
    fn names_that_are_not_wanted_do_not_hide_the_one_that_is() {
        isolated(
            "discovery::tests::names_that_are_not_wanted_do_not_hide_the_one_that_is",
            NETWORK,
            || {
                let others = std::cell::Cell::new(0);
                let key = Identity::draw().public();
                let here = [Ipv4Addr::new(192, 0, 2, 1).into()];
                thread::scope(|scope| {
                    // When it starts to answer, hundreds have answered.
                    scope.spawn(|| {
                        for number in 0..600 {
                            say(&receiver(number));
                            thread::sleep(Duration::from_millis(2));
                        }
                        let announcement =
                            Announcement::start(Service::Files, "wanted", key, &here, 7);
                        thread::sleep(Duration::from_secs(4));
                        drop(announcement);
                    });
                    let found = neighbours(Service::Files, Duration::from_secs(6), 1, |it| {
                        others.set(others.get() + 1);
                        it.name == "wanted"
                    });
                    assert_eq!(found.unwrap().len(), 1, "{}", others.get());
                });
                assert!(others.get() > 300, "{}", others.get());
            },
        );
    }

    #[test]
    fn an_announcer_that_a_flood_fills_makes_way_for_a_new_one() {
        isolated(
            "discovery::tests::an_announcer_that_a_flood_fills_makes_way_for_a_new_one",
            NETWORK,
            || {
                let key = Identity::draw().public();
                let here = [Ipv4Addr::new(192, 0, 2, 1).into()];
                let service = |name: &str| {
                    let properties = [(KEY, key.to_string())];
                    ServiceInfo::new(
                        Service::Files.domain(),
                        name,
                        "a.local.",
                        &here[..],
                        7,
                        &properties[..],
                    )
                };
                let alone = announcer(&service("alone").unwrap()).unwrap();
                let _announcement =
                    Announcement::start(Service::Files, "kept", key, &here, 7).unwrap();
                // Both are queried, so that both exist.
                let is_found = |name: &str| {
                    let start = Instant::now();
                    let look = || {
                        neighbours(Service::Files, LOOK, 1, |it| it.name == name)
                            .unwrap()
                            .len()
                            == 1
                    };
                    while !look() {
                        assert!(start.elapsed() < Duration::from_secs(20), "{name}");
                    }
                };
                is_found("alone");
                is_found("kept");
                // Wait until the lookups have ended.
                let mut before = announcers();
                while before.len() > 2 {
                    thread::sleep(Duration::from_millis(50));
                    before = announcers();
                }
                flood(HELD_MAX as u32 * 2 / u32::from(NAMES_A_PACKET));
                assert!(held(&alone) > HELD_MAX, "the flood does not reach it");
                let start = Instant::now();
                while before.iter().all(|thread| announcers().contains(thread)) {
                    assert!(start.elapsed() < Duration::from_secs(10), "it is kept");
                    thread::sleep(Duration::from_millis(50));
                }
                is_found("kept");
                let _ = alone.shutdown();
            },
        );
    }

    /// Threads of announcers.
    fn announcers() -> Vec<std::ffi::OsString> {
        let mut threads: Vec<_> = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|thread| {
                let thread = thread.ok()?;
                let name = std::fs::read_to_string(thread.path().join("comm")).ok()?;
                name.to_lowercase()
                    .contains("mdns")
                    .then(|| thread.file_name())
            })
            .collect();
        threads.sort();
        threads
    }
}
