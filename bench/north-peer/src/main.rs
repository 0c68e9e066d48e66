//! A sender and a receiver for `airdma bench wireless`, by airdma's Rust API, over one or several
//! connections.
//!
//! Unlike perftest's, which poll, they sleep while there is nothing to do. Each end prints its
//! result as one line of JSON.

use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use airdma::{Device, Endpoint, Operation, Region, Remote, Rights};
use airdma_link::traffic::{Found, cpu_s, ready};
use anyhow::{Context as _, bail};
use clap::Parser;

/// Length of each write, the same as perftest's in that benchmark.
const MESSAGE_BYTES: usize = 64 << 10;
/// Writes in flight on each connection: 4 MiB, as much as the socket of a kernel TCP has.
const DEPTH: usize = 64;
/// Length of the last message to the receiver: the number of bytes written.
const COUNT_BYTES: usize = size_of::<u64>();

/// One end of a measurement of `airdma bench wireless`.
#[derive(Parser)]
#[command(name = "airdma-north-peer", version)]
enum End {
    /// Lets others write to its memory, and sleeps until they say that they have.
    Receive {
        /// An address of this host.
        #[arg(long)]
        at: IpAddr,
        /// Port of RDMA CM.
        #[arg(long)]
        port: u16,
        /// Number of connections.
        #[arg(long, default_value_t = 1)]
        connections: usize,
    },
    /// Writes 64 KiB at a time.
    Send {
        /// The receiver.
        #[arg(long)]
        to: SocketAddr,
        /// For how long, at most.
        #[arg(long)]
        seconds: f64,
        /// Most bytes, of all connections together.
        #[arg(long)]
        bytes: u64,
        /// All by one thread.
        #[arg(long, default_value_t = 1)]
        connections: usize,
    },
}

fn main() -> anyhow::Result<()> {
    let mut found = match End::parse() {
        End::Receive {
            at,
            port,
            connections,
        } => receive(&Device::open(&at.to_string())?, port, connections, ready)?,
        End::Send {
            to,
            seconds,
            bytes,
            connections,
        } => {
            let time = Duration::try_from_secs_f64(seconds).context("--seconds")?;
            send(&Device::towards(to)?, to, time, bytes, connections)?
        }
    };
    found.cpu_s = cpu_s();
    writeln!(io::stdout(), "{}", serde_json::to_string(&found)?)?;
    Ok(())
}

/// Accepts a number of connections, and returns how much was written over each.
fn receive(
    device: &Device,
    port: u16,
    connections: usize,
    listens: impl FnOnce() -> io::Result<()>,
) -> anyhow::Result<Found> {
    let listener = device.listen(port)?;
    listens()?;
    let mut ends = Vec::new();
    for _ in 0..connections {
        let endpoint = listener.accept().wait()?;
        let target = device.allocate(MESSAGE_BYTES)?.share(Rights::WRITE)?;
        let counting = endpoint.recv(device.allocate(COUNT_BYTES)?, ..);
        let mut region = device.allocate(Remote::BYTES)?;
        region.copy_from_slice(&target.remote(&endpoint)?.to_bytes());
        endpoint.send(region, ..).wait()?;
        ends.push((endpoint, target, counting));
    }
    let began = Instant::now();
    let mut each = Vec::new();
    for (endpoint, target, counting) in ends {
        let count = counting.wait()?;
        each.push(u64::from_be_bytes(count[..].try_into()?));
        // If the sender closed first, this end's last message would be lost.
        match endpoint.recv(count.into_region(), ..).wait() {
            Err(error) if error.is_closed() => drop(target),
            Err(error) => return Err(error.into()),
            Ok(_) => bail!("a message after the last"),
        }
    }
    Ok(Found {
        bytes: each.iter().sum(),
        seconds: began.elapsed().as_secs_f64(),
        each,
        ..Found::default()
    })
}

/// Writes a number of bytes, or for a time, over several connections at once.
fn send(
    device: &Device,
    to: SocketAddr,
    time: Duration,
    bytes: u64,
    connections: usize,
) -> anyhow::Result<Found> {
    let share = bytes / connections as u64;
    let connected = (0..connections).map(|_| connect(device, to));
    let connected = connected.collect::<anyhow::Result<Vec<_>>>()?;
    let began = Instant::now();
    let ends = connected
        .into_iter()
        .map(|end| Box::pin(send_on(device, end, began + time, share)));
    let ended = together(ends.collect());
    let ended = ended.into_iter().collect::<anyhow::Result<Vec<_>>>()?;
    let last = ended.iter().map(|(_, at)| *at).max().unwrap_or(began);
    let each: Vec<u64> = ended.iter().map(|(bytes, _)| *bytes).collect();
    Ok(Found {
        bytes: each.iter().sum(),
        seconds: (last - began).as_secs_f64(),
        each,
        ..Found::default()
    })
}

/// Runs tasks on this thread, which sleeps while none of them can go on, to their ends.
fn together<T>(tasks: Vec<Pin<Box<impl Future<Output = T>>>>) -> Vec<T> {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut tasks: Vec<_> = tasks.into_iter().map(Some).collect();
    let mut ended: Vec<Option<T>> = tasks.iter().map(|_| None).collect();
    loop {
        for (task, end) in tasks.iter_mut().zip(&mut ended) {
            let polled = task.as_mut().map(|task| task.as_mut().poll(&mut context));
            if let Some(Poll::Ready(result)) = polled {
                (*task, *end) = (None, Some(result));
            }
        }
        if tasks.iter().all(Option::is_none) {
            return ended.into_iter().flatten().collect();
        }
        thread::park();
    }
}

/// Writes over one connection. How much, and when the last of it was done.
async fn send_on(
    device: &Device,
    (endpoint, target): (Endpoint, Remote),
    until: Instant,
    bytes: u64,
) -> anyhow::Result<(u64, Instant)> {
    let mut under_way = VecDeque::new();
    let mut regions = Vec::new();
    for _ in 0..DEPTH {
        regions.push(device.allocate(MESSAGE_BYTES)?);
    }
    let mut written = 0;
    while written < bytes && Instant::now() < until {
        let region = match regions.pop() {
            Some(region) => region,
            None => next(&mut under_way).await?,
        };
        let length = (bytes - written).min(MESSAGE_BYTES as u64);
        under_way.push_back(endpoint.write(region, ..length as usize, &target, 0));
        written += length;
    }
    while !under_way.is_empty() {
        next(&mut under_way).await?;
    }
    let ended = Instant::now();
    let mut count = device.allocate(COUNT_BYTES)?;
    count.copy_from_slice(&written.to_be_bytes());
    endpoint.send(count, ..).await?;
    endpoint.close().await?;
    Ok((written, ended))
}

fn connect(device: &Device, to: SocketAddr) -> anyhow::Result<(Endpoint, Remote)> {
    let endpoint = device.connect(to).wait()?;
    let message = endpoint.recv(device.allocate(Remote::BYTES)?, ..).wait()?;
    let target = Remote::from_bytes(&message)?;
    Ok((endpoint, target))
}

/// The region of the oldest write, once it is done.
async fn next(under_way: &mut VecDeque<Operation<Region>>) -> anyhow::Result<Region> {
    let oldest = under_way.pop_front().context("no write is under way")?;
    Ok(oldest.await?)
}

#[cfg(test)]
#[path = "../../../crates/engine/tests/common/isolated.rs"]
mod isolated;

#[cfg(test)]
mod tests {
    use super::isolated::isolated;
    use super::*;
    use std::sync::mpsc;

    const PORT: u16 = 7471;

    /// Both ends in this process, in a network of its own: what the sender and the receiver found.
    fn moved(time: Duration, bytes: u64, connections: usize) -> [Found; 2] {
        let (listening, listens) = mpsc::channel();
        let receiver = thread::spawn(move || {
            let device = Device::open("127.0.0.1").unwrap();
            let ready = || listening.send(()).map_err(io::Error::other);
            receive(&device, PORT, connections, ready).unwrap()
        });
        listens.recv().unwrap();
        let device = Device::open("127.0.0.1").unwrap();
        let to = ([127, 0, 0, 1], PORT).into();
        let sent = send(&device, to, time, bytes, connections).unwrap();
        [sent, receiver.join().unwrap()]
    }

    #[test]
    fn what_was_sent_arrives_over_each_connection() {
        let name = "tests::what_was_sent_arrives_over_each_connection";
        isolated(name, "", || {
            let [sent, came] = moved(Duration::from_secs(30), 3_000_000, 3);
            assert_eq!((sent.bytes, came.bytes), (3_000_000, 3_000_000));
            assert_eq!(sent.each, [1_000_000; 3]);
            assert_eq!(came.each, [1_000_000; 3]);
        });
    }

    #[test]
    fn a_sender_ends_in_time() {
        isolated("tests::a_sender_ends_in_time", "", || {
            let [sent, came] = moved(Duration::from_millis(300), u64::MAX, 1);
            assert!(sent.bytes > 0 && sent.bytes == came.bytes, "{sent:?}");
            assert!((0.3..5.0).contains(&sent.seconds), "{sent:?}");
        });
    }
}
