//! `airdma stream send`.

use super::board::Board;
use super::rates::Rates;
use super::source::{Named, News, Pace, Source};
use crate::files::send::{code, code_of_environment, introduction};
use crate::files::show::{Show, Side};
use crate::files::{self, pin_receiver, stop, terminal};
use airdma_files::session::{Code, Introduction};
use airdma_stream::{Block, Description, Flags, Policy, Sender, SenderConfig, now_ns};
use airdma_transfer::{Call, Cancel, CodeTries, Error, Home, Kind, Met, Peer, Service};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::process::ExitCode;
use std::sync::mpsc;
use std::task::Waker;
use std::thread;
use std::time::{Duration, Instant};

pub const HELP: &str = "\
Examples:
  airdma stream send test test test                     three test patterns, to the only receiver
  airdma stream send --to 192.0.2.7 left.y4m right.y4m  two recordings, at their own rates
  ffmpeg -i /dev/video0 -f yuv4mpegpipe - | airdma stream send --newest -
  airdma stream send --raw 921600 --rate 25 camera.fifo frames of one length, from a named pipe

Exit status: as of `airdma send`; 1 also for a source that cannot be read.";

/// Longest sleep, after which deadlines, reports and Ctrl-C are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Pause before the next attempt to connect.
const PAUSE: Duration = Duration::from_millis(500);
/// Blocks of a device: one that is filled, one that waits, one on its way.
const BLOCKS_EACH: u32 = 3;

#[derive(clap::Args)]
pub struct Options {
    /// Devices: files, pipes, `-`, or `test[:WIDTHxHEIGHT]`
    #[arg(required = true, value_name = "SOURCE")]
    sources: Vec<Named>,
    /// Receiver: an address or a name, with :PORT if it is not the default [default: the only one
    /// on this network]
    #[arg(long, value_name = "PEER")]
    to: Option<String>,
    /// Code that the receiver shows; AIRDMA_CODE in the environment does the same, hidden from
    /// other users
    #[arg(long, value_parser = code)]
    code: Option<Code>,
    /// Files and pipes hold frames of this many bytes, and nothing else
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..1 << 30))]
    raw: Option<u32>,
    /// Frames of a device in a second; 0 is as fast as they can be read [default: that of the
    /// source]
    #[arg(long, value_name = "FPS", value_parser = clap::value_parser!(u32).range(0..=100_000))]
    rate: Option<u32>,
    /// End after this many frames of each device
    #[arg(long, value_name = "COUNT")]
    frames: Option<u64>,
    /// Drop frames that could not be sent within this time
    #[arg(long, value_name = "MS")]
    deadline: Option<u32>,
    /// If the receiver is slower than a device, send its newest frame and drop those before
    #[arg(long)]
    newest: bool,
    /// How long to retry after the connection is lost, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    patience: u64,
    /// Print one JSON object for each event on standard output, and nothing for people
    #[arg(long)]
    json: bool,
    /// Print only errors
    #[arg(short, long)]
    quiet: bool,
}

pub fn send(options: &Options) -> ExitCode {
    let show = Show::new(Side::Sender, options.json, options.quiet, false);
    let cancel = Cancel::default();
    let result = stop::on_signals(&cancel).map_err(Error::from);
    let result = result.and_then(|()| run(options, &show, &cancel));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => files::failed(&show, &error),
    }
}

fn run(options: &Options, show: &Show, cancel: &Cancel) -> Result<(), Error> {
    let raw = options.raw.map(|bytes| bytes as usize);
    let sources = options.sources.iter();
    let sources = sources.map(|named| {
        let opened = Source::open(named, raw, options.rate);
        opened.map_err(|error| named_error(&format!("{named:?}"), &error))
    });
    let sources = sources.collect::<Result<Vec<_>, _>>()?;
    let home = files::home(show)?;
    let peer = match &options.to {
        Some(typed) => Peer::find(Service::Streams, typed),
        None => Peer::only(Service::Streams),
    };
    let peer = peer.map_err(|_| Error::Unfit(NO_PEER))?;
    let environment = code_of_environment().map_err(std::io::Error::other)?;
    let code = options.code.as_ref().or(environment.as_ref());
    let is_data = options.sources.contains(&Named::Standard);
    let asking = (terminal::open(is_data), cancel);
    let is_ready = || airdma_transfer::contact(&peer.addresses, cancel);
    let introduction = introduction(code, &peer, &home, asking, is_ready)?;
    let mut line = Line {
        options,
        show,
        cancel,
        home: &home,
        peer: &peer,
        introduction,
        code_tries: CodeTries::default(),
        reconnects: 0,
    };
    let met = line.call(None)?;
    let longest = sources.iter().map(|source| source.frame_bytes).max();
    let config = SenderConfig {
        blocks: BLOCKS_EACH * sources.len() as u32,
        frame_bytes: longest.unwrap_or(0),
        ..SenderConfig::default()
    };
    let device = met.device.clone();
    let mut sender = Sender::new(&device, config).map_err(of_stream)?;
    let mut feeds = Feeds::start(options, sources, &mut sender)?;
    sender.open(met.endpoint).map_err(of_stream)?;
    let mut rates = Rates::new();
    let board = Board::new("send");
    let mut known = BTreeMap::new();
    let mut lost: Option<Instant> = None;
    while !(feeds.have_ended() && sender.is_idle()) {
        if cancel.is_cancelled() {
            return Err(Error::Cancelled);
        }
        feeds.move_on(&mut sender)?;
        match sender.poll(&feeds.waker) {
            Ok(()) => lost = None,
            Err(error) if error.is_of_connection() || error.is_closed() => {
                let since = *lost.get_or_insert_with(Instant::now);
                line.reconnect(&mut sender, &device, (since, &error))?;
                continue;
            }
            Err(error) => return Err(of_stream(error)),
        }
        note_sent(&mut rates, &sender, &mut known);
        if rates.is_due() {
            let (text, object) = rates.report(&counts(&sender));
            board.show(&object);
            show.object(&object);
            show.line(&text);
        }
        thread::park_timeout(LOOK_EVERY);
    }
    let devices: Vec<_> = counts(&sender).into_values().collect();
    sender.close();
    let all: u64 = known.values().map(|(frames, _)| frames).sum();
    show.object(&json!({"event": "end", "devices": devices, "reconnects": line.reconnects}));
    show.line(&format!("{all} frames sent"));
    feeds.result()
}

const NO_PEER: &str = "no receiver of streams has this name, or there is not exactly one on this network: give the address of a host where `airdma stream recv` waits (--to)";

fn named_error(name: &str, error: &std::io::Error) -> Error {
    std::io::Error::new(error.kind(), format!("{name}: {error}")).into()
}

/// An error of a stream in the words of transfers, which have the exit statuses.
pub fn of_stream(error: airdma_stream::Error) -> Error {
    match error {
        airdma_stream::Error::Connection(error) => Error::Rdma(error),
        airdma_stream::Error::NoAnswer => Error::NoAnswer,
        error @ (airdma_stream::Error::Protocol(_)
        | airdma_stream::Error::TooLong { .. }
        | airdma_stream::Error::Invalid(_)
        | airdma_stream::Error::NotOpen) => Error::System(std::io::Error::other(error.to_string())),
    }
}

/// What became of the frames of each device.
fn counts(sender: &Sender) -> BTreeMap<u32, Value> {
    let each = sender.counts().map(|(device, counts)| {
        let object = json!({
            "device": device,
            "frames": counts.offered,
            "sent": counts.sent,
            "bytes": counts.bytes,
            "late": counts.late,
            "replaced": counts.replaced,
            "too_long": counts.too_long,
        });
        (device, object)
    });
    each.collect()
}

/// Notes what was sent since the last call, for the rates.
fn note_sent(rates: &mut Rates, sender: &Sender, known: &mut BTreeMap<u32, (u64, u64)>) {
    for (device, counts) in sender.counts() {
        let (frames, bytes) = known.entry(device).or_default();
        rates.count(device, counts.sent - *frames, counts.bytes - *bytes);
        (*frames, *bytes) = (counts.sent, counts.bytes);
    }
}

/// The way to the receiver.
struct Line<'a> {
    options: &'a Options,
    show: &'a Show,
    cancel: &'a Cancel,
    home: &'a Home,
    peer: &'a Peer,
    introduction: Introduction,
    code_tries: CodeTries,
    reconnects: u32,
}

impl Line<'_> {
    fn call(&mut self, device: Option<&airdma_transfer::Device>) -> Result<Met, Error> {
        let met = airdma_transfer::call(
            &Call {
                identity: self.home.identity(),
                to: &self.peer.addresses,
                introduction: self.introduction.clone(),
                code_tries: &self.code_tries,
                device,
            },
            self.cancel,
        )?;
        self.show.object(&json!({
            "event": "met",
            "peer": met.peer.to_string(),
            "address": met.address.to_string(),
            "by_code": met.by_code,
        }));
        let is_known =
            matches!(&self.introduction, Introduction::Known(keys) if keys.contains(&met.peer));
        if met.by_code || !is_known {
            for line in pin_receiver(self.home, self.peer, met.peer) {
                self.show.must(&format!("airdma: {line}"));
            }
        }
        // A code is for the first connection.
        self.introduction = Introduction::Known(vec![met.peer]);
        Ok(met)
    }

    /// Connects again after `error`, once: the caller tries again until the time is over.
    fn reconnect(
        &mut self,
        sender: &mut Sender,
        device: &airdma_transfer::Device,
        (since, error): (Instant, &airdma_stream::Error),
    ) -> Result<(), Error> {
        if sender.is_open() {
            sender.close();
        }
        if !matches!(error, airdma_stream::Error::NotOpen) {
            let why = error.to_string();
            self.show.object(&json!({"event": "lost", "message": why}));
            self.show
                .line(&format!("connection lost ({why}); trying again"));
        }
        let again = self.call(Some(device));
        let again = again.and_then(|met| sender.open(met.endpoint).map_err(of_stream));
        match again {
            Ok(()) => {
                self.reconnects += 1;
                self.show.line("connected again");
                Ok(())
            }
            Err(error) if error.kind() == Kind::Unreachable => {
                if since.elapsed() >= Duration::from_secs(self.options.patience) {
                    return Err(error);
                }
                thread::sleep(PAUSE);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The threads of the devices.
struct Feeds {
    news: mpsc::Receiver<(u32, News)>,
    waker: Waker,
    give: Vec<mpsc::Sender<Block>>,
    /// Wishes for blocks, the oldest first.
    wishes: VecDeque<(u32, usize)>,
    /// Devices whose end is not sent yet.
    ending: Vec<u32>,
    ended: usize,
    first_error: Option<std::io::Error>,
}

impl Feeds {
    fn start(options: &Options, sources: Vec<Source>, sender: &mut Sender) -> Result<Feeds, Error> {
        let pace = Pace {
            rate: options.rate,
            frames: options.frames,
            deadline: options.deadline.map(|ms| Duration::from_millis(ms.into())),
        };
        let policy = match options.newest {
            true => Policy::Newest,
            false => Policy::All,
        };
        let (tell, news) = mpsc::channel();
        let waker = airdma_stream::thread_waker();
        let mut give = Vec::new();
        for (device, source) in (0..).zip(sources) {
            let about = airdma_stream::Source {
                quota: BLOCKS_EACH as usize,
                priority: 0,
                policy,
                ..airdma_stream::Source::default()
            };
            sender.add(device, about).map_err(of_stream)?;
            let set = sender.set_format(device, &source.format);
            set.map_err(of_stream)?;
            give.push(source.start(device, pace, (tell.clone(), waker.clone()))?);
        }
        Ok(Feeds {
            news,
            waker,
            give,
            wishes: VecDeque::new(),
            ending: Vec::new(),
            ended: 0,
            first_error: None,
        })
    }

    fn have_ended(&self) -> bool {
        self.ended == self.give.len()
    }

    /// Takes filled blocks, and gives free ones.
    fn move_on(&mut self, sender: &mut Sender) -> Result<(), Error> {
        while let Ok((device, news)) = self.news.try_recv() {
            match news {
                News::Wants(length) => self.wishes.push_back((device, length)),
                News::Filled(block, description) => sender.send(block, description),
                News::Ended(result) => {
                    self.ending.push(device);
                    if let Err(error) = result {
                        let error =
                            std::io::Error::new(error.kind(), format!("device {device}: {error}"));
                        self.first_error.get_or_insert(error);
                    }
                }
            }
        }
        for _ in 0..self.wishes.len() {
            let Some((device, length)) = self.wishes.pop_front() else {
                break;
            };
            match sender.block(device, length).map_err(of_stream)? {
                // Fails if the thread has ended.
                Some(block) => drop(self.give[device as usize].send(block)),
                None => self.wishes.push_back((device, length)),
            }
        }
        for device in std::mem::take(&mut self.ending) {
            match sender.block(device, 0).map_err(of_stream)? {
                Some(block) => {
                    let time = now_ns();
                    let flags = Flags::END;
                    let description = Description {
                        time,
                        flags,
                        ..Description::default()
                    };
                    sender.send(block, description);
                    self.ended += 1;
                }
                None => self.ending.push(device),
            }
        }
        Ok(())
    }

    fn result(self) -> Result<(), Error> {
        self.first_error.map_or(Ok(()), |error| Err(error.into()))
    }
}
