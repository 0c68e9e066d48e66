//! Counters of the box.

use std::fmt;

use serde::Serialize;

/// Counters since the start; the first fields are of the last second.
///
/// An unsegmented frame counts as one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// Seconds since the start.
    pub seconds: f64,
    /// RoCE sent to the radio in the last second.
    pub roce_mbit: f64,
    /// Rate of the radio, as far as known.
    pub link_mbit: f64,
    /// Bytes of RoCE that wait here.
    pub queue_bytes: usize,
    /// Bytes in the radio's own queue.
    pub radio_queue_bytes: u64,
    /// Whether the host is stopped.
    pub is_stopped: bool,

    /// Most bytes that ever waited here.
    pub queue_peak_bytes: usize,
    /// RoCE frames from the host to the radio.
    pub roce_frames: u64,
    /// Their bytes.
    pub roce_bytes: u64,
    /// Other frames from the host to the radio.
    pub other_frames: u64,
    /// Their bytes.
    pub other_bytes: u64,
    /// Frames from the radio to the host.
    pub returned_frames: u64,
    /// Their bytes.
    pub returned_bytes: u64,
    /// Frames for the link partner, which are not forwarded.
    pub of_the_cable_frames: u64,

    /// RoCE frames dropped because the queue here was full.
    pub dropped_here: u64,
    /// Frames that the radio's own queue dropped, from any sender.
    pub dropped_by_radio: u32,
    /// Frames that an interface refused.
    pub refused: u64,
    /// Frames lost because this process was too slow.
    pub missed: u64,

    /// Number of times that the host was stopped.
    pub stops: u64,
    /// Number of renewals before a pause expired.
    pub renewals: u64,
    /// Number of times that the host could resume.
    pub resumes: u64,
    /// Seconds for which it was stopped.
    pub stopped_seconds: f64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kb = |bytes: u64| bytes / 1000;
        write!(
            f,
            "{:.1} s: RoCE {:.1} Mb/s of {:.1}, {} KB wait here, {} KB in the radio's queue; host {}, {} stops ({:.2} s); \
             dropped {} here, {} by the radio; refused {}, missed {}",
            self.seconds,
            self.roce_mbit,
            self.link_mbit,
            kb(self.queue_bytes as u64),
            kb(self.radio_queue_bytes),
            if self.is_stopped { "stopped" } else { "going" },
            self.stops,
            self.stopped_seconds,
            self.dropped_here,
            self.dropped_by_radio,
            self.refused,
            self.missed
        )
    }
}
