//! A path of one hop, byte by byte: a sender with a pacer, its send queue, a line whose rate
//! changes, a receiver's socket and its program. Feedback comes late or not at all.

use std::collections::VecDeque;
use std::time::Duration;

use airdma_sim::{Random, Time};
use airdma_transport::rate::{
    Acknowledged, BURST_BYTES_MAX, Feedback, Occupancy, Pacer, Permit, Rate, RateController,
    Reading,
};

/// Length of the model's steps.
const STEP: Duration = Duration::from_micros(20);

pub fn mbit(n: u64) -> Rate {
    Rate::from_bits_per_s(n * 1_000_000)
}

pub fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Something that empties a buffer, at a rate that depends on time.
pub type Speed = Box<dyn FnMut(Time) -> Rate>;

pub fn steady(rate: Rate) -> Speed {
    Box::new(move |_| rate)
}

/// A new rate every 40 ms, by a factor between 1/2 and 2 of the last: SMUFF figure 10.
pub fn restless(seed: u64, from: Rate, least: Rate, most: Rate) -> Speed {
    let mut random = Random::new(seed);
    let (mut rate, mut until) = (from, Time::ZERO + ms(40));
    Box::new(move |now| {
        while now >= until {
            let factor = 2.0_f64.powf(random.fraction() * 2.0 - 1.0);
            rate = rate
                .times((factor * 1e6) as u64, 1_000_000)
                .clamp(least, most);
            until = until + ms(40);
        }
        rate
    })
}

/// Parameters of a path.
pub struct Setup {
    pub line: Speed,
    pub queue_bytes: u64,
    /// Whether the kernel reports the bytes in the send queue.
    pub is_queue_seen: bool,
    pub delay: Duration,
    /// Least and most delay of the feedback.
    pub feedback_ms: (u64, u64),
    pub feedback_every: Duration,
    pub feedback_loss: f64,
    /// Times at which no feedback arrives.
    pub is_deaf: fn(Time) -> bool,
    pub socket: Speed,
    pub socket_bytes: u64,
    pub application: Speed,
    pub application_bytes: u64,
    /// Times at which the program at this end has data.
    pub offers: fn(Time) -> bool,
    pub seed: u64,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            line: steady(mbit(650)),
            queue_bytes: 4 << 20,
            is_queue_seen: true,
            delay: ms(1),
            feedback_ms: (1, 1),
            feedback_every: ms(2),
            feedback_loss: 0.0,
            is_deaf: |_| false,
            socket: steady(mbit(20_000)),
            socket_bytes: 2 << 20,
            application: steady(mbit(20_000)),
            application_bytes: 4 << 20,
            offers: |_| true,
            seed: 7,
        }
    }
}

/// A buffer and the rate that empties it.
struct Stage {
    speed: Speed,
    bytes: u64,
    bytes_max: u64,
    drained: u64,
    rest: u64,
    could: u64,
}

impl Stage {
    fn new(speed: Speed, bytes_max: u64) -> Self {
        Stage {
            speed,
            bytes: 0,
            bytes_max,
            drained: 0,
            rest: 0,
            could: 0,
        }
    }

    /// Accepts what fits; the rest is lost.
    fn enter(&mut self, bytes: u64) -> u64 {
        let taken = bytes.min(self.bytes_max - self.bytes);
        self.bytes += taken;
        bytes - taken
    }

    /// Bytes that leave in a step.
    fn step(&mut self, now: Time) -> u64 {
        let nanos = (self.speed)(now).bytes_per_s() * STEP.as_nanos() as u64 + self.rest;
        self.rest = nanos % 1_000_000_000;
        let could = nanos / 1_000_000_000;
        self.could += could;
        let leaves = could.min(self.bytes);
        self.bytes -= leaves;
        self.drained += leaves;
        leaves
    }

    fn reading(&self) -> Reading {
        Reading {
            occupancy: Occupancy {
                bytes: self.bytes,
                capacity: Some(self.bytes_max),
            },
            drained_bytes: self.drained,
        }
    }
}

/// Bytes that wait for the line, or are on it, with the time they were sent.
type Chunks = VecDeque<(Time, u64)>;

struct Answer {
    arrives: Time,
    rtt: Duration,
    acknowledged: u64,
    feedback: Feedback,
}

/// Observations from `Path::count_from` on.
#[derive(Default)]
pub struct Seen {
    /// Bytes that the line carried, and the bytes that it could have.
    pub carried: u64,
    pub could: u64,
    /// Bytes that the program read.
    pub received: u64,
    pub lost: u64,
    pub queue_longest: u64,
    /// Time that a byte arriving now would wait for the line, in us, at each step.
    waits_us: Vec<u32>,
}

impl Seen {
    pub fn utilisation(&self) -> f64 {
        self.carried as f64 / self.could as f64
    }

    /// The wait that this share of all steps stayed below, in ms.
    pub fn wait_ms(&mut self, share: f64) -> f64 {
        self.waits_us.sort_unstable();
        let index = (self.waits_us.len() as f64 * share) as usize;
        f64::from(self.waits_us[index.min(self.waits_us.len() - 1)]) / 1e3
    }
}

pub struct Path<C> {
    pub controller: C,
    pub now: Time,
    pub seen: Seen,
    setup: Setup,
    pacer: Pacer,
    random: Random,
    queue: Stage,
    queued: Chunks,
    flying: Chunks,
    socket: Stage,
    application: Stage,
    first_arrival: Option<Time>,
    arrived: u64,
    /// Wait of the last byte that left the line.
    waited: Duration,
    sent: u64,
    acknowledged: u64,
    lost: u64,
    answers: Vec<Answer>,
    feedback_at: Time,
}

impl<C: RateController> Path<C> {
    pub fn new(controller: C, mut setup: Setup) -> Self {
        let speed = |speed: &mut Speed| std::mem::replace(speed, steady(Rate::ZERO));
        Path {
            controller,
            now: Time::ZERO,
            seen: Seen::default(),
            pacer: Pacer::new(Time::ZERO),
            random: Random::new(setup.seed),
            queue: Stage::new(speed(&mut setup.line), setup.queue_bytes),
            queued: Chunks::new(),
            flying: Chunks::new(),
            socket: Stage::new(speed(&mut setup.socket), setup.socket_bytes),
            application: Stage::new(speed(&mut setup.application), setup.application_bytes),
            first_arrival: None,
            arrived: 0,
            waited: Duration::ZERO,
            sent: 0,
            acknowledged: 0,
            lost: 0,
            answers: Vec::new(),
            feedback_at: Time::ZERO,
            setup,
        }
    }

    /// Runs on for `time`; returns the observations.
    pub fn run(&mut self, time: Duration) -> Seen {
        self.seen = Seen::default();
        let (carried, could, received) = (
            self.queue.drained,
            self.queue.could,
            self.application.drained,
        );
        let until = self.now + time;
        while self.now < until {
            self.step();
        }
        self.seen.carried = self.queue.drained - carried;
        self.seen.could = self.queue.could - could;
        self.seen.received = self.application.drained - received;
        std::mem::take(&mut self.seen)
    }

    /// Runs until the line carries 95 % of its rate over 10 ms; returns the time until then.
    pub fn time_to_line_rate(&mut self) -> Duration {
        let began = self.now;
        while self.run(ms(10)).utilisation() < 0.95 {
            assert!(self.now.duration_since(began) < ms(10_000), "never");
        }
        self.now.duration_since(began)
    }

    pub fn queue_bytes(&self) -> u64 {
        self.queue.bytes
    }

    fn step(&mut self) {
        self.now = self.now + STEP;
        self.take_answers();
        if self
            .controller
            .poll_timeout()
            .is_some_and(|at| at <= self.now)
        {
            let occupancy = self.queue.reading().occupancy;
            let seen = self.setup.is_queue_seen.then_some(occupancy);
            self.controller.handle_timeout(self.now, seen);
        }
        self.send();
        self.carry();
        self.receive();
    }

    fn send(&mut self) {
        while (self.setup.offers)(self.now) {
            let under_way = self.sent - self.lost - self.acknowledged;
            let room = self.controller.window().saturating_sub(under_way);
            let wanted = room.min(BURST_BYTES_MAX);
            let permit = self.pacer.poll(self.now, self.controller.rate(), wanted);
            let Permit::Now(most) = permit else { return };
            let bytes = wanted.min(most);
            if bytes == 0 {
                return;
            }
            self.pacer.spend(bytes);
            self.controller.handle_sent(self.now, bytes);
            self.sent += bytes;
            let lost = self.queue.enter(bytes);
            self.queued.push_back((self.now, bytes - lost));
            self.lose(lost);
        }
    }

    fn carry(&mut self) {
        let mut leaves = self.queue.step(self.now);
        let arrives = self.now + self.setup.delay;
        while leaves > 0 {
            let (sent, bytes) = self.queued.front_mut().expect("what leaves was queued");
            let part = leaves.min(*bytes);
            self.flying.push_back((arrives, part));
            self.waited = self.now.duration_since(*sent);
            *bytes -= part;
            leaves -= part;
            if *bytes == 0 {
                self.queued.pop_front();
            }
        }
        self.seen.queue_longest = self.seen.queue_longest.max(self.queue.bytes);
        let rate = (self.queue.speed)(self.now);
        let wait = rate.time_for(self.queue.bytes).unwrap_or(Duration::MAX);
        let wait_us = u32::try_from(wait.as_micros()).unwrap_or(u32::MAX);
        self.seen.waits_us.push(wait_us);
    }

    fn receive(&mut self) {
        while let Some(&(at, bytes)) = self.flying.front()
            && at <= self.now
        {
            self.flying.pop_front();
            self.first_arrival = self.first_arrival.or(Some(at));
            self.arrived += bytes;
            let lost = self.socket.enter(bytes);
            self.lose(lost);
        }
        // A transport without room above it leaves its bytes in the socket.
        let room = self.application.bytes_max - self.application.bytes;
        let was = self.socket.drained;
        if room >= BURST_BYTES_MAX {
            self.socket.step(self.now);
        }
        self.application.enter(self.socket.drained - was);
        self.application.step(self.now);
        if self.first_arrival.is_some() && self.now >= self.feedback_at {
            self.feedback_at = self.now + self.setup.feedback_every;
            self.answer();
        }
    }

    fn answer(&mut self) {
        let (least, most) = self.setup.feedback_ms;
        let delay = Duration::from_micros(self.random.between(least * 1_000, most * 1_000));
        if (self.setup.is_deaf)(self.now) || self.random.chance(self.setup.feedback_loss) {
            return;
        }
        let first = self.first_arrival.expect("something arrived");
        self.answers.push(Answer {
            arrives: self.now + delay,
            rtt: self.waited + self.setup.delay + delay,
            acknowledged: self.arrived,
            feedback: Feedback {
                at: Time::ZERO + self.now.duration_since(first),
                socket: self.socket.reading(),
                application: Some(self.application.reading()),
            },
        });
    }

    fn take_answers(&mut self) {
        let now = self.now;
        while let Some(index) = self.answers.iter().position(|answer| answer.arrives <= now) {
            let answer = self.answers.swap_remove(index);
            // What was lost behind the line is counted there.
            let acknowledged = answer.acknowledged.min(self.sent - self.lost);
            let more = acknowledged.saturating_sub(self.acknowledged);
            self.acknowledged += more;
            self.controller.handle_rtt(now, answer.rtt);
            let acknowledged = Acknowledged {
                bytes: more,
                marked_bytes: 0,
            };
            self.controller.handle_acknowledged(now, acknowledged);
            self.controller.handle_feedback(now, &answer.feedback);
        }
    }

    fn lose(&mut self, bytes: u64) {
        if bytes > 0 {
            self.seen.lost += bytes;
            self.lost += bytes;
            self.controller.handle_lost(self.now, bytes);
        }
    }
}
