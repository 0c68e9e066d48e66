//! What is told while a transfer runs.

use crate::send::Sent;
use airdma_files::session::PublicKey;
use airdma_files::walk::Skipped;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// How often progress is told.
const EVERY: Duration = Duration::from_millis(100);

/// Something that happened, for people and for programs.
#[derive(Clone, Debug)]
pub enum Event {
    /// A receiver waits: peers can connect to these addresses, at the port that was asked for.
    Listening {
        /// Of all devices.
        addresses: Vec<IpAddr>,
        /// Interfaces at which peers cannot.
        shut: Vec<Shut>,
        /// Why its name does not lead to it, if it has one.
        unannounced: Option<String>,
    },
    /// Interfaces or addresses have come or gone: peers can connect to these addresses from now on.
    Doors {
        /// Of all devices.
        addresses: Vec<IpAddr>,
        /// Interfaces at which peers cannot.
        shut: Vec<Shut>,
    },
    /// Peers cannot connect at an interface for now. The receiver tries again, and tells each reason once.
    Hindered(Shut),
    /// Both ends know who the other is.
    Met {
        /// Its key.
        peer: PublicKey,
        /// Where it is.
        address: IpAddr,
        /// The interface here that leads there.
        interface: String,
        /// Whether a code brought them together: who keeps the key now needs none the next time.
        by_code: bool,
    },
    /// What is to be sent is known, and is offered next, in each connection. This is left out, and why.
    Walked(Vec<Skipped>),
    /// Somebody did not get in, or left before anything was accepted. Nothing is over.
    Turned(String),
    /// It was accepted, and data moves.
    Accepted(Progress),
    /// Ten times a second.
    Progress(Progress),
    /// The connection was lost; another one is waited for, or tried.
    Lost(String),
    /// All arrived, as the receiver says, which does not know yet that this was heard: what is to be told before it forgets, since a sender
    /// that is killed from here on cannot say it. Nothing can fail any more.
    Arrived(Sent),
    /// All arrived, and both ends know; what is of no more use could not be removed.
    Remains(String),
}

/// An interface at which peers cannot connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shut {
    /// Its name, or the address that was given.
    pub interface: String,
    /// Why not.
    pub why: String,
}

/// What is offered, for who has to decide.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Whose it is.
    pub peer: PublicKey,
    /// Where that is.
    pub address: IpAddr,
    /// Files.
    pub files: u64,
    /// Directories and symbolic links.
    pub others: u64,
    /// Bytes of all files: of their data, and of their holes, too, where those are filled (a stream has none).
    pub bytes: u64,
    /// Bytes that are still to come; fewer, where some are here.
    pub bytes_to_come: u64,
    /// Whether an interrupted transfer goes on.
    pub goes_on: bool,
    /// Names at the top, printable.
    pub names: Vec<String>,
}

/// How far it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the stream that are there, with those of earlier connections.
    pub bytes: u64,
    /// Bytes of the stream.
    pub bytes_total: u64,
    /// Bytes that are on the receiver's disk for good.
    pub bytes_durable: u64,
    /// What was waited for.
    pub waits: Waits,
}

/// What this end waited for since data began to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// For the sender: its files had to be read, and nothing else was under way. A receiver does not see it.
    pub reading: Duration,
    /// For the network, which had data to carry, as far as is known: a sender may hear later that it was the receiver's disk. For a receiver:
    /// nothing was there to be written, so for the network or the sender.
    pub network: Duration,
    /// For the receiver to write what it has.
    pub writing: Duration,
}

/// What is waited for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Reading,
    Network,
    Writing,
}

/// News of the peer's disk is no later than this, unless it was the network that kept it.
const NEWS_LATE: Duration = Duration::from_secs(1);

/// Adds up waits, and says when to tell.
#[derive(Debug)]
pub(crate) struct Account {
    waits: Waits,
    since: Instant,
    now: Wait,
    told: Instant,
    /// Of what was waited for the network, what nobody has said yet whether the peer's disk was the reason.
    unsure: Duration,
}

impl Account {
    pub fn new(now: Wait) -> Self {
        let moment = Instant::now();
        Self {
            waits: Waits::default(),
            since: moment,
            now,
            told: moment,
            unsure: Duration::ZERO,
        }
    }

    /// From now on this is waited for.
    pub fn turn(&mut self, to: Wait) {
        let moment = Instant::now();
        let waited = moment - self.since;
        match self.now {
            Wait::Reading => self.waits.reading += waited,
            Wait::Network => {
                self.waits.network += waited;
                self.unsure += waited;
            }
            Wait::Writing => self.waits.writing += waited,
        }
        (self.since, self.now) = (moment, to);
    }

    /// The peer said how far its disk is: whether that is what was waited for since it last did.
    pub fn learn(&mut self, was_writing: bool) {
        let unsure = std::mem::take(&mut self.unsure).min(NEWS_LATE);
        if was_writing {
            self.waits.network -= unsure;
            self.waits.writing += unsure;
        }
    }

    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// Whether it is time to tell of progress.
    pub fn is_due(&mut self) -> bool {
        let is_due = self.told.elapsed() >= EVERY;
        if is_due {
            self.told = Instant::now();
        }
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_waited_for_until_a_peer_says_that_its_disk_is_behind_was_its_disk() {
        let mut account = Account::new(Wait::Network);
        let moved = |account: &mut Account, waited_ms, was_writing| {
            account.since -= Duration::from_millis(waited_ms);
            account.turn(Wait::Network);
            let before = account.waits();
            account.learn(was_writing);
            let after = account.waits();
            assert_eq!(
                before.network + before.writing,
                after.network + after.writing
            );
            before.network - after.network
        };
        assert_eq!(moved(&mut account, 700, false), Duration::ZERO);
        let half = moved(&mut account, 500, true);
        assert!(half >= Duration::from_millis(500), "{half:?}");
        // The network was down meanwhile.
        assert_eq!(moved(&mut account, 30_000, true), NEWS_LATE);
        let again = account.waits();
        account.learn(true);
        assert_eq!(account.waits(), again, "once");
    }
}
