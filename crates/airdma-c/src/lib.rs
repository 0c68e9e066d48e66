//! The C API of airdma.
//!
//! `include/airdma.h` documents each call; this crate maps them to the crate `airdma`, and lets no
//! panic escape.

mod arrival;
mod calls;
mod failure;
mod handle;
mod operation;
