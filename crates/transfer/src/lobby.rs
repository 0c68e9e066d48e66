//! What the connections of one receiver share: which peers are admitted, which one has the disk, and what was decided.

use crate::cancel::Cancel;
use crate::error::{Error, Meddling};
use crate::progress::{Event, Offered};
use crate::receive::{Ask, CONNECTIONS_OF_A_KEY_MAX, Destination, ReceiveJob, Watch};
use airdma_files::protocol::{Failure, Reason};
use airdma_files::session::{Door, PublicKey};
use airdma_files::{ManifestId, Report, Sink, Unwanted};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a connection that is replaced may take to close its files.
const VACATE: Duration = Duration::from_secs(10);

pub(crate) struct Lobby<'a> {
    job: &'a ReceiveJob<'a>,
    ask: &'a Ask<'a>,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
    /// The receiver is done, and whoever is still connected has to go.
    closed: Cancel,
    door: Mutex<Door>,
    state: Mutex<State>,
    vacated: Condvar,
}

#[derive(Default)]
struct State {
    /// Peers that came by the code: when the connection is lost they come again without one.
    met: Vec<PublicKey>,
    /// Connections past the handshake, the oldest first.
    admitted: Vec<(PublicKey, Cancel)>,
    seat: Option<Occupant>,
    /// Accepted, so that nobody is asked again when the connection was lost.
    accepted: Option<(PublicKey, ManifestId)>,
    /// Whether the accepted one was lost, or is done and may not know, and has its place kept.
    is_kept: bool,
    finished: Option<Finished>,
    meddling: Meddling,
    /// The connection that holds the one long list of files.
    long_list: Option<Occupant>,
}

/// An offer of which all is in its place.
pub(crate) struct Finished {
    pub peer: PublicKey,
    pub id: ManifestId,
    pub report: Report,
    pub unwanted: Unwanted,
    /// What answers a sender that did not hear of it, also in the next life of this receiver.
    pub kept: Option<Box<Sink>>,
}

/// Who writes to the disk, or asks whether it may.
struct Occupant {
    peer: PublicKey,
    id: ManifestId,
    over: Cancel,
}

/// The right to hold a long list of files, until it is dropped.
pub(crate) struct LongList<'a> {
    lobby: &'a Lobby<'a>,
    over: Cancel,
}

/// A connection that is past the handshake, until it is dropped.
pub(crate) struct Admitted<'a> {
    lobby: &'a Lobby<'a>,
    over: Cancel,
}

/// The right to write to the disk, until it is dropped.
pub(crate) struct Seat<'a>(&'a Lobby<'a>);

impl<'a> Lobby<'a> {
    pub fn new(
        job: &'a ReceiveJob<'a>,
        ask: &'a Ask<'a>,
        watch: &'a Watch<'a>,
        cancel: &'a Cancel,
    ) -> Self {
        let door = Door::new(job.identity.clone(), job.code.clone());
        Self {
            job,
            ask,
            watch,
            cancel,
            closed: Cancel::default(),
            door: Mutex::new(door),
            state: Mutex::default(),
            vacated: Condvar::new(),
        }
    }

    pub fn job(&self) -> &ReceiveJob<'a> {
        self.job
    }

    pub fn destination(&self) -> &Destination {
        &self.job.destination
    }

    pub fn tell(&self, event: Event) {
        (self.watch)(event);
    }

    /// Everybody has to go.
    pub fn close(&self) {
        self.closed.cancel();
    }

    pub fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.closed.is_cancelled()
    }

    pub fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn knows(&self, key: &PublicKey) -> bool {
        self.state().met.contains(key) || (self.job.is_known)(key)
    }

    pub fn meet(&self, key: PublicKey) {
        let mut state = self.state();
        if !state.met.contains(&key) {
            state.met.push(key);
        }
    }

    /// A connection is past the handshake. If there are too many with the same key, the oldest one has to go that does not write to the
    /// disk.
    pub fn enter(&'a self, peer: PublicKey, over: &Cancel) -> Admitted<'a> {
        let mut state = self.state();
        let seat = state.seat.as_ref().map(|occupant| &occupant.over);
        let of_it = state.admitted.iter();
        let of_it = of_it.filter(|(key, over)| *key == peer && !over.is_cancelled());
        let is_seated = |over: &Cancel| seat.is_some_and(|seat| seat.is_same(over));
        if of_it.clone().count() >= CONNECTIONS_OF_A_KEY_MAX
            && let Some((_, oldest)) = of_it.clone().find(|(_, over)| !is_seated(over))
        {
            oldest.cancel();
        }
        state.admitted.push((peer, over.clone()));
        let over = over.clone();
        Admitted { lobby: self, over }
    }

    /// Takes the seat if it is free, or held for the same offer by an earlier connection, which then has to go: its sender comes from
    /// another address, or was killed, and this end has not heard of it yet.
    pub fn take_seat(
        &'a self,
        peer: PublicKey,
        id: ManifestId,
        over: &Cancel,
    ) -> Result<Seat<'a>, Error> {
        let mut state = self.state();
        if state.is_kept && state.accepted != Some((peer, id)) {
            return Err(busy());
        }
        if let Some(occupant) = &state.seat {
            if (occupant.peer, occupant.id) != (peer, id) {
                return Err(busy());
            }
            occupant.over.cancel();
            let waited = self
                .vacated
                .wait_timeout_while(state, VACATE, |state| state.seat.is_some());
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            if state.seat.is_some() {
                return Err(busy());
            }
        }
        let over = over.clone();
        state.seat = Some(Occupant { peer, id, over });
        drop(state);
        Ok(Seat(self))
    }

    /// Takes the place for a long list of files if it is free, or held by an earlier connection of the same sender with the same offer, which
    /// then has to go. No person was asked yet, and eight such lists at once would be more than a receiver says that it takes.
    pub fn take_long_list(
        &'a self,
        peer: PublicKey,
        id: ManifestId,
        over: &Cancel,
    ) -> Result<LongList<'a>, Error> {
        let mut state = self.state();
        if let Some(holder) = &state.long_list {
            if (holder.peer, holder.id) != (peer, id) {
                return Err(busy());
            }
            holder.over.cancel();
        }
        let over = over.clone();
        state.long_list = Some(Occupant {
            peer,
            id,
            over: over.clone(),
        });
        Ok(LongList { lobby: self, over })
    }

    /// See [`Meddling::judge`].
    pub fn judge_meddling(&self, error: Error, durable: u64) -> Error {
        self.state().meddling.judge(error, durable)
    }

    /// From now on the seat is kept for what was accepted.
    pub fn wait_for_accepted(&self) {
        self.state().is_kept = true;
    }

    /// Whether somebody has the seat.
    pub fn is_taken(&self) -> bool {
        self.state().seat.is_some()
    }

    /// Asks, unless it was accepted before.
    pub fn accepts(&self, offered: &Offered, id: ManifestId, over: &Cancel) -> bool {
        let what = Some((offered.peer, id));
        if self.state().accepted == what {
            return true;
        }
        let is_accepted = (self.ask)(offered, over);
        if is_accepted {
            self.state().accepted = what;
        }
        is_accepted
    }

    /// Its sender may not hear of it, and come again: nobody else gets the seat any more.
    pub fn finish(&self, finished: Finished) {
        let mut state = self.state();
        state.is_kept = true;
        state.finished = Some(finished);
    }

    /// Its sender has heard of it.
    pub fn forget(&self) -> Result<(), Error> {
        let finished = self.state().finished.take();
        let kept = finished.and_then(|finished| finished.kept);
        Ok(kept.map_or(Ok(()), |sink| sink.forget())?)
    }

    /// What became of an offer that is done.
    pub fn finished(&self, peer: PublicKey, id: ManifestId) -> Option<(Report, Unwanted)> {
        let state = self.state();
        let finished = state.finished.as_ref()?;
        let is_it = (finished.peer, finished.id) == (peer, id);
        is_it.then(|| (finished.report.clone(), finished.unwanted.clone()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Admitted<'_> {
    fn drop(&mut self) {
        let mut state = self.lobby.state();
        state.admitted.retain(|(_, over)| !over.is_same(&self.over));
    }
}

impl Drop for LongList<'_> {
    fn drop(&mut self) {
        let mut state = self.lobby.state();
        let is_own = |holder: &mut Occupant| holder.over.is_same(&self.over);
        state.long_list.take_if(is_own);
    }
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        self.0.state().seat = None;
        self.0.vacated.notify_all();
    }
}

fn busy() -> Error {
    let text = "another transfer is running there: try again when it is done";
    Error::Failure(Failure::Here {
        reason: Reason::Busy,
        text: text.to_owned(),
    })
}
