//! `airdma bench sockets`: unmodified socket programs under `airdma sockets`, and without it.
//!
//! [`suite`] lists the cases, [`targets`] has the goals, [`page`] shows the measurement, whose form
//! is that of `airdma bench`.

use crate::part::Part;

mod page;
mod suite;
mod targets;

/// `airdma bench sockets`.
pub const SOCKETS: Part = Part {
    cases: suite::all,
    seconds: suite::SECONDS,
    verdicts: targets::verdicts,
    shown: Clone::clone,
    is_drawn: false,
    title: "Socket programs, measured",
    introduction: page::INTRODUCTION,
};
