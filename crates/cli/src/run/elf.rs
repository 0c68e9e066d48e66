//! The parts of an ELF file that decide whether a preload takes effect.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

mod symbols;

pub use symbols::{Symbol, Symbols};

/// Machine that a file is for: class (32 or 64 bits) and processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    class: u8,
    processor: u16,
}

/// Properties of an ELF file. For another machine, only the machine is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// Machine that it is for.
    pub machine: Machine,
    /// Loader that it requests; a program without one is static.
    pub interpreter: Option<String>,
    /// The libraries that it links.
    pub needed: Vec<String>,
    /// DT_RPATH, as it stands: folders in which its libraries are searched for first.
    pub rpath: Option<String>,
    /// DT_RUNPATH, as it stands: the same behind `LD_LIBRARY_PATH`, for its own libraries only.
    /// Takes the place of DT_RPATH.
    pub runpath: Option<String>,
    /// Whether it refers to `rsocket(3)`.
    pub rsockets: bool,
}

impl Machine {
    /// The machine of this program.
    ///
    /// # Errors
    /// Those of reading `/proc/self/exe`, on processors whose number is not known here.
    pub fn ours() -> io::Result<Machine> {
        let known = [
            ("x86_64", 62),
            ("aarch64", 183),
            ("riscv64", 243),
            ("powerpc64", 21),
        ];
        if let Some((_, processor)) = known
            .iter()
            .find(|(name, _)| *name == std::env::consts::ARCH)
        {
            return Ok(Machine {
                class: CLASS_64,
                processor: *processor,
            });
        }
        Machine::of(Path::new("/proc/self/exe"))?.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The machine of a file; `None` if it is not an ELF file.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn of(path: &Path) -> io::Result<Option<Machine>> {
        Ok(Bytes(File::open(path)?).machine())
    }
}

impl Elf {
    /// Reads a file; `None` if it is not an ELF file.
    ///
    /// # Errors
    /// Those of opening the file.
    pub fn read(path: &Path) -> io::Result<Option<Elf>> {
        let bytes = Bytes(File::open(path)?);
        let Some(machine) = bytes.machine() else {
            return Ok(None);
        };
        let mut elf = Elf {
            machine,
            interpreter: None,
            needed: Vec::new(),
            rpath: None,
            runpath: None,
            rsockets: false,
        };
        if Machine::ours().is_ok_and(|ours| ours == machine) && machine.class == CLASS_64 {
            // Fields that a damaged file lacks stay empty.
            let _ = bytes.fill(&mut elf);
        }
        Ok(Some(elf))
    }
}

/// A file that is read at offsets. Returns `None` behind its end, and for sizes that no valid file
/// has.
struct Bytes(File);

impl Bytes {
    fn at(&self, offset: u64, len: u64) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(len).ok().filter(|len| *len <= READ_MAX)?];
        self.0.read_exact_at(&mut bytes, offset).ok()?;
        Some(bytes)
    }

    fn machine(&self) -> Option<Machine> {
        let head = self.at(0, 20)?;
        head.starts_with(b"\x7fELF").then(|| Machine {
            class: head[4],
            processor: u16::from_ne_bytes([head[18], head[19]]),
        })
    }

    fn fill(&self, elf: &mut Elf) -> Option<()> {
        let head = self.at(0, 64)?;
        let segments_at = word(&head, 32)?;
        let (entry_len, count) = (half(&head, 54)?, half(&head, 56)?);
        let table = self.at(segments_at, u64::from(entry_len) * u64::from(count))?;
        let segments: Vec<Segment> = table
            .chunks_exact(usize::from(entry_len).max(1))
            .filter_map(Segment::parse)
            .collect();
        let of = |kind: u32| segments.iter().find(|segment| segment.kind == kind);
        if let Some(segment) = of(INTERPRETER) {
            let text = self.at(segment.offset, segment.len)?;
            elf.interpreter = Some(string(&text, 0)?);
        }
        let dynamic = of(DYNAMIC)?;
        let entries: Vec<(u64, u64)> = self
            .at(dynamic.offset, dynamic.len)?
            .chunks_exact(16)
            .filter_map(|entry| Some((word(entry, 0)?, word(entry, 8)?)))
            .take_while(|(tag, _)| *tag != 0)
            .collect();
        let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted);
        let (_, address) = *value(STRINGS)?;
        let (_, len) = *value(STRINGS_LEN)?;
        let place = segments.iter().find(|segment| {
            let inside = address.checked_sub(segment.address);
            segment.kind == LOAD && inside.is_some_and(|inside| inside < segment.len)
        })?;
        let strings = self.at(place.offset.checked_add(address - place.address)?, len)?;
        let texts = |wanted: u64| {
            let tagged = entries.iter().filter(move |(tag, _)| *tag == wanted);
            tagged.filter_map(|(_, at)| string(&strings, usize::try_from(*at).ok()?))
        };
        elf.needed = texts(NEEDED).collect();
        elf.rpath = texts(RPATH).next();
        elf.runpath = texts(RUNPATH).next();
        elf.rsockets = strings.windows(9).any(|name| name == b"\0rsocket\0");
        Some(())
    }
}

/// A program header.
struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    len: u64,
}

impl Segment {
    fn parse(entry: &[u8]) -> Option<Segment> {
        Some(Segment {
            kind: u32::from_ne_bytes(entry.get(..4)?.try_into().ok()?),
            offset: word(entry, 8)?,
            address: word(entry, 16)?,
            len: word(entry, 32)?,
        })
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let bytes = bytes.get(at..at + 8)?;
    Some(u64::from_ne_bytes(bytes.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u16> {
    let bytes = bytes.get(at..at + 2)?;
    Some(u16::from_ne_bytes(bytes.try_into().ok()?))
}

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    let bytes = bytes.get(at..at + 4)?;
    Some(u32::from_ne_bytes(bytes.try_into().ok()?))
}

/// The string at an offset, up to its NUL.
fn string(bytes: &[u8], at: usize) -> Option<String> {
    let text = bytes.get(at..)?.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}

const CLASS_64: u8 = 2;
/// Types of program headers.
const LOAD: u32 = 1;
const DYNAMIC: u32 = 2;
const INTERPRETER: u32 = 3;
/// Tags of the dynamic section.
const NEEDED: u64 = 1;
const STRINGS: u64 = 5;
const STRINGS_LEN: u64 = 10;
const RPATH: u64 = 15;
const RUNPATH: u64 = 29;
/// Most bytes of a table that is read.
const READ_MAX: usize = 64 << 20;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn this_very_program_is_dynamic_and_links_the_c_library() {
        let elf = Elf::read(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert_eq!(elf.machine, Machine::ours().unwrap());
        assert!(elf.interpreter.unwrap().contains("ld-linux"));
        assert!(elf.needed.iter().any(|name| name.starts_with("libc.so")));
        assert!(!elf.rsockets);
    }

    #[test]
    fn files_that_are_no_programs_or_broken_ones_are_told() {
        let path = std::env::temp_dir().join(format!("airdma-elf-{}", std::process::id()));
        for text in [&b""[..], b"#!/bin/sh\n", b"\x7fELF"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(Elf::read(&path).unwrap(), None);
        }
        let whole = std::fs::read("/proc/self/exe").unwrap();
        for len in [20, 64, 200, 1000] {
            std::fs::write(&path, &whole[..len]).unwrap();
            assert_eq!(Elf::read(&path).unwrap().unwrap().needed, [""; 0]);
        }
        std::fs::remove_file(&path).unwrap();
    }
}
