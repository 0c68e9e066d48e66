//! A NIC that honours priority flow control, as plain RoCE hosts have and a veth lacks: for tests
//! of the box.

use std::time::{Duration, Instant};

use airdma_wire::Pfc;
use airdma_wire::pfc::quanta_ns;
use serde::Serialize;

use crate::controller::{interrupts, wait_for};
use crate::error::ControllerError;
use crate::frame::Class;
use crate::interface::{Interface, Sent, cable_len, ethernet};
use crate::shaper::Queue;

/// Counters of the NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Held {
    /// Frames that asked it to stop.
    pub stops: u64,
    /// Frames that let it resume.
    pub resumes: u64,
    /// RoCE frames that waited meanwhile.
    pub held_frames: u64,
    /// RoCE frames that passed.
    pub passed_frames: u64,
    /// RoCE frames dropped for lack of room.
    pub dropped: u64,
}

/// Most bytes held: as much as the memory of a host, from which a NIC takes what it sends.
const HELD_BYTES_MAX: usize = 256 << 20;
const BATCH: usize = 64;
const IDLE: Duration = Duration::from_millis(100);
const FAST_MBIT_PER_S: u32 = 100_000;

/// Passes frames between a host's interface and its cable until a signal arrives.
///
/// RoCE frames wait while the link partner asks for that.
///
/// # Errors
/// If an interface does not exist, or disappears.
pub fn nic(inside: &str, cable: &str, priority: u8) -> Result<Held, ControllerError> {
    let interrupts = interrupts()?;
    let mut inside = Interface::open(inside)?;
    let mut cable = Interface::open(cable)?;
    let mbit = cable.mbit_per_s().unwrap_or(FAST_MBIT_PER_S);
    let mut queue = Queue::new(HELD_BYTES_MAX);
    let mut stopped_until = Instant::now();
    let mut free_at = Instant::now();
    let mut held = Held::default();
    while interrupts.take().is_none() {
        for _ in 0..BATCH {
            let Some(frame) = cable.receive()? else { break };
            if let Some(asked) = Pfc::parse(ethernet(frame)) {
                let quanta = asked.quanta.get(usize::from(priority)).copied().flatten();
                if let Some(quanta) = quanta {
                    stopped_until = Instant::now() + Duration::from_nanos(quanta_ns(quanta, mbit));
                    held.stops += u64::from(quanta > 0);
                    held.resumes += u64::from(quanta == 0);
                }
            } else {
                inside.send(frame);
            }
        }
        let is_stopped = Instant::now() < stopped_until;
        for _ in 0..BATCH {
            let Some(frame) = inside.receive()? else {
                break;
            };
            if Class::of(ethernet(frame)) == Class::Roce {
                held.held_frames += u64::from(is_stopped);
                queue.push(frame.to_vec());
            } else {
                cable.send(frame);
            }
        }
        // One at a time, since a pause may arrive, and no faster than the cable.
        let now = Instant::now();
        if !is_stopped
            && now >= free_at
            && let Some(frame) = queue.front()
        {
            let ns = cable_len(frame) as u64 * 8 * 1000 / u64::from(mbit);
            if cable.send(frame) != Sent::Later {
                free_at = now + Duration::from_nanos(ns);
                held.passed_frames += 1;
                queue.pop();
            }
        }
        let wait = match (is_stopped, queue.is_empty()) {
            (_, true) => IDLE,
            (true, false) => stopped_until.saturating_duration_since(Instant::now()),
            (false, false) => Duration::ZERO,
        };
        wait_for([inside.raw(), cable.raw(), interrupts.raw()], wait);
    }
    held.dropped = queue.dropped;
    Ok(held)
}
