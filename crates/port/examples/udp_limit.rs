//! How fast the bare UDP port is: one thread sends, one receives, on one host or two.
//!
//! ```text
//! cargo run --release -p airdma-port --example udp_limit -- [packet=1040] [gso=on] [gro=on] [copy=off] [seconds=3]
//!           [window=1024] [role=both|alone|send|receive] [own=127.0.0.1] [peer=127.0.0.2]
//! ```
//!
//! `packet` counts BTH to ICRC. With `copy=on` the sender copies each payload into the batch and the receiver copies it
//! out, as the engine does.
//!
//! - `role=both`: two threads. The sender stays at most `window` packets ahead of the receiver, so that nothing is lost and
//!   the result is what both can do.
//! - `role=alone`: one thread and one socket do both, to `peer`: all the work there is, on one core.
//! - `role=send` and `role=receive`: one end each, in two processes. Only the send buffer holds the sender back.

#![allow(clippy::print_stdout)]

use std::error::Error;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use airdma_port::{Destination, Port, PortCounters, TransmitBatch, UdpConfig, UdpPort};

type AnyError = Box<dyn Error + Send + Sync>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Role {
    Both,
    Alone,
    Send,
    Receive,
}

struct Settings {
    role: Role,
    own: IpAddr,
    peer: IpAddr,
    packet: usize,
    copy: bool,
    seconds: f64,
    window: u64,
    config: UdpConfig,
}

/// What the two threads tell each other.
#[derive(Default)]
struct Progress {
    received: AtomicU64,
    stop: AtomicBool,
}

const ICRC: usize = 4;
const BATCH_BYTES: usize = 256 << 10;
const BATCH_PACKETS: usize = 256;
/// Packets one receive call looks at.
const BUDGET: usize = 256;
/// Without progress for this long, what is missing was lost.
const LOST_AFTER: Duration = Duration::from_millis(20);

fn main() -> Result<(), AnyError> {
    let settings = parse(std::env::args().skip(1))?;
    let bind = |address: IpAddr| UdpPort::bind(&[address], 0, settings.config.clone());
    let started = Instant::now();
    let (sent, received) = match settings.role {
        Role::Both => {
            let (mut sender, mut receiver) = (bind(settings.own)?, bind(settings.peer)?);
            transfer(&settings, Some(&mut sender), Some(&mut receiver))?
        }
        Role::Alone => alone(&settings, &mut bind(settings.peer)?)?,
        Role::Send => transfer(&settings, Some(&mut bind(settings.own)?), None)?,
        Role::Receive => transfer(&settings, None, Some(&mut bind(settings.own)?))?,
    };
    report(&settings, started.elapsed(), &sent, &received);
    if settings.role == Role::Alone {
        // Tells the truth even when other programs take turns on the core.
        let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
        let on_core_ns: f64 = text.split(' ').next().unwrap_or_default().parse()?;
        let each_ns = on_core_ns / received.rx_packets.max(1) as f64;
        println!("  on the core: {each_ns:.0} ns per packet, sent and received");
    }
    Ok(())
}

/// Runs the ends there are, each in its own thread.
fn transfer(
    settings: &Settings,
    sender: Option<&mut UdpPort>,
    receiver: Option<&mut UdpPort>,
) -> Result<(PortCounters, PortCounters), AnyError> {
    let progress = &Progress::default();
    thread::scope(|scope| {
        let sending = sender.map(|port| scope.spawn(|| send(settings, port, progress)));
        let receiving = receiver.map(|port| scope.spawn(|| receive(settings, port, progress)));
        thread::sleep(Duration::from_secs_f64(settings.seconds));
        progress.stop.store(true, Ordering::Relaxed);
        let join = |thread: Option<thread::ScopedJoinHandle<'_, _>>| match thread {
            Some(thread) => thread.join().map_err(|_| "a thread panicked")?,
            None => Ok(PortCounters::default()),
        };
        Ok((join(sending)?, join(receiving)?))
    })
}

fn parse(arguments: impl Iterator<Item = String>) -> Result<Settings, AnyError> {
    let mut settings = Settings {
        role: Role::Both,
        own: "127.0.0.1".parse()?,
        peer: "127.0.0.2".parse()?,
        packet: 1040,
        copy: false,
        seconds: 3.0,
        window: 1024,
        config: UdpConfig::default(),
    };
    for argument in arguments {
        let (key, value) = argument.split_once('=').ok_or("expected key=value")?;
        let on = value == "on";
        match key {
            "packet" => settings.packet = value.parse()?,
            "gso" => settings.config.segmentation = on,
            "gro" => settings.config.coalescing = on,
            "copy" => settings.copy = on,
            "seconds" => settings.seconds = value.parse()?,
            "window" => settings.window = value.parse()?,
            "own" => settings.own = value.parse()?,
            "peer" => settings.peer = value.parse()?,
            "role" => {
                settings.role = match value {
                    "both" => Role::Both,
                    "alone" => Role::Alone,
                    "send" => Role::Send,
                    "receive" => Role::Receive,
                    _ => return Err(format!("unknown role {value}").into()),
                };
            }
            _ => return Err(format!("unknown setting {key}").into()),
        }
    }
    if settings.packet < 16 || !settings.packet.is_multiple_of(4) {
        return Err("packet must be a multiple of 4 from 16 on".into());
    }
    Ok(settings)
}

fn send(
    settings: &Settings,
    port: &mut UdpPort,
    progress: &Progress,
) -> Result<PortCounters, AnyError> {
    let mut batch = TransmitBatch::with_capacity(BATCH_BYTES, BATCH_PACKETS);
    let memory = vec![0x5a_u8; 4 << 20];
    let window = if settings.role == Role::Send {
        u64::MAX
    } else {
        settings.window
    };
    let mut sent = 0_u64;
    let mut lost = 0_u64;
    let mut last = (0, Instant::now());
    while !progress.stop.load(Ordering::Relaxed) {
        let received = progress.received.load(Ordering::Acquire);
        if sent - lost - received >= window {
            if received != last.0 {
                last = (received, Instant::now());
            } else if last.1.elapsed() > LOST_AFTER {
                lost = sent - received;
            }
            thread::yield_now();
            continue;
        }
        let mut ahead = window - (sent - lost - received);
        while ahead > 0 && push(settings, &mut batch, &memory, sent) {
            sent += 1;
            ahead -= 1;
        }
        port.transmit(&mut batch)?;
    }
    port.look_for_drops();
    Ok(port.counters())
}

/// Adds one packet with a BTH-like beginning. False when the batch is full.
fn push(settings: &Settings, batch: &mut TransmitBatch, memory: &[u8], number: u64) -> bool {
    let len = settings.packet - ICRC;
    let Some(room) = batch.reserve(len) else {
        return false;
    };
    room[..12].copy_from_slice(&[4, 0, 255, 255, 0, 0, 0, 17, 0, 0, 0, number as u8]);
    if settings.copy {
        let at = number as usize * settings.packet % (memory.len() - len);
        room[12..].copy_from_slice(&memory[at..at + len - 12]);
    }
    let destination = Destination {
        address: settings.peer,
        source_index: 0,
        tos: 0,
        hop_limit: 64,
        flow_label: 0,
    };
    batch.commit(len, destination);
    true
}

fn receive(
    settings: &Settings,
    port: &mut UdpPort,
    progress: &Progress,
) -> Result<PortCounters, AnyError> {
    let mut memory = vec![0_u8; 4 << 20];
    let mut received = 0_u64;
    while !progress.stop.load(Ordering::Relaxed) {
        let delivered = take(settings, port, &mut memory, received)?;
        received += delivered;
        if delivered > 0 {
            progress.received.store(received, Ordering::Release);
        } else {
            // Others may share the core.
            thread::yield_now();
        }
    }
    port.look_for_drops();
    Ok(port.counters())
}

fn take(
    settings: &Settings,
    port: &mut UdpPort,
    memory: &mut [u8],
    before: u64,
) -> Result<u64, AnyError> {
    let mut at = before as usize * settings.packet % (memory.len() / 2);
    let delivered = port.receive(BUDGET, &mut |packet| {
        if settings.copy {
            let payload = &packet.bytes[12..];
            at = if at + payload.len() > memory.len() {
                0
            } else {
                at
            };
            memory[at..at + payload.len()].copy_from_slice(payload);
            at += payload.len();
        }
        std::hint::black_box(packet.bytes);
    })?;
    Ok(delivered as u64)
}

/// One thread and one socket send and receive in turn.
fn alone(
    settings: &Settings,
    port: &mut UdpPort,
) -> Result<(PortCounters, PortCounters), AnyError> {
    let mut batch = TransmitBatch::with_capacity(BATCH_BYTES, BATCH_PACKETS);
    let mut memory = vec![0x5a_u8; 4 << 20];
    let mut sent = 0;
    let end = Instant::now() + Duration::from_secs_f64(settings.seconds);
    while Instant::now() < end {
        for _ in 0..BATCH_PACKETS.min(settings.window as usize) {
            if !push(settings, &mut batch, &memory, sent) {
                break;
            }
            sent += 1;
        }
        port.transmit(&mut batch)?;
        while take(settings, port, &mut memory, sent)? > 0 {}
    }
    port.look_for_drops();
    Ok((port.counters(), port.counters()))
}

fn report(settings: &Settings, elapsed: Duration, sent: &PortCounters, received: &PortCounters) {
    let ratio = |packets: u64, calls: u64| packets as f64 / calls.max(1) as f64;
    let seconds = elapsed.as_secs_f64();
    let (packets, bytes) = match settings.role {
        Role::Send => (sent.tx_packets, sent.tx_bytes),
        Role::Both | Role::Alone | Role::Receive => (received.rx_packets, received.rx_bytes),
    };
    println!(
        "{} B packets: {:.2} Gb/s, {:.3} Mpps, {:.0} ns per packet",
        settings.packet,
        bytes as f64 * 8.0 / seconds / 1e9,
        packets as f64 / seconds / 1e6,
        seconds * 1e9 / packets.max(1) as f64,
    );
    if settings.role != Role::Receive {
        println!(
            "  sent: {:.1} packets per send, held back {} times, refused {}",
            ratio(sent.tx_packets, sent.tx_sends),
            sent.tx_again,
            sent.tx_errors
        );
    }
    if settings.role != Role::Send {
        println!(
            "  received: {:.1} packets per buffer, {:.1} per call; other identification {}, bad ICRC {}, overflow {}",
            ratio(received.rx_packets, received.rx_buffers),
            ratio(received.rx_packets, received.rx_batches),
            received.rx_id_recovered,
            received.rx_bad_icrc,
            received.rx_overflow
        );
    }
}
