//! State shared by the connections of one receiver: admitted peers, the connection that uses the
//! disk, decisions.

use crate::cancel::Cancel;
use crate::error::{Error, Meddling};
use crate::handshake::Doorkeeper;
use crate::progress::{Event, Offered};
use crate::receive::{Ask, CONNECTIONS_OF_A_KEY_MAX, Destination, ReceiveJob, Watch};
use airdma_files::protocol::{Failure, Reason};
use airdma_files::session::{Door, PublicKey};
use airdma_files::{ManifestId, Report, Sink, Unwanted};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time in which a replaced connection must close its files.
const VACATE: Duration = Duration::from_secs(10);

pub(crate) struct Lobby<'a> {
    job: &'a ReceiveJob<'a>,
    ask: &'a Ask<'a>,
    watch: &'a Watch<'a>,
    cancel: &'a Cancel,
    /// Cancelled when the receiver is done, so that all connections end.
    closed: Cancel,
    door: Mutex<Door>,
    state: Mutex<State>,
    vacated: Condvar,
}

#[derive(Default)]
struct State {
    /// Peers that used the code: after a lost connection they return without one.
    met: Vec<PublicKey>,
    /// Connections past the handshake, the oldest first.
    admitted: Vec<(PublicKey, Cancel)>,
    seat: Option<Occupant>,
    /// The accepted offer, so that the user is not asked again after a lost connection.
    accepted: Option<(PublicKey, ManifestId)>,
    /// Whether the accepted connection was lost, or is done but may not know it, and its seat is
    /// kept.
    is_kept: bool,
    finished: Option<Finished>,
    meddling: Meddling,
    /// The connection that holds the one long list of files.
    long_list: Option<Occupant>,
}

/// An offer that was received completely.
pub(crate) struct Finished {
    pub peer: PublicKey,
    pub id: ManifestId,
    pub report: Report,
    pub unwanted: Unwanted,
    /// Answers a sender that missed the end, also after a restart of the receiver.
    pub kept: Option<Box<Sink>>,
}

/// The connection that writes to the disk, or asks whether it may.
struct Occupant {
    peer: PublicKey,
    id: ManifestId,
    over: Cancel,
}

/// The right to hold a long list of files, until dropped.
pub(crate) struct LongList<'a> {
    lobby: &'a Lobby<'a>,
    over: Cancel,
}

/// A connection past the handshake, until dropped.
pub(crate) struct Admitted<'a> {
    lobby: &'a Lobby<'a>,
    over: Cancel,
}

/// The right to write to the disk, until dropped.
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

    /// Ends all connections.
    pub fn close(&self) {
        self.closed.cancel();
    }

    pub fn admit_key(&self, key: PublicKey) {
        let mut state = self.state();
        if !state.met.contains(&key) {
            state.met.push(key);
        }
    }

    /// Notes a connection past the handshake.
    ///
    /// If there are too many with the same key, the oldest one that does not write to the disk
    /// ends.
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

    /// Takes the seat if it is free, or held by an earlier connection for the same offer, which
    /// then ends.
    ///
    /// The sender may have changed its address or been killed, without this end having noticed.
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

    /// Takes the right to a long list if it is free, or held by the same sender for the same offer.
    ///
    /// The earlier connection then ends. The user was not asked yet, and eight such lists at once
    /// would exceed the receiver's documented memory.
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

    /// Keeps the seat for the accepted offer from now on.
    pub fn wait_for_accepted(&self) {
        self.state().is_kept = true;
    }

    /// Whether a connection has the seat.
    pub fn is_taken(&self) -> bool {
        self.state().seat.is_some()
    }

    /// Asks the user, unless the offer was accepted before.
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

    /// Notes that the offer is complete. Its sender may miss that and return, so no other gets the
    /// seat any more.
    pub fn finish(&self, finished: Finished) {
        let mut state = self.state();
        state.is_kept = true;
        state.finished = Some(finished);
    }

    /// Notes that its sender knows.
    pub fn forget(&self) -> Result<(), Error> {
        let finished = self.state().finished.take();
        let kept = finished.and_then(|finished| finished.kept);
        Ok(kept.map_or(Ok(()), |sink| sink.forget())?)
    }

    /// The result of a completed offer.
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

impl Doorkeeper for Lobby<'_> {
    fn door(&self) -> MutexGuard<'_, Door> {
        self.door.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn knows(&self, key: &PublicKey) -> bool {
        self.state().met.contains(key) || (self.job.is_known)(key)
    }

    fn is_cancelled(&self) -> bool {
        self.cancel.is_cancelled() || self.closed.is_cancelled()
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
