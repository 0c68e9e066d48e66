//! Tests by simulation: random worlds in which the engine runs over a simulated network.
//!
//! A reference model ([`airdma_model`]) judges all that programs observe.

mod attacker;
pub mod bottleneck;
pub mod cell;
pub mod choices;
pub mod datagrams;
mod delays;
pub mod host;
pub mod lossy;
mod on_path;
mod one_host;
pub mod plan;
pub mod program;
mod reads;
mod records;
pub mod run;
pub mod soak;
pub mod world;
mod writer;

pub use plan::Plan;
pub use run::{Outcome, bytes_of, plan_of, run};
pub use soak::{Report, SLOW, Soak, shrink, soak};
pub use world::{Counts, World};
