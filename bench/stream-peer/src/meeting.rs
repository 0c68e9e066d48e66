//! Where the two ends tell each other of their memory: a TCP connection, a line of JSON each.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest wait for the other end.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Meeting {
    stream: BufReader<TcpStream>,
    pub here: IpAddr,
    pub there: SocketAddr,
}

impl Meeting {
    /// Waits for the sender.
    pub fn await_peer(at: IpAddr, port: u16) -> anyhow::Result<Meeting> {
        let listener = TcpListener::bind((at, port))?;
        let (stream, _) = listener.accept()?;
        Meeting::over(stream)
    }

    /// Meets the receiver.
    pub fn with(to: SocketAddr) -> anyhow::Result<Meeting> {
        Meeting::over(TcpStream::connect(to)?)
    }

    fn over(stream: TcpStream) -> anyhow::Result<Meeting> {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (here, there) = (stream.local_addr()?.ip(), stream.peer_addr()?);
        Ok(Meeting {
            stream: BufReader::new(stream),
            here,
            there,
        })
    }

    pub fn say(&mut self, what: &impl Serialize) -> anyhow::Result<()> {
        let line = serde_json::to_string(what)?;
        Ok(writeln!(self.stream.get_mut(), "{line}")?)
    }

    pub fn hear<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        let reading = self.stream.read_line(&mut line);
        reading.context("the other end says nothing")?;
        serde_json::from_str(&line).with_context(|| format!("the other end says {line:?}"))
    }

    /// Waits until the other end has gone.
    pub fn wait_end(&mut self) -> anyhow::Result<()> {
        self.stream.read_to_end(&mut Vec::new())?;
        Ok(())
    }
}
