//! Files from one host to another: everything about it that needs no network.
//!
//! The sender walks paths to a [`Manifest`] ([`walk()`]); the receiver fits it into a directory ([`Sink::open`]) and says what it
//! does not want and where an interrupted transfer goes on. Both make the same [`Plan`] of a stream from that, cut into chunks of
//! 1 MiB. [`Source`] reads them, [`Sink`] writes them; who carries them from one to the other is not decided here.
//! `docs/file-protocol.md` says what is on the wire, `docs/design/022-file-service.md` why it is so.

#![forbid(unsafe_code)]

mod descent;
mod error;
mod grain;
mod journal;
mod journal_key;
pub mod manifest;
mod options;
mod owned;
mod plan;
mod pour;
mod printable;
pub mod protocol;
pub mod session;
mod sink;
mod source;
mod stamp;
mod survey;
mod trailer;
mod tree;
mod twins;
pub mod walk;
mod walking;

pub use error::{Error, Problem};
#[doc(hidden)]
pub use journal::sealed;
pub use journal_key::JournalKey;
pub use manifest::{Limits, Manifest, ManifestError, ManifestId, Modified};
pub use options::{Clash, Options, Permissions, Symlinks};
pub use plan::{CHUNK_BYTES, Part, Piece, Placed, Plan, TRAILER_BYTES, Unwanted};
pub use pour::Pour;
pub use printable::{is_hidden, printable, printable_lines};
pub use sink::{Preview, Report, Sink, Unkept};
pub use source::Source;
pub use trailer::Flaw;
pub use walk::walk;
pub use walking::Walking;
