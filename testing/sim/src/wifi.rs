//! A Wi-Fi cell as its packets see it: one medium for all directions, aggregates, block acks,
//! errors by SNR, retries, a rate that moves, and a queue in front of it.
//!
//! ```
//! use airdma_sim::Random;
//! use airdma_sim::wifi::{Fate, Medium, Profile};
//! use airdma_transport::Time;
//!
//! let mut medium = Medium::new(Profile::AC_80);
//! let (phone, laptop) = (medium.add_station(), medium.add_station());
//! medium.set_snr(phone, laptop, 28.0);
//!
//! let (mut random, mut outcomes) = (Random::new(7), Vec::new());
//! medium.enqueue(Time::ZERO, phone, laptop, 1500, 1)?;
//! while let Some(at) = medium.poll_at() {
//!     medium.advance(at, &mut random, &mut outcomes);
//! }
//! assert_eq!(outcomes[0].token, 1);
//! assert_eq!(outcomes[0].fate, Fate::Delivered);
//! # Ok::<(), airdma_sim::wifi::Overflow>(())
//! ```
//!
//! The [`Medium`] knows lengths and tokens, not packets, and the time it is told: it serves
//! simulations and, driven by a wall clock, an emulated link. What is modelled and what is not is
//! in `docs/design/010-wifi-model.md`.

mod block_ack;
mod cell;
pub mod errors;
mod fading;
mod interference;
mod medium;
mod outcome;
pub mod phy;
mod profile;
mod rate_control;
pub mod report;
mod station;
pub mod traffic;

pub use cell::Cell;
pub use fading::Fading;
pub use interference::Interference;
pub use medium::{Airtime, Medium, SNR_DB};
pub use outcome::{Cause, Fate, Outcome, Overflow};
pub use phy::{Phy, Standard};
pub use profile::{Access, BadProfile, Profile};
pub use station::{Backlog, Load, Rival, StationCounters, StationId};
