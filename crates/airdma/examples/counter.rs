//! A counter that peers increment while its owner does nothing.
//!
//!     counter own ADDRESS PROGRAMS       waits for PROGRAMS programs, and prints the sum
//!     counter add ADDRESS TIMES          adds 1, TIMES times
//!
//! The owner shares a word and gives each program a key of its own; from then on the device adds.
//! The sum is exact, however many programs add at the same time.
#![allow(clippy::print_stdout)]

use airdma::{Device, Remote, Result, Rights};

const PORT: u16 = 7473;
/// Additions in flight.
const DEPTH: usize = 16;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &str| text.parse().unwrap_or_else(|_| usage());
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["own", address, programs] => own(address, number(programs)),
        ["add", address, times] => add(address, number(times)),
        _ => usage(),
    }
}

fn usage() -> ! {
    eprintln!("usage: counter own ADDRESS PROGRAMS | counter add ADDRESS TIMES");
    std::process::exit(2);
}

fn own(address: &str, programs: usize) -> Result<()> {
    let device = Device::open(address)?;
    let counter = device.allocate(8)?.share(Rights::ATOMIC)?;
    let listener = device.listen(PORT)?;
    eprintln!("listening on {address}, port {PORT}");
    let mut endpoints = Vec::new();
    for _ in 0..programs {
        let endpoint = listener.accept().wait()?;
        let mut region = device.allocate(Remote::BYTES)?;
        region.copy_from_slice(&counter.remote(&endpoint)?.to_bytes());
        endpoint.send(region, ..).wait()?;
        endpoints.push(endpoint);
    }
    for endpoint in endpoints {
        // No message arrives: this ends when the peer is done.
        match endpoint.recv(device.allocate(8)?, ..).wait() {
            Err(error) if !error.is_closed() => return Err(error),
            Ok(_) | Err(_) => {}
        }
    }
    println!("{}", counter.word(0)?);
    Ok(())
}

fn add(address: &str, times: usize) -> Result<()> {
    let device = Device::towards((address, PORT))?;
    let endpoint = device.connect((address, PORT)).wait()?;
    let message = endpoint.recv(device.allocate(Remote::BYTES)?, ..).wait()?;
    let counter = Remote::from_bytes(&message)?;
    let mut under_way = std::collections::VecDeque::new();
    for _ in 0..times {
        if under_way.len() == DEPTH
            && let Some(oldest) = under_way.pop_front()
        {
            airdma::Operation::wait(oldest)?;
        }
        under_way.push_back(endpoint.fetch_add(&counter, 0, 1));
    }
    for addition in under_way {
        addition.wait()?;
    }
    endpoint.close().wait()
}
