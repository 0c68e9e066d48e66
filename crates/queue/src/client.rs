//! The client side of the service's socket.

use crate::lines::{Line, next_line};
use crate::protocol::{Reply, Request};
use rustix::net::sockopt;
use rustix::process::Uid;
use std::io::{self, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Most bytes of an answer: every job that a service can have, with many paths each.
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
    /// No service listens on the socket.
    #[error("no service at {} ({error}): start `airdma serve`, or name its socket with --socket", path.display())]
    NoService {
        /// Path of the socket.
        path: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// The connection was lost.
    #[error(
        "the connection to the service was lost ({0}); `airdma queue list` shows the jobs it has"
    )]
    Lost(io::Error),
    /// The answer is not one of this protocol.
    #[error(
        "the service's answer is not of this version's protocol; check that both are of one version"
    )]
    Strange,
}

impl Client {
    /// Connects to the service at a socket.
    ///
    /// # Errors
    /// No service listens there, or it runs as another user.
    pub fn connect(path: &Path) -> Result<Client, ClientError> {
        let connected = UnixStream::connect(path).and_then(|stream| {
            check_owner(&stream, rustix::process::geteuid())?;
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

    /// Sends a request and waits for the answer.
    ///
    /// # Errors
    /// The connection was lost, or the answer is malformed.
    pub fn ask(&mut self, request: &Request) -> Result<Reply, ClientError> {
        let mut line = serde_json::to_vec(request).map_err(|_| ClientError::Strange)?;
        line.push(b'\n');
        // A service that refuses the connection sends its reason before it reads anything.
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

/// Checks that the service runs as this user or as root; any other would learn the files and the
/// code.
///
/// The kernel reports the owner of the connected socket; the file at its path may be replaced at
/// any time.
fn check_owner(stream: &UnixStream, user: Uid) -> io::Result<()> {
    let owner = sockopt::socket_peercred(stream)?.uid;
    if owner.is_root() || user.is_root() || owner == user {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("it belongs to user {}", owner.as_raw()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::set_thread_res_uid;
    use std::io::Read;
    use std::os::unix::fs::{PermissionsExt, chown};
    use std::os::unix::net::UnixListener;

    /// Runs `act` as another user, in a thread of its own: the kernel keeps the user of each
    /// thread.
    fn as_user<T: Send>(user: u32, act: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let acting = scope.spawn(|| {
                let user = Uid::from_raw(user);
                set_thread_res_uid(user, user, user).unwrap();
                act()
            });
            acting.join().unwrap()
        })
    }

    #[test]
    fn a_service_of_another_user_gets_no_request() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can act as two users");
            return;
        }
        let (listens, asks) = (65_533, 65_532);
        let name = format!("airdma-owner-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).unwrap();
        let all = std::fs::Permissions::from_mode(0o777);
        std::fs::set_permissions(&folder, all).unwrap();
        let path = folder.join("queue.sock");
        let listener = as_user(listens, || UnixListener::bind(&path).unwrap());
        // As if the file had been checked before it was replaced.
        chown(&path, Some(asks), None).unwrap();
        let connected = as_user(asks, || Client::connect(&path));
        let (mut heard, _) = listener.accept().unwrap();
        let refused = matches!(&connected, Err(ClientError::NoService { error, .. })
            if error.kind() == io::ErrorKind::PermissionDenied
                && error.to_string() == "it belongs to user 65533");
        assert!(refused, "{connected:?}");
        assert_eq!(heard.read(&mut [0; 64]).unwrap(), 0);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
