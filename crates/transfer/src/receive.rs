//! Receiving: all connections, until one transfer is complete.

use crate::cancel::Cancel;
use crate::channel::{Channel, LAST_WORD};
use crate::doors::Doors;
use crate::error::Error;
use crate::handshake::{Doorkeeper, admit};
use crate::lobby::Lobby;
use crate::parking::{park, waker};
use crate::progress::{Event, Offered};
use crate::receiving::{Outcome, Receiving};
use crate::send::interface_of;
use crate::target::Stream;
use airdma::{Device, Endpoint};
use airdma_files::manifest::Entry;
use airdma_files::protocol::{Config, Failure, Reason};
use airdma_files::session::{Code, HandshakeError, Identity, PublicKey};
use airdma_files::{Flaw, Manifest, Options, Unkept, printable};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

/// Most connections at a time: more than one, so that a silent one does not block others.
const CONNECTIONS_MAX: usize = 8;
/// Most threads: connections, and those that were told to end and have not yet.
const THREADS_MAX: usize = 16;
/// Most connections from one address, so that one host cannot keep others out. A sender has two
/// while one replaces the other.
const CONNECTIONS_OF_ONE_MAX: usize = 4;
/// Most connections past the handshake with one key. A sender has two while one replaces the other.
pub(crate) const CONNECTIONS_OF_A_KEY_MAX: usize = 2;
/// Time to wait for a sender that does not know yet that everything arrived.
const UNHEARD: Duration = Duration::from_secs(5);

/// Called with each event, from any thread.
pub type Watch<'a> = dyn Fn(Event) + Sync + 'a;
/// Decides whether to accept an offer, from any thread.
///
/// It may take any time, until its [`Cancel`] shows that the offer is gone.
pub type Ask<'a> = dyn Fn(&Offered, &Cancel) -> bool + Sync + 'a;

/// Where files go.
#[derive(Debug)]
pub enum Destination {
    /// Below this directory.
    Directory {
        /// An existing directory.
        path: PathBuf,
        /// What to keep of files, and what to do about existing names.
        options: Options,
    },
    /// To a stream: accepts an offer of a single file only.
    Stream(Stream),
}

impl Destination {
    /// Bytes that an offer occupies: its data, and its holes unless they are kept.
    pub(crate) fn bytes(&self, manifest: &Manifest) -> u64 {
        let keeps_holes = match self {
            Self::Directory { options, .. } => options.holes,
            Self::Stream(_) => false,
        };
        if keeps_holes {
            return manifest.content_bytes();
        }
        let files = manifest.entries().iter().filter_map(Entry::content);
        files.fold(0, |sum, content| sum.saturating_add(content.size))
    }
}

/// A receiver's job: which senders are admitted, and where the files go.
pub struct ReceiveJob<'a> {
    /// Key of this host's user.
    pub identity: &'a Identity,
    /// Code that is shown; without one, only known peers are admitted.
    pub code: Option<Code>,
    /// Whether a key is known.
    pub is_known: &'a (dyn Fn(&PublicKey) -> bool + Sync),
    /// Where the files go.
    pub destination: Destination,
    /// Interfaces or addresses to listen on; all if empty.
    pub interfaces: Vec<String>,
    /// Port to listen on; see [`crate::PORT`].
    pub port: u16,
    /// Name to announce on this network, if any.
    pub name: Option<String>,
    /// Time to wait for a sender that was lost after its offer was accepted.
    pub patience: Duration,
    /// Timeouts and limits of the protocol.
    pub config: Config,
}

/// Result of receiving.
#[derive(Clone, Debug)]
pub struct Received {
    /// Key of the sender.
    pub peer: PublicKey,
    /// Number of files that arrived.
    pub files: u64,
    /// Bytes of the whole offer.
    pub bytes: u64,
    /// Files that did not arrive: printable paths, and why.
    pub flaws: Vec<(String, Flaw)>,
    /// Attributes that the file system did not keep.
    pub unkept: Unkept,
}

/// A connection, as seen by the accepting thread.
#[derive(Clone)]
pub(crate) struct Visitor {
    /// Its source address, which has answered.
    pub(crate) address: IpAddr,
    /// Whether it is past the handshake.
    is_admitted: Arc<AtomicBool>,
    pub(crate) shown_out: Cancel,
}

/// How a connection ended.
struct Ending {
    result: Result<Received, Error>,
    is_accepted: bool,
    is_heard: bool,
    /// Whether it sent nothing: a sender that only checks for a receiver.
    is_mute: bool,
    /// Durable chunks.
    durable: u64,
}

/// A connection that has ended, and how.
type Gone = (Visitor, Ending);

/// Receives one offer, over as many connections as necessary; returns when everything is durable.
///
/// Nothing is written before `ask` accepts.
///
/// # Errors
/// [`Error::kind`] tells the kind. After [`crate::Kind::Interrupted`] and
/// [`crate::Kind::Cancelled`] the same call resumes.
pub fn receive(
    job: &ReceiveJob<'_>,
    ask: &Ask<'_>,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Received, Error> {
    receive_at(&mut Doors::open(job)?, job, ask, watch, cancel)
}

/// As [`receive`], with open doors: they stay open between two offers.
///
/// # Errors
/// As [`receive`].
pub fn receive_at(
    doors: &mut Doors,
    job: &ReceiveJob<'_>,
    ask: &Ask<'_>,
    watch: &Watch<'_>,
    cancel: &Cancel,
) -> Result<Received, Error> {
    watch(doors.listening());
    let lobby = Lobby::new(job, ask, watch, cancel);
    let lobby = &lobby;
    thread::scope(|scope| {
        let result = Reception {
            scope,
            lobby,
            doors,
            waker: waker(),
            visitors: Vec::new(),
            endings: mpsc::channel(),
            lost: None,
            durable: 0,
            done: None,
        }
        .run();
        lobby.close();
        result
    })
}

struct Reception<'doors, 'scope, 'env> {
    scope: &'scope thread::Scope<'scope, 'env>,
    lobby: &'env Lobby<'env>,
    doors: &'doors mut Doors,
    waker: Waker,
    /// Connections in the order of their arrival.
    visitors: Vec<Visitor>,
    endings: (mpsc::Sender<Gone>, mpsc::Receiver<Gone>),
    /// Since when an accepted sender has been gone, and why.
    lost: Option<(Instant, Error)>,
    /// Durable chunks at that time.
    durable: u64,
    /// The completed transfer, if its sender may not know.
    done: Option<(Instant, Received)>,
}

impl Reception<'_, '_, '_> {
    fn run(mut self) -> Result<Received, Error> {
        loop {
            if let Some(change) = self.doors.follow() {
                self.lobby.tell(change);
            }
            self.let_in();
            while let Ok((gone, ending)) = self.endings.1.try_recv() {
                self.visitors.retain(|visitor| !visitor.is_same(&gone));
                if let Some(result) = self.judge(ending) {
                    return result;
                }
            }
            if self.lobby.is_cancelled() {
                return Err(Error::Cancelled);
            }
            if !self.visitors.iter().any(Visitor::is_admitted)
                && let Some(result) = self.give_up()
            {
                return result;
            }
            park(None);
        }
    }

    fn let_in(&mut self) {
        for came in self.doors.accept(&self.waker) {
            match came {
                Ok((device, endpoint)) => {
                    if make_room(&self.visitors, endpoint.peer()) {
                        self.serve(device, endpoint);
                    }
                }
                Err(shut) => self.lobby.tell(Event::Hindered(shut)),
            }
        }
    }

    /// Gives a connection a thread. If none can be started, the connection ends, as without room.
    fn serve(&mut self, device: Device, endpoint: Endpoint) {
        let (scope, lobby) = (self.scope, self.lobby);
        let visitor = Visitor::new(endpoint.peer());
        let (ended, waker, served) = (self.endings.0.clone(), self.waker.clone(), visitor.clone());
        let thread = thread::Builder::new().name("airdma-receiver".into());
        let spawned = thread.spawn_scoped(self.scope, move || {
            let ending = serve(scope, lobby, &served, &device, endpoint);
            // Fails if the receiver is done.
            let _ = ended.send((served, ending));
            waker.wake();
        });
        match spawned {
            Ok(_) => self.visitors.push(visitor),
            Err(error) => self.lobby.tell(Event::Turned(error.to_string())),
        }
    }
}

impl Reception<'_, '_, '_> {
    /// Judges the end of one connection; `None` as long as another one may succeed.
    fn judge(&mut self, ending: Ending) -> Option<Result<Received, Error>> {
        let error = match ending.result {
            Ok(received) if ending.is_heard => return Some(Ok(received)),
            Ok(received) => {
                self.done = Some((Instant::now(), received));
                return None;
            }
            Err(error) => error,
        };
        if ending.is_accepted && error.is_of_connection() {
            self.lobby.tell(Event::Lost(error.to_string()));
            // A connection without progress does not renew the patience.
            let before = self.lost.take().map(|(since, _)| since);
            let since = before.filter(|_| ending.durable <= self.durable);
            self.lost = Some((since.unwrap_or_else(Instant::now), error));
            self.durable = self.durable.max(ending.durable);
            return None;
        }
        let is_final = match &error {
            Error::Refused | Error::Files(_) | Error::Unfit(_) | Error::System(_) => true,
            Error::Handshake(HandshakeError::NoMoreTries) => !self.lobby.is_taken(),
            Error::Failure(Failure::Here { reason, .. }) => *reason != Reason::Busy,
            Error::Failure(Failure::Peer { .. } | Failure::Protocol(_))
            | Error::Record(_)
            | Error::Malformed(_)
            | Error::Forged(_) => ending.is_accepted,
            Error::Handshake(_)
            | Error::Failure(Failure::Silent | Failure::NotAccepted)
            | Error::Rdma(_)
            | Error::NoAnswer
            | Error::NoCode
            | Error::CodeTried(_)
            | Error::OtherName { .. }
            | Error::Interrupted(_)
            | Error::Fruitless(_)
            | Error::Meddled(_)
            | Error::Cancelled => false,
        };
        if is_final {
            return Some(Err(error));
        }
        if !self.lobby.is_cancelled() && !ending.is_mute {
            self.lobby.tell(Event::Turned(error.to_string()));
        }
        None
    }

    /// Whether no connection has been the accepted one for too long; if so, the final result.
    fn give_up(&mut self) -> Option<Result<Received, Error>> {
        if let Some((_, received)) = self.done.take_if(|(since, _)| since.elapsed() >= UNHEARD) {
            return Some(Ok(received));
        }
        let patience = self.lobby.job().patience;
        let lost = self.lost.take_if(|(since, _)| since.elapsed() >= patience);
        lost.map(|(_, error)| Err(Error::Interrupted(Box::new(error))))
    }
}

impl Visitor {
    pub(crate) fn new(address: IpAddr) -> Self {
        Self {
            address,
            is_admitted: Arc::default(),
            shown_out: Cancel::default(),
        }
    }

    fn is_admitted(&self) -> bool {
        self.is_admitted.load(Ordering::Relaxed)
    }

    pub(crate) fn is_same(&self, other: &Visitor) -> bool {
        Arc::ptr_eq(&self.is_admitted, &other.is_admitted)
    }
}

/// Makes room for one more connection from `address`; false if there is none.
///
/// An address may have fewer threads than are left: one address takes half of them, and several
/// leave some. If necessary, a connection before its handshake ends: the oldest of the address that
/// has most of these, or of its own address if that has as many as it may. Connections past the
/// handshake stay.
pub(crate) fn make_room(visitors: &[Visitor], address: IpAddr) -> bool {
    let of_its_own = |visitor: &&Visitor| visitor.address == address;
    let threads = visitors.iter().filter(of_its_own).count();
    if threads >= THREADS_MAX.saturating_sub(visitors.len()) {
        return false;
    }
    let inside = visitors.iter();
    let inside: Vec<&Visitor> = inside
        .filter(|visitor| !visitor.shown_out.is_cancelled())
        .collect();
    let of = |address| {
        let of_it = inside.iter().filter(move |other| other.address == address);
        of_it.filter(|visitor| !visitor.is_admitted())
    };
    let full = if inside.iter().copied().filter(of_its_own).count() >= CONNECTIONS_OF_ONE_MAX {
        Some(address)
    } else if inside.len() >= CONNECTIONS_MAX {
        let strangers = inside.iter().filter(|visitor| !visitor.is_admitted());
        // Among equal numbers, the one whose oldest came first (the last of equals
        // counts): others are in their handshakes.
        let most = strangers
            .rev()
            .max_by_key(|visitor| of(visitor.address).count());
        match most {
            Some(most) => Some(most.address),
            None => return false,
        }
    } else {
        return true;
    };
    let oldest = full.and_then(|address| of(address).next());
    oldest.inspect(|oldest| oldest.shown_out.cancel()).is_some()
}

/// Serves one connection to its end.
fn serve<'scope, 'env>(
    scope: &'scope thread::Scope<'scope, 'env>,
    lobby: &'env Lobby<'env>,
    visitor: &Visitor,
    device: &Device,
    endpoint: Endpoint,
) -> Ending {
    let failed = |error, is_mute| Ending {
        result: Err(error),
        is_accepted: false,
        is_heard: false,
        is_mute,
        durable: 0,
    };
    let address = endpoint.peer();
    let mut channel = match Channel::new(device, endpoint, waker()) {
        Ok(channel) => channel,
        Err(error) => return failed(error, false),
    };
    let (session, by_code) = match admit(&mut channel, lobby, &visitor.shown_out) {
        Ok(admitted) => admitted,
        // At once, without a message.
        Err(error) if visitor.shown_out.is_cancelled() => return failed(error, false),
        Err(error) => {
            let is_mute = matches!(error, Error::Rdma(_)) && !channel.has_heard();
            channel.close(LAST_WORD);
            return failed(error, is_mute);
        }
    };
    visitor.is_admitted.store(true, Ordering::Relaxed);
    let peer = session.peer();
    lobby.admit_key(peer);
    let _admitted = lobby.enter(peer, &visitor.shown_out);
    lobby.tell(Event::Met {
        peer,
        address,
        interface: interface_of(device),
        by_code,
    });
    let mut receiving = Receiving::new(scope, lobby, &visitor.shown_out, address, channel, session);
    let outcome = receiving.run();
    let is_heard = outcome.as_ref().is_ok_and(|outcome| outcome.is_heard);
    if is_heard && let Err(error) = lobby.forget() {
        lobby.tell(Event::Remains(error.to_string()));
    }
    let (is_accepted, durable) = (receiving.is_accepted(), receiving.durable());
    if is_accepted && matches!(&outcome, Err(error) if error.is_of_connection()) {
        lobby.wait_for_accepted();
    }
    receiving.close();
    Ending {
        result: outcome.map(|outcome| received(peer, outcome)),
        is_accepted,
        is_heard,
        is_mute: false,
        durable,
    }
}

fn received(peer: PublicKey, outcome: Outcome) -> Received {
    let Outcome {
        manifest, report, ..
    } = outcome;
    let named = |(entry, flaw)| (printable(&manifest.path(entry)), flaw);
    Received {
        peer,
        files: report.files,
        unkept: report.unkept,
        bytes: manifest.content_bytes(),
        flaws: report.flaws.into_iter().map(named).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn host(number: u8) -> IpAddr {
        Ipv4Addr::new(192, 0, 2, number).into()
    }

    /// Whether connections from these addresses are admitted one after the other, while none ends.
    fn come(visitors: &mut Vec<Visitor>, from: impl IntoIterator<Item = u8>) -> Vec<bool> {
        let come = |number| {
            let comes = make_room(visitors, host(number));
            if comes {
                visitors.push(Visitor::new(host(number)));
            }
            comes
        };
        from.into_iter().map(come).collect()
    }

    fn inside(visitors: &[Visitor], number: u8) -> usize {
        let of_it = visitors.iter().filter(|it| it.address == host(number));
        of_it.filter(|it| !it.shown_out.is_cancelled()).count()
    }

    #[test]
    fn a_host_that_floods_shows_out_none_but_its_own() {
        let mut visitors = vec![Visitor::new(host(1)), Visitor::new(host(2))];
        let came = come(&mut visitors, [9; 40]);
        // Half of the 14 threads that are left.
        assert_eq!(came.iter().filter(|came| **came).count(), 7);
        assert_eq!([1, 2, 9].map(|it| inside(&visitors, it)), [1, 1, 4]);
        // Others find room during the flood.
        assert_eq!(come(&mut visitors, [3, 1]), [true; 2]);
    }

    #[test]
    fn hosts_that_flood_together_go_before_one_that_does_not() {
        let mut visitors = vec![Visitor::new(host(1))];
        come(&mut visitors, [7, 8, 9].repeat(3));
        assert_eq!(inside(&visitors, 1), 1);
        assert_eq!(come(&mut visitors, [2]), [true]);
        let counts = [1, 2, 7, 8, 9].map(|it| inside(&visitors, it));
        assert_eq!(counts.iter().sum::<usize>(), CONNECTIONS_MAX);
        assert_eq!(counts[..2], [1, 1]);
    }

    #[test]
    fn two_hosts_that_flood_leave_room_for_a_third() {
        let mut visitors = Vec::new();
        // None of those that were told to end has ended yet.
        come(&mut visitors, [8, 9].repeat(40));
        assert!(visitors.len() < THREADS_MAX, "{}", visitors.len());
        assert_eq!(come(&mut visitors, [1, 1]), [true; 2]);
        for host in 10..20 {
            come(&mut visitors, [host; 40]);
        }
        assert_eq!(inside(&visitors, 1), 2);
    }

    #[test]
    fn among_equal_hosts_the_oldest_connection_is_closed() {
        for honest in [1, 200] {
            let mut visitors = Vec::new();
            come(&mut visitors, 100..100 + CONNECTIONS_MAX as u8);
            assert_eq!(come(&mut visitors, [honest]), [true]);
            let came = come(&mut visitors, 150..150 + CONNECTIONS_MAX as u8 - 2);
            assert!(came.iter().all(|came| *came), "{came:?}");
            assert_eq!(inside(&visitors, honest), 1, "{honest}");
        }
    }

    #[test]
    fn none_that_was_admitted_goes() {
        let mut visitors = Vec::new();
        come(&mut visitors, [1, 1, 1, 1, 2, 2, 2, 2]);
        for visitor in &visitors {
            visitor.is_admitted.store(true, Ordering::Relaxed);
        }
        assert_eq!(come(&mut visitors, [1, 3]), [false; 2]);
    }
}
