use super::AirdmaSrc;
use crate::incoming::{Nothing, Seat, Wanted};
use crate::{locked, pad};
use airdma_stream::{Flags, Frame};
use airdma_transfer::Service;
use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::base_src::CreateSuccess;
use gst_base::subclass::prelude::*;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "airdmasrc",
        gst::DebugColorFlags::empty(),
        Some("receives frames over RDMA"),
    )
});

/// By which growth of the latency the pipeline is told.
const LATENCY_STEP: gst::ClockTime = gst::ClockTime::from_mseconds(10);

#[derive(Clone, Debug)]
struct Settings {
    device: u32,
    interfaces: Option<String>,
    port: u32,
    receiver_name: Option<String>,
    code: Option<String>,
    blocks: u32,
    max_memory_mib: u32,
    caps: Option<gst::Caps>,
    capture_time: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            device: 0,
            interfaces: None,
            port: Service::Streams.port().into(),
            receiver_name: None,
            code: None,
            blocks: 16,
            max_memory_mib: 512,
            caps: None,
            capture_time: false,
        }
    }
}

#[derive(Default)]
struct State {
    seat: Option<Arc<Seat>>,
    /// Description of the format of the last frame.
    format: Option<Arc<str>>,
    /// Time between two frames, if the format has one.
    interval: Option<gst::ClockTime>,
    /// Longest time from capture to arrival, in steps.
    latency: gst::ClockTime,
    /// Buffers that would be shown before this running time are late.
    earliest: Option<gst::ClockTime>,
}

#[derive(Default, glib::Properties)]
#[properties(wrapper_type = AirdmaSrc)]
pub(crate) struct Imp {
    #[property(name = "device", get, set, member = device, type = u32,
        nick = "Device", blurb = "Number of the stream among those of the sender")]
    #[property(name = "interfaces", get, set, member = interfaces, type = Option<String>,
        nick = "Interfaces", blurb = "Interfaces or addresses where senders come in, with commas; all if unset")]
    #[property(name = "port", get, set, member = port, type = u32, minimum = 1, maximum = 65535, default_value = Service::Streams.port().into(),
        nick = "Port", blurb = "Port where senders come in; all sources of a process with one port share a receiver")]
    #[property(name = "receiver-name", get, set, member = receiver_name, type = Option<String>,
        nick = "Name", blurb = "Name by which senders on this network find the receiver")]
    #[property(name = "code", set, member = code, type = Option<String>,
        nick = "Code", blurb = "Code that senders need the first time; if unset, only known senders are admitted")]
    #[property(name = "blocks", get, set, member = blocks, type = u32, minimum = 1, maximum = 4096, default_value = 16,
        nick = "Blocks", blurb = "Frames of all devices that may be here at a time: more than the elements behind keep")]
    #[property(name = "max-memory", get, set, member = max_memory_mib, type = u32, minimum = 1, default_value = 512,
        nick = "Memory", blurb = "Most memory for blocks, in MiB")]
    #[property(name = "caps", get, set, member = caps, type = Option<gst::Caps>,
        nick = "Caps", blurb = "Format of the frames, for senders that do not tell it as caps")]
    #[property(name = "capture-time", get, set, member = capture_time, type = bool, default_value = false,
        nick = "Time of capture", blurb = "Timestamps are when frames were captured, which needs clocks that agree; else when they arrived")]
    settings: Mutex<Settings>,
    #[property(name = "stats", get = Self::stats, type = String,
        nick = "Statistics", blurb = "What arrived, as the text of a structure")]
    _stats: (),
    state: Mutex<State>,
    is_flushing: AtomicBool,
    /// Frames that were dropped here because the elements behind would have.
    skipped: AtomicU64,
}

/// The memory of a buffer: a frame in its block, which is freed with the buffer.
struct InBlock(Frame);

impl AsRef<[u8]> for InBlock {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "GstAirdmaSrc";
    type Type = AirdmaSrc;
    type ParentType = gst_base::PushSrc;
}

#[glib::derived_properties]
impl ObjectImpl for Imp {
    fn constructed(&self) {
        self.parent_constructed();
        self.obj().set_live(true);
        self.obj().set_format(gst::Format::Time);
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Frames over RDMA",
                "Source/Network",
                "Receives frames of airdmasink or `airdma stream send`; all sources of a process share a connection",
                "The airdma authors",
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> =
            LazyLock::new(|| vec![pad("src", gst::PadDirection::Src)]);
        &TEMPLATES
    }
}

impl BaseSrcImpl for Imp {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = locked(&self.settings).clone();
        let interfaces = settings.interfaces.unwrap_or_default();
        let names = interfaces
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty());
        let wanted = Wanted {
            interfaces: names.map(str::to_owned).collect(),
            port: settings.port as u16,
            name: settings.receiver_name,
            code: settings.code,
            blocks: settings.blocks,
            memory_bytes: (settings.max_memory_mib as usize) << 20,
        };
        let seat = Seat::take(wanted, settings.device)
            .map_err(|error| gst::error_msg!(gst::ResourceError::OpenRead, ["{error}"]))?;
        self.skipped.store(0, Ordering::Relaxed);
        *locked(&self.state) = State {
            seat: Some(Arc::new(seat)),
            ..State::default()
        };
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let state = std::mem::take(&mut *locked(&self.state));
        // No thread of this element runs any more.
        if let Some(seat) = state.seat.and_then(Arc::into_inner) {
            seat.leave();
        }
        Ok(())
    }

    fn is_seekable(&self) -> bool {
        false
    }

    /// The format comes with the first frame.
    fn negotiate(&self) -> Result<(), gst::LoggableError> {
        Ok(())
    }

    fn query(&self, query: &mut gst::QueryRef) -> bool {
        if let gst::QueryViewMut::Latency(latency) = query.view_mut() {
            let blocks = locked(&self.settings).blocks;
            let state = locked(&self.state);
            let (min, interval) = (state.latency, state.interval);
            // Frames wait in blocks if the elements behind take none.
            let max = interval.map(|interval| min + interval * u64::from(blocks));
            latency.set(true, min, max);
            return true;
        }
        BaseSrcImplExt::parent_query(self, query)
    }

    fn event(&self, event: &gst::Event) -> bool {
        if let gst::EventView::Qos(qos) = event.view() {
            let (kind, _, diff, timestamp) = qos.get();
            let is_late = kind == gst::QOSType::Underflow && diff > 0;
            let late_by = gst::ClockTime::from_nseconds(diff.unsigned_abs());
            locked(&self.state).earliest = timestamp.filter(|_| is_late).map(|at| at + late_by);
        }
        self.parent_event(event)
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.is_flushing.store(true, Ordering::Release);
        if let Ok(seat) = self.seat() {
            seat.wake();
        }
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.is_flushing.store(false, Ordering::Release);
        Ok(())
    }
}

impl PushSrcImpl for Imp {
    fn create(&self, _: Option<&mut gst::BufferRef>) -> Result<CreateSuccess, gst::FlowError> {
        let seat = self.seat()?;
        seat.open();
        loop {
            let frame = match seat.next(&self.is_flushing) {
                Ok(frame) => frame,
                Err(Nothing::Flushing) => return Err(gst::FlowError::Flushing),
                Err(Nothing::Failed(why)) => {
                    gst::element_imp_error!(self, gst::ResourceError::Read, ["{why}"]);
                    return Err(gst::FlowError::Error);
                }
            };
            if frame.flags().contains(Flags::END) {
                return Err(gst::FlowError::Eos);
            }
            let pts = self.timestamp(&frame);
            if frame.flags().contains(Flags::GAP) {
                if let Some(pts) = pts.filter(|_| locked(&self.state).format.is_some()) {
                    let pad = self.obj().src_pad().clone();
                    pad.push_event(gst::event::Gap::builder(pts).build());
                }
                continue;
            }
            self.follow_format(&frame)?;
            if pts < locked(&self.state).earliest {
                self.skipped.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            return Ok(CreateSuccess::NewBuffer(self.buffer(frame, pts)));
        }
    }
}

impl Imp {
    fn seat(&self) -> Result<Arc<Seat>, gst::FlowError> {
        locked(&self.state)
            .seat
            .clone()
            .ok_or(gst::FlowError::Flushing)
    }

    /// The buffer of a frame, which is not copied.
    fn buffer(&self, frame: Frame, pts: Option<gst::ClockTime>) -> gst::Buffer {
        let (flags, missing) = (frame.flags(), frame.missing());
        let (sequence, time) = (frame.sequence(), frame.time());
        let mut buffer = gst::Buffer::from_slice(InBlock(frame));
        let reference = buffer.make_mut();
        reference.set_pts(pts);
        reference.set_duration(locked(&self.state).interval);
        reference.set_offset(sequence);
        reference.set_offset_end(sequence.saturating_add(1));
        if missing > 0 || flags.contains(Flags::DISCONTINUITY) {
            reference.set_flags(gst::BufferFlags::DISCONT);
        }
        if !flags.contains(Flags::KEY) {
            reference.set_flags(gst::BufferFlags::DELTA_UNIT);
        }
        if time != 0 {
            static UNIX: LazyLock<gst::Caps> =
                LazyLock::new(|| gst::Caps::new_empty_simple("timestamp/x-unix"));
            let time = gst::ClockTime::from_nseconds(time);
            gst::ReferenceTimestampMeta::add(reference, &UNIX, time, gst::ClockTime::NONE);
        }
        buffer
    }

    /// Running time of a frame: of its arrival, or of its capture if the clocks agree.
    fn timestamp(&self, frame: &Frame) -> Option<gst::ClockTime> {
        let now = self.obj().current_running_time()?;
        let since = |then: u64| airdma_stream::now_ns().saturating_sub(then);
        let arrived = now.saturating_sub(gst::ClockTime::from_nseconds(since(frame.arrived())));
        if !locked(&self.settings).capture_time || frame.time() == 0 {
            return Some(arrived);
        }
        let on_the_way = frame.arrived().saturating_sub(frame.time());
        let on_the_way = gst::ClockTime::from_nseconds(on_the_way);
        self.note_latency(on_the_way);
        Some(arrived.saturating_sub(on_the_way))
    }

    /// Tells the pipeline of a latency beyond the one that it knows.
    fn note_latency(&self, latency: gst::ClockTime) {
        let mut state = locked(&self.state);
        if latency <= state.latency {
            return;
        }
        let steps = latency.nseconds().div_ceil(LATENCY_STEP.nseconds());
        state.latency = LATENCY_STEP * steps;
        gst::info!(CAT, imp = self, "latency {}", state.latency);
        drop(state);
        let message = gst::message::Latency::builder().src(&*self.obj()).build();
        // Only a bin that is gone refuses it.
        let _ = self.obj().post_message(message);
    }

    /// Sets the caps if the format is another one than that of the frame before.
    fn follow_format(&self, frame: &Frame) -> Result<(), gst::FlowError> {
        let format = frame.format().cloned().unwrap_or_else(|| "".into());
        if locked(&self.state).format.as_ref() == Some(&format) {
            return Ok(());
        }
        let given = locked(&self.settings).caps.clone();
        let Some(caps) = given.or_else(|| caps_of(&format)) else {
            gst::element_imp_error!(
                self,
                gst::StreamError::Format,
                [
                    "the sender tells the format as {format:?}, which is no caps: set the property caps"
                ]
            );
            return Err(gst::FlowError::NotNegotiated);
        };
        let rate = caps
            .structure(0)
            .and_then(|it| it.get::<gst::Fraction>("framerate").ok());
        let interval = rate.filter(|rate| rate.numer() > 0).and_then(|rate| {
            let second = gst::ClockTime::SECOND;
            second.mul_div_floor(rate.denom() as u64, rate.numer() as u64)
        });
        let mut state = locked(&self.state);
        (state.format, state.interval) = (Some(format), interval);
        drop(state);
        let set = BaseSrcExt::set_caps(&*self.obj(), &caps);
        set.map_err(|_| gst::FlowError::NotNegotiated)
    }

    fn stats(&self) -> String {
        let counts = self.seat().map(|seat| seat.counts());
        let (received, unclaimed) = counts.unwrap_or_default();
        gst::Structure::builder("airdmasrc-stats")
            .field("frames", received.frames)
            .field("bytes", received.bytes)
            .field("missing", received.missing)
            .field("repeated", received.repeated)
            .field("late", received.late)
            .field("restarts", received.restarts)
            .field("unclaimed", unclaimed)
            .field("skipped", self.skipped.load(Ordering::Relaxed))
            .build()
            .to_string()
    }
}

/// Caps of a format that a sender tells: those of `airdmasink`, or the line of YUV4MPEG2 of
/// `airdma stream send`.
fn caps_of(format: &str) -> Option<gst::Caps> {
    let Some(line) = format.strip_prefix("YUV4MPEG2 ") else {
        let caps = gst::Caps::from_str(format).ok()?;
        return caps.is_fixed().then_some(caps);
    };
    let word = |letter: char| line.split(' ').find_map(|word| word.strip_prefix(letter));
    let colours = match word('C').unwrap_or("420") {
        "420" | "420jpeg" | "420mpeg2" | "420paldv" => "I420",
        "422" => "Y42B",
        "444" => "Y444",
        "mono" => "GRAY8",
        _ => return None,
    };
    let (frames, seconds) = word('F')
        .and_then(|rate| rate.split_once(':'))
        .unwrap_or(("0", "1"));
    let seconds: i32 = seconds.parse().ok().filter(|seconds| *seconds > 0)?;
    let rate = gst::Fraction::new(frames.parse().ok()?, seconds);
    let caps = gst::Caps::builder("video/x-raw")
        .field("format", colours)
        .field("width", word('W')?.parse::<i32>().ok()?)
        .field("height", word('H')?.parse::<i32>().ok()?)
        .field("framerate", rate)
        .build();
    Some(caps)
}
