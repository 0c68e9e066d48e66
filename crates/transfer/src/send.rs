//! Sending: from the first connection to the end, over as many as necessary.

use crate::cancel::Cancel;
use crate::channel::{Channel, LAST_WORD};
use crate::code_tries::CodeTries;
use crate::error::{Error, Meddling};
use crate::handshake::initiate;
use crate::parking;
use crate::progress::Event;
use crate::sending::{Outcome, Sending};
use airdma::{Device, Endpoint};
use airdma_files::protocol::{Config, Failure, Reason};
use airdma_files::session::{Identity, Introduction, PublicKey};
use airdma_files::{Flaw, Walking, printable};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Pause before the next connection.
const PAUSE: Duration = Duration::from_secs(1);
/// Most connections that may be lost before the offer is accepted: the receiver was full, or data
/// was forged.
const BEGINNINGS_MAX: u32 = 4;
/// Connections in a row that were made and brought no progress, from which on it is said that the
/// path may lose long packets.
const FRUITLESS_MIN: u32 = 2;
/// Interval at which a wait checks for its end.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What to send, and to whom.
#[derive(Debug)]
pub struct SendJob<'a> {
    /// The walk of the files, running or done: connecting and the handshake go on meanwhile.
    pub walking: &'a Walking,
    /// Key of this host's user.
    pub identity: &'a Identity,
    /// Addresses where the receiver listens (see [`crate::PORT`]); any will do.
    pub to: &'a [SocketAddr],
    /// How the receiver is identified.
    pub introduction: Introduction,
    /// Proofs of the code, if it is identified by one.
    pub code_tries: &'a CodeTries,
    /// Time to retry after a connection was lost that the receiver had accepted.
    pub patience: Duration,
    /// Timeouts and limits of the protocol.
    pub config: Config,
}

/// Result of sending.
#[derive(Clone, Debug)]
pub struct Sent {
    /// Key of the receiver.
    pub peer: PublicKey,
    /// Number of files that arrived.
    pub files: u64,
    /// Bytes of the whole offer.
    pub bytes: u64,
    /// Files that did not arrive: printable paths, and why.
    pub flaws: Vec<(String, Flaw)>,
    /// Files that grew, and arrived with their offered length: printable paths.
    pub grown: Vec<String>,
    /// Number of connections after the first.
    pub reconnects: u32,
}

/// Sends files, and returns when everything is durable at the receiver. `watch` is called on this
/// thread.
///
/// # Errors
/// [`Error::kind`] tells the kind. After [`crate::Kind::Interrupted`] and
/// [`crate::Kind::Cancelled`] the same call resumes.
pub fn send(job: &SendJob<'_>, watch: &dyn Fn(Event), cancel: &Cancel) -> Result<Sent, Error> {
    let mut attempts = Attempts {
        job,
        watch,
        cancel,
        peer: None,
        is_accepted: false,
        was_connected: false,
        was_accepted: false,
        durable: 0,
        beginnings_lost: 0,
        reconnects: 0,
        grown: BTreeSet::new(),
    };
    let (mut lost, mut durable) = (None, 0);
    let mut fruitless = 0;
    let mut meddling = Meddling::default();
    loop {
        attempts.check_code()?;
        let error = match attempts.next() {
            Ok(sent) => return Ok(sent),
            Err(error) => meddling.judge(error, attempts.durable),
        };
        attempts.check_code()?;
        if !error.is_of_connection() && !attempts.is_before_its_own(&error) {
            return Err(error);
        }
        if !attempts.is_accepted {
            if (1..BEGINNINGS_MAX).contains(&attempts.beginnings_lost) {
                pause(cancel)?;
                continue;
            }
            return Err(error);
        }
        if attempts.was_connected {
            attempts.reconnects += 1;
            fruitless += 1;
            watch(Event::Lost(error.to_string()));
        }
        // A connection without progress does not renew the patience.
        if attempts.durable > durable {
            (lost, durable) = (None, attempts.durable);
            fruitless = 0;
        }
        if lost.get_or_insert_with(Instant::now).elapsed() >= job.patience {
            let error = Box::new(error);
            return Err(match fruitless {
                0..FRUITLESS_MIN => Error::Interrupted(error),
                FRUITLESS_MIN.. => Error::Fruitless(error),
            });
        }
        pause(cancel)?;
    }
}

/// Successive connections.
struct Attempts<'a> {
    job: &'a SendJob<'a>,
    watch: &'a dyn Fn(Event),
    cancel: &'a Cancel,
    /// Key of the receiver.
    peer: Option<PublicKey>,
    /// Whether the receiver has ever accepted.
    is_accepted: bool,
    /// Whether the last connection reached a session.
    was_connected: bool,
    /// Whether the last connection was accepted.
    was_accepted: bool,
    /// Chunks that are durable at the receiver.
    durable: u64,
    /// Number of the last connections that ended before anything was accepted.
    beginnings_lost: u32,
    /// Number of connections that reached a session and were lost.
    reconnects: u32,
    /// Files that grew.
    grown: BTreeSet<u32>,
}

impl Attempts<'_> {
    fn is_by_code(&self) -> bool {
        self.peer.is_none() && matches!(self.job.introduction, Introduction::Code(_))
    }

    /// Refuses to use a code again that may be under attack.
    fn check_code(&self) -> Result<(), Error> {
        let tries = self.job.code_tries;
        match self.is_by_code() && tries.are_spent() {
            true => Err(Error::CodeTried(tries.count())),
            false => Ok(()),
        }
    }

    fn next(&mut self) -> Result<Sent, Error> {
        (self.was_connected, self.was_accepted) = (false, false);
        let beginnings_lost = std::mem::take(&mut self.beginnings_lost);
        let (device, endpoint) = connect(self.job.to, self.cancel)?;
        let address = endpoint.peer();
        let mut channel = Channel::new(&device, endpoint, parking::waker())?;
        let by_code = self.is_by_code();
        let tries = by_code.then_some(self.job.code_tries);
        let introduction = match self.peer {
            Some(peer) => Introduction::Known(vec![peer]),
            None => self.job.introduction.clone(),
        };
        let identity = self.job.identity;
        let introduced = initiate(&mut channel, identity, introduction, tries, self.cancel);
        if matches!(&introduced, Err(error) if error.is_forged() || matches!(error, Error::Rdma(_)))
        {
            self.beginnings_lost = beginnings_lost + 1;
        }
        let session = introduced?;
        let peer = session.peer();
        if self.peer.replace(peer).is_none() {
            (self.watch)(Event::Met {
                peer,
                address,
                interface: interface_of(&device),
                by_code,
            });
        }
        self.was_connected = true;
        let mut sending = Sending::new(
            channel,
            session,
            self.job.walking,
            self.job.config,
            self.watch,
        );
        let outcome = sending.run(self.cancel);
        self.grown.extend(sending.grown());
        self.was_accepted = sending.is_accepted();
        self.is_accepted |= self.was_accepted;
        self.durable = self.durable.max(sending.durable());
        if matches!(&outcome, Err(error) if error.is_forged() || matches!(error, Error::Rdma(_))) {
            self.beginnings_lost = beginnings_lost + 1;
        }
        let sent = outcome.map(|outcome| self.sent(peer, outcome));
        if let Ok(sent) = &sent {
            (self.watch)(Event::Arrived(sent.clone()));
        }
        sending.close();
        sent
    }

    fn sent(&self, peer: PublicKey, outcome: Outcome<'_>) -> Sent {
        let Outcome { walked, arrived } = outcome;
        let (files, flaws) = arrived;
        let path = |entry| printable(&walked.manifest.path(entry));
        let has_arrived = |entry: &&u32| !flaws.iter().any(|(flawed, _)| flawed == *entry);
        let grown = self.grown.iter().filter(has_arrived);
        let grown = grown.map(|&entry| path(entry)).collect();
        Sent {
            peer,
            files,
            bytes: walked.manifest.content_bytes(),
            flaws: flaws
                .into_iter()
                .map(|(entry, flaw)| (path(entry), flaw))
                .collect(),
            grown,
            reconnects: self.reconnects,
        }
    }

    /// Whether the receiver is still busy with an earlier, lost connection of this sender.
    ///
    /// An accepted connection was replaced by another sender of the same files, which may send the
    /// rest.
    fn is_before_its_own(&self, error: &Error) -> bool {
        let is_busy = matches!(
            error,
            Error::Failure(Failure::Peer {
                reason: Reason::Busy,
                ..
            })
        );
        is_busy && self.is_accepted && !self.was_accepted
    }
}

/// Checks that a receiver is there: connects and disconnects.
///
/// Call it before the user is asked for a code.
///
/// # Errors
/// Those of [`send`] that concern connecting.
pub fn contact(to: &[SocketAddr], cancel: &Cancel) -> Result<(), Error> {
    let (_, endpoint) = connect(to, cancel)?;
    drop(endpoint.close().wait_timeout(LAST_WORD));
    Ok(())
}

/// Connects to the first address that answers.
pub(crate) fn connect(to: &[SocketAddr], cancel: &Cancel) -> Result<(Device, Endpoint), Error> {
    let mut refused = None;
    for &to in to {
        match connect_to(to, cancel) {
            Err(Error::Rdma(error)) => refused = Some(error.into()),
            result => return result,
        }
    }
    Err(refused.unwrap_or(Error::NoAnswer))
}

fn connect_to(to: SocketAddr, cancel: &Cancel) -> Result<(Device, Endpoint), Error> {
    let device = Device::towards(to)?.sealed();
    let endpoint = connect_by(&device, to, cancel)?;
    Ok((device, endpoint))
}

/// Connects by a device, which seals.
pub(crate) fn connect_by(
    device: &Device,
    to: SocketAddr,
    cancel: &Cancel,
) -> Result<Endpoint, Error> {
    let mut connecting = device.connect(to);
    loop {
        if let Some(connected) = connecting.wait_timeout(LOOK_EVERY) {
            return Ok(connected?);
        }
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
    }
}

/// Name of the device's interface, which the device's name has behind a prefix.
pub(crate) fn interface_of(device: &Device) -> String {
    let name = device.name();
    name.strip_prefix("airdma_").unwrap_or(name).to_owned()
}

fn pause(cancel: &Cancel) -> Result<(), Error> {
    let until = Instant::now() + PAUSE;
    while Instant::now() < until {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        std::thread::sleep(LOOK_EVERY);
    }
    Ok(())
}
