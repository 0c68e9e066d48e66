//! WRITEs over many queue pairs between two processes.
//!
//! The load is the same for every number of queue pairs: the same count of messages in flight
//! altogether, over the same memory. Queue pairs take turns in the order of their numbers, and the
//! id of a completion names its queue pair, so no cost grows with the number of queue pairs.
//! (perftest searches its queue pairs for each completion, and with thousands measures that
//! search.)

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use airdma_lab::INTERFACE;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use super::verbs::{Completion, Gid, Pair, Region, Verbs};
use crate::peer::{ManyPairs, Written};

/// Longer than it takes to make the largest number of queue pairs.
const PATIENCE: Duration = Duration::from_secs(60);

/// Identity that each end sends to the other.
#[derive(Deserialize, Serialize)]
struct Card {
    gid: Gid,
    address: u64,
    key: u32,
    numbers: Vec<u32>,
}

/// An end whose queue pairs are connected.
struct Connected {
    verbs: Verbs,
    region: Region,
    pairs: Vec<Pair>,
    theirs: Card,
    other: BufReader<TcpStream>,
}

/// Serves as the target of WRITEs until the writer closes its connection.
pub fn serve(port: u16, load: ManyPairs, pairs: u32) -> anyhow::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    let (stream, _) = listener.accept()?;
    let mut end = connect(stream, load, pairs)?;
    end.other.get_mut().write_all(b"ready\n")?;
    // The writer decides when the run ends.
    end.other.get_mut().set_read_timeout(None)?;
    end.other.read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Writes for `seconds`, after every queue pair has written once.
pub fn write(to: SocketAddr, load: ManyPairs, pairs: u32, seconds: u32) -> anyhow::Result<Written> {
    let mut end = connect(TcpStream::connect(to)?, load, pairs)?;
    let mut ready = String::new();
    end.other.read_line(&mut ready)?;
    ensure!(ready == "ready\n", "the other end left");
    let mut writer = Writer::new(&end, load);
    writer.until(|writer| writer.done >= u64::from(pairs))?;
    let (before, begun) = (writer.done, Instant::now());
    let duration = Duration::from_secs(seconds.into());
    writer.until(|_| begun.elapsed() >= duration)?;
    Ok(Written {
        bytes: (writer.done - before) * u64::from(load.bytes),
        seconds: begun.elapsed().as_secs_f64(),
    })
}

fn connect(stream: TcpStream, load: ManyPairs, pairs: u32) -> anyhow::Result<Connected> {
    ensure!(
        pairs > 0 && load.outstanding > 0,
        "no queue pairs, or nothing to send"
    );
    stream.set_read_timeout(Some(PATIENCE))?;
    let verbs = Verbs::open(INTERFACE, load.outstanding.try_into()?)?;
    let memory = load.bytes.checked_mul(load.outstanding);
    let region = verbs.region(memory.context("more than 4 GiB on their way")?)?;
    let pairs = (0..pairs).map(|_| verbs.pair(load.depth(pairs)));
    let pairs = pairs.collect::<anyhow::Result<Vec<Pair>>>()?;
    let ours = Card {
        gid: verbs.gid(),
        address: region.address,
        key: region.remote_key,
        numbers: pairs.iter().map(|pair| pair.number).collect(),
    };
    let mut other = BufReader::new(stream);
    let mut line = serde_json::to_string(&ours)?;
    line.push('\n');
    other.get_mut().write_all(line.as_bytes())?;
    line.clear();
    other.read_line(&mut line)?;
    let theirs: Card = serde_json::from_str(&line).context("what the other end said")?;
    ensure!(theirs.numbers.len() == pairs.len(), "the other end differs");
    for (pair, number) in pairs.iter().zip(&theirs.numbers) {
        verbs.connect(pair, theirs.gid, *number)?;
    }
    Ok(Connected {
        verbs,
        region,
        pairs,
        theirs,
        other,
    })
}

struct Writer<'a> {
    end: &'a Connected,
    load: ManyPairs,
    /// Free entries of each queue pair.
    room: Vec<u32>,
    /// Index of the queue pair that posts next.
    turn: usize,
    posted: u64,
    done: u64,
}

impl<'a> Writer<'a> {
    fn new(end: &'a Connected, load: ManyPairs) -> Self {
        let count = end.pairs.len();
        Writer {
            end,
            load,
            room: vec![load.depth(count as u32); count],
            turn: 0,
            posted: 0,
            done: 0,
        }
    }

    fn until(&mut self, enough: impl Fn(&Self) -> bool) -> anyhow::Result<()> {
        let mut space = [Completion::default(); 64];
        let mut heard = Instant::now();
        while !enough(self) {
            self.post()?;
            let done = self.end.verbs.poll(&mut space)?;
            for completion in done {
                self.room[completion.id as usize] += 1;
            }
            self.done += done.len() as u64;
            if !done.is_empty() {
                heard = Instant::now();
            }
            ensure!(heard.elapsed() < PATIENCE, "no completion for a minute");
        }
        Ok(())
    }

    /// Posts until the load's count of messages is in flight.
    fn post(&mut self) -> anyhow::Result<()> {
        let Connected {
            verbs,
            region,
            pairs,
            theirs,
            ..
        } = self.end;
        let ManyPairs { bytes, outstanding } = self.load;
        while self.posted - self.done < u64::from(outstanding) && self.room[self.turn] > 0 {
            let offset = (self.posted % u64::from(outstanding)) as u32 * bytes;
            let remote = theirs.address + u64::from(offset);
            verbs.write(
                &pairs[self.turn],
                self.turn as u64,
                (region, offset, bytes),
                (remote, theirs.key),
            )?;
            self.room[self.turn] -= 1;
            self.posted += 1;
            self.turn = (self.turn + 1) % pairs.len();
        }
        Ok(())
    }
}
