//! `airdma bench daemon`: programs whose devices are a daemon's, beside the same in a process.
//!
//! [`suite`] lists the cases, [`targets`] has the goals, [`page`] shows the measurement, whose form
//! is that of `airdma bench`.

use crate::part::Part;

mod page;
mod suite;
mod targets;

/// `airdma bench daemon`.
pub const DAEMON: Part = Part {
    cases: suite::all,
    seconds: 2,
    verdicts: targets::verdicts,
    shown: Clone::clone,
    is_drawn: false,
    title: "A daemon for devices, measured",
    introduction: page::INTRODUCTION,
};
