//! The box at work: one thread, two interfaces.

use std::os::fd::RawFd;
use std::ptr;
use std::time::{Duration, Instant};

use airdma_lab::Interrupts;
use airdma_wire::Pfc;
use airdma_wire::pfc::quanta_ns;

use crate::counters::Counters;
use crate::error::{ControllerError, Tried};
use crate::frame::Class;
use crate::interface::{HEADER_LEN, Interface, Sent, cable_len, ethernet};
use crate::pause::{Ask, Pause};
use crate::radio_rate::RadioRate;
use crate::shaper::{Bucket, Queue};

/// Configuration of a box.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// The interface to the plain host.
    pub host: String,
    /// The interface to the air.
    pub radio: String,
    /// Rate of the radio; `None`: as its queue or its driver shows.
    pub rate_mbit: Option<f64>,
    /// Capacity of the box's queue in bytes.
    pub queue_bytes: usize,
    /// The host's priority that carries RoCE: 0 to 7.
    pub priority: u8,
}

/// Least capacity of the queue: a smaller one is soon full of unsegmented frames.
const QUEUE_BYTES_MIN: usize = 1 << 20;
const PRIORITY_MAX: u8 = 7;
/// Queue length at which the host is stopped; at half of it, it may resume.
///
/// The rest of the queue is for frames that arrive until the host has stopped, which are few, and
/// while this process waits for the CPU, which are not: 1.25 MB in a millisecond at 10 Gb/s.
const HIGH_BYTES: usize = 256 << 10;
/// Assumed speed of a cable that reports none: with a fast one, a pause that is too short is
/// renewed.
const FAST_MBIT_PER_S: u32 = 100_000;
/// Most frames taken from one interface before the other gets its turn.
const BATCH: usize = 64;
/// Interval of checks of the shaper while something waits.
const TURN: Duration = Duration::from_micros(500);
/// Interval of checks of the radio while nothing waits.
const IDLE: Duration = Duration::from_millis(100);
const REPORT: Duration = Duration::from_secs(1);
/// Most buffers kept for reuse.
const SPARE_MAX: usize = 1024;

/// A box between two interfaces.
pub struct Controller {
    host: Interface,
    radio: Interface,
    queue: Queue,
    bucket: Bucket,
    pause: Pause,
    rate: RadioRate,
    priority: u8,
    began: Instant,
    counters: Counters,
    reported: (Duration, u64),
    spare: Vec<Vec<u8>>,
}

impl Controller {
    /// Opens a box between two interfaces in the network namespace of the calling thread.
    ///
    /// The interfaces should have no addresses.
    ///
    /// # Errors
    /// The reason and its remedy.
    pub fn open(options: &Options) -> Result<Controller, ControllerError> {
        let asked = |text: String| Err(ControllerError::Asked(text));
        if options.priority > PRIORITY_MAX {
            return asked(format!(
                "--pfc {}: it must be between 0 and 7",
                options.priority
            ));
        }
        if options.queue_bytes < QUEUE_BYTES_MIN {
            let least = QUEUE_BYTES_MIN;
            return asked(format!(
                "--queue {}: it must be {least} or more",
                options.queue_bytes
            ));
        }
        if options.host == options.radio {
            return asked("--host and --radio must be two interfaces".into());
        }
        let said = options.rate_mbit.map(|mbit| mbit * 1e6 / 8.0);
        if said.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) {
            return asked("--rate must be above 0".into());
        }
        let host = Interface::open(&options.host)?;
        let radio = Interface::open(&options.radio)?;
        let rate = RadioRate::open(&radio, said)?;
        let mbit = host.mbit_per_s().unwrap_or(FAST_MBIT_PER_S);
        let lasts = Duration::from_nanos(quanta_ns(u16::MAX, mbit));
        Ok(Controller {
            bucket: Bucket::new(rate.allowed()),
            pause: Pause::new(HIGH_BYTES, HIGH_BYTES / 2, lasts),
            queue: Queue::new(options.queue_bytes),
            priority: options.priority,
            began: Instant::now(),
            counters: Counters::default(),
            reported: (Duration::ZERO, 0),
            spare: Vec::new(),
            host,
            radio,
            rate,
        })
    }

    /// Forwards until SIGINT, SIGTERM or SIGHUP; then lets the host resume, and drops what waits.
    ///
    /// `each` is called once a second.
    ///
    /// # Errors
    /// If an interface disappears.
    pub fn run(&mut self, mut each: impl FnMut(&Counters)) -> Result<Counters, ControllerError> {
        let interrupts = interrupts()?;
        loop {
            self.turn()?;
            if interrupts.take().is_some() {
                if self.pause.is_on() {
                    self.ask(Ask::Go);
                }
                return Ok(self.report());
            }
            if self.now() - self.reported.0 >= REPORT {
                each(&self.report());
            }
            let fds = [self.host.raw(), self.radio.raw(), interrupts.raw()];
            wait_for(fds, self.wait());
        }
    }

    /// Source of the rate, for display.
    pub fn source(&self) -> &'static str {
        self.rate.source()
    }

    fn turn(&mut self) -> Result<(), ControllerError> {
        if !self.rate.see(self.began, !self.queue.is_empty()) {
            return Err(ControllerError::Gone(self.radio.name().to_owned()));
        }
        let now = self.now();
        self.bucket.set_rate(now, self.rate.allowed());
        self.take_from_host(now)?;
        self.take_from_radio()?;
        self.let_go(now);
        self.watch(now);
        Ok(())
    }

    /// How long nothing has to be done unless a frame arrives.
    fn wait(&self) -> Duration {
        if self.queue.is_empty() {
            return IDLE;
        }
        let turn = self.bucket.wait().clamp(TURN, 2 * TURN);
        turn.min(self.pause.wait(self.now()).unwrap_or(turn))
    }

    fn take_from_host(&mut self, now: Duration) -> Result<(), ControllerError> {
        for _ in 0..BATCH {
            let Some(frame) = self.host.receive()? else {
                break;
            };
            match Class::of(ethernet(frame)) {
                Class::OfTheCable => self.counters.of_the_cable_frames += 1,
                Class::Other => {
                    let len = cable_len(frame);
                    match self.radio.send(frame) {
                        Sent::Yes => {
                            self.counters.other_frames += 1;
                            self.counters.other_bytes += len as u64;
                            self.bucket.pay_for_priority(len);
                        }
                        Sent::Later | Sent::Dropped => self.counters.refused += 1,
                    }
                }
                Class::Roce => {
                    let mut waiting = self.spare.pop().unwrap_or_default();
                    waiting.extend_from_slice(frame);
                    if let Some(refused) = self.queue.push(waiting) {
                        self.keep(refused);
                    }
                    self.watch(now);
                }
            }
        }
        Ok(())
    }

    fn take_from_radio(&mut self) -> Result<(), ControllerError> {
        for _ in 0..BATCH {
            let Some(frame) = self.radio.receive()? else {
                break;
            };
            if Class::of(ethernet(frame)) == Class::OfTheCable {
                self.counters.of_the_cable_frames += 1;
                continue;
            }
            match self.host.send(frame) {
                Sent::Yes => {
                    self.counters.returned_frames += 1;
                    self.counters.returned_bytes += cable_len(frame) as u64;
                }
                Sent::Later | Sent::Dropped => self.counters.refused += 1,
            }
        }
        Ok(())
    }

    fn let_go(&mut self, now: Duration) {
        while self.bucket.is_open(now)
            && let Some(frame) = self.queue.front()
        {
            let len = cable_len(frame);
            match self.radio.send(frame) {
                // The radio's queue is charged to our socket, whose buffer is full.
                Sent::Later => return,
                Sent::Yes => {
                    self.counters.roce_frames += 1;
                    self.counters.roce_bytes += len as u64;
                }
                Sent::Dropped => self.counters.refused += 1,
            }
            self.bucket.pay(len);
            if let Some(frame) = self.queue.pop() {
                self.keep(frame);
            }
        }
    }

    /// Stops the host, keeps it stopped or lets it resume, as the queue requires.
    fn watch(&mut self, now: Duration) {
        let left = self.counters.roce_frames;
        if let Some(ask) = self.pause.decide(now, self.queue.bytes(), left) {
            self.ask(ask);
        }
    }

    fn ask(&mut self, ask: Ask) {
        let (quanta, counter) = match ask {
            Ask::Stop => (u16::MAX, &mut self.counters.stops),
            Ask::StayStopped => (u16::MAX, &mut self.counters.renewals),
            Ask::Go => (0, &mut self.counters.resumes),
        };
        let mut frame = [0; HEADER_LEN + airdma_wire::pfc::PFC_LEN];
        let asked = Pfc::of(self.host.mac(), self.priority, quanta);
        frame[HEADER_LEN..].copy_from_slice(&asked.emit());
        match self.host.send(&frame) {
            Sent::Yes => *counter += 1,
            // Renewed before the last one expires.
            Sent::Later | Sent::Dropped => self.counters.refused += 1,
        }
    }

    fn keep(&mut self, mut frame: Vec<u8>) {
        if self.spare.len() < SPARE_MAX {
            frame.clear();
            self.spare.push(frame);
        }
    }

    fn report(&mut self) -> Counters {
        let now = self.now();
        let (then, before) = self.reported;
        let passed = (now - then).as_secs_f64().max(1e-9);
        self.reported = (now, self.counters.roce_bytes);
        let bytes = (self.counters.roce_bytes - before) as f64;
        let mbit = |bytes_per_s: f64| bytes_per_s * 8.0 / 1e6;
        let counters = &mut self.counters;
        counters.seconds = now.as_secs_f64();
        counters.roce_mbit = mbit(bytes / passed);
        counters.link_mbit = mbit(self.rate.link());
        counters.queue_bytes = self.queue.bytes();
        counters.radio_queue_bytes = self.rate.waiting();
        counters.is_stopped = self.pause.is_on();
        counters.queue_peak_bytes = self.queue.peak;
        counters.dropped_here = self.queue.dropped;
        counters.dropped_by_radio = self.rate.dropped();
        counters.missed = self.host.missed() + self.radio.missed();
        counters.stopped_seconds = self.pause.stopped(now).as_secs_f64();
        counters.clone()
    }

    fn now(&self) -> Duration {
        self.began.elapsed()
    }
}

/// Waits until a descriptor is readable, at most for `longest`. The result is ignored: the caller
/// checks all of them.
pub(crate) fn wait_for<const N: usize>(fds: [RawFd; N], longest: Duration) {
    let mut waits = fds.map(|fd| libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    });
    let timeout = libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: descriptors and a time that live through the call.
    unsafe { libc::ppoll(waits.as_mut_ptr(), N as libc::nfds_t, &timeout, ptr::null()) };
}

/// Blocks Ctrl-C and similar signals, to be read by this process.
pub(crate) fn interrupts() -> Result<Interrupts, ControllerError> {
    Interrupts::block().tried("waiting for signals")
}
