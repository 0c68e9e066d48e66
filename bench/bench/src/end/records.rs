//! Write-Records between two processes: their latency, a flow of them, reads, many sources, and
//! reliable ones to many destinations of which one dies.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use airdma_lab::INTERFACE;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::idle_pairs::resident_bytes;
use super::verbs::{
    AddressHandle, Completion, Gid, Pair, RecordLimits, RecordTo, Records, Region, Verbs,
};
use crate::peer::{Reading, RecordsLoad, RecordsMode};

mod flow;
mod latency;
mod many;
mod read;

use flow::Flow;

/// Longest wait for the other end, or for a completion.
const PATIENCE: Duration = Duration::from_secs(20);
/// Most messages of a flow that are posted and not completed.
const DEPTH_MAX: u32 = 128;
/// Fewest entries of the send queue of one of many queue pairs, and those of all together.
const DEPTH_OF_MANY_MIN: u32 = 16;
const DEPTH_OF_ALL: u32 = 1024;
/// Memory that messages of a flow are written to: places take turns.
const PLACES_BYTES: u32 = 8 << 20;
const PLACES_MAX: u32 = 64;
/// Entries of the completion queue: for all records and requests.
const COMPLETIONS: i32 = 8192;
/// Completions of one poll.
const POLL: usize = 64;

/// Identity that each end sends to the other.
#[derive(Deserialize, Serialize)]
struct Card {
    gid: Gid,
    address: u64,
    key: u32,
    numbers: Vec<u32>,
}

/// An end that knows the other one.
struct Ends {
    verbs: Verbs,
    records: Records,
    pairs: Vec<Pair>,
    /// Messages are sent from here.
    source: Region,
    target: Region,
    theirs: Card,
    host: AddressHandle,
    other: BufReader<TcpStream>,
}

/// Serves as the target until the source has said that all is sent.
pub fn serve(port: u16, load: RecordsLoad) -> anyhow::Result<Option<Reading>> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let (stream, _) = listener.accept()?;
    let mut ends = Ends::meet(stream, load, false)?;
    ends.say("ready")?;
    match load.mode {
        RecordsMode::Latency | RecordsMode::WriteLatency => {
            latency::answer(&mut ends, load).map(|()| None)
        }
        RecordsMode::Flow | RecordsMode::Strict => Flow::new(load).take(&mut ends).map(Some),
        RecordsMode::Read => read::give(&mut ends).map(|()| None),
        RecordsMode::Sources | RecordsMode::SourceMemory => many::take(&mut ends, load).map(Some),
        RecordsMode::Destinations => many::die(&mut ends).map(|()| None),
    }
}

/// Sends for `seconds`.
pub fn drive(to: SocketAddr, load: RecordsLoad, seconds: u32) -> anyhow::Result<Option<Reading>> {
    let mut ends = Ends::meet(TcpStream::connect(to)?, load, true)?;
    ends.hear("ready")?;
    let duration = Duration::from_secs(seconds.into());
    match load.mode {
        RecordsMode::Latency | RecordsMode::WriteLatency => latency::ask(&mut ends, load).map(Some),
        RecordsMode::Flow | RecordsMode::Strict => {
            flow::send(&mut ends, load, duration).map(|()| None)
        }
        RecordsMode::Read => read::fetch(&mut ends, load, duration).map(Some),
        RecordsMode::Sources | RecordsMode::SourceMemory => {
            many::send(&mut ends, load, duration).map(|()| None)
        }
        RecordsMode::Destinations => many::outlive(&mut ends, load, duration).map(Some),
    }
}

/// Places for messages of `bytes`.
fn places(bytes: u32) -> u32 {
    (PLACES_BYTES / bytes).clamp(2, PLACES_MAX)
}

/// Messages posted and not completed.
fn depth(bytes: u32) -> u32 {
    (PLACES_BYTES / bytes).clamp(4, DEPTH_MAX)
}

/// Entries of the send queue of one of `count` queue pairs.
fn depth_of_many(count: u32) -> u32 {
    (DEPTH_OF_ALL / count).max(DEPTH_OF_MANY_MIN)
}

/// Makes the queue pairs of an end.
fn made(
    verbs: &Verbs,
    records: &Records,
    load: RecordsLoad,
    is_source: bool,
) -> anyhow::Result<Vec<Pair>> {
    let has_many = (load.is_to_many() && !is_source) || (load.is_from_many() && is_source);
    let (count, depth) = match (has_many, load.is_to_many()) {
        (true, _) => (load.count, depth_of_many(load.count)),
        (false, true) => (1, 2 * load.count),
        (false, false) => (1, depth(load.bytes)),
    };
    let pairs = (0..count).map(|_| {
        if load.is_connected() {
            return verbs.pair(depth);
        }
        let pair = records.pair(verbs, depth)?;
        if is_source && load.is_to_many() {
            records.repeat(&pair)?;
        } else if load.is_to_many() {
            records.enable(&pair, RecordLimits::few())?;
        } else if !has_many {
            let is_strict = load.mode == RecordsMode::Strict;
            records.enable(&pair, RecordLimits::large(is_strict))?;
        }
        Ok(pair)
    });
    pairs.collect()
}

impl Ends {
    fn meet(stream: TcpStream, load: RecordsLoad, is_source: bool) -> anyhow::Result<Ends> {
        ensure!(load.bytes > 0 && load.count > 0, "nothing to send");
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_nodelay(true)?;
        let verbs = Verbs::open(INTERFACE, COMPLETIONS)?;
        let records = Records::new()?;
        let pairs = made(&verbs, &records, load, is_source)?;
        let places = match load.is_to_many() {
            true => load.count,
            false => places(load.bytes),
        };
        let memory = load.bytes.checked_mul(places);
        let memory = memory.context("more than 4 GiB")?;
        let target = match (load.is_connected(), load.is_read()) {
            (true, _) => verbs.region(memory)?,
            (_, true) => records.readable(&verbs, memory)?,
            (_, false) => records.region(&verbs, memory)?,
        };
        // Reads that are open at once have places of their own.
        let source = verbs.region(if load.is_read() { memory } else { load.bytes })?;
        let ours = Card {
            gid: verbs.gid(),
            address: target.address,
            key: target.remote_key,
            numbers: pairs.iter().map(|pair| pair.number).collect(),
        };
        let mut other = BufReader::new(stream);
        let mut line = serde_json::to_string(&ours)?;
        line.push('\n');
        other.get_mut().write_all(line.as_bytes())?;
        line.clear();
        other.read_line(&mut line)?;
        let theirs: Card = serde_json::from_str(&line).context("what the other end said")?;
        let host = records.host(&verbs, theirs.gid)?;
        if load.is_connected() {
            verbs.connect(&pairs[0], theirs.gid, theirs.numbers[0])?;
        }
        Ok(Ends {
            verbs,
            records,
            pairs,
            source,
            target,
            theirs,
            host,
            other,
        })
    }

    fn say(&mut self, word: &str) -> anyhow::Result<()> {
        Ok(writeln!(self.other.get_mut(), "{word}")?)
    }

    fn hear(&mut self, word: &str) -> anyhow::Result<()> {
        let mut line = String::new();
        self.other.read_line(&mut line)?;
        ensure!(line.trim_end() == word, "the other end says {line:?}");
        Ok(())
    }

    /// A line of the other end, if it has come.
    fn overhear(&mut self) -> anyhow::Result<Option<String>> {
        let mut byte = [0];
        self.other.get_ref().set_nonblocking(true)?;
        let peeked = self.other.get_ref().peek(&mut byte);
        self.other.get_ref().set_nonblocking(false)?;
        match peeked {
            Ok(_) => {
                let mut line = String::new();
                self.other.read_line(&mut line)?;
                Ok(Some(line.trim_end().to_owned()))
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the other end has closed its connection.
    fn wait_end(&mut self) -> anyhow::Result<()> {
        self.other.read_to_end(&mut Vec::new())?;
        Ok(())
    }

    /// The place of message `number` at queue pair `index` of the other end.
    fn place(&self, index: usize, number: u64, bytes: u32) -> RecordTo<'_> {
        let place = number % u64::from(places(bytes));
        RecordTo {
            host: &self.host,
            pair: self.theirs.numbers[index],
            address: self.theirs.address + place * u64::from(bytes),
            key: self.theirs.key,
        }
    }
}
