//! One run on a link of its own, with ping beside it.

use std::path::Path;
use std::thread::{self, ScopedJoinHandle};
use std::time::{Duration, Instant};

use airdma_link::measure::{Link, PORT, Running, TRAFFIC};
use airdma_link::{LinkError, Options as LinkOptions, Plan, Side, ipv4};

use super::plan::{BESIDE_S, UDP_S};
use super::taken::{Beside, LOOK, Sample};
use super::transport::{Transport, flow, limit};
use crate::machine::Idle;

const ECHO: u16 = PORT + 1;
const FOREGROUND: u16 = PORT + 2;
/// Short enough that a transfer of a quarter of a second has some pings.
const PING_APART_S: &str = "0.02";
/// Pings start under load: earlier ones would tell the radio's rate control that frames are short.
const PING_AFTER_BYTES: &str = "250000";
const POLL: Duration = Duration::from_millis(20);
/// Largest delay of the link's own counters.
const COUNTED: Duration = Duration::from_millis(550);

/// Runs a transport on a link. A failure is a result.
pub fn sample(
    airdma: &Path,
    options: &LinkOptions,
    transport: Transport,
    megabytes: u64,
) -> anyhow::Result<Sample> {
    // A walk follows the link's own clock.
    let link = match options.walk {
        Some(_) => Link::new(airdma, options)?,
        None => Link::in_use(airdma, options)?,
    };
    let answered_before = answers(&link);
    let plan = options.plan()?;
    let bytes = match options.walk {
        Some(_) => u64::MAX,
        None => megabytes * 1_000_000,
    };
    let seconds = match (options.walk, transport) {
        (Some(_), _) => plan.signal.duration().as_secs_f64(),
        (None, Transport::Udp) => UDP_S,
        (None, _) => limit(bytes).as_secs_f64(),
    };
    let (echo, ping) = pings(&link, seconds)?;
    let (sample, over_time) = thread::scope(|scope| {
        let flow = scope.spawn(|| {
            let idle = Idle::now();
            let mut sample = flow(&link, airdma, transport, bytes, seconds, PORT)?;
            sample.note_busy(idle.and_then(Idle::busy_since));
            Ok(sample)
        });
        let over_time = watch(&link, &plan, &flow);
        (joined(flow), over_time)
    });
    let mut sample = sample.unwrap_or_else(|error: LinkError| Sample {
        error: Some(error.to_string()),
        complaints: link.complaints(),
        ..Sample::default()
    });
    sample.over_time = over_time;
    // Ping ends without its responder: later pings would run beside nothing.
    drop(echo);
    let pinged = ping.found().unwrap_or_default();
    thread::sleep(COUNTED);
    let answered = answers(&link) - answered_before;
    let mut times = pinged.round_trips_ms.clone();
    times.sort_by(f64::total_cmp);
    let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
    sample.ping_ms = at(0.5).zip(at(0.95)).map(|(median, most)| [median, most]);
    let answers = answered.saturating_sub(pinged.packets);
    sample.answers_per_mb = answers as f64 * 1e6 / sample.bytes.max(1.0);
    Ok(sample)
}

/// Packets that the receiver has sent.
fn answers(link: &Link) -> u64 {
    let back = &link.status().directions[1];
    back.delivered + back.lost
}

/// Starts a responder on B, and pings from A as long as it runs.
fn pings(link: &Link, seconds: f64) -> Result<(Running, Running), LinkError> {
    let (port, seconds) = (ECHO.to_string(), seconds.to_string());
    let to = format!("{}:{ECHO}", ipv4(Side::B));
    let echo = [&TRAFFIC[..], &["echo", "--port", &port]].concat();
    let ping = [
        "ping",
        "--to",
        &to,
        "--seconds",
        &seconds,
        "--apart",
        PING_APART_S,
        "--after-bytes",
        PING_AFTER_BYTES,
    ];
    let ping = [&TRAFFIC[..], &ping].concat();
    Ok((link.own_ready(Side::B, &echo)?, link.own(Side::A, &ping)?))
}

/// Samples the arrived payload and the radio's rate while `work` runs.
fn watch<T>(link: &Link, plan: &Plan, work: &ScopedJoinHandle<'_, T>) -> Vec<[f64; 2]> {
    let began = Instant::now();
    let mut over_time = Vec::new();
    while !work.is_finished() {
        thread::sleep(POLL);
        if began.elapsed().as_secs_f64() > LOOK.as_secs_f64() * (over_time.len() + 1) as f64 {
            let status = link.status();
            let at = Duration::from_secs_f64(status.up_s);
            let rate = plan.profile.goodput_mbit(plan.signal.snr_db(at));
            over_time.push([status.directions[0].mbit, rate]);
        }
    }
    over_time
}

/// TCP CUBIC alone, and beside a transport, on links of their own.
pub fn beside(
    airdma: &Path,
    options: &LinkOptions,
    transport: Transport,
    found: &mut Beside,
) -> anyhow::Result<()> {
    let cubic = Transport::Tcp("cubic");
    let tcp = |link: &Link| flow(link, airdma, cubic, u64::MAX, BESIDE_S, FOREGROUND);
    let link = Link::in_use(airdma, options)?;
    let alone_mbit = tcp(&link)?.mbit;
    drop(link);
    let link = Link::in_use(airdma, options)?;
    let longer = BESIDE_S + 1.0;
    let mbit = thread::scope(|scope| {
        let other = scope.spawn(|| flow(&link, airdma, transport, u64::MAX, longer, PORT));
        // The transport has reached its rate when TCP starts.
        thread::sleep(LOOK);
        let mbit = tcp(&link).map(|sample| sample.mbit);
        joined(other).and(mbit)
    });
    found.alone_mbit.push(alone_mbit);
    match mbit {
        Ok(mbit) => found.beside_mbit.push(mbit),
        // If one of the two fails, there is nothing to compare.
        Err(error) => found.errors.push(error.to_string()),
    }
    Ok(())
}

fn joined<T>(work: ScopedJoinHandle<'_, T>) -> T {
    match work.join() {
        Ok(found) => found,
        Err(panic) => std::panic::resume_unwind(panic),
    }
}
