//! An emulated Wi-Fi link between two hosts of this machine, in real time and without root.
//!
//! Two network namespaces are joined by a veth pair. At each end an HTB class whose rate is the
//! radio's at the moment has the driver's queue behind it, and nftables drops, packet by packet,
//! what the MAC did not repair. A controller ([`Controller`]) looks at both queues every few
//! milliseconds and steps the Wi-Fi MAC model of `airdma-sim` ([`Air`]) to the present: which
//! packets took the air, how long, who collided, what was lost. All of it goes by netlink.
//!
//! What it can and cannot do is in `docs/design/017-the-emulated-link.md`.

mod air;
pub mod calibrate;
mod controller;
mod error;
mod folder;
mod hosts;
mod join;
mod loss;
pub mod measure;
mod netlink;
mod options;
mod profile;
mod serve;
mod shaper;
mod signal;
mod start;
pub mod traffic;
pub mod twin;

pub use air::{Air, Order, Seen, Side, Used};
pub use controller::{Controller, DirectionStatus, Plan, STEP, Status};
pub use error::LinkError;
pub use folder::{Folder, Record};
pub use hosts::{Hosts, INTERFACE, Place, ipv4, ipv6};
pub use join::{Joined, end_programs};
pub use options::Options;
pub use profile::{Others, PathLoss, Profile};
pub use serve::{down, serve};
pub use signal::{Signal, Walk};
pub use start::{READY, on_host, start};
