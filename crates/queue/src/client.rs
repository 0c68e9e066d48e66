//! A program that asks a service.

use crate::lines::{Line, next_line};
use crate::protocol::{Reply, Request};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The longest answer that is read: every job that a service can have, with many paths each.
const REPLY_BYTES_MAX: usize = 1 << 30;
const ANSWER_WITHIN: Duration = Duration::from_secs(30);

/// A connection to a service.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<UnixStream>,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens there.
    #[error("no service at {} ({error}): start `airdma serve`, or name its socket with --socket", path.display())]
    NoService {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It was lost on the way.
    #[error("the service went away ({0}): ask again; `airdma queue list` says what it knows")]
    Lost(io::Error),
    /// The answer is none.
    #[error("the service speaks another language: is it of this version?")]
    Strange,
}

impl Client {
    /// Connects to the service at a socket.
    ///
    /// # Errors
    /// Nobody listens there.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let connected = check_owner(path).and_then(|()| UnixStream::connect(path));
        let connected = connected.and_then(|stream| {
            stream.set_read_timeout(Some(ANSWER_WITHIN))?;
            stream.set_write_timeout(Some(ANSWER_WITHIN))?;
            Ok(stream)
        });
        let stream = connected.map_err(|error| ClientError::NoService {
            path: path.to_owned(),
            error,
        })?;
        let stream = BufReader::new(stream);
        Ok(Client { stream })
    }

    /// Asks, and waits for the answer.
    ///
    /// # Errors
    /// There is none.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let mut line = serde_json::to_vec(request).map_err(|_| ClientError::Strange)?;
        line.push(b'\n');
        // One who is refused is told why before anything is read.
        let sent = self.stream.get_mut().write_all(&line);
        match next_line(&mut self.stream, REPLY_BYTES_MAX).map_err(ClientError::Lost)? {
            Line::Whole(line) => serde_json::from_slice(&line).map_err(|_| ClientError::Strange),
            Line::TooLong => Err(ClientError::Strange),
            Line::End => Err(ClientError::Lost(
                sent.err()
                    .unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()),
            )),
        }
    }
}

/// Whether the service is this user's, or root's: any other would be told what is to be sent, and the code.
fn check_owner(path: &Path) -> io::Result<()> {
    let owner = std::fs::metadata(path)?.uid();
    let user = rustix::process::geteuid().as_raw();
    if [owner, user].contains(&0) || owner == user {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("it belongs to user {owner}"),
    ))
}
