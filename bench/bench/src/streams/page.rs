//! What the page says, and the measurement with what streams cost.

use crate::measurement::{Figure, Measurement, StreamCost};

type Value = fn(&StreamCost) -> Option<f64>;

/// Figures that a run of another one yields.
const DERIVED: [(Figure, Figure, Value); 6] = [
    (Figure::Bandwidth, Figure::Cpu, |cost| {
        Some(cost.cpu_s_per_gb)
    }),
    (Figure::Cameras, Figure::InTime, |cost| cost.in_time),
    (Figure::Cameras, Figure::Uneven, |cost| cost.uneven),
    (Figure::Cameras, Figure::CamerasCpu, |cost| {
        Some(cost.cpu_percent)
    }),
    (Figure::Cameras, Figure::CameraMemory, |cost| {
        Some(cost.device_bytes)
    }),
    (Figure::Cameras, Figure::CameraQueues, |cost| {
        Some(cost.device_entries)
    }),
];

/// The measurement with what was found beside its values as curves of their own.
pub fn with_costs(taken: &Measurement) -> Measurement {
    let mut all = taken.clone();
    for (of, figure, value) in DERIVED {
        let curves = taken.curves.iter().filter(|curve| curve.figure == of);
        let derived = curves.map(|curve| curve.of_value(figure, |sample| value(&sample.stream?)));
        all.curves
            .extend(derived.filter(|curve| !curve.points.is_empty()));
    }
    all
}

/// What comes before the figures.
pub const INTRODUCTION: &str = "Written by `airdma bench streams`. Two network namespaces joined by a veth of MTU 1500, one core a side; all series of a \
row take turns. Each end is `airdma-stream-peer` (`bench/stream-peer`), one program over five disciplines: *credits* are the crate `airdma-stream` by its public interface ([design](../design/033-streams.md)); \
*status bytes* are the discipline of Xiao et al. (Appl. Sci. 2024, 14, 7437), three arrays of bytes on one queue pair; a *sliding window* is that paper's baseline, WRITE with immediate data and a SEND for each ACK, on a queue pair for each device. \
The latter two are written against the verbs of airdma's engine, without a library between, and all wait alike: they poll for 100 us and then sleep. The sender's thread polls the ACKs itself; a variant merges ACKs, another frees blocks in any order.\n\n\
Blocks are filled before the run, so that neither filling nor processing a frame counts, as in the paper; the receiver compares words at both ends of each frame. There are three blocks at each end, unless the figure is by their number. The clock is that of both hosts.\n\n\
*Control delay* (figures 10, 11): the receiver holds all blocks but one, frees one, and the time runs until the sender knows. The paper's own figure is the time of its READ alone. \
*Latency* (figure 12) is one way, with one frame on its way. *Kept* (figure 18): frames of 64 KiB as fast as possible, one block is kept for 100 ms in the middle. \
*Cameras* (figure 19): 25 frames a second from each, captures spread evenly; 12 of 640x480x3, more of a sixteenth of that; each discipline has three blocks for each camera in all, but one series a third of that. CPU and memory are those of both ends, memory is resident and has the programs in it; \
queues are entries of send, receive and completion queues (figures 16, 17).";
