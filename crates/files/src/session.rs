//! Who is there, and nobody else: the handshake, the records of a session, and the encryption of chunks.
//!
//! One handshake for both ways of knowing a peer: Noise `XXpsk3` over X25519, ChaCha20-Poly1305 and BLAKE2s. At a first contact its psk is the
//! key that SPAKE2 makes of a code phrase; between peers that know each other's keys it is a constant, and the keys are
//! compared. Each end learns the other's key either way, and can pin it ([`KnownPeers`]).

mod code;
mod handshake;
mod identity;
mod known_peers;
mod private;
mod record;
mod seal;

pub use code::{Code, NoCode};
pub use handshake::{
    Answer, Confirming, Door, HandshakeError, Initiator, Introduction, WRONG_CODES_MAX,
};
pub use identity::{Identity, NoKey, PublicKey, check_home};
pub use known_peers::{KNOWN_PEERS_BYTES_MAX, KnownPeers, NetworkName, NoPin, Pin, Place, Role};
pub use record::{Frames, RecordError, Session, frame};
pub use seal::{Cipher, DataKey, Forged, Opener, Sealer, TAG_BYTES, has_fast_aes};
