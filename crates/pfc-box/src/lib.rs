//! A box between a plain RoCEv2 host and a radio: forwards Ethernet frames, keeps the queue toward
//! the radio short, and asks the host to pause when all else is not enough.
//!
//! ```text
//!   plain host  ==== cable ====  [host interface | queue, shaper | radio interface]  ~~~ air ~~~
//!                 <- PFC frames                    rate of the radio <- its queue, or its driver
//! ```
//!
//! [`Controller`] does the work; its decisions are in parts that read no clock: [`Class`] (kind of
//! a frame), [`Queue`] and [`Bucket`] (what waits, and when it may leave), [`Pacer`] (the rate),
//! [`Pause`] (when the host must stop). `docs/design/023-controller-box.md` gives the reasons.

mod controller;
mod counters;
mod error;
mod frame;
mod interface;
mod nic;
mod pacer;
mod pause;
mod radio_rate;
mod shaper;

pub use controller::{Controller, Options};
pub use counters::Counters;
pub use error::ControllerError;
pub use frame::Class;
pub use nic::{Held, nic};
pub use pacer::{Pacer, Reading};
pub use pause::{Ask, Pause};
pub use shaper::{Bucket, Queue};
