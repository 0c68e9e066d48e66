//! What the box has done.

use std::fmt;

use serde::Serialize;

/// Since it began, but for the first lines, which are of the last second. A frame that nobody segmented counts
/// as one.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Counters {
    /// For how long it runs.
    pub seconds: f64,
    /// RoCE that went to the radio over the last second.
    pub roce_mbit: f64,
    /// What the radio carries, as far as that is known.
    pub link_mbit: f64,
    /// Of RoCE, waiting here.
    pub queue_bytes: usize,
    /// Waiting in the radio's own queue.
    pub radio_queue_bytes: u64,
    /// Whether the host is stopped.
    pub is_stopped: bool,

    /// The most that ever waited here.
    pub queue_peak_bytes: usize,
    /// RoCE that went from the host to the radio.
    pub roce_frames: u64,
    /// The same in bytes.
    pub roce_bytes: u64,
    /// All else that went that way.
    pub other_frames: u64,
    /// The same in bytes.
    pub other_bytes: u64,
    /// What went from the radio to the host.
    pub returned_frames: u64,
    /// The same in bytes.
    pub returned_bytes: u64,
    /// Frames for the other end of their cable, which go no further.
    pub of_the_cable_frames: u64,

    /// RoCE that found the queue here full.
    pub dropped_here: u64,
    /// What the radio's own queue dropped, whoever sent it.
    pub dropped_by_radio: u32,
    /// Frames that an interface refused.
    pub refused: u64,
    /// Frames that came faster than this process took them.
    pub missed: u64,

    /// How often the host was asked to stop.
    pub stops: u64,
    /// How often it was asked again, because the time ran out.
    pub renewals: u64,
    /// How often it was told to go on.
    pub resumes: u64,
    /// For how long it was stopped.
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
