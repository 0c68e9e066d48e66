//! A file of packets (draft-ietf-opsawg-pcapng): a section with an interface for each device.

use airdma_engine::tap::RecordHeader;
use anyhow::{Context, Result};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
const BYTE_ORDER_MAGIC: u32 = 0x1a2b_3c4d;
/// Packets begin with the IP header.
const LINKTYPE_RAW: u16 = 101;

const OPTION_END: u16 = 0;
const SECTION_PROGRAM: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const INTERFACE_RESOLUTION: u16 = 9;
const PACKET_FLAGS: u16 = 2;
const PACKET_LOST: u16 = 4;
const STATISTICS_RECEIVED: u16 = 4;
const STATISTICS_LOST: u16 = 5;
/// Length of the counts of a device, for which a limit of bytes leaves room.
const STATISTICS_LEN: usize = 52;
/// Time stamps in nanoseconds.
const NANOSECONDS: u8 = 9;
const INBOUND: u32 = 1;
const OUTBOUND: u32 = 2;
/// Bytes that are written together.
const TOGETHER: usize = 256 << 10;

/// A device.
pub struct Interface {
    pub name: String,
}

/// A file that is written.
pub struct Output {
    file: Box<dyn Write>,
    /// The same, to be asked whether it is read.
    descriptor: Option<OwnedFd>,
    /// The same, if it can be cut at the last whole block.
    regular: Option<File>,
    snap: usize,
    /// Blocks that are not in the file yet, and how many packets they have.
    pending: Vec<u8>,
    pending_packets: u64,
    written_bytes: u64,
    bytes_max: Option<u64>,
    /// Devices by the index of their interface.
    devices: BTreeMap<u32, Device>,
    pub packets: u64,
    /// Whether the next packet would not fit.
    pub is_full: bool,
}

struct Device {
    number: u32,
    packets: u64,
    lost: u64,
}

impl Output {
    /// Makes the file, or writes to standard output for `-`.
    pub fn open(path: &Path, snap: usize, bytes_max: Option<u64>) -> Result<Output> {
        let (file, descriptor, regular): (Box<dyn Write>, _, _) = if path.as_os_str() == "-" {
            let stdout = io::stdout();
            let descriptor = stdout.as_fd().try_clone_to_owned()?;
            (Box::new(stdout), descriptor, None)
        } else {
            // Packets hold what memory holds: only its owner reads the file.
            let mut options = File::options();
            let options = options.write(true).create(true).truncate(true).mode(0o600);
            let file =
                (options.open(path)).with_context(|| format!("cannot make {}", path.display()))?;
            let is_regular = file.metadata().is_ok_and(|metadata| metadata.is_file());
            let regular = is_regular.then(|| file.try_clone()).transpose()?;
            let descriptor = file.try_clone()?.into();
            (Box::new(file), descriptor, regular)
        };
        let mut output = Output::to(file, snap, bytes_max);
        output.descriptor = Some(descriptor);
        output.regular = regular;
        // A reader of a pipe waits for it.
        output
            .flush()
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(output)
    }

    fn to(file: Box<dyn Write>, snap: usize, bytes_max: Option<u64>) -> Output {
        let mut body = Vec::new();
        body.extend_from_slice(&BYTE_ORDER_MAGIC.to_le_bytes());
        body.extend_from_slice(&1_u32.to_le_bytes());
        // The length of the section is not known.
        body.extend_from_slice(&u64::MAX.to_le_bytes());
        let program = concat!("airdma ", env!("CARGO_PKG_VERSION"));
        option(&mut body, SECTION_PROGRAM, program.as_bytes());
        option(&mut body, OPTION_END, &[]);
        Output {
            file,
            descriptor: None,
            regular: None,
            snap,
            pending: block(SECTION, &body),
            pending_packets: 0,
            written_bytes: 0,
            bytes_max,
            devices: BTreeMap::new(),
            packets: 0,
            is_full: false,
        }
    }

    /// Adds a packet of a device, or what was lost before one.
    ///
    /// # Errors
    /// Those of writing.
    pub fn put(
        &mut self,
        interface: u32,
        header: &RecordHeader,
        bytes: &[u8],
        describe: impl FnOnce() -> Interface,
    ) -> io::Result<()> {
        let known = self.devices.get(&interface).map(|device| device.number);
        let mut blocks = match known {
            Some(_) => Vec::new(),
            None => interface_block(&describe(), self.snap),
        };
        let number = known.unwrap_or(self.devices.len() as u32);
        // A count of losses has no packet.
        let has_packet = header.original > 0;
        if has_packet {
            blocks.extend(packet_block(number, header, bytes));
        }
        let devices = self.devices.len() + usize::from(known.is_none());
        let last = devices * STATISTICS_LEN;
        let length = self.written_bytes + (self.pending.len() + blocks.len() + last) as u64;
        if self.bytes_max.is_some_and(|most| length > most) {
            self.is_full = true;
            return Ok(());
        }
        let device = self.devices.entry(interface).or_insert(Device {
            number,
            packets: 0,
            lost: 0,
        });
        device.lost += u64::from(header.lost);
        device.packets += u64::from(has_packet);
        self.packets += u64::from(has_packet);
        self.pending_packets += u64::from(has_packet);
        self.pending.extend(blocks);
        if self.pending.len() >= TOGETHER {
            self.flush()?;
        }
        Ok(())
    }

    /// Whether it is a pipe or socket that nothing reads any more. A write would say so, too, and
    /// without packets there is none.
    pub fn has_no_reader(&self) -> bool {
        let Some(descriptor) = &self.descriptor else {
            return false;
        };
        // Both are reported without being asked for.
        let mut asked = [PollFd::new(descriptor, PollFlags::empty())];
        let at_once = Timespec::default();
        rustix::event::poll(&mut asked, Some(&at_once)).is_ok()
            && (asked[0].revents()).intersects(PollFlags::ERR | PollFlags::HUP)
    }

    /// Packets that were not captured.
    pub fn lost(&self) -> u64 {
        self.devices.values().map(|device| device.lost).sum()
    }

    /// Packets that are in the file for certain.
    pub fn packets_in_file(&self) -> u64 {
        self.packets - self.pending_packets
    }

    /// Writes all blocks. What cannot be written whole is cut off.
    ///
    /// # Errors
    /// Those of writing.
    pub fn flush(&mut self) -> io::Result<()> {
        let written = self.file.write_all(&self.pending);
        if let Err(error) = written.and_then(|()| self.file.flush()) {
            if let Some(file) = &self.regular {
                // It is the error above that is reported.
                let _ = file.set_len(self.written_bytes);
            }
            return Err(error);
        }
        self.written_bytes += self.pending.len() as u64;
        self.pending.clear();
        self.pending_packets = 0;
        Ok(())
    }

    /// Writes the counts of each device.
    ///
    /// # Errors
    /// Those of writing.
    pub fn finish(&mut self) -> io::Result<()> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = since.map_or(0, |since| since.as_nanos() as u64);
        let blocks = self.devices.values().map(|it| statistics_block(it, now));
        self.pending.extend(blocks.flatten());
        self.flush()
    }
}

fn interface_block(interface: &Interface, snap: usize) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&LINKTYPE_RAW.to_le_bytes());
    body.extend_from_slice(&[0; 2]);
    body.extend_from_slice(&(snap as u32).to_le_bytes());
    option(&mut body, INTERFACE_NAME, interface.name.as_bytes());
    option(&mut body, INTERFACE_RESOLUTION, &[NANOSECONDS]);
    option(&mut body, OPTION_END, &[]);
    block(INTERFACE, &body)
}

fn packet_block(device: u32, header: &RecordHeader, bytes: &[u8]) -> Vec<u8> {
    let mut body = Vec::with_capacity(bytes.len() + 64);
    body.extend_from_slice(&device.to_le_bytes());
    time(&mut body, header.time_ns);
    body.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    body.extend_from_slice(&header.original.to_le_bytes());
    padded(&mut body, bytes);
    let direction = if header.is_sent { OUTBOUND } else { INBOUND };
    option(&mut body, PACKET_FLAGS, &direction.to_le_bytes());
    if header.lost > 0 {
        let lost = u64::from(header.lost);
        option(&mut body, PACKET_LOST, &lost.to_le_bytes());
    }
    option(&mut body, OPTION_END, &[]);
    block(PACKET, &body)
}

fn statistics_block(device: &Device, now_ns: u64) -> Vec<u8> {
    let mut body = Vec::new();
    body.extend_from_slice(&device.number.to_le_bytes());
    time(&mut body, now_ns);
    let seen = device.packets + device.lost;
    option(&mut body, STATISTICS_RECEIVED, &seen.to_le_bytes());
    option(&mut body, STATISTICS_LOST, &device.lost.to_le_bytes());
    option(&mut body, OPTION_END, &[]);
    block(STATISTICS, &body)
}

fn time(body: &mut Vec<u8>, ns: u64) {
    body.extend_from_slice(&((ns >> 32) as u32).to_le_bytes());
    body.extend_from_slice(&(ns as u32).to_le_bytes());
}

fn option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend_from_slice(&code.to_le_bytes());
    body.extend_from_slice(&(value.len() as u16).to_le_bytes());
    padded(body, value);
}

fn padded(body: &mut Vec<u8>, bytes: &[u8]) {
    body.extend_from_slice(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A block: its type, its length, what it holds, and its length again.
fn block(kind: u32, body: &[u8]) -> Vec<u8> {
    let length = (body.len() + 12) as u32;
    let mut block = Vec::with_capacity(body.len() + 12);
    block.extend_from_slice(&kind.to_le_bytes());
    block.extend_from_slice(&length.to_le_bytes());
    block.extend_from_slice(body);
    block.extend_from_slice(&length.to_le_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>, usize);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut held = self.0.lock().expect("no panic");
            if self.1 > 0 && held.len() + bytes.len() > self.1 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            held.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn header(lost: u32) -> RecordHeader {
        RecordHeader {
            captured: 5,
            original: 60,
            time_ns: 0x1_0000_0002,
            lost,
            is_sent: true,
        }
    }

    fn device() -> Interface {
        Interface {
            name: "airdma_a".into(),
        }
    }

    /// Types of blocks, each checked to have its length at both ends.
    fn kinds(mut bytes: &[u8]) -> Vec<u32> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four"));
        let mut kinds = Vec::new();
        while !bytes.is_empty() {
            let length = word(&bytes[4..]) as usize;
            assert_eq!(length % 4, 0);
            assert_eq!(word(&bytes[length - 4..]) as usize, length);
            kinds.push(word(bytes));
            bytes = &bytes[length..];
        }
        kinds
    }

    #[test]
    fn blocks_follow_each_other_and_count_what_was_lost() {
        let file = Shared::default();
        let mut output = Output::to(Box::new(file.clone()), 96, None);
        output
            .put(2, &header(0), b"hello", device)
            .expect("written");
        output
            .put(2, &header(3), b"again", device)
            .expect("written");
        let lost_only = RecordHeader {
            captured: 0,
            original: 0,
            ..header(4)
        };
        output.put(2, &lost_only, b"", device).expect("written");
        output
            .put(9, &header(0), b"other", device)
            .expect("written");
        output.finish().expect("written");
        assert_eq!((output.packets, output.lost()), (3, 7));
        let bytes = file.0.lock().expect("no panic");
        let expected = [
            SECTION, INTERFACE, PACKET, PACKET, INTERFACE, PACKET, STATISTICS, STATISTICS,
        ];
        assert_eq!(kinds(&bytes), expected);
    }

    #[test]
    fn a_limit_of_bytes_is_kept_and_leaves_room_for_the_counts() {
        // The second device does not fit: the file has nothing of it, its counts included.
        for (limit, devices) in [(300, 1), (420, 1), (520, 2)] {
            let file = Shared::default();
            let mut output = Output::to(Box::new(file.clone()), 96, Some(limit));
            output.put(2, &header(5), b"hello", device).expect("fits");
            output
                .put(9, &header(0), &[7; 120], device)
                .expect("written");
            while !output.is_full {
                output
                    .put(2, &header(0), b"hello", device)
                    .expect("written");
            }
            output.finish().expect("written");
            let bytes = file.0.lock().expect("no panic");
            assert!(bytes.len() as u64 <= limit, "{}", bytes.len());
            let kinds = kinds(&bytes);
            let count = |wanted| kinds.iter().filter(|kind| **kind == wanted).count();
            assert_eq!((count(INTERFACE), count(STATISTICS)), (devices, devices));
            assert_eq!((count(PACKET) as u64, output.lost()), (output.packets, 5));
        }
    }

    #[test]
    fn a_pipe_without_a_reader_is_noticed_without_a_packet() {
        let (reader, writer) = io::pipe().expect("a pipe");
        let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&writer));
        let output = Output::open(Path::new(&path), 96, None).expect("a reader");
        assert!(!output.has_no_reader());
        drop(reader);
        assert!(output.has_no_reader());
    }

    #[test]
    fn a_full_disk_is_an_error_that_knows_what_is_in_the_file() {
        let file = Shared(Arc::default(), 300);
        let mut output = Output::to(Box::new(file), 96, None);
        output
            .put(2, &header(0), b"hello", device)
            .expect("written");
        output.flush().expect("fits");
        for _ in 0..9 {
            output
                .put(2, &header(0), b"hello", device)
                .expect("pending");
        }
        let error = output.flush().expect_err("does not fit");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        assert_eq!((output.packets, output.packets_in_file()), (10, 1));
    }
}
