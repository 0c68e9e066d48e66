//! Known peers, with key, role, network and name. A text file with one line each:
//!
//! ```text
//! KEY(64 hexadecimal digits) receiver|sender -|NETWORK NAME
//! ```
//!
//! A known receiver can be sent to under that name; a known sender may send to this user. A name
//! holds on any network (`-`), an address only on the network where it was learned.

use super::identity::beside;
use super::private::{self, WRITABLE};
use super::{NoKey, PublicKey};
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeSet;
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::str::FromStr;

/// Most bytes of such a file.
pub const KNOWN_PEERS_BYTES_MAX: u64 = 4 << 20;
/// Most characters of a name.
const NAME_CHARACTERS_MAX: usize = 100;
/// Most bytes of a network's name.
const NETWORK_BYTES_MAX: usize = 100;

/// Role of a peer in the transfer that made it known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// It received files from this user.
    Receiver,
    /// It sent files to this user.
    Sender,
}

/// Where a name holds.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// On any network: it is a name.
    Anywhere,
    /// On this network: it is an address.
    Network(NetworkName),
}

/// Name of a network: printable ASCII without blanks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NetworkName(String);

/// A known peer.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pin {
    key: PublicKey,
    role: Role,
    place: Place,
    name: String,
}

/// The known peers of a file.
#[derive(Clone, Debug, Default)]
pub struct KnownPeers {
    pins: BTreeSet<Pin>,
    /// Lines that are not pins, with their numbers: they are kept.
    others: Vec<(usize, Vec<u8>)>,
}

/// The line is not a pin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no line of `KEY receiver|sender -|NETWORK NAME`")]
pub struct NoPin;

impl NetworkName {
    /// The name, if `text` is a valid one.
    pub fn new(text: &str) -> Option<Self> {
        let fits = (1..=NETWORK_BYTES_MAX).contains(&text.len()) && text != ANYWHERE;
        let is_plain = text.bytes().all(|byte| byte.is_ascii_graphic());
        (fits && is_plain).then(|| Self(text.to_owned()))
    }
}

impl Pin {
    /// A pin. The name is cut to what a line can hold.
    pub fn new(key: PublicKey, role: Role, place: Place, name: &str) -> Self {
        Self {
            key,
            role,
            place,
            name: line_name(name),
        }
    }

    /// Key of the peer.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Role of the peer.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Name or address of the peer.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it has the same role, place and name.
    fn is_beside(&self, other: &Pin) -> bool {
        (self.role, &self.place) == (other.role, &other.place)
            && self.name.eq_ignore_ascii_case(&other.name)
    }
}

impl KnownPeers {
    /// Loads a file; without one, there are no known peers.
    ///
    /// # Errors
    /// The system's error; another user may have written the file, or it is not a regular one.
    pub fn load(path: &Path) -> io::Result<Self> {
        match private::open(path, WRITABLE) {
            Ok(file) => Ok(Self::parse(&private::read(file, KNOWN_PEERS_BYTES_MAX)?)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error),
        }
    }

    /// Parses the bytes of a file.
    pub fn parse(bytes: &[u8]) -> Self {
        let mut peers = Self::default();
        for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let pin = std::str::from_utf8(line).map(str::parse::<Pin>);
            match pin {
                Ok(Ok(pin)) => {
                    peers.pins.insert(pin);
                }
                _ if line.is_empty() => {}
                Ok(Err(NoPin)) | Err(_) => peers.others.push((at + 1, line.to_vec())),
            }
        }
        peers
    }

    /// The bytes of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (_, line) in &self.others {
            bytes.extend_from_slice(line);
            bytes.push(b'\n');
        }
        for pin in &self.pins {
            bytes.extend_from_slice(format!("{pin}\n").as_bytes());
        }
        bytes
    }

    /// Writes the file atomically and durably.
    ///
    /// # Errors
    /// The system's error; the file would be too long to be read.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let bytes = self.to_bytes();
        if bytes.len() as u64 > KNOWN_PEERS_BYTES_MAX {
            return Err(private::refused("it is full: remove lines"));
        }
        let temporary = beside(path);
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let opened = rustix::fs::open(&temporary, flags, Mode::from_raw_mode(0o600));
        let written = opened.map_err(io::Error::from).and_then(|file| {
            let mut file = File::from(file);
            file.write_all(&bytes)?;
            file.sync_all()
        });
        let saved = written.and_then(|()| std::fs::rename(&temporary, path));
        if saved.is_err() {
            // It was not created, or is of no use.
            let _ = std::fs::remove_file(&temporary);
        }
        saved?;
        let directory = path
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
    }

    /// Numbers of lines that could not be parsed, except comments.
    pub fn bad_lines(&self) -> impl Iterator<Item = usize> {
        let bad = |(_, line): &&(usize, Vec<u8>)| !line.starts_with(b"#");
        self.others.iter().filter(bad).map(|(number, _)| *number)
    }

    /// All known peers.
    pub fn pins(&self) -> impl Iterator<Item = &Pin> {
        self.pins.iter()
    }

    /// Adds a peer next to others of its role, place and name, or `instead` of them.
    ///
    /// Returns the keys of those others.
    pub fn pin(&mut self, pin: Pin, instead: bool) -> Vec<PublicKey> {
        let is_former = |former: &&Pin| instead && former.is_beside(&pin) && **former != pin;
        let gone: Vec<Pin> = self.pins.iter().filter(is_former).cloned().collect();
        self.pins.retain(|pin| !gone.contains(pin));
        let former = gone.iter().map(|former| former.key);
        let mut former: Vec<PublicKey> = former.filter(|key| *key != pin.key).collect();
        former.dedup();
        self.pins.insert(pin);
        former
    }

    /// Removes all pins of `key`.
    pub fn forget(&mut self, key: &PublicKey) {
        self.pins.retain(|pin| pin.key != *key);
    }

    /// Whether a key is known in a role.
    pub fn knows(&self, key: &PublicKey, role: Role) -> bool {
        let mut of_key = self.of_key(key);
        of_key.any(|pin| pin.role == role)
    }

    /// The best name of a key in one of `roles`, in order of preference.
    ///
    /// A name that holds anywhere precedes an address.
    pub fn name(&self, key: &PublicKey, roles: &[Role]) -> Option<&str> {
        roles.iter().find_map(|role| {
            // `Anywhere` sorts first.
            let mut of_role = self.of_key(key).filter(|pin| pin.role == *role);
            of_role.next().map(|pin| &*pin.name)
        })
    }

    /// The keys of a role and a name at a place; case does not matter.
    pub fn keys(&self, role: Role, place: &Place, name: &str) -> Vec<PublicKey> {
        let wanted = Pin::new(PublicKey([0; 32]), role, place.clone(), name);
        let pins = self.pins.iter().filter(|pin| pin.is_beside(&wanted));
        let mut keys: Vec<PublicKey> = pins.map(|pin| pin.key).collect();
        keys.dedup();
        keys
    }

    fn of_key(&self, key: &PublicKey) -> impl Iterator<Item = &Pin> {
        let first = Pin {
            key: *key,
            role: Role::Receiver,
            place: Place::Anywhere,
            name: String::new(),
        };
        let from = self.pins.range(first..);
        from.take_while(move |pin| pin.key == *key)
    }
}

impl FromStr for Pin {
    type Err = NoPin;

    fn from_str(line: &str) -> Result<Self, NoPin> {
        let mut words = line.splitn(4, ' ');
        let mut next = || words.next().ok_or(NoPin);
        let key: Result<PublicKey, NoKey> = next()?.parse();
        let role = match next()? {
            RECEIVER => Role::Receiver,
            SENDER => Role::Sender,
            _ => return Err(NoPin),
        };
        let place = match next()? {
            ANYWHERE => Place::Anywhere,
            network => Place::Network(NetworkName::new(network).ok_or(NoPin)?),
        };
        let name = next()?;
        // A name that would be written differently was not written by this program.
        if name != line_name(name) {
            return Err(NoPin);
        }
        Ok(Pin::new(key.map_err(|_| NoPin)?, role, place, name))
    }
}

impl fmt::Display for Pin {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let role = match self.role {
            Role::Receiver => RECEIVER,
            Role::Sender => SENDER,
        };
        let place = match &self.place {
            Place::Anywhere => ANYWHERE,
            Place::Network(NetworkName(network)) => network,
        };
        write!(out, "{} {role} {place} {}", self.key, self.name)
    }
}

/// The name as a line can hold it.
fn line_name(name: &str) -> String {
    let seen = name.chars().filter(|character| !character.is_control());
    seen.take(NAME_CHARACTERS_MAX).collect()
}

const RECEIVER: &str = "receiver";
const SENDER: &str = "sender";
const ANYWHERE: &str = "-";

#[cfg(test)]
mod tests;
