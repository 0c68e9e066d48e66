//! Packets that real implementations sent: each decodes, encodes to the same bytes, and has a valid
//! ICRC.

#![allow(clippy::unwrap_used, missing_docs)]

mod connections;
mod damage;
mod operations;
mod packets;
