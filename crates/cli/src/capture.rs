//! `airdma capture`: packets of devices, as pcapng.
//!
//! The processes that have the devices copy their own packets for it; see
//! [`airdma_engine::tap`]. So it needs no privilege, and shows what filters of the kernel hide:
//! packets through memory, and those that were coalesced or segmented.

use crate::files::stop;
use crate::view::{self, Opened, View};
use crate::warn;
use airdma_engine::tap::{NUMBERS_MAX, RECORD_HEADER_LEN, RecordHeader, SNAP_MAX, complete};
use airdma_engine::{CAPTURING, all_devices};
use anyhow::{Context, Result, anyhow};
use pcapng::{Interface, Output};
use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Read as _};
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

mod pcapng;

pub const HELP: &str = "\
Ends with Ctrl-C, at a limit, or with the program that reads its pipe.

Examples:
  airdma capture packets.pcapng
  airdma capture - | wireshark -k -i -
  airdma capture --qp 0x44e157 --seconds 10 packets.pcapng
  airdma capture --snap 128 --packets 100000 - | tshark -r -

Packets of airdma's own devices only: for a kernel's rxe or an RDMA NIC use tcpdump or dumpcap.
Processes that start later join within a tenth of a second, and their first packets are missing.
The IP header is made of what a socket shows: identification and checksums are 0, and the ICRC is
right for that header.";

/// How often processes are listed.
const LIST_EVERY: Duration = Duration::from_millis(50);
/// When a process that does not answer, or has too many captures, is asked again.
const ASK_AGAIN: Duration = Duration::from_secs(1);
/// Bytes that are read and passed on together: each packet alone would wake a thread.
const TOGETHER: usize = 256 << 10;
/// As many that wait to be written.
const WAITING_MAX: usize = 64;

#[derive(clap::Args)]
pub struct Options {
    /// File to write, or - for standard output
    file: PathBuf,
    /// Packets of this device only, by its name or its interface's
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Packets from and to this address only; may be given several times
    #[arg(long, value_name = "ADDRESS")]
    peer: Vec<IpAddr>,
    /// Packets for this queue pair number only, and, where a queue pair here has it, for that of
    /// its peer; may be given several times
    #[arg(long = "qp", value_name = "NUMBER", value_parser = queue_pair_number)]
    numbers: Vec<u32>,
    /// First bytes of each packet that are kept, from the IP header on
    #[arg(long, value_name = "BYTES", default_value_t = SNAP_MAX)]
    snap: usize,
    /// End after this number of packets
    #[arg(long, value_name = "COUNT")]
    packets: Option<u64>,
    /// End before the file is longer
    #[arg(long, value_name = "COUNT")]
    bytes: Option<u64>,
    /// End after this time
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
}

fn queue_pair_number(text: &str) -> Result<u32, String> {
    let number = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => text.parse(),
    };
    match number {
        Ok(number) if number < 1 << 24 => Ok(number),
        Ok(_) | Err(_) => Err("a number of 24 bits, such as 0x11".into()),
    }
}

/// What a thread that reads from a process passes on.
enum Read {
    /// Whole records, and the interface of their device.
    Records(u32, Vec<u8>),
    /// The process of this name sends no more; why it sent nothing, or what is wrong with it.
    End {
        name: String,
        complaint: Option<String>,
    },
}

pub fn capture(options: &Options) -> Result<ExitCode> {
    let is_pipe = options.file.as_os_str() == "-";
    if is_pipe && io::stdout().is_terminal() {
        return Err(anyhow!(
            "packets are not text: name a file, or give them to a program \
             (`airdma capture - | wireshark -k -i -`)"
        ));
    }
    if options.peer.len() > 64 || options.numbers.len() > NUMBERS_MAX / 2 {
        return Err(anyhow!(
            "a filter has 64 addresses and {} queue pairs at most",
            NUMBERS_MAX / 2
        ));
    }
    let interface = options.device.as_deref().map(index_of).transpose()?;
    stop::then(|| ())?;
    let mut output = Output::open(&options.file, options.snap.min(SNAP_MAX), options.bytes)?;
    let written = collect(options, interface, &mut output);
    let (packets, lost) = (output.packets, output.lost());
    if let Err(error) = written.and_then(|()| Ok(output.finish()?)) {
        match error.downcast_ref::<io::Error>() {
            Some(broken) if broken.kind() == io::ErrorKind::BrokenPipe => {}
            Some(_) => {
                let (file, held) = (options.file.display(), output.packets_in_file());
                return Err(error.context(format!("cannot write {file}, which has {held} packets")));
            }
            None => return Err(error),
        }
    }
    warn(&format!("{packets} packets, {lost} lost"));
    Ok(ExitCode::SUCCESS)
}

fn index_of(name: &str) -> Result<u32> {
    let devices = all_devices()?;
    let is_it = |info: &&airdma_engine::DeviceInfo| info.name == name || info.interface == name;
    let found = devices.iter().find(is_it);
    found
        .map(|info| info.interface_index)
        .ok_or_else(|| anyhow!("no device is called {name}: `airdma devices` lists them"))
}

/// Writes what processes send, until a limit or a signal.
fn collect(options: &Options, interface: Option<u32>, output: &mut Output) -> Result<()> {
    let start = Instant::now();
    let limit = options.seconds.map(Duration::from_secs);
    let is_over = || stop::has_come() || limit.is_some_and(|it| start.elapsed() >= it);
    let (sender, receiver) = sync_channel(WAITING_MAX);
    let mut joined = Joined::default();
    while !is_over() {
        joined.join_new(options, interface, &sender)?;
        let next = Instant::now() + LIST_EVERY;
        while !is_over() && Instant::now() < next {
            match receive(&receiver, next) {
                Some(Read::Records(interface, records)) => {
                    if write(options, interface, &records, output)? {
                        return Ok(());
                    }
                }
                Some(Read::End { name, complaint }) => joined.note_end(name, complaint),
                None => break,
            }
        }
        output.flush()?;
        if output.has_no_reader() {
            return Ok(());
        }
    }
    Ok(())
}

/// Writes records. Whether a limit is reached.
fn write(
    options: &Options,
    interface: u32,
    mut records: &[u8],
    output: &mut Output,
) -> Result<bool> {
    let mut packet = Vec::new();
    while let Some((mut header, bytes)) = first(&mut records)? {
        packet.clear();
        packet.extend_from_slice(bytes);
        complete(&mut header, &mut packet, options.snap);
        output.put(interface, &header, &packet, || interface_named(interface))?;
        if output.is_full || options.packets.is_some_and(|most| output.packets >= most) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Takes the first record off; `None` if it is not whole.
fn first<'r>(records: &mut &'r [u8]) -> io::Result<Option<(RecordHeader, &'r [u8])>> {
    let Some((header, rest)) = records.split_first_chunk::<RECORD_HEADER_LEN>() else {
        return Ok(None);
    };
    let header = RecordHeader::parse(header).ok_or(io::ErrorKind::InvalidData)?;
    let Some((packet, rest)) = rest.split_at_checked(header.captured as usize) else {
        return Ok(None);
    };
    *records = rest;
    Ok(Some((header, packet)))
}

fn receive(receiver: &Receiver<Read>, until: Instant) -> Option<Read> {
    let left = until.saturating_duration_since(Instant::now());
    receiver.recv_timeout(left).ok()
}

fn interface_named(index: u32) -> Interface {
    let devices = all_devices().unwrap_or_default();
    let found = devices
        .into_iter()
        .find(|info| info.interface_index == index);
    Interface {
        name: found.map_or_else(|| format!("interface {index}"), |info| info.name),
    }
}

/// The sockets that were found.
#[derive(Default)]
struct Joined {
    /// When each is asked again; none while its packets come, or if it is another user's.
    names: HashMap<String, Option<Instant>>,
    /// Those of which was told that they send nothing.
    told: HashSet<String>,
}

impl Joined {
    /// Begins to read from each process that was not there before.
    fn join_new(
        &mut self,
        options: &Options,
        interface: Option<u32>,
        sender: &SyncSender<Read>,
    ) -> Result<()> {
        let names = view::names().context("cannot list the sockets of processes")?;
        self.names.retain(|name, _| names.contains(name));
        self.told.retain(|name| names.contains(name));
        for name in names {
            let index = view::interface_of(&name);
            let Some(index) = index.filter(|index| interface.is_none_or(|wanted| wanted == *index))
            else {
                continue;
            };
            let known = self.names.get(&name);
            let is_due = known.is_none_or(|again| again.is_some_and(|at| at <= Instant::now()));
            if !is_due || self.names.len() >= view::VIEWS_MAX && known.is_none() {
                continue;
            }
            match View::open(&name) {
                Opened::View(view) => {
                    self.names.insert(name.clone(), None);
                    let (sender, peers) = (sender.clone(), options.peer.clone());
                    let (numbers, snap) = (options.numbers.clone(), options.snap);
                    thread::Builder::new()
                        .spawn(move || {
                            let request = ask(&peers, &numbers, snap);
                            read(name, view, index, request, &numbers, &sender);
                        })
                        .context("cannot start a thread for each process")?;
                }
                Opened::Foreign => {
                    self.names.insert(name, None);
                }
                Opened::Gone => {
                    self.names.insert(name, Some(Instant::now() + ASK_AGAIN));
                }
            }
        }
        Ok(())
    }

    /// A process sends no more: it has ended, or it never began.
    fn note_end(&mut self, name: String, complaint: Option<String>) {
        let is_there = || view::names().is_ok_and(|names| names.contains(&name));
        if let Some(complaint) = complaint.filter(|_| is_there())
            && self.told.insert(name.clone())
        {
            warn(&format!(
                "{complaint}: it is stopped, has as many captures as it serves, must not be \
                 traced, or has another airdma; it is asked again each second"
            ));
        }
        self.names.insert(name, Some(Instant::now() + ASK_AGAIN));
    }
}

/// A request for packets, to which numbers of queue pairs may be added.
fn ask(peers: &[IpAddr], numbers: &[u32], snap: usize) -> String {
    let mut request = format!("capture snap={snap}");
    if !peers.is_empty() {
        let _ = write!(request, " peers={}", joined(peers));
    }
    if !numbers.is_empty() {
        let _ = write!(request, " numbers={}", joined(numbers));
    }
    request
}

fn joined<T: ToString>(values: &[T]) -> String {
    let values: Vec<_> = values.iter().map(T::to_string).collect();
    values.join(",")
}

/// Passes on the packets of a process until it ends, or this program does.
fn read(
    name: String,
    mut view: View,
    interface: u32,
    request: String,
    numbers: &[u32],
    sender: &SyncSender<Read>,
) {
    let read = begin(&mut view, request, numbers)
        .and_then(|()| pass_on_packets(&mut view, interface, sender));
    let complaint = read.err().map(|reason| {
        let process = format!("{} ({})", view.program, view.pid);
        format!("{process} sends no packets ({reason})")
    });
    // This program ends if it does not want to know.
    let _ = sender.send(Read::End { name, complaint });
}

fn begin(view: &mut View, mut request: String, numbers: &[u32]) -> io::Result<()> {
    if !numbers.is_empty() {
        // What its queue pairs send has the numbers of their peers.
        for pair in view.report()?.queue_pairs {
            if let Some(peer) = pair.peer_number.filter(|_| numbers.contains(&pair.number)) {
                let _ = write!(request, ",{peer}");
            }
        }
    }
    request.push('\n');
    if view.ask(&request)? == CAPTURING {
        Ok(())
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Until the process ends, which is no error.
fn pass_on_packets(view: &mut View, interface: u32, sender: &SyncSender<Read>) -> io::Result<()> {
    let reader = view.reader();
    // What came with the answer.
    let mut records = reader.buffer().to_vec();
    let mut stream = reader.get_ref();
    stream.set_read_timeout(None)?;
    let mut chunk = vec![0; TOGETHER];
    loop {
        let mut rest = &records[..];
        while first(&mut rest)?.is_some() {}
        let begun = records.split_off(records.len() - rest.len());
        let whole = std::mem::replace(&mut records, begun);
        if !whole.is_empty() && sender.send(Read::Records(interface, whole)).is_err() {
            return Ok(());
        }
        match stream.read(&mut chunk) {
            Ok(0) | Err(_) => return Ok(()),
            Ok(more) => records.extend_from_slice(&chunk[..more]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_pair_number_is_decimal_or_hexadecimal() {
        let numbers = ["17", "0x11", "16777215", "0x1000000", "-1", "x", ""].map(queue_pair_number);
        let found: Vec<_> = numbers.into_iter().map(Result::ok).collect();
        assert_eq!(found[..3], [Some(17), Some(17), Some(0xff_ffff)]);
        assert_eq!(found[3..], [None; 4]);
    }

    #[test]
    fn a_request_has_what_was_asked_for() {
        assert_eq!(ask(&[], &[], 96), "capture snap=96");
        let peers = [
            "10.0.0.2".parse().expect("valid"),
            "fe80::1".parse().expect("valid"),
        ];
        assert_eq!(
            ask(&peers, &[1, 2], 5),
            "capture snap=5 peers=10.0.0.2,fe80::1 numbers=1,2"
        );
    }
}
