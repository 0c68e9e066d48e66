//! Keys of peers that were met, in a text file: a key and a name in each line.

use super::PublicKey;
use super::identity::beside;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

/// Bytes of such a file.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Characters of a name.
const NAME_CHARACTERS_MAX: usize = 100;

/// Peers by their keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownPeers {
    names: BTreeMap<PublicKey, String>,
}

impl KnownPeers {
    /// What a file says; nobody, if there is none.
    pub fn load(path: &Path) -> io::Result<Self> {
        let file = match File::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            Err(error) => return Err(error),
        };
        let mut text = String::new();
        file.take(FILE_BYTES_MAX).read_to_string(&mut text)?;
        let mut peers = Self::default();
        for (number, line) in text.lines().enumerate() {
            let (key, name) = line.split_once(' ').unwrap_or((line, ""));
            let key = key.parse().map_err(|error| {
                io::Error::new(
                    io::ErrorKind::InvalidData,
                    format!("line {}: {error}", number + 1),
                )
            })?;
            peers.pin(key, name);
        }
        Ok(peers)
    }

    /// Writes the file, whole or not at all.
    pub fn save(&self, path: &Path) -> io::Result<()> {
        let lines: String = self
            .names
            .iter()
            .map(|(key, name)| format!("{key} {name}\n"))
            .collect();
        let temporary = beside(path);
        let written = File::create_new(&temporary).and_then(|mut file| {
            file.write_all(lines.as_bytes())?;
            file.sync_all()
        });
        let saved = written.and_then(|()| std::fs::rename(&temporary, path));
        if saved.is_err() {
            // It was not made, or is of no use.
            let _ = std::fs::remove_file(&temporary);
        }
        saved
    }

    /// Knows `key` from now on, under a name that a line can hold.
    pub fn pin(&mut self, key: PublicKey, name: &str) {
        let name = name
            .chars()
            .filter(|character| !character.is_control())
            .take(NAME_CHARACTERS_MAX)
            .collect();
        self.names.insert(key, name);
    }

    /// Does not know `key` any more.
    pub fn forget(&mut self, key: &PublicKey) {
        self.names.remove(key);
    }

    /// The name of a key that is known.
    pub fn name(&self, key: &PublicKey) -> Option<&str> {
        self.names.get(key).map(String::as_str)
    }

    /// The keys of a name, however it is capitalised.
    pub fn keys<'a>(&'a self, name: &'a str) -> impl Iterator<Item = PublicKey> + 'a {
        self.names
            .iter()
            .filter(move |(_, known)| known.eq_ignore_ascii_case(name))
            .map(|(key, _)| *key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_known_again_under_names_that_cannot_add_lines() {
        let path = beside(&std::env::temp_dir().join("airdma-known"));
        let (desk, evil) = (PublicKey([1; 32]), PublicKey([2; 32]));
        let mut peers = KnownPeers::load(&path).unwrap();
        assert_eq!(peers, KnownPeers::default());
        peers.pin(desk, "desk in the hall");
        peers.pin(evil, &format!("x\n{} desk", PublicKey([3; 32])));
        peers.save(&path).unwrap();
        let loaded = KnownPeers::load(&path).unwrap();
        assert_eq!(loaded, peers);
        assert_eq!(loaded.name(&desk), Some("desk in the hall"));
        assert_eq!(loaded.name(&PublicKey([3; 32])), None);
        assert_eq!(loaded.keys("desk in the hall").collect::<Vec<_>>(), [desk]);
        peers.forget(&desk);
        peers.save(&path).unwrap();
        assert_eq!(KnownPeers::load(&path).unwrap().name(&desk), None);
        std::fs::write(&path, "no key").unwrap();
        assert!(
            KnownPeers::load(&path)
                .unwrap_err()
                .to_string()
                .starts_with("line 1: ")
        );
        std::fs::remove_file(&path).unwrap();
    }
}
