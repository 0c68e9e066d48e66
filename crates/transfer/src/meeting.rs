//! Connections to authenticated peers, for other protocols than that of files: the same devices,
//! names, codes and known peers, and then the connection itself.
//!
//! The connection is sealed, and the handshake authenticates its keys: what the other protocol says
//! needs no encryption of its own.

use crate::cancel::Cancel;
use crate::channel::{Channel, LAST_WORD};
use crate::code_tries::CodeTries;
use crate::doors::{DoorConfig, Doors};
use crate::error::Error;
use crate::handshake::{Doorkeeper, admit, initiate};
use crate::parking::{park, waker};
use crate::progress::Event;
use crate::receive::{Visitor, make_room};
use crate::send::{connect, connect_by, interface_of};
use airdma::{Device, Endpoint};
use airdma_files::session::{Code, Door, Identity, Introduction, PublicKey};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::task::Waker;
use std::thread;

/// A connection to a peer, whose key is proven.
#[derive(Debug)]
pub struct Met {
    /// The device of the connection.
    pub device: Device,
    /// The connection.
    pub endpoint: Endpoint,
    /// Key of the peer.
    pub peer: PublicKey,
    /// Its address.
    pub address: IpAddr,
    /// Local interface that leads to it.
    pub interface: String,
    /// Whether a code was used; a program that stores the key needs none the next time.
    pub by_code: bool,
}

/// A peer to connect to, and how it is identified.
#[derive(Debug)]
pub struct Call<'a> {
    /// Key of this host's user.
    pub identity: &'a Identity,
    /// Addresses where the peer listens; any will do.
    pub to: &'a [SocketAddr],
    /// How the peer is identified.
    pub introduction: Introduction,
    /// Proofs of the code, if it is identified by one.
    pub code_tries: &'a CodeTries,
    /// The device of an earlier call, whose memory the program goes on to use.
    pub device: Option<&'a Device>,
}

/// Connects to a peer at an [`Entrance`].
///
/// # Errors
/// [`Error::kind`] tells the kind.
pub fn call(job: &Call<'_>, cancel: &Cancel) -> Result<Met, Error> {
    let by_code = matches!(job.introduction, Introduction::Code(_));
    let check_code = || match by_code && job.code_tries.are_spent() {
        true => Err(Error::CodeTried(job.code_tries.count())),
        false => Ok(()),
    };
    check_code()?;
    let (device, endpoint) = match job.device {
        None => connect(job.to, cancel)?,
        Some(device) => (device.clone(), connect_again(device, job.to, cancel)?),
    };
    let address = endpoint.peer();
    let mut channel = Channel::new(&device, endpoint, waker())?;
    let tries = by_code.then_some(job.code_tries);
    let introduction = job.introduction.clone();
    let met = initiate(&mut channel, job.identity, introduction, tries, cancel);
    if met.is_err() {
        check_code()?;
    }
    let session = met?;
    Ok(Met {
        interface: interface_of(&device),
        device,
        endpoint: channel.into_endpoint(),
        peer: session.peer(),
        address,
        by_code,
    })
}

fn connect_again(device: &Device, to: &[SocketAddr], cancel: &Cancel) -> Result<Endpoint, Error> {
    let mut refused = None;
    for &to in to {
        match connect_by(device, to, cancel) {
            Err(Error::Rdma(error)) => refused = Some(error.into()),
            result => return result,
        }
    }
    Err(refused.unwrap_or(Error::NoAnswer))
}

/// Where peers come in: doors, and threads in which each proves its key.
pub struct Entrance {
    doors: Doors,
    desk: Arc<Desk>,
    waker: Waker,
    visitors: Vec<Visitor>,
    arrivals: (mpsc::Sender<Arrival>, mpsc::Receiver<Arrival>),
    is_told: bool,
}

/// A visitor, and how its handshake ended; `None` for one that only checked for a receiver.
type Arrival = (Visitor, Option<Result<Met, Error>>);

/// Whether a key is known.
type IsKnown = dyn Fn(&PublicKey) -> bool + Send + Sync;

struct Desk {
    door: Mutex<Door>,
    is_known: Box<IsKnown>,
    /// Cancelled when the entrance is dropped.
    closed: Cancel,
}

impl Doorkeeper for Desk {
    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knows(&self, key: &PublicKey) -> bool {
        (self.is_known)(key)
    }

    fn is_cancelled(&self) -> bool {
        self.closed.is_cancelled()
    }
}

impl Entrance {
    /// Opens the doors. Peers that are not known need the code; without one, only known peers are
    /// admitted. The thread that opens it must be the one that waits.
    ///
    /// # Errors
    /// As [`Doors::open`].
    pub fn open(
        config: DoorConfig,
        identity: &Identity,
        code: Option<Code>,
        is_known: impl Fn(&PublicKey) -> bool + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(Self {
            doors: Doors::open_with(config)?,
            desk: Arc::new(Desk {
                door: Mutex::new(Door::new(identity.clone(), code)),
                is_known: Box::new(is_known),
                closed: Cancel::default(),
            }),
            waker: waker(),
            visitors: Vec::new(),
            arrivals: mpsc::channel(),
            is_told: false,
        })
    }

    /// Waits for the next peer that proves its key, until one of `cancels` is cancelled. `watch` is
    /// called with each event, on this thread.
    ///
    /// # Errors
    /// [`Error::Cancelled`]. A peer that fails is an event.
    pub fn next(&mut self, watch: &dyn Fn(Event), cancels: &[&Cancel]) -> Result<Met, Error> {
        if !std::mem::replace(&mut self.is_told, true) {
            watch(self.doors.listening());
        }
        loop {
            if let Some(change) = self.doors.follow() {
                watch(change);
            }
            self.let_in(watch);
            while let Ok((gone, arrival)) = self.arrivals.1.try_recv() {
                self.visitors.retain(|visitor| !visitor.is_same(&gone));
                match arrival {
                    Some(Ok(met)) => return Ok(met),
                    Some(Err(error)) => watch(Event::Turned(error.to_string())),
                    None => {}
                }
            }
            if cancels.iter().any(|cancel| cancel.is_cancelled()) {
                return Err(Error::Cancelled);
            }
            park(None);
        }
    }

    fn let_in(&mut self, watch: &dyn Fn(Event)) {
        for came in self.doors.accept(&self.waker) {
            match came {
                Ok((device, endpoint)) => {
                    if make_room(&self.visitors, endpoint.peer()) {
                        self.serve(device, endpoint, watch);
                    }
                }
                Err(shut) => watch(Event::Hindered(shut)),
            }
        }
    }

    /// Gives a connection a thread for its handshake, which ends within seconds.
    fn serve(&mut self, device: Device, endpoint: Endpoint, watch: &dyn Fn(Event)) {
        let visitor = Visitor::new(endpoint.peer());
        let (served, desk) = (visitor.clone(), Arc::clone(&self.desk));
        let (arrived, waker) = (self.arrivals.0.clone(), self.waker.clone());
        let spawned = thread::Builder::new()
            .name("airdma-entrance".into())
            .spawn(move || {
                let met = meet(device, endpoint, &desk, &served.shown_out);
                // Fails if the entrance is closed.
                let _ = arrived.send((served, met));
                waker.wake();
            });
        match spawned {
            Ok(_) => self.visitors.push(visitor),
            Err(error) => watch(Event::Turned(error.to_string())),
        }
    }
}

impl Drop for Entrance {
    fn drop(&mut self) {
        self.desk.closed.cancel();
    }
}

impl fmt::Debug for Entrance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Entrance({:?})", self.doors)
    }
}

fn meet(
    device: Device,
    endpoint: Endpoint,
    desk: &Desk,
    shown_out: &Cancel,
) -> Option<Result<Met, Error>> {
    let address = endpoint.peer();
    let mut channel = match Channel::new(&device, endpoint, waker()) {
        Ok(channel) => channel,
        Err(error) => return Some(Err(error)),
    };
    match admit(&mut channel, desk, shown_out) {
        Ok((session, by_code)) => Some(Ok(Met {
            interface: interface_of(&device),
            device,
            endpoint: channel.into_endpoint(),
            peer: session.peer(),
            address,
            by_code,
        })),
        Err(error) => {
            let is_mute = matches!(error, Error::Rdma(_)) && !channel.has_heard();
            // Its reason must reach the peer.
            channel.close(LAST_WORD);
            (!is_mute).then_some(Err(error))
        }
    }
}
