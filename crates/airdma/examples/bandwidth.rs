//! Measures bandwidth of one-sided writes or messages, as `ib_write_bw` and `ib_send_bw` do.
//!
//!     bandwidth listen ADDRESS
//!     bandwidth write ADDRESS [BYTES] [SECONDS]
//!     bandwidth send ADDRESS [BYTES] [SECONDS]
#![allow(clippy::print_stdout)]

use airdma::{Device, Endpoint, Operation, Region, Remote, Result, Rights};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

const PORT: u16 = 7474;
const BYTES_MAX: usize = 1 << 20;
/// Transfers in flight, each with its own memory.
///
/// At 64 KiB, few enough for the CPU's caches, and more than the link holds.
const DEPTH: usize = 16;
/// Receives that the other side keeps posted.
const RECEIVES: usize = 32;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse().unwrap_or_else(|_| usage()),
        None => default,
    };
    let (bytes, seconds) = (number(2, 65_536), number(3, 2));
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => listen(address),
        [verb @ ("write" | "send"), address, ..] if (1..=BYTES_MAX).contains(&bytes) => {
            measure(verb, address, bytes, Duration::from_secs(seconds as u64))
        }
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: bandwidth listen ADDRESS | bandwidth write|send ADDRESS [BYTES] [SECONDS]");
    std::process::exit(2);
}

/// Gives the peer a region to write to, and receives its messages.
fn listen(address: &str) -> Result<()> {
    let device = Device::open(address)?;
    let listener = device.listen(PORT)?;
    eprintln!("listening on {address}, port {PORT}");
    let endpoint = listener.accept().wait()?;
    let target = device.allocate(BYTES_MAX)?.share(Rights::WRITE)?;
    let mut receiving = VecDeque::new();
    for _ in 0..RECEIVES {
        receiving.push_back(endpoint.recv(device.allocate(BYTES_MAX)?, ..));
    }
    let mut region = device.allocate(Remote::BYTES)?;
    region.copy_from_slice(&target.remote(&endpoint)?.to_bytes());
    endpoint.send(region, ..).wait()?;
    while let Some(next) = receiving.pop_front() {
        match next.wait() {
            Ok(message) => receiving.push_back(endpoint.recv(message.into_region(), ..)),
            // The peer has measured enough.
            Err(error) if error.is_closed() => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn measure(verb: &str, address: &str, bytes: usize, time: Duration) -> Result<()> {
    let device = Device::towards((address, PORT))?;
    let endpoint = device.connect((address, PORT)).wait()?;
    let message = endpoint.recv(device.allocate(Remote::BYTES)?, ..).wait()?;
    let target = Remote::from_bytes(&message)?;
    let begin = |region: Region| begin(&endpoint, verb, region, bytes, &target);
    let mut under_way = VecDeque::new();
    for _ in 0..DEPTH {
        under_way.push_back(begin(device.allocate(bytes)?));
    }
    let (start, mut count) = (Instant::now(), 0);
    while let Some(oldest) = under_way.pop_front() {
        let region = oldest.wait()?;
        count += 1;
        if start.elapsed() < time {
            under_way.push_back(begin(region));
        }
    }
    let gbps = (count * bytes * 8) as f64 / start.elapsed().as_secs_f64() / 1e9;
    println!("bytes count gbps");
    println!("{bytes} {count} {gbps:.3}");
    endpoint.close().wait()
}

fn begin(
    endpoint: &Endpoint,
    verb: &str,
    region: Region,
    bytes: usize,
    target: &Remote,
) -> Operation<Region> {
    if verb == "write" {
        endpoint.write(region, ..bytes, target, 0)
    } else {
        endpoint.send(region, ..bytes)
    }
}
