//! `airdma send` and `airdma recv`: the command line of `airdma-transfer`.

pub mod recv;
pub mod send;
pub mod show;
mod stdin;
mod stdout;
pub mod stop;
pub mod terminal;

use airdma_files::printable;
use airdma_files::session::PublicKey;
use airdma_transfer::{Error, Home, Kind, Peer};
use std::process::ExitCode;

pub use recv::{HELP as RECV_HELP, RecvOptions};
pub use send::{GREW, HELP as SEND_HELP, SendOptions};

use show::Show;

/// Exit statuses, in the help of both commands.
macro_rules! exit_status {
    () => {
        "\
Exit status:
  0  everything arrived
  1  the system: memory, descriptors, a port that is taken
  2  the command line
  3  nobody is there, or no way leads there
  4  a wrong code, or a peer that is not known
  5  refused: the receiver did not want it, did not answer, or is busy
  6  files: a name that exists, no room, no permission, a broken disk
  7  some files or links did not arrive, or not whole: they changed, could not be read, or cannot be there; all others did
  8  interrupted: the same command goes on
  9  the peer speaks another protocol, or a third party interfered
  130, 143, 129  ended by Ctrl-C, SIGTERM or SIGHUP; the same command goes on"
    };
}
pub(crate) use exit_status;

/// The command line is invalid.
pub const USAGE: u8 = 2;
/// No peer answers, or there is no route.
pub const UNREACHABLE: u8 = 3;
/// Some files did not arrive, while others did.
const FLAWED: u8 = 7;

/// Raises the limit of descriptors to the hard limit.
///
/// On a host with hundreds of interfaces a receiver needs thousands; the usual limit of 1,024
/// protects programs that use `select(2)`.
pub fn take_descriptors() {
    let mut limit = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: room for one limit, which the second call reads. A refusal leaves the limit as it
    // was.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

/// The exit status of an error.
pub fn status(error: &Error) -> u8 {
    match error.kind() {
        Kind::System => 1,
        Kind::Unreachable => UNREACHABLE,
        Kind::Unknown => 4,
        Kind::Refused => 5,
        Kind::Files => 6,
        Kind::Interrupted => 8,
        Kind::Protocol => 9,
        Kind::Cancelled => stop::status(),
    }
}

/// Kind of an error, for programs.
pub fn word(error: &Error) -> &'static str {
    match error.kind() {
        Kind::System => "system",
        Kind::Unreachable => "unreachable",
        Kind::Unknown => "unknown",
        Kind::Refused => "refused",
        Kind::Files => "files",
        Kind::Interrupted => "interrupted",
        Kind::Protocol => "protocol",
        Kind::Cancelled => "cancelled",
    }
}

/// Exit status if everything has arrived, or some files.
fn arrived(end: &show::End) -> ExitCode {
    ExitCode::from(if end.flaws.is_empty() { 0 } else { FLAWED })
}

/// The user's key and known peers; prints a warning about invalid lines.
pub fn home(show: &Show) -> std::io::Result<Home> {
    let home = Home::open()?;
    if let Some(warning) = home.warning() {
        show.must(&format!("airdma: {warning}"));
    }
    Ok(home)
}

/// Stores the key of a receiver; returns messages for the user.
pub fn pin_receiver(home: &Home, peer: &Peer, key: PublicKey) -> Vec<String> {
    let name = printable(peer.name.as_bytes());
    let Some(pin) = peer.pin(key) else {
        return vec![format!(
            "a code will be needed again: nothing tells the network that leads to {name} from others, where it may be another host's"
        )];
    };
    match home.pin(pin, true) {
        Ok(former) => former
            .iter()
            .map(|former| {
                format!(
                    "{name} has another key than before: {key}. The former one is forgotten: {former}"
                )
            })
            .collect(),
        Err(error) => vec![format!("a code will be needed again: {error}")],
    }
}

/// Prints the result, and returns the exit status.
fn conclude(show: &Show, result: Result<show::End, Error>) -> ExitCode {
    match result {
        Ok(end) => {
            show.end(&end);
            arrived(&end)
        }
        Err(error) => failed(show, &error),
    }
}

/// Prints an error, and returns its exit status.
pub fn failed(show: &Show, error: &Error) -> ExitCode {
    show.error(word(error), status(error), &error.to_string());
    ExitCode::from(status(error))
}
