//! The dynamic symbols of an ELF file with their versions, by its section headers.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use super::{Bytes, half, number, string, word};

/// A symbol and its version node; `None` in a file without versions.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Symbol {
    pub name: String,
    pub node: String,
}

/// Imports and exports of a file. Empty for a file that is damaged, or has no section headers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Symbols {
    pub imports: Vec<Symbol>,
    pub exports: Vec<Symbol>,
    /// The version nodes that it defines.
    pub nodes: Vec<String>,
    /// Libraries and version nodes that it requires; the loader refuses the file without them.
    pub wanted_nodes: Vec<(String, String)>,
}

impl Symbols {
    /// Reads a file for this machine.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn read(path: &Path) -> io::Result<Symbols> {
        let bytes = Bytes(File::open(path)?);
        let mut symbols = Symbols::default();
        let _ = bytes.symbols(&mut symbols);
        Ok(symbols)
    }
}

/// A section header.
struct Section {
    kind: u32,
    offset: u64,
    len: u64,
    /// Index of the section with its strings.
    link: usize,
}

impl Section {
    fn parse(entry: &[u8]) -> Option<Section> {
        Some(Section {
            kind: number(entry, 4)?,
            offset: word(entry, 24)?,
            len: word(entry, 32)?,
            link: number(entry, 40)? as usize,
        })
    }
}

impl Bytes {
    fn symbols(&self, symbols: &mut Symbols) -> Option<()> {
        let head = self.at(0, 64)?;
        let (entry_len, count) = (half(&head, 58)?, half(&head, 60)?);
        let table = self.at(word(&head, 40)?, u64::from(entry_len) * u64::from(count))?;
        let sections: Vec<Section> = table
            .chunks_exact(usize::from(entry_len).max(1))
            .filter_map(Section::parse)
            .collect();
        let of = |kind: u32| {
            let section = sections.iter().find(|section| section.kind == kind)?;
            let strings = sections.get(section.link)?;
            Some((
                self.at(section.offset, section.len)?,
                self.at(strings.offset, strings.len)?,
            ))
        };
        let (dynamic, strings) = of(DYNAMIC_SYMBOLS)?;
        // Node by index.
        let mut nodes = HashMap::new();
        if let Some((needs, strings)) = of(VERSION_NEEDS) {
            for need in Chain::new(&needs, 0, 12) {
                let (Some(file), Some(first)) =
                    (number(&needs, need + 4), number(&needs, need + 8))
                else {
                    break;
                };
                let file = string(&strings, file as usize)?;
                for entry in Chain::new(&needs, need + first as usize, 12) {
                    let node = string(&strings, number(&needs, entry + 8)? as usize)?;
                    nodes.insert(half(&needs, entry + 6)?, node.clone());
                    symbols.wanted_nodes.push((file.clone(), node));
                }
            }
        }
        if let Some((definitions, strings)) = of(VERSION_DEFINITIONS) {
            for definition in Chain::new(&definitions, 0, 16) {
                let name_at = definition + number(&definitions, definition + 12)? as usize;
                let node = string(&strings, number(&definitions, name_at)? as usize)?;
                nodes.insert(half(&definitions, definition + 4)?, node.clone());
                symbols.nodes.push(node);
            }
        }
        let versions = sections
            .iter()
            .find(|section| section.kind == VERSIONS)
            .and_then(|section| self.at(section.offset, section.len));
        for (index, entry) in dynamic.chunks_exact(SYMBOL_LEN).enumerate().skip(1) {
            let version = versions
                .as_deref()
                .and_then(|versions| half(versions, index * 2));
            let node = version.and_then(|version| nodes.get(&(version & !HIDDEN)));
            let symbol = Symbol {
                name: string(&strings, number(entry, 0)? as usize)?,
                node: node.cloned().unwrap_or_default(),
            };
            if half(entry, 6)? == UNDEFINED {
                symbols.imports.push(symbol);
            } else {
                symbols.exports.push(symbol);
            }
        }
        Some(())
    }
}

/// Offsets of the entries of a list, each of which holds the distance to the next.
struct Chain<'a> {
    bytes: &'a [u8],
    next: Option<usize>,
    /// Offset of that distance in an entry.
    step_at: usize,
}

impl<'a> Chain<'a> {
    fn new(bytes: &'a [u8], first: usize, step_at: usize) -> Self {
        Chain {
            bytes,
            next: Some(first).filter(|first| *first < bytes.len()),
            step_at,
        }
    }
}

impl Iterator for Chain<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let at = self.next?;
        let step = number(self.bytes, at + self.step_at).unwrap_or(0) as usize;
        // Only forward, so that the list ends.
        self.next = Some(at + step).filter(|next| step != 0 && *next < self.bytes.len());
        Some(at)
    }
}

const SYMBOL_LEN: usize = 24;
const UNDEFINED: u16 = 0;
/// Flag in a version: not the default one of the name.
const HIDDEN: u16 = 0x8000;
/// Types of sections.
const DYNAMIC_SYMBOLS: u32 = 11;
const VERSION_DEFINITIONS: u32 = 0x6fff_fffd;
const VERSION_NEEDS: u32 = 0x6fff_fffe;
const VERSIONS: u32 = 0x6fff_ffff;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn has(symbols: &[Symbol], name: &str, node: &str) -> bool {
        symbols
            .iter()
            .any(|symbol| symbol.name == name && symbol.node.starts_with(node))
    }

    #[test]
    fn this_very_program_imports_versioned_symbols_of_the_c_library() {
        let symbols = Symbols::read(Path::new("/proc/self/exe")).unwrap();
        assert!(has(&symbols.imports, "write", "GLIBC_2."));
        let nodes = &symbols.wanted_nodes;
        assert!(
            nodes
                .iter()
                .any(|(file, node)| file == "libc.so.6" && node.starts_with("GLIBC_"))
        );
        assert_eq!(symbols.nodes, [""; 0]);
    }

    #[test]
    fn a_damaged_file_has_what_of_it_can_be_read() {
        let path = std::env::temp_dir().join(format!("airdma-symbols-{}", std::process::id()));
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for len in [0, 20, 64, 200, 1000, whole.len() / 2] {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(Symbols::read(&path).unwrap().imports, []);
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!(Chain::new(&[0; 40], 0, 12).collect::<Vec<_>>(), [0]);
        assert_eq!(Chain::new(&[], 0, 12).count(), 0);
    }
}
