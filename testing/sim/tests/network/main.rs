//! Networks of many hosts: what links do, what switches do, what is written down of it.

#![allow(clippy::unwrap_used)]

mod captures;
mod corruption;
mod incast;
mod medium;
mod scene;
mod stages;
mod topologies;
