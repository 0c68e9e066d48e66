//! Networks of many hosts: links, switches and captures.

#![allow(clippy::unwrap_used)]

mod captures;
mod corruption;
mod incast;
mod medium;
mod scene;
mod stages;
mod topologies;
