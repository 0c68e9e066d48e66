//! The handshake: four frames, after which both ends know each other's key and share keys of their
//! own.
//!
//! ```text
//! ->  "airdma-f" version(1) way(1) [SPAKE2(33)]   Noise 1: e
//! <-                               [SPAKE2(33)]   Noise 2: e, ee, s, es
//! ->                                              Noise 3: s, se, psk
//! <-  a record without content, or one byte that says why not
//! ```
//!
//! Everything before Noise's first message is its prologue, followed by the *binding* of the
//! connection, which is not sent: a value that both ends of the underlying connection have, and a
//! host in the middle has not. The psk is mixed in last, so the initiator is the first to prove
//! that it has the code. An eavesdropper learns nothing to test codes against. Either end can try
//! one code in one handshake: [`Door`] counts the wrong codes of initiators, and the sender counts
//! handshakes that end without proof.

#[cfg(test)]
mod tests;

use super::record::Session;
use super::{Code, Identity, PublicKey};
use snow::HandshakeState;
use spake2::{Ed25519Group, Password, Spake2};

/// Wrong codes after which a code becomes invalid.
pub const WRONG_CODES_MAX: u8 = 3;

const MAGIC: &[u8; 9] = b"airdma-f\x01";
const WAY_CODE: u8 = 1;
const WAY_KNOWN: u8 = 2;
const PAKE_BYTES: usize = 33;
/// Position at which `XXpsk3` mixes in its key.
const PSK_PLACE: usize = 3;
/// Most bytes of a Noise message here: 32 bytes, a key with its tag, and a tag.
const NOISE_BYTES_MAX: usize = 32 + 48 + 16;

/// How the initiator identifies the peer.
#[derive(Clone, Debug)]
pub enum Introduction {
    /// By the code that the other end shows.
    Code(Code),
    /// By its key, which must be one of these; the other end must know this end's key.
    Known(Vec<PublicKey>),
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// The codes differ.
    #[error("the code is wrong: look at the other screen again")]
    WrongCode,
    /// The code was wrong too often.
    #[error("the code was wrong three times: offer again, which makes a new code")]
    NoMoreTries,
    /// The peer's key is not one of those expected.
    #[error(
        "the other end is not the one that was met: its key is {0}; if it has a new one, use the code that it shows"
    )]
    NotKnown(PublicKey),
    /// The peer does not know this end's key.
    #[error("the other end does not know this host: use a code")]
    NotKnownThere,
    /// The peer accepts no code.
    #[error("the other end takes no code now: let it show one")]
    NoCode,
    /// The peer speaks another protocol.
    #[error(
        "the peer does not speak this version of the file protocol; use one version at both ends"
    )]
    Version,
    /// The peer's bytes violate the protocol.
    #[error("the peer violated the file protocol; use the same version at both ends")]
    Malformed,
}

/// The initiator until the peer's first frame.
#[derive(Debug)]
pub struct Initiator {
    noise: HandshakeState,
    proof: Proof,
}

/// The initiator until the peer's confirmation.
#[derive(Debug)]
pub struct Confirming {
    session: Session,
}

/// Source of the psk.
#[derive(Debug)]
enum Proof {
    Code(Spake2<Ed25519Group>),
    Known(Vec<PublicKey>),
}

impl Initiator {
    /// Starts a handshake over a connection with this binding; returns the first frame.
    pub fn start(
        identity: &Identity,
        introduction: Introduction,
        binding: &[u8],
    ) -> (Self, Vec<u8>) {
        let mut frame = MAGIC.to_vec();
        let proof = match introduction {
            Introduction::Code(code) => {
                let (pake, message) =
                    Spake2::start_a(&password(&code), &initiator_name(), &responder_name());
                frame.push(WAY_CODE);
                frame.extend_from_slice(&message);
                Proof::Code(pake)
            }
            Introduction::Known(keys) => {
                frame.push(WAY_KNOWN);
                Proof::Known(keys)
            }
        };
        let prologue = [&frame[..], binding].concat();
        let builder = noise()
            .local_private_key(identity.private())
            .and_then(|builder| builder.prologue(&prologue));
        let mut noise = builder
            .and_then(snow::Builder::build_initiator)
            .expect("all is set once");
        let message = write(&mut noise);
        frame.extend_from_slice(&message);
        (Self { noise, proof }, frame)
    }

    /// Handles the answer; returns the next frame.
    pub fn prove(mut self, frame: &[u8]) -> Result<(Confirming, Vec<u8>), HandshakeError> {
        if let [refusal] = frame {
            return Err(HandshakeError::from_refusal(*refusal));
        }
        let (psk, wanted, message) = match self.proof {
            Proof::Code(pake) => {
                let split = frame.split_at_checked(PAKE_BYTES);
                let (theirs, message) = split.ok_or(HandshakeError::Malformed)?;
                (psk_of_code(pake, theirs)?, None, message)
            }
            Proof::Known(wanted) => (psk_of_known(), Some(wanted), frame),
        };
        read(&mut self.noise, message)?;
        let peer = peer(&self.noise)?;
        if wanted.is_some_and(|wanted| !wanted.contains(&peer)) {
            return Err(HandshakeError::NotKnown(peer));
        }
        self.noise
            .set_psk(PSK_PLACE, &psk)
            .expect("a psk has 32 bytes");
        let frame = write(&mut self.noise);
        Ok((
            Confirming {
                session: session(self.noise, peer)?,
            },
            frame,
        ))
    }
}

impl Confirming {
    /// Handles the last frame.
    pub fn confirm(mut self, frame: &[u8]) -> Result<Session, HandshakeError> {
        match frame {
            [refusal] => Err(HandshakeError::from_refusal(*refusal)),
            record => match self.session.open(record) {
                Ok(message) if message.is_empty() => Ok(self.session),
                Ok(_) | Err(_) => Err(HandshakeError::Malformed),
            },
        }
    }
}

/// The responder of an offer, shared by all connections, so that wrong codes are counted together.
#[derive(Debug)]
pub struct Door {
    identity: Identity,
    code: Option<Code>,
    /// The peer that used the code, which is valid for no other.
    guest: Option<PublicKey>,
    wrong_codes: u8,
}

/// The responder until the initiator's proof.
#[derive(Debug)]
pub struct Answer {
    noise: HandshakeState,
    by_code: bool,
}

impl Door {
    /// A responder for known peers, and for a peer that has the code.
    pub fn new(identity: Identity, code: Option<Code>) -> Self {
        Self {
            identity,
            code,
            guest: None,
            wrong_codes: 0,
        }
    }

    /// Whether too many codes were wrong.
    pub fn is_shut(&self) -> bool {
        self.wrong_codes >= WRONG_CODES_MAX
    }

    /// Handles the first frame, received over a connection with this binding; returns the answer.
    pub fn answer(
        &mut self,
        frame: &[u8],
        binding: &[u8],
    ) -> Result<(Answer, Vec<u8>), HandshakeError> {
        let rest = frame.strip_prefix(MAGIC).ok_or(HandshakeError::Version)?;
        let (&way, rest) = rest.split_first().ok_or(HandshakeError::Malformed)?;
        let (psk, mut answer, message) = match way {
            WAY_CODE => {
                let code = self.usable_code()?;
                let (theirs, message) = rest
                    .split_at_checked(PAKE_BYTES)
                    .ok_or(HandshakeError::Malformed)?;
                let (pake, ours) =
                    Spake2::start_b(&password(code), &initiator_name(), &responder_name());
                (psk_of_code(pake, theirs)?, ours, message)
            }
            WAY_KNOWN => (psk_of_known(), Vec::new(), rest),
            _ => return Err(HandshakeError::Malformed),
        };
        let prologue = [&frame[..frame.len() - message.len()], binding].concat();
        let builder = noise()
            .local_private_key(self.identity.private())
            .and_then(|builder| builder.prologue(&prologue));
        let mut noise = builder
            .and_then(snow::Builder::build_responder)
            .expect("all is set once");
        noise.set_psk(PSK_PLACE, &psk).expect("a psk has 32 bytes");
        read(&mut noise, message)?;
        answer.extend_from_slice(&write(&mut noise));
        Ok((
            Answer {
                noise,
                by_code: way == WAY_CODE,
            },
            answer,
        ))
    }

    /// Handles the proof; returns the session and the frame that confirms it.
    ///
    /// `is_known` decides about a peer that identifies itself by its key.
    pub fn admit(
        &mut self,
        mut answer: Answer,
        frame: &[u8],
        is_known: impl FnOnce(&PublicKey) -> bool,
    ) -> Result<(Session, Vec<u8>), HandshakeError> {
        if answer.by_code {
            self.usable_code()?;
        }
        if let Err(error) = read(&mut answer.noise, frame) {
            if !answer.by_code {
                return Err(error);
            }
            self.wrong_codes += 1;
            return Err(if self.is_shut() {
                HandshakeError::NoMoreTries
            } else {
                HandshakeError::WrongCode
            });
        }
        let peer = peer(&answer.noise)?;
        if !answer.by_code && !is_known(&peer) {
            return Err(HandshakeError::NotKnownThere);
        }
        if answer.by_code && *self.guest.get_or_insert(peer) != peer {
            return Err(HandshakeError::NoCode);
        }
        let mut session = session(answer.noise, peer)?;
        let confirmation = session.seal_record(&[]);
        Ok((session, confirmation))
    }

    fn usable_code(&self) -> Result<&Code, HandshakeError> {
        if self.is_shut() {
            return Err(HandshakeError::NoMoreTries);
        }
        self.code.as_ref().ok_or(HandshakeError::NoCode)
    }
}

impl HandshakeError {
    /// The frame that reports the error to the initiator.
    pub fn refusal(self) -> [u8; 1] {
        [match self {
            Self::WrongCode => 1,
            Self::NoMoreTries => 2,
            Self::NotKnown(_) | Self::NotKnownThere => 3,
            Self::NoCode => 4,
            Self::Version => 5,
            Self::Malformed => 6,
        }]
    }

    /// A host on the path can forge a refusal: it ends a handshake, and has no other effect.
    fn from_refusal(byte: u8) -> Self {
        match byte {
            1 => Self::WrongCode,
            2 => Self::NoMoreTries,
            3 => Self::NotKnownThere,
            4 => Self::NoCode,
            5 => Self::Version,
            _ => Self::Malformed,
        }
    }
}

/// The Noise pattern of all handshakes.
pub(super) fn noise<'a>() -> snow::Builder<'a> {
    snow::Builder::new(
        "Noise_XXpsk3_25519_ChaChaPoly_BLAKE2s"
            .parse()
            .expect("this pattern is built in"),
    )
}

fn write(noise: &mut HandshakeState) -> Vec<u8> {
    let mut message = vec![0; NOISE_BYTES_MAX];
    let length = noise
        .write_message(&[], &mut message)
        .expect("it is our turn, and there is room");
    message.truncate(length);
    message
}

fn read(noise: &mut HandshakeState, message: &[u8]) -> Result<(), HandshakeError> {
    let mut payload = [0; NOISE_BYTES_MAX];
    match noise.read_message(message, &mut payload) {
        Ok(0) => Ok(()),
        Ok(_) | Err(_) => Err(HandshakeError::Malformed),
    }
}

fn peer(noise: &HandshakeState) -> Result<PublicKey, HandshakeError> {
    let key = noise
        .get_remote_static()
        .and_then(|key| key.try_into().ok());
    key.map(PublicKey).ok_or(HandshakeError::Malformed)
}

fn session(noise: HandshakeState, peer: PublicKey) -> Result<Session, HandshakeError> {
    noise
        .into_transport_mode()
        .map(|noise| Session::new(noise, peer))
        .map_err(|_| HandshakeError::Malformed)
}

fn password(code: &Code) -> Password {
    Password::new(code.bytes())
}

fn initiator_name() -> spake2::Identity {
    spake2::Identity::new(b"airdma files, who connects")
}

fn responder_name() -> spake2::Identity {
    spake2::Identity::new(b"airdma files, who shows the code")
}

fn psk_of_code(pake: Spake2<Ed25519Group>, theirs: &[u8]) -> Result<[u8; 32], HandshakeError> {
    let key = pake.finish(theirs).map_err(|_| HandshakeError::Malformed)?;
    Ok(blake3::derive_key("airdma files 1: psk of a code", &key))
}

fn psk_of_known() -> [u8; 32] {
    blake3::derive_key("airdma files 1: no code, the keys are known", b"")
}
