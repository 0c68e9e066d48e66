//! Measures the latency of a message as `ib_send_lat` does: half the time until its answer arrives.
//!
//!     ping_pong listen ADDRESS
//!     ping_pong measure ADDRESS [BYTES] [COUNT]
//!
//! Both sides post the next receive before they send, so that no message finds a peer without a
//! receive.
#![allow(clippy::print_stdout)]

use airdma::{Device, Endpoint, Operation, Region, Result};
use std::time::{Duration, Instant};

const PORT: u16 = 7472;
const BYTES_MAX: usize = 1 << 20;
const WARM_UP: usize = 100;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| match arguments.get(at) {
        Some(text) => text.parse().unwrap_or_else(|_| usage()),
        None => default,
    };
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => listen(address),
        ["measure", address, ..] => measure(address, number(2, 64), number(3, 1000)),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: ping_pong listen ADDRESS | ping_pong measure ADDRESS [BYTES] [COUNT]");
    std::process::exit(2);
}

fn listen(address: &str) -> Result<()> {
    let device = Device::open(address)?;
    let listener = device.listen(PORT)?;
    eprintln!("listening on {address}, port {PORT}");
    let endpoint = listener.accept().wait()?;
    match answer_all(&device, &endpoint) {
        // The peer has measured enough.
        Err(error) if error.is_closed() => Ok(()),
        other => other,
    }
}

fn answer_all(device: &Device, endpoint: &Endpoint) -> Result<()> {
    let mut ping = endpoint.recv(device.allocate(BYTES_MAX)?, ..);
    let mut pong = Some(device.allocate(BYTES_MAX)?);
    let mut sending = None;
    loop {
        let message = ping.wait()?;
        let length = message.len();
        ping = endpoint.recv(message.into_region(), ..);
        // The last answer has arrived, so the send is complete and its memory free.
        if let Some(sent) = sending.take() {
            pong = Some(Operation::wait(sent)?);
        }
        sending = pong.take().map(|pong| endpoint.send(pong, ..length));
    }
}

fn measure(address: &str, bytes: usize, count: usize) -> Result<()> {
    if bytes > BYTES_MAX || count == 0 {
        usage();
    }
    let device = Device::towards((address, PORT))?;
    let endpoint = device.connect((address, PORT)).wait()?;
    let mut ping = device.allocate(BYTES_MAX)?;
    let mut pong = device.allocate(BYTES_MAX)?;
    let mut times = Vec::with_capacity(count);
    for round in 0..WARM_UP + count {
        let start = Instant::now();
        (ping, pong) = exchange(&endpoint, ping, bytes, pong)?;
        if round >= WARM_UP {
            times.push(start.elapsed() / 2);
        }
    }
    times.sort_unstable();
    let at = |part: f64| micros(times[((count - 1) as f64 * part) as usize]);
    println!("bytes count min_us median_us p99_us max_us");
    println!(
        "{bytes} {count} {:.2} {:.2} {:.2} {:.2}",
        at(0.0),
        at(0.5),
        at(0.99),
        at(1.0)
    );
    endpoint.close().wait()
}

/// Sends one message, and receives its answer.
fn exchange(
    endpoint: &Endpoint,
    ping: Region,
    bytes: usize,
    pong: Region,
) -> Result<(Region, Region)> {
    let answer = endpoint.recv(pong, ..);
    let sending = endpoint.send(ping, ..bytes);
    let answer = answer.wait()?;
    if answer.len() != bytes {
        let message = format!("{} bytes came back, and not {bytes}", answer.len());
        eprintln!("{message}");
        std::process::exit(1);
    }
    Ok((sending.wait()?, answer.into_region()))
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
