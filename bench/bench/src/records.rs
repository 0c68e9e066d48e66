//! `airdma bench records`: Write-Record next to SEND and WRITE of the same device, in turns.
//!
//! [`suite`] lists the cases, [`targets`] has the goals, [`page`] shows the measurement, whose form
//! is that of `airdma bench`.

use crate::part::Part;

mod page;
mod suite;
mod targets;

/// `airdma bench records`.
pub const RECORDS: Part = Part {
    cases: suite::all,
    seconds: 1,
    verdicts: targets::verdicts,
    shown: page::with_shares,
    is_drawn: true,
    title: "Write-Record, measured",
    introduction: page::INTRODUCTION,
};
