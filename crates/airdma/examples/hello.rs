//! Hello: one program listens, and another one greets it.
//!
//!     hello listen ADDRESS      address or name of an interface here, for example 192.0.2.1
//!     hello greet ADDRESS       the same one, from anywhere
//!
//! On one host: `hello listen 127.0.0.1`, and `hello greet 127.0.0.1` in another terminal.
#![allow(clippy::print_stdout)]

use airdma::{Device, Result};

const PORT: u16 = 7471;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["listen", address] => listen(address),
        ["greet", address] => greet(address),
        _ => {
            eprintln!("usage: hello listen ADDRESS | hello greet ADDRESS");
            std::process::exit(2);
        }
    }
}

fn listen(address: &str) -> Result<()> {
    let device = Device::open(address)?;
    let listener = device.listen(PORT)?;
    eprintln!("listening on {address}, port {PORT}");
    let endpoint = listener.accept().wait()?;

    let message = endpoint.recv(device.allocate(4096)?, ..).wait()?;
    println!(
        "{} says: {}",
        endpoint.peer(),
        String::from_utf8_lossy(&message)
    );

    let mut region = message.into_region();
    region[..7].copy_from_slice(b"welcome");
    endpoint.send(region, ..7).wait()?;
    endpoint.close().wait()
}

fn greet(address: &str) -> Result<()> {
    let device = Device::towards((address, PORT))?;
    let endpoint = device.connect((address, PORT)).wait()?;

    let mut region = device.allocate(4096)?;
    region[..5].copy_from_slice(b"hello");
    let region = endpoint.send(region, ..5).wait()?;

    let message = endpoint.recv(region, ..).wait()?;
    println!(
        "{} says: {}",
        endpoint.peer(),
        String::from_utf8_lossy(&message)
    );
    Ok(())
}
