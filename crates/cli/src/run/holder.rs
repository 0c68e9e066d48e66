//! The processes that hold UDP port 4791, from the kernel's tables.
//!
//! No socket is opened for this: it would take part in what is observed.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use airdma_engine::runtime_dir;

/// RoCEv2's port.
pub const PORT: u16 = 4791;

/// A socket at the port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holder {
    address: IpAddr,
    user: u32,
    /// Inode of the socket; 0 for one of the kernel.
    inode: u64,
}

/// How it affects a program of this user.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Relation {
    /// An airdma process of this user, with which others share the address.
    Shared(String),
    /// Another program: its name, and what to do.
    Taken(String),
}

/// The sockets at the port, and their processes.
pub struct Port {
    holders: Vec<Holder>,
    /// Processes by the inode of their socket, as far as visible.
    processes: HashMap<u64, Process>,
}

impl Port {
    /// The port in this network namespace.
    pub fn look() -> Port {
        let tables = ["/proc/net/udp", "/proc/net/udp6"].into_iter();
        let holders: Vec<Holder> = tables
            .flat_map(|table| holders(&fs::read_to_string(table).unwrap_or_default()))
            .collect();
        let inodes = holders.iter().map(|holder| holder.inode);
        let processes = processes_of(inodes.filter(|inode| *inode != 0).collect());
        Port { holders, processes }
    }

    /// Whether no socket is bound to it.
    pub fn is_free(&self) -> bool {
        self.holders.is_empty()
    }

    /// A process that shares an address, and what to do about one that does not.
    pub fn relations(&self, address: IpAddr) -> (Option<String>, Option<String>) {
        let (mut shared, mut taken) = (None, None);
        for holder in self.holders.iter().filter(|holder| holder.holds(address)) {
            match holder.relation(self.processes.get(&holder.inode)) {
                Relation::Shared(process) => shared = shared.or(Some(process)),
                Relation::Taken(advice) => taken = taken.or(Some(advice)),
            }
        }
        (shared, taken)
    }
}

impl Holder {
    /// Whether it keeps others from an address.
    fn holds(&self, address: IpAddr) -> bool {
        self.address == address || self.address.is_unspecified()
    }

    /// Its relation to this user. `process` holds it, as far as visible.
    fn relation(&self, process: Option<&Process>) -> Relation {
        if self.inode == 0 {
            return Relation::Taken(
                "the kernel has it, for an rxe device (`rdma link`): `modprobe -r rdma_rxe`"
                    .to_owned(),
            );
        }
        // SAFETY: geteuid has no arguments and cannot fail.
        let ours = unsafe { libc::geteuid() };
        match process {
            Some(process) if process.kinship == Kinship::Shares && self.user == ours => {
                Relation::Shared(process.to_string())
            }
            Some(process) if process.kinship == Kinship::Apart && self.user == ours => {
                Relation::Taken(format!(
                    "{process} has it and has a /run or /tmp of its own (a container, PrivateTmp=), so that the two cannot \
                     share it; give both the same directory: `install -d -m 700 /run/airdma-{ours}` where both see it"
                ))
            }
            Some(process) => Relation::Taken(format!("{process} has it; end it")),
            // In another PID namespace, as in a container with the host's network.
            None if self.user == ours => Relation::Shared(format!(
                "a process that is not visible here, if it is airdma's and has the same /run/airdma-{ours}"
            )),
            None => Relation::Taken(format!(
                "a process of user {} has it (`ss -lunp sport = :{PORT}` as root says which); end it, or run as that user",
                self.user
            )),
        }
    }
}

/// The lines of a table about the port: slot, local address, remote address, state, queues, timer,
/// retransmissions, user, timeout, inode.
fn holders(table: &str) -> Vec<Holder> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace().skip(1);
        let (address, port) = words.next()?.split_once(':')?;
        let (user, inode) = (words.nth(5)?, words.nth(1)?);
        let holder = Holder {
            address: address_of(address)?,
            user: user.parse().ok()?,
            inode: inode.parse().ok()?,
        };
        (u16::from_str_radix(port, 16) == Ok(PORT)).then_some(holder)
    };
    table.lines().skip(1).filter_map(parse).collect()
}

/// Parses 32-bit words in hexadecimal, each in the machine's byte order.
fn address_of(text: &str) -> Option<IpAddr> {
    let word = |at: usize| {
        let digits = text.get(at * 8..at * 8 + 8)?;
        Some(u32::from_str_radix(digits, 16).ok()?.to_ne_bytes())
    };
    if text.len() == 8 {
        return Some(Ipv4Addr::from(word(0)?).into());
    }
    let words = [word(0)?, word(1)?, word(2)?, word(3)?];
    let bytes: [u8; 16] = words.as_flattened().try_into().ok()?;
    Some(IpAddr::from(Ipv6Addr::from(bytes)).to_canonical())
}

#[derive(Clone, Debug)]
struct Process {
    id: String,
    name: String,
    kinship: Kinship,
}

/// Relation of a process to those started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kinship {
    /// It has the registry open that they will open.
    Shares,
    /// It has another file of the same name open: its directories differ.
    Apart,
    Stranger,
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} (process {})", self.name, self.id)
    }
}

/// The visible processes that have the wanted sockets, in one pass: a host has many descriptors.
fn processes_of(mut wanted: HashSet<u64>) -> HashMap<u64, Process> {
    let mut found = HashMap::new();
    let shared = runtime_dir::shared_directories();
    let all = (!wanted.is_empty()).then(|| fs::read_dir("/proc"));
    for process in all.into_iter().flatten().flatten().flatten() {
        if wanted.is_empty() {
            break;
        }
        let id = process.file_name().to_string_lossy().into_owned();
        if !id.starts_with(|first: char| first.is_ascii_digit()) {
            continue;
        }
        let Ok(open) = fs::read_dir(process.path().join("fd")) else {
            continue;
        };
        let links: Vec<_> = open
            .flatten()
            .filter_map(|file| Some((file.path(), fs::read_link(file.path()).ok()?)))
            .collect();
        let sockets: Vec<u64> = (links.iter().filter_map(|(_, link)| inode_of(link)))
            .filter(|inode| wanted.remove(inode))
            .collect();
        if sockets.is_empty() {
            continue;
        }
        let name = fs::read_to_string(process.path().join("comm")).unwrap_or_default();
        let process = Process {
            id,
            name: name.trim().to_owned(),
            kinship: kinship(&links, &shared),
        };
        found.extend(sockets.into_iter().map(|inode| (inode, process.clone())));
    }
    found
}

/// The inode in `socket:[INODE]`, the link of a socket's descriptor.
fn inode_of(link: &Path) -> Option<u64> {
    let inode = link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?;
    inode.parse().ok()
}

/// Whether a process has the registry's file open. `links`: descriptors, and the names that they
/// refer to.
fn kinship(links: &[(PathBuf, PathBuf)], shared: &[PathBuf]) -> Kinship {
    let is_one = |link: &Path| shared.iter().any(|shared| link.starts_with(shared));
    let mut members = links.iter().filter(|(_, link)| is_one(link)).peekable();
    if members.peek().is_none() {
        return Kinship::Stranger;
    }
    let identity = |path: &Path| fs::metadata(path).ok().map(|it| (it.dev(), it.ino()));
    let is_same = |(open, named): &(PathBuf, PathBuf)| {
        let named = identity(named);
        named.is_some() && named == identity(open)
    };
    if members.any(is_same) {
        Kinship::Shares
    } else {
        Kinship::Apart
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_tables_are_read_as_the_kernel_writes_them() {
        let v4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                  100: 0100007F:12B7 00000000:0000 07 00000000:00000000 00:00000000 00000000  1000        0 555 2 0000000000000000 0\n\
                  101: 00000000:0035 00000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 556 2 0000000000000000 0\n";
        let v6 = "  sl  local_address remote_address st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops\n\
                  7: 00000000000000000000000000000000:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 0 2 0 0\n\
                  8: 000080FE00000000000000FF010000FE:12B7 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000     0        0 9 2 0 0\n";
        let loopback = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(
            holders(v4),
            [Holder {
                address: loopback,
                user: 1000,
                inode: 555
            }]
        );
        let found = holders(v6);
        assert_eq!(found.len(), 2);
        assert!(found[0].holds(loopback));
        assert!(matches!(found[0].relation(None), Relation::Taken(who) if who.contains("rxe")));
        assert_eq!(found[1].address.to_string(), "fe80::ff00:0:fe00:1");
        assert!(!found[1].holds(loopback));
        assert!(holders("garbage\n1: x\n2: 0100007F:12B7 y\n").is_empty());
    }

    #[test]
    fn a_socket_of_ours_is_found_with_its_process() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let link = fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&socket)
        ));
        let inode = inode_of(&link.unwrap()).unwrap();
        let processes = processes_of([inode, u64::MAX].into());
        let process = &processes[&inode];
        assert_eq!(processes.len(), 1);
        assert_eq!(process.id, std::process::id().to_string());
        assert_eq!(process.kinship, Kinship::Stranger);
    }

    #[test]
    fn an_invisible_process_of_this_user_may_share_the_port() {
        // SAFETY: geteuid has no arguments and cannot fail.
        let ours = unsafe { libc::geteuid() };
        let holder = |user| Holder {
            address: Ipv4Addr::LOCALHOST.into(),
            user,
            inode: 1,
        };
        let relation = holder(ours).relation(None);
        assert!(matches!(relation, Relation::Shared(who) if who.contains("not visible")));
        let relation = holder(ours + 1).relation(None);
        assert!(matches!(relation, Relation::Taken(_)));
    }
}
