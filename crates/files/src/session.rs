//! Authentication and encryption: the handshake, the records of a session, and sealed chunks.
//!
//! One handshake serves both ways of identifying a peer: Noise `XXpsk3` over X25519,
//! ChaCha20-Poly1305 and BLAKE2s. At a first contact its psk is the key that SPAKE2 derives from a
//! code phrase; between known peers it is a constant, and the keys are compared. In both cases each
//! end learns the other's key, and can pin it ([`KnownPeers`]).

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
