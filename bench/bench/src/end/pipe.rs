//! Copies a file or a pipe into a TCP connection, and out of one: as nc, which differs between
//! systems.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use airdma_link::traffic::ready;

/// Bytes of each read and write.
const CHUNK_BYTES: usize = 64 << 10;
/// Longest wait for the sender's connection.
const FIRST: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// Accepts one connection and returns when it ends.
pub fn receive(port: u16, into: &Path) -> io::Result<()> {
    let mut file = File::create(into)?;
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    // The sender may have failed: the wait for it is bounded.
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

/// Copies by plain reads and writes, as nc does; `io::copy` would leave the copy to the kernel.
fn copy(from: &mut impl Read, to: &mut impl Write) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        match from.read(&mut chunk)? {
            0 => return Ok(()),
            length => to.write_all(&chunk[..length])?,
        }
    }
}
