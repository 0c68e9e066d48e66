//! `airdma bench streams`: streams of frames by credits, by the status bytes of a paper, and by
//! sliding windows.
//!
//! [`suite`] lists the cases, [`targets`] has the goals, [`page`] shows the measurement, whose form
//! is that of `airdma bench`.

use crate::part::Part;

mod page;
mod suite;
mod targets;

/// `airdma bench streams`.
pub const STREAMS: Part = Part {
    cases: suite::all,
    seconds: 1,
    verdicts: targets::verdicts,
    shown: page::with_costs,
    is_drawn: true,
    title: "Streams of frames, measured",
    introduction: page::INTRODUCTION,
};
