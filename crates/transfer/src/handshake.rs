//! The handshake over a connection.

use crate::cancel::Cancel;
use crate::channel::Channel;
use crate::code_tries::CodeTries;
use crate::error::Error;
use crate::lobby::Lobby;
use airdma_files::session::{Identity, Initiator, Introduction, Session, frame};
use std::time::{Duration, Instant};

/// Time limit of a handshake, which does not wait for users.
const LIMIT: Duration = Duration::from_secs(10);

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
    lobby: &Lobby<'_>,
    shown_out: &Cancel,
) -> Result<(Session, bool), Error> {
    let admitted = try_to_admit(channel, lobby, shown_out);
    if let Err(Error::Handshake(error)) = &admitted {
        channel.say(&frame(&error.refusal()))?;
    }
    admitted
}

fn try_to_admit(
    channel: &mut Channel,
    lobby: &Lobby<'_>,
    shown_out: &Cancel,
) -> Result<(Session, bool), Error> {
    let deadline = Instant::now() + LIMIT;
    let cancelled = || lobby.is_cancelled() || shown_out.is_cancelled();
    let first = channel.hear_until(deadline, cancelled)?;
    let binding = channel.binding(deadline, cancelled)?;
    let (answer, second) = lobby.door().answer(&first, &binding)?;
    channel.say(&frame(&second))?;
    let third = channel.hear_until(deadline, cancelled)?;
    let mut by_code = true;
    let is_known = |key: &_| {
        by_code = false;
        lobby.knows(key)
    };
    let (session, fourth) = lobby.door().admit(answer, &third, is_known)?;
    channel.say(&frame(&fourth))?;
    Ok((session, by_code))
}
