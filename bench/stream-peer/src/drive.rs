//! The sending program.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use airdma_engine::monotonic;
use airdma_link::traffic::cpu_s;
use anyhow::ensure;
use serde::Serialize;

use crate::ends::{Resources, Sending};
use crate::load::{Load, Stamp, resident_bytes};

/// Longest time without room.
const PATIENCE: Duration = Duration::from_secs(20);

/// What the sender found.
#[derive(Debug, Serialize)]
pub struct Sent {
    pub frames: u64,
    /// Frames that were due and found no room for a second.
    pub given_up: u64,
    pub cpu_s: f64,
    pub resident_bytes: u64,
    pub resources: Resources,
}

/// Sends frames for the time of the load, or as many as it has.
pub fn drive(sending: &mut impl Sending, load: &Load) -> anyhow::Result<Sent> {
    let cpu_before_s = cpu_s();
    let mut sent = Sent {
        frames: 0,
        given_up: 0,
        cpu_s: 0.0,
        resident_bytes: 0,
        resources: sending.resources(),
    };
    match load.rate {
        None => flow(sending, load, &mut sent)?,
        Some(rate) => cameras(sending, load, rate, &mut sent)?,
    }
    sent.cpu_s = cpu_s() - cpu_before_s;
    sent.resident_bytes = resident_bytes()?;
    for device in 0..load.devices {
        send_one(sending, device, &mut sent, true)?;
    }
    Ok(sent)
}

/// Sends a frame as soon as there is room for it.
fn send_one(
    sending: &mut impl Sending,
    device: u32,
    sent: &mut Sent,
    is_last: bool,
) -> anyhow::Result<()> {
    let patience = Instant::now() + PATIENCE;
    while !sending.has_room(device)? {
        ensure!(Instant::now() < patience, "the receiver frees no block");
        sending.wait(patience)?;
    }
    let stamp = Stamp {
        time: monotonic(),
        number: sent.frames,
        device,
        is_last,
    };
    sent.frames += u64::from(!is_last);
    sending.send(&stamp)
}

/// Sends as fast as the receiver takes it, the devices in turns.
fn flow(sending: &mut impl Sending, load: &Load, sent: &mut Sent) -> anyhow::Result<()> {
    let end = Instant::now() + load.time();
    let frames_max = load.frames.map_or(u64::MAX, u64::from);
    while Instant::now() < end && sent.frames < frames_max {
        for device in 0..load.devices {
            send_one(sending, device, sent, false)?;
        }
    }
    Ok(())
}

/// Sends frames of each device at its rate. Captures of the devices are spread evenly over the time
/// between two of one, as those of cameras that nothing synchronises.
fn cameras(
    sending: &mut impl Sending,
    load: &Load,
    rate: u32,
    sent: &mut Sent,
) -> anyhow::Result<()> {
    let apart = Duration::from_secs(1) / rate / load.devices;
    let waiting_max = (rate * load.devices) as usize;
    let captures = (load.seconds * f64::from(rate * load.devices)) as u32;
    let captures = captures.min(load.frames.unwrap_or(u32::MAX));
    let (begin, begin_ns) = (Instant::now(), monotonic());
    let mut waiting: VecDeque<Stamp> = VecDeque::new();
    let mut next = 0;
    while next < captures || !waiting.is_empty() {
        while next < captures && begin + apart * next <= Instant::now() {
            waiting.push_back(Stamp {
                time: begin_ns + (apart * next).as_nanos() as u64,
                number: u64::from(next),
                device: next % load.devices,
                is_last: false,
            });
            next += 1;
        }
        while waiting.len() > waiting_max {
            waiting.pop_front();
            sent.given_up += 1;
        }
        let mut at = 0;
        while let Some(stamp) = waiting.get(at).copied() {
            if sending.has_room(stamp.device)? {
                sending.send(&stamp)?;
                sent.frames += 1;
                waiting.remove(at);
            } else {
                at += 1;
            }
        }
        let over = begin + apart * next + PATIENCE;
        ensure!(Instant::now() < over, "the receiver frees no block");
        let until = if next < captures {
            begin + apart * next
        } else {
            over
        };
        if !waiting.is_empty() || next < captures {
            sending.wait(until)?;
        }
    }
    Ok(())
}
