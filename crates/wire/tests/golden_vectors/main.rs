//! What real implementations sent: it decodes, encodes to the same bytes, and its ICRC verifies.

#![allow(clippy::unwrap_used, missing_docs)]

mod connections;
mod damage;
mod operations;
mod packets;
