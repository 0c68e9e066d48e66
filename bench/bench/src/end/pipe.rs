//! A file or a pipe into a connection of TCP, and out of it: what nc does, of which each system has another.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use airdma_link::traffic::ready;

/// Of each call.
const CHUNK_BYTES: usize = 64 << 10;
/// How long somebody may take to come.
const FIRST: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// Takes one connection, and ends with it.
pub fn receive(port: u16, into: &Path) -> io::Result<()> {
    let mut file = File::create(into)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    // Whoever was to come may have failed: nobody waits for ever.
    listener.set_nonblocking(true)?;
    ready()?;
    let deadline = Instant::now() + FIRST;
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock && Instant::now() < deadline => {
                thread::sleep(POLL);
            }
            Err(error) => return Err(error),
        }
    };
    stream.set_nonblocking(false)?;
    copy(&mut stream, &mut file)
}

/// Sends to the end of `from`, and waits until the receiver has written it.
pub fn send(to: SocketAddr, from: &Path) -> io::Result<()> {
    let mut file = File::open(from)?;
    let mut stream = TcpStream::connect(to)?;
    copy(&mut file, &mut stream)?;
    stream.shutdown(Shutdown::Write)?;
    match stream.read(&mut [0])? {
        0 => Ok(()),
        _ => Err(io::Error::other("the receiver says something")),
    }
}

/// By plain reads and writes, as nc: `io::copy` would leave it to the kernel.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            length => to.write_all(&chunk[..length])?,
        }
    }
}
