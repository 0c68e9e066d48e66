//! File transfer between hosts, as far as it needs no network.
//!
//! The sender walks paths to a [`Manifest`] ([`walk()`]); the receiver fits it into a directory
//! ([`Sink::open`]) and reports which files it does not want and where an interrupted transfer
//! resumes. From that, both make the same [`Plan`] of a stream, cut into chunks of 1 MiB.
//! [`Source`] reads chunks, [`Sink`] writes them; moving them is left to the caller.
//! `docs/file-protocol.md` specifies the wire format, `docs/design/022-file-service.md` gives the
//! reasons.

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
