//! Transfers from one tree to another, without a network.

#![allow(clippy::unwrap_used)]

mod clash;
mod errors;
mod hostile;
mod interrupted;
mod kept;
mod limits;
mod planted;
mod pour;
mod same_name;
mod scratch;
mod service;
