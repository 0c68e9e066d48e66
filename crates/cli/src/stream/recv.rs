//! `airdma stream recv`.

use super::board::Board;
use super::rates::Rates;
use super::send::of_stream;
use super::sink::Sink;
use crate::files::recv::{host_name, tell_shut, words};
use crate::files::send::code;
use crate::files::show::{Show, Side};
use crate::files::{self, stop, take_descriptors};
use airdma_files::session::{Code, Pin, Place, PublicKey, Role};
use airdma_stream::{Flags, Frame, Incoming, Pool, Receiver};
use airdma_transfer::{Cancel, Device, DoorConfig, Entrance, Error, Event, Home, Met, Service};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitCode;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

pub const HELP: &str = "\
Examples:
  airdma stream recv                            counts and times frames, and drops them
  airdma stream recv --out 'camera-{device}.y4m' a file for each device
  airdma stream recv --out - | ffplay -         the only device, to a program

Exit status: as of `airdma recv`; 7 if frames of a test pattern arrived damaged (--check).";

/// Longest wait for a frame, after which connections and Ctrl-C are looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Frames of a test pattern differ from it.
const DAMAGED: u8 = 7;

#[derive(clap::Args)]
pub struct Options {
    /// File for the frames of each device, with {device} for its number; `-` is standard output.
    /// YUV4MPEG2 if the sender's frames are, else the bytes of frames alone
    #[arg(short, long, value_name = "FILE")]
    out: Option<String>,
    /// Blocks of memory, each for one frame
    #[arg(long, value_name = "COUNT", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=4096))]
    blocks: u32,
    /// Most memory for blocks, in MiB: a sender with longer frames is refused
    #[arg(long, value_name = "MIB", default_value_t = 512)]
    memory: u32,
    /// Compare frames of `airdma stream send test` with the pattern
    #[arg(long)]
    check: bool,
    /// Ask the sender for a checksum in each frame, and drop frames whose checksum differs
    #[arg(long)]
    checksums: bool,
    /// Keep receiving when a sender has ended, until stopped
    #[arg(short, long)]
    keep: bool,
    /// Show this code instead of a new one: two words of five letters, such as lusab-babad
    #[arg(long, value_parser = code, conflicts_with = "no_code")]
    code: Option<Code>,
    /// Show no code: admit known senders only
    #[arg(long)]
    no_code: bool,
    /// Listen on this interface or address only. May be given several times
    #[arg(long, value_name = "IFACE")]
    on: Vec<String>,
    /// Port to listen on, in the port space of RDMA CM
    #[arg(long, default_value_t = Service::Streams.port())]
    port: u16,
    /// Name to announce on this network [default: the host's]
    #[arg(long)]
    name: Option<String>,
    /// Do not announce the receiver on this network
    #[arg(long, conflicts_with = "name")]
    no_name: bool,
    /// Print one JSON object for each event on standard output (standard error if FILE is `-`)
    #[arg(long)]
    json: bool,
    /// Print only the code and errors
    #[arg(short, long)]
    quiet: bool,
}

pub fn recv(options: &Options) -> ExitCode {
    take_descriptors();
    let is_data = Sink::is_standard(options.out.as_deref());
    let show = Show::new(Side::Receiver, options.json, options.quiet, is_data);
    let cancel = Cancel::default();
    let result = stop::on_signals(&cancel).map_err(Error::from);
    match result.and_then(|()| run(options, &show, &cancel)) {
        Ok(code) => code,
        Err(error) => files::failed(&show, &error),
    }
}

fn run(options: &Options, show: &Show, cancel: &Cancel) -> Result<ExitCode, Error> {
    let home = Arc::new(files::home(show)?);
    let code = (!options.no_code).then(|| options.code.clone().unwrap_or_else(Code::draw));
    let (arrived, arrivals) = mpsc::channel();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("airdma-entrance".into());
        let over = Cancel::default();
        let own = over.clone();
        let home = &home;
        thread.spawn_scoped(scope, move || {
            let_in(options, code, home, show, (&own, cancel), &arrived);
        })?;
        let mut reception = Reception {
            options,
            show,
            receiver: None,
            pool: None,
            sender: None,
            sink: Sink::new(options.out.clone(), options.check),
            rates: Rates::new(),
            board: Board::new("recv"),
            ended: BTreeSet::new(),
        };
        let result = reception.run(&arrivals, cancel);
        over.cancel();
        let written = reception.sink.flush();
        let result = result.and_then(|()| Ok(written?));
        result.map(|()| reception.end())
    })
}

/// Admits senders, and hands them over.
fn let_in(
    options: &Options,
    code: Option<Code>,
    home: &Arc<Home>,
    show: &Show,
    (over, cancel): (&Cancel, &Cancel),
    arrived: &mpsc::Sender<Result<Met, Error>>,
) {
    let name = options.name.clone().or_else(host_name);
    let config = DoorConfig {
        service: Service::Streams,
        interfaces: options.on.clone(),
        port: options.port,
        name: name.filter(|_| !options.no_name),
        key: home.identity().public(),
    };
    let name = config.name.clone();
    let known = Arc::clone(home);
    let is_known = move |key: &PublicKey| known.knows(key, Role::Sender);
    let entrance = Entrance::open(config, home.identity(), code.clone(), is_known);
    let mut entrance = match entrance {
        Ok(entrance) => entrance,
        Err(error) => return drop(arrived.send(Err(error))),
    };
    let watch = |event| tell(event, (options, name.as_deref(), code.as_ref()), show);
    loop {
        let met = entrance.next(&watch, &[over, cancel]);
        let is_last = met.is_err();
        if let Ok(met) = &met {
            introduce(met, home, show);
        }
        // Fails once the receiver has ended.
        if arrived.send(met).is_err() || is_last {
            return;
        }
    }
}

/// Notes a sender that has proven its key.
fn introduce(met: &Met, home: &Home, show: &Show) {
    let name = met.address.to_string();
    show.object(&json!({
        "event": "met",
        "peer": met.peer.to_string(),
        "address": name,
        "by_code": met.by_code,
    }));
    let pin = Pin::new(met.peer, Role::Sender, Place::Anywhere, &name);
    if met.by_code
        && let Err(error) = home.pin(pin, false)
    {
        show.must(&format!("airdma: a code will be needed again: {error}"));
    }
}

fn tell(event: Event, (options, name, code): (&Options, Option<&str>, Option<&Code>), show: &Show) {
    match event {
        Event::Listening {
            addresses,
            shut,
            unannounced,
        } => {
            if let Some(why) = &unannounced {
                show.line(why);
            }
            let shown = code.map(ToString::to_string);
            show.object(&json!({
                "event": "listening",
                "addresses": words(&addresses),
                "port": options.port,
                "name": name,
                "code": shown,
            }));
            let reachable = addresses.iter().filter(|address| !address.is_loopback());
            let at = words(reachable).join(" or ");
            show.line(&format!(
                "waiting; on the other host: airdma stream send SOURCE... --to {at}"
            ));
            if let Some(code) = shown {
                show.must(&format!("code: {code}"));
            }
            tell_shut(&shut, show);
        }
        Event::Doors { addresses, shut } => {
            show.object(&json!({"event": "addresses", "addresses": words(&addresses)}));
            tell_shut(&shut, show);
        }
        Event::Hindered(shut) => tell_shut(&[shut], show),
        Event::Turned(why) => show.turned(&why),
        Event::Met { .. }
        | Event::Walked(_)
        | Event::Accepted(_)
        | Event::Progress(_)
        | Event::Lost(_)
        | Event::Arrived(_)
        | Event::Remains(_) => {}
    }
}

struct Reception<'a> {
    options: &'a Options,
    show: &'a Show,
    receiver: Option<Receiver>,
    /// Blocks for frames of a length, on the device of the last connection.
    pool: Option<(Device, usize, Pool)>,
    /// Key of the sender that is connected.
    sender: Option<PublicKey>,
    sink: Sink,
    rates: Rates,
    board: Board,
    /// Devices that have ended.
    ended: BTreeSet<u32>,
}

impl Reception<'_> {
    fn run(
        &mut self,
        arrivals: &mpsc::Receiver<Result<Met, Error>>,
        cancel: &Cancel,
    ) -> Result<(), Error> {
        loop {
            if cancel.is_cancelled() {
                // What was received is whole, and Ctrl-C is how it ends with --keep.
                return match self.options.keep {
                    true => Ok(()),
                    false => Err(Error::Cancelled),
                };
            }
            let arrival = match self.sender {
                Some(_) => arrivals.try_recv().ok(),
                None => arrivals.recv_timeout(LOOK_EVERY).ok(),
            };
            if let Some(met) = arrival {
                self.meet(met?)?;
            }
            if self.sender.is_some() && self.receive()? {
                return Ok(());
            }
            if self.rates.is_due() && self.receiver.is_some() {
                let (text, object) = self.rates.report(&self.counts());
                self.board.show(&object);
                self.show.object(&object);
                if self.sender.is_some() {
                    self.show.line(&text);
                }
            }
        }
    }

    /// A sender has connected: the one that is there again, or another one.
    fn meet(&mut self, met: Met) -> Result<(), Error> {
        if self.sender.is_some_and(|sender| sender != met.peer) {
            self.show
                .turned("another sender is connected: each needs a receiver of its own");
            return Ok(());
        }
        // What has arrived over the former connection comes first.
        while self.sender.is_some() && self.next(Duration::ZERO)? {}
        self.sender = None;
        let opened = Incoming::hear(&met.device, met.endpoint).map_err(of_stream);
        match opened.and_then(|sender| self.open(met.device, sender)) {
            Ok(()) => self.sender = Some(met.peer),
            Err(error) => self.show.turned(&error.to_string()),
        }
        Ok(())
    }

    fn open(&mut self, device: Device, sender: Incoming) -> Result<(), Error> {
        let bytes = sender.frame_bytes();
        let most = (self.options.memory as usize) << 20;
        if bytes.saturating_mul(self.options.blocks as usize) > most {
            let message = format!(
                "a sender has frames of {bytes} bytes, which need more than {} MiB in {} blocks: give more (--memory), or fewer blocks (--blocks)",
                self.options.memory, self.options.blocks
            );
            return Err(std::io::Error::other(message).into());
        }
        // An interface that was gone is another device under the same name.
        let is_same = |of: &Device| of.name() == device.name() && !of.is_gone();
        let fits = |(of, length, _): &(Device, usize, Pool)| is_same(of) && *length >= bytes;
        if !self.pool.as_ref().is_some_and(fits) {
            let pool = Pool::new(&device, self.options.blocks, bytes);
            let pool = match self.options.checksums {
                true => pool.and_then(Pool::with_checksums),
                false => pool,
            };
            self.pool = Some((device, bytes, pool.map_err(of_stream)?));
        }
        let Some((_, _, pool)) = &self.pool else {
            return Ok(());
        };
        match &mut self.receiver {
            Some(receiver) => receiver.reopen(sender, pool).map_err(of_stream)?,
            none => {
                *none = Some(Receiver::open(sender, pool).map_err(of_stream)?);
                // The first report is of the time since now.
                self.rates = Rates::new();
            }
        }
        self.ended.clear();
        self.show.line("a sender is connected");
        Ok(())
    }

    /// Takes what arrives. Returns whether the sender has ended all its devices, and no other is
    /// awaited.
    fn receive(&mut self) -> Result<bool, Error> {
        self.next(LOOK_EVERY)?;
        if self.sender.is_some() || self.options.keep {
            return Ok(false);
        }
        let devices = self.counts();
        let has_ended = |device: &u32| self.ended.contains(device);
        Ok(!devices.is_empty() && devices.keys().all(has_ended))
    }

    /// Takes the next frame. False if there is none.
    fn next(&mut self, limit: Duration) -> Result<bool, Error> {
        let Some(receiver) = &mut self.receiver else {
            return Ok(false);
        };
        match receiver.next(limit) {
            Ok(Some(frame)) => {
                self.take(&frame)?;
                Ok(true)
            }
            Ok(None) => Ok(false),
            Err(error) => {
                self.sender = None;
                let why = error.to_string();
                self.show.object(&json!({"event": "lost", "message": why}));
                self.show.line(&format!("the sender has gone ({why})"));
                Ok(false)
            }
        }
    }

    fn take(&mut self, frame: &Frame) -> Result<(), Error> {
        let device = frame.device();
        if frame.flags().contains(Flags::END) {
            self.ended.insert(device);
            return Ok(());
        }
        if frame.flags().contains(Flags::GAP) {
            return Ok(());
        }
        let times = (frame.time(), frame.arrived());
        self.rates.note(device, frame.len(), times);
        Ok(self.sink.take(frame)?)
    }

    fn counts(&self) -> BTreeMap<u32, Value> {
        let sequences = self.receiver.iter().flat_map(|it| it.sequences().iter());
        let each = sequences.map(|(device, received)| {
            let object = json!({
                "device": device,
                "frames": received.frames,
                "bytes": received.bytes,
                "missing": received.missing,
                "repeated": received.repeated,
                "late": received.late,
                "restarts": received.restarts,
            });
            (device, object)
        });
        each.collect()
    }

    fn end(&self) -> ExitCode {
        let counts = self.counts();
        let sum = |name: &str| -> u64 { counts.values().filter_map(|it| it[name].as_u64()).sum() };
        let refused = self
            .receiver
            .as_ref()
            .map(Receiver::refused)
            .unwrap_or_default();
        let devices: Vec<_> = counts.values().cloned().collect();
        self.show.object(&json!({
            "event": "end",
            "devices": devices,
            "checked": self.sink.checked,
            "damaged": self.sink.damaged,
            "refused": {
                "header": refused.header,
                "length": refused.length,
                "checksum": refused.checksum,
                "device": refused.device,
                "format": refused.format,
            },
        }));
        let (frames, missing, late) = (sum("frames"), sum("missing"), sum("late"));
        self.show.line(&format!(
            "{frames} frames of {} devices received; {missing} missing, {late} late",
            counts.len()
        ));
        if self.sink.damaged == 0 {
            return ExitCode::SUCCESS;
        }
        let (damaged, checked) = (self.sink.damaged, self.sink.checked);
        let message = format!("{damaged} of {checked} frames differ from the test pattern");
        self.show.error("damaged", DAMAGED, &message);
        ExitCode::from(DAMAGED)
    }
}
