//! From a tree to another, without a network: what arrives, what does not, and what is said.

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
