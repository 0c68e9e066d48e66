//! The handshake over a connection.

use crate::cancel::Cancel;
use crate::channel::Channel;
use crate::code_tries::CodeTries;
use crate::error::Error;
use airdma_files::session::{Door, Identity, Initiator, Introduction, PublicKey, Session, frame};
use std::sync::MutexGuard;
use std::time::{Duration, Instant};

/// Time limit of a handshake, which does not wait for users.
const LIMIT: Duration = Duration::from_secs(10);

/// What decides who is admitted.
pub(crate) trait Doorkeeper {
    /// The responder's side of handshakes.
    fn door(&self) -> MutexGuard<'_, Door>;
    /// Whether a key needs no code.
    fn knows(&self, key: &PublicKey) -> bool;
    /// Whether all handshakes end.
    fn is_cancelled(&self) -> bool;
}

/// Runs the initiator; `tries` counts proofs of the code, if it has one.
pub(crate) fn initiate(
    channel: &mut Channel,
    identity: &Identity,
    introduction: Introduction,
    tries: Option<&CodeTries>,
    cancel: &Cancel,
) -> Result<Session, Error> {
    let deadline = Instant::now() + LIMIT;
    let cancelled = || cancel.is_cancelled();
    let binding = channel.binding(deadline, cancelled)?;
    let (initiator, first) = Initiator::start(identity, introduction, &binding);
    channel.say(&frame(&first))?;
    let (confirming, third) = initiator.prove(&channel.hear_until(deadline, cancelled)?)?;
    if let Some(tries) = tries {
        tries.begin();
    }
    channel.say(&frame(&third))?;
    let session = confirming.confirm(&channel.hear_until(deadline, cancelled)?)?;
    if let Some(tries) = tries {
        tries.succeed();
    }
    Ok(session)
}

/// Runs the responder; returns whether a code was used. A refused initiator learns the reason.
pub(crate) fn admit(
    channel: &mut Channel,
    doorkeeper: &impl Doorkeeper,
    shown_out: &Cancel,
) -> Result<(Session, bool), Error> {
    let admitted = try_to_admit(channel, doorkeeper, shown_out);
    if let Err(Error::Handshake(error)) = &admitted {
        channel.say(&frame(&error.refusal()))?;
    }
    admitted
}

fn try_to_admit(
    channel: &mut Channel,
    doorkeeper: &impl Doorkeeper,
    shown_out: &Cancel,
) -> Result<(Session, bool), Error> {
    let deadline = Instant::now() + LIMIT;
    let cancelled = || doorkeeper.is_cancelled() || shown_out.is_cancelled();
    let first = channel.hear_until(deadline, cancelled)?;
    let binding = channel.binding(deadline, cancelled)?;
    let (answer, second) = doorkeeper.door().answer(&first, &binding)?;
    channel.say(&frame(&second))?;
    let third = channel.hear_until(deadline, cancelled)?;
    let mut by_code = true;
    let is_known = |key: &_| {
        by_code = false;
        doorkeeper.knows(key)
    };
    let (session, fourth) = doorkeeper.door().admit(answer, &third, is_known)?;
    channel.say(&frame(&fourth))?;
    Ok((session, by_code))
}
