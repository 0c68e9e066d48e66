//! The link by wall time: looks at both queues every few milliseconds, steps the model, sets rates
//! and losses.

use std::io;
use std::time::{Duration, Instant};

use airdma_sim::Time;
use serde::{Deserialize, Serialize};

use crate::air::{Air, Order, Seen, Side, Used};
use crate::error::{LinkError, Tried};
use crate::hosts::Hosts;
use crate::loss::Loss;
use crate::profile::Profile;
use crate::shaper::Shaper;
use crate::signal::Signal;

/// Interval between two steps.
pub const STEP: Duration = Duration::from_millis(4);
/// Interval between two reports of rates to users.
const REPORT: Duration = Duration::from_millis(500);
/// Changes of the rate below this share are not worth a system call.
const WORTH: f64 = 0.005;
/// First rate of a class, in bytes per second.
const FIRST_BYTES_PER_S: u64 = 1_000_000;

/// Configuration of a link.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Radio, MAC and queue.
    pub profile: Profile,
    /// SNR over time.
    pub signal: Signal,
    /// Number of other stations.
    pub stations: usize,
    /// Loss for each packet beside what the MAC loses: 0 to 1.
    pub loss: f64,
    /// Seed of everything random except the kernel's own.
    pub seed: u64,
    /// One scheme instead of rate control.
    pub mcs: Option<u8>,
    /// No radio at all.
    pub plain: bool,
}

/// State of a link, over the last half second unless a field says otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Seconds since the link came up.
    pub up_s: f64,
    /// In dB, without fading.
    pub snr_db: f64,
    /// From A to B, and from B to A.
    pub directions: [DirectionStatus; 2],
    /// Shares of time in which the air was used by A, by B, and by others, and in which frames
    /// collided.
    pub airtime: [f64; 4],
    /// The latest that a step was, in ms: above some 20, the machine is too busy for this link.
    pub late_ms: f64,
    /// CPU time of the controller, in shares of one core.
    pub cpu: f64,
}

/// State of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DirectionStatus {
    /// IP packets that arrived, in Mb/s.
    pub mbit: f64,
    /// Capacity of the radio now, in Mb/s, Ethernet headers included.
    pub rate_mbit: f64,
    /// The scheme that the sender thinks is best.
    pub mcs: Option<u8>,
    /// Packets in the queue now.
    pub backlog_packets: u64,
    /// Bytes in the queue now.
    pub backlog_bytes: u64,
    /// Packets that found the queue full since the link came up.
    pub dropped: u64,
    /// Packets that the MAC gave up, since the link came up.
    pub lost: u64,
    /// Packets that arrived since the link came up.
    pub delivered: u64,
    /// MPDUs sent again, of all that were sent.
    pub retries: f64,
    /// Loss behind the MAC now, 0 to 1.
    pub loss: f64,
}

/// Interface and queues of one host.
struct End {
    /// Name of its radio interface.
    interface: String,
    shaper: Shaper,
    /// For what arrives here.
    loss: Loss,
    rate: u64,
    dropped: u64,
    dropped_raw: u32,
}

/// Drives a link between two hosts.
pub struct Controller {
    air: Air,
    ends: [End; 2],
    signal: Signal,
    loss: f64,
    began: Instant,
    next: Instant,
    late: Duration,
    reported: Reported,
    seen: [Seen; 2],
    orders: [Order; 2],
}

/// Counts at the last report.
struct Reported {
    at: Duration,
    used: Used,
    cpu: Duration,
}

impl Controller {
    /// Puts queues and losses at the hosts' interfaces, and begins.
    pub fn new(hosts: &Hosts, plan: &Plan) -> Result<Controller, LinkError> {
        let mut profile = plan.profile.clone();
        if plan.signal.has_fading {
            profile.mac = profile.mac.steady();
        }
        let mut air = Air::new(&profile, plan.stations, plan.seed);
        air.fix_mcs(plan.mcs);
        air.set_snr(plan.signal.snr_db(Duration::ZERO));
        let [a, b] = Side::BOTH.map(|side| End::new(hosts, side, &profile));
        let began = Instant::now();
        let mut controller = Controller {
            air,
            ends: [a?, b?],
            signal: plan.signal.clone(),
            loss: plan.loss,
            began,
            next: began + STEP,
            late: Duration::ZERO,
            reported: Reported {
                at: Duration::ZERO,
                used: Used::default(),
                cpu: cpu_time(),
            },
            seen: [Seen::default(); 2],
            orders: [Order {
                bytes_per_s: FIRST_BYTES_PER_S,
                loss: 0.0,
            }; 2],
        };
        controller.step()?;
        Ok(controller)
    }

    /// Time of the next step.
    pub fn due(&self) -> Instant {
        self.next
    }

    /// One step: to be called when it is due. Returns how the link is, twice a second.
    ///
    /// # Errors
    ///
    /// If the kernel refuses, as it does once an interface or a namespace is gone.
    pub fn step(&mut self) -> Result<Option<Status>, LinkError> {
        let now = Instant::now();
        self.late = self.late.max(now.saturating_duration_since(self.next));
        // Steps that were missed are not made up for: the next sees all that happened.
        self.next = (self.next + STEP).max(now + STEP / 4);
        let at = now - self.began;
        self.air.set_snr(self.signal.snr_db(at));
        for (end, side) in self.ends.iter_mut().zip(Side::BOTH) {
            let gone = format!(
                "reading the queue at {} of host {side:?}, which may be gone",
                end.interface
            );
            let seen = end.shaper.counted().tried(gone)?;
            let more = seen.dropped.wrapping_sub(end.dropped_raw);
            end.dropped += u64::from(more);
            end.dropped_raw = seen.dropped;
            self.seen[side.index()] = seen;
        }
        self.orders = self
            .air
            .step(Time::from_nanos(at.as_nanos() as u64), self.seen);
        for side in Side::BOTH {
            let Order { bytes_per_s, loss } = self.orders[side.index()];
            let loss = 1.0 - (1.0 - loss) * (1.0 - self.loss);
            let set = format!("setting rate and loss of host {side:?}");
            self.ends[side.index()]
                .set_rate(bytes_per_s)
                .tried(set.clone())?;
            self.ends[1 - side.index()].loss.set(loss).tried(set)?;
        }
        let is_due = at - self.reported.at >= REPORT;
        Ok(is_due.then(|| self.report(at)))
    }

    /// Returns the state of the link since the last call.
    pub fn status(&mut self) -> Status {
        self.report(self.began.elapsed())
    }

    fn report(&mut self, at: Duration) -> Status {
        let used = self.air.used();
        let cpu = cpu_time();
        let passed = at - self.reported.at;
        let before = std::mem::replace(&mut self.reported, Reported { at, used, cpu });
        let share = |ns: u64| ns as f64 / passed.as_nanos() as f64;
        let of = |used: &Used, index: usize| used.stations[index].airtime_ns;
        let [a, b] = [0, 1].map(|index| share(of(&used, index) - of(&before.used, index)));
        let busy = share(used.airtime.busy_ns() - before.used.airtime.busy_ns());
        let collided = share(used.airtime.collided_ns - before.used.airtime.collided_ns);
        let others = (busy - a - b).max(0.0);
        let status = Status {
            up_s: at.as_secs_f64(),
            snr_db: self.signal.snr_db(at),
            directions: Side::BOTH.map(|side| self.direction(side, &used, &before.used, passed)),
            airtime: [a, b, others, collided],
            late_ms: self.late.as_secs_f64() * 1e3,
            cpu: (cpu - before.cpu).as_secs_f64() / passed.as_secs_f64(),
        };
        self.late = Duration::ZERO;
        status
    }

    fn direction(
        &self,
        side: Side,
        used: &Used,
        before: &Used,
        passed: Duration,
    ) -> DirectionStatus {
        let index = side.index();
        let mbit = |bytes: f64| bytes * 8.0 / 1e6;
        let delivered_bytes = used.delivered_bytes[index] - before.delivered_bytes[index];
        let ended = |used: &Used| used.delivered[index] + used.lost[index];
        let sent = used.stations[index].mpdus_sent - before.stations[index].mpdus_sent;
        let first = (ended(used) - ended(before)).min(sent);
        DirectionStatus {
            mbit: mbit(delivered_bytes as f64) / passed.as_secs_f64(),
            rate_mbit: mbit(self.orders[index].bytes_per_s as f64),
            mcs: used.mcs[index],
            backlog_packets: self.seen[index].backlog_packets,
            backlog_bytes: self.seen[index].backlog_bytes,
            dropped: self.ends[index].dropped,
            lost: used.lost[index],
            delivered: used.delivered[index],
            retries: (sent - first) as f64 / sent.max(1) as f64,
            loss: self.ends[1 - index].loss.probability(),
        }
    }
}

impl End {
    fn new(hosts: &Hosts, side: Side, profile: &Profile) -> Result<End, LinkError> {
        let queue = profile.mac.queue_packets_max as u32;
        let name = hosts.interface(side);
        let mtu = hosts
            .mtu(side)
            .tried(format!("looking at {name} of host {side:?}"))?;
        let mut step = "finding the radio";
        let shaper = hosts.on(side, || {
            let index = airdma_lab::interface(name)?;
            let made = Shaper::new(index, mtu, queue, FIRST_BYTES_PER_S);
            let shaper = made.map_err(|(error, what)| {
                step = what;
                error
            })?;
            // What was given stays as it is.
            if !shaper.splits() && !hosts.are_given() {
                step = "forbidding segmented packets";
                airdma_lab::Route::open()?.forbid_segmented(index)?;
            }
            Ok(shaper)
        });
        let shaper = shaper.tried(format!("{step} at {name} of host {side:?}"))?;
        let loss = hosts.on(side, || Loss::new(name));
        let what = format!("preparing loss by nftables at {name} of host {side:?}");
        Ok(End {
            interface: name.into(),
            shaper,
            loss: loss.tried(what)?,
            rate: FIRST_BYTES_PER_S,
            dropped: 0,
            dropped_raw: 0,
        })
    }

    fn set_rate(&mut self, bytes_per_s: u64) -> io::Result<()> {
        let change = bytes_per_s as f64 / self.rate as f64 - 1.0;
        if change.abs() < WORTH {
            return Ok(());
        }
        self.rate = bytes_per_s;
        self.shaper.set_rate(bytes_per_s)
    }
}

/// Removes what a controller installed at given interfaces, as far as it still exists.
pub(crate) fn clear(hosts: &Hosts) {
    for side in Side::BOTH {
        let name = hosts.interface(side);
        let _ = hosts.on(side, || Shaper::remove(airdma_lab::interface(name)?));
        let _ = hosts.on(side, || Loss::remove(name));
    }
}

/// CPU time of this process, user and system.
pub(crate) fn cpu_time() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: plain data that the call fills, and read only if it did.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return Duration::ZERO;
        }
        usage.assume_init()
    };
    let time = |time: libc::timeval| {
        Duration::from_secs(time.tv_sec as u64) + Duration::from_micros(time.tv_usec as u64)
    };
    time(usage.ru_utime) + time(usage.ru_stime)
}
