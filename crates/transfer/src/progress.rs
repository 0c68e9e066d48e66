//! Events of a running transfer.

use crate::send::Sent;
use airdma_files::session::PublicKey;
use airdma_files::walk::Skipped;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Interval of progress events.
const EVERY: Duration = Duration::from_millis(100);

/// An event, for users and programs.
#[derive(Clone, Debug)]
pub enum Event {
    /// A receiver waits: peers can connect to these addresses, at the requested port.
    Listening {
        /// Addresses of all devices.
        addresses: Vec<IpAddr>,
        /// Interfaces where peers cannot connect.
        shut: Vec<Shut>,
        /// Why its name cannot be found, if it has one.
        unannounced: Option<String>,
    },
    /// Interfaces or addresses have changed: peers can connect to these addresses from now on.
    Doors {
        /// Addresses of all devices.
        addresses: Vec<IpAddr>,
        /// Interfaces where peers cannot connect.
        shut: Vec<Shut>,
    },
    /// Peers cannot connect at an interface for now. The receiver retries, and reports each reason
    /// once.
    Hindered(Shut),
    /// Both ends have authenticated each other.
    Met {
        /// Key of the peer.
        peer: PublicKey,
        /// Address of the peer.
        address: IpAddr,
        /// Local interface that leads to it.
        interface: String,
        /// Whether a code was used; a program that stores the key needs none the next time.
        by_code: bool,
    },
    /// The walk is done, and its result is offered in each connection. These files are left out.
    Walked(Vec<Skipped>),
    /// A peer was refused, or left before an offer was accepted. The transfer is not affected.
    Turned(String),
    /// The offer was accepted, and data moves.
    Accepted(Progress),
    /// Progress, ten times a second.
    Progress(Progress),
    /// The connection was lost; another one is awaited, or tried.
    Lost(String),
    /// Everything has arrived; nothing can fail any more.
    ///
    /// The receiver has reported it, but does not know yet that the report arrived. A program acts
    /// on this event before the receiver forgets the transfer: if it is killed later, the receiver
    /// cannot repeat the report.
    Arrived(Sent),
    /// Everything has arrived, and both ends know; files that are no longer needed could not be
    /// removed.
    Remains(String),
}

/// An interface where peers cannot connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shut {
    /// Its name, or the given address.
    pub interface: String,
    /// Why they cannot.
    pub why: String,
}

/// An offer, for the decision of the user.
#[derive(Clone, Debug)]
pub struct Offered {
    /// Key of the sender.
    pub peer: PublicKey,
    /// Address of the sender.
    pub address: IpAddr,
    /// Number of files.
    pub files: u64,
    /// Number of directories and symbolic links.
    pub others: u64,
    /// Bytes of all files: data, and holes where they are filled (as in a stream, which has none).
    pub bytes: u64,
    /// Bytes that are still missing; fewer if some were received before.
    pub bytes_to_come: u64,
    /// Whether an interrupted transfer resumes.
    pub goes_on: bool,
    /// Top-level names, printable.
    pub names: Vec<String>,
}

/// Progress of a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the stream that were received, those of earlier connections included.
    pub bytes: u64,
    /// Bytes of the stream.
    pub bytes_total: u64,
    /// Bytes that are durable on the receiver's disk.
    pub bytes_durable: u64,
    /// What the transfer waited for.
    pub waits: Waits,
}

/// Times that this end waited since data began to move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    /// A sender's waits for reading its files, with nothing else in flight. A receiver cannot see
    /// it.
    pub reading: Duration,
    /// Waits for the network, which had data to carry as far as is known.
    ///
    /// A sender may learn later that it was the receiver's disk. For a receiver: it had nothing to
    /// write, so it waited for the network or the sender.
    pub network: Duration,
    /// Waits for the receiver to write its data.
    pub writing: Duration,
}

/// What is being waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    Reading,
    Network,
    Writing,
}

/// Most delay of a report on the peer's disk, unless the network delayed it.
const NEWS_LATE: Duration = Duration::from_secs(1);

/// Sums up waits, and tells when a progress event is due.
#[derive(Debug)]
pub(crate) struct Account {
    waits: Waits,
    since: Instant,
    now: Wait,
    told: Instant,
    /// Time waited for the network that may still turn out to have been the peer's disk.
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

    /// Changes what is being waited for.
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

    /// Handles a report of the peer's disk: whether the disk was waited for since the last report.
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

    /// Whether a progress event is due.
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
    fn a_late_report_of_a_slow_disk_reassigns_the_wait() {
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
