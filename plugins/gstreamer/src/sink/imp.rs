use super::AirdmaSink;
use crate::outgoing::{Membership, Refusal, Wanted};
use crate::pool::{Pool, Slots};
use crate::{locked, pad};
use airdma_stream::{Description, Flags, Policy, now_ns};
use gst::glib;
use gst::prelude::*;
use gst::subclass::prelude::*;
use gst_base::prelude::*;
use gst_base::subclass::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

static CAT: LazyLock<gst::DebugCategory> = LazyLock::new(|| {
    gst::DebugCategory::new(
        "airdmasink",
        gst::DebugColorFlags::empty(),
        Some("sends frames over RDMA"),
    )
});

/// A wait that ends when the element stops.
const NEVER: Duration = Duration::MAX;

#[derive(Clone, Debug)]
struct Settings {
    peer: Option<String>,
    code: Option<String>,
    device: i32,
    max_frame_size: u32,
    blocks: u32,
    deadline_ms: u32,
    newest: bool,
    patience_s: u32,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            peer: None,
            code: None,
            device: -1,
            max_frame_size: 8 << 20,
            blocks: 4,
            deadline_ms: 0,
            newest: false,
            patience_s: 60,
        }
    }
}

#[derive(Default, glib::Properties)]
#[properties(wrapper_type = AirdmaSink)]
pub(crate) struct Imp {
    #[property(name = "peer", get, set, member = peer, type = Option<String>,
        nick = "Receiver", blurb = "Address or name of the receiver, with :PORT if it is not the default; the only one on this network if unset")]
    #[property(name = "code", set, member = code, type = Option<String>,
        nick = "Code", blurb = "Code of the receiver, for the first connection to it")]
    #[property(name = "device", get, set, member = device, type = i32, minimum = -1, maximum = i32::MAX, default_value = -1,
        nick = "Device", blurb = "Number by which the receiver knows this stream; -1: the first that no other sink of this process has")]
    #[property(name = "max-frame-size", get, set, member = max_frame_size, type = u32, minimum = 1, maximum = (1 << 30) - 64, default_value = 8 << 20,
        nick = "Longest frame", blurb = "Bytes of the longest frame")]
    #[property(name = "blocks", get, set, member = blocks, type = u32, minimum = 2, maximum = 256, default_value = 4,
        nick = "Blocks", blurb = "Buffers that are offered to the element in front; as many more for frames that must be copied, and while the format changes")]
    #[property(name = "deadline", get, set, member = deadline_ms, type = u32, default_value = 0,
        nick = "Deadline", blurb = "Drop frames that could not be sent within this time, in milliseconds; 0: never")]
    #[property(name = "newest", get, set, member = newest, type = bool, default_value = false,
        nick = "Newest frame", blurb = "If the receiver is slower, send the newest frame and drop those before")]
    #[property(name = "patience", get, set, member = patience_s, type = u32, default_value = 60,
        nick = "Patience", blurb = "How long to connect again after the connection is lost, in seconds")]
    settings: Mutex<Settings>,
    #[property(name = "stats", get = Self::stats, type = String,
        nick = "Statistics", blurb = "What became of the frames, as the text of a structure")]
    _stats: (),
    state: Mutex<Option<Arc<Membership>>>,
    slots: Slots,
    is_flushing: AtomicBool,
    has_ended: AtomicBool,
    in_place: AtomicU64,
    copied: AtomicU64,
    /// Frames that were told as dropped.
    told: AtomicU64,
}

#[glib::object_subclass]
impl ObjectSubclass for Imp {
    const NAME: &'static str = "GstAirdmaSink";
    type Type = AirdmaSink;
    type ParentType = gst_base::BaseSink;
}

#[glib::derived_properties]
impl ObjectImpl for Imp {
    fn constructed(&self) {
        self.parent_constructed();
        // The last sample would keep one of few blocks.
        self.obj().set_property("enable-last-sample", false);
    }
}

impl GstObjectImpl for Imp {}

impl ElementImpl for Imp {
    fn metadata() -> Option<&'static gst::subclass::ElementMetadata> {
        static METADATA: LazyLock<gst::subclass::ElementMetadata> = LazyLock::new(|| {
            gst::subclass::ElementMetadata::new(
                "Frames over RDMA",
                "Sink/Network",
                "Sends frames to airdmasrc or `airdma stream recv`; all sinks of a process share a connection",
                "The airdma authors",
            )
        });
        Some(&METADATA)
    }

    fn pad_templates() -> &'static [gst::PadTemplate] {
        static TEMPLATES: LazyLock<Vec<gst::PadTemplate>> =
            LazyLock::new(|| vec![pad("sink", gst::PadDirection::Sink)]);
        &TEMPLATES
    }
}

impl BaseSinkImpl for Imp {
    fn start(&self) -> Result<(), gst::ErrorMessage> {
        let settings = locked(&self.settings).clone();
        let wanted = Wanted {
            peer: settings.peer,
            code: settings.code,
            frame_bytes: settings.max_frame_size as usize,
            patience: Duration::from_secs(settings.patience_s.into()),
        };
        let policy = match settings.newest {
            true => Policy::Newest,
            false => Policy::All,
        };
        let device = u32::try_from(settings.device).ok();
        let about = (settings.blocks as usize, policy);
        let membership = Membership::join(&wanted, device, about)
            .map_err(|error| gst::error_msg!(gst::ResourceError::OpenWrite, ["{error}"]))?;
        gst::info!(CAT, imp = self, "sends as device {}", membership.device);
        for counter in [&self.in_place, &self.copied, &self.told] {
            counter.store(0, Ordering::Relaxed);
        }
        self.has_ended.store(false, Ordering::Relaxed);
        *locked(&self.state) = Some(Arc::new(membership));
        Ok(())
    }

    fn stop(&self) -> Result<(), gst::ErrorMessage> {
        let membership = locked(&self.state).take();
        if let Some(membership) = membership {
            membership.leave(self.has_ended.load(Ordering::Relaxed));
        }
        Ok(())
    }

    fn set_caps(&self, caps: &gst::Caps) -> Result<(), gst::LoggableError> {
        let membership = self
            .membership()
            .map_err(|_| gst::loggable_error!(CAT, "stopped"))?;
        let set = membership.set_format(&caps.to_string());
        set.map_err(|error| gst::loggable_error!(CAT, "{caps}: {error}"))
    }

    fn propose_allocation(
        &self,
        query: &mut gst::query::Allocation,
    ) -> Result<(), gst::LoggableError> {
        let (caps, needs_pool) = query.get_owned();
        let size = caps.as_ref().and_then(frame_bytes);
        let settings = locked(&self.settings).clone();
        let size = size.filter(|size| *size <= settings.max_frame_size);
        // Frames of unknown size are copied. No meta: frames in blocks have no padding.
        if let (true, Some(size), Ok(membership)) = (needs_pool, size, self.membership()) {
            let pool = Pool::new(&membership, &self.slots);
            let mut config = pool.config();
            config.set_params(caps.as_ref(), size, 0, settings.blocks);
            if pool.set_config(config).is_ok() {
                query.add_allocation_pool(Some(&pool), size, 0, settings.blocks);
            }
        }
        Ok(())
    }

    fn render(&self, buffer: &gst::Buffer) -> Result<gst::FlowSuccess, gst::FlowError> {
        let membership = self.membership()?;
        let deadline_ms = locked(&self.settings).deadline_ms;
        let time = self.capture_time(buffer.pts());
        let flags = match buffer.flags() {
            flags if flags.contains(gst::BufferFlags::DELTA_UNIT) => Flags::default(),
            _ => Flags::KEY,
        };
        let flags = match buffer.flags().contains(gst::BufferFlags::DISCONT) {
            true => flags | Flags::DISCONTINUITY,
            false => flags,
        };
        let deadline = match deadline_ms {
            0 => 0,
            ms => time + u64::from(ms) * 1_000_000,
        };
        let description = Description {
            time,
            deadline,
            flags,
        };
        let slot = self.slots.of(buffer);
        if slot.is_some_and(|slot| membership.send_slot(&slot, buffer, description)) {
            self.in_place.fetch_add(1, Ordering::Relaxed);
            // A failed connection is told here: nothing else waits for it.
            membership
                .outgoing
                .check()
                .map_err(|refusal| self.refused(refusal))?;
        } else {
            self.copy(&membership, buffer, description)?;
        }
        self.tell_dropped(&membership, buffer);
        Ok(gst::FlowSuccess::Ok)
    }

    fn event(&self, event: gst::Event) -> bool {
        let sent = match (event.view(), self.membership()) {
            (gst::EventView::Eos(_), Ok(membership)) => {
                let ended = membership.end(&self.is_flushing, NEVER);
                self.has_ended.store(true, Ordering::Relaxed);
                ended
            }
            (gst::EventView::Gap(gap), Ok(membership)) => {
                let time = self.capture_time(Some(gap.get().0));
                membership.mark(Flags::GAP, time, (&self.is_flushing, NEVER))
            }
            _ => Ok(()),
        };
        if let Err(refusal) = sent {
            // The event goes on; what failed is told on the bus.
            let _ = self.refused(refusal);
        }
        self.parent_event(event)
    }

    fn unlock(&self) -> Result<(), gst::ErrorMessage> {
        self.is_flushing.store(true, Ordering::Release);
        if let Ok(membership) = self.membership() {
            membership.outgoing.wake();
        }
        Ok(())
    }

    fn unlock_stop(&self) -> Result<(), gst::ErrorMessage> {
        self.is_flushing.store(false, Ordering::Release);
        Ok(())
    }
}

impl Imp {
    fn membership(&self) -> Result<Arc<Membership>, gst::FlowError> {
        locked(&self.state).clone().ok_or(gst::FlowError::Flushing)
    }

    /// Sends a frame in memory that is no block, or is one on its way.
    fn copy(
        &self,
        membership: &Membership,
        buffer: &gst::Buffer,
        description: Description,
    ) -> Result<(), gst::FlowError> {
        let block = membership.block(buffer.size(), (&self.is_flushing, NEVER));
        let mut block = block.map_err(|refusal| self.refused(refusal))?;
        // Its memories may be several.
        if buffer.copy_to_slice(0, &mut block).is_err() {
            membership.outgoing.discard(block);
            gst::element_imp_error!(self, gst::StreamError::Failed, ["a buffer cannot be read"]);
            return Err(gst::FlowError::Error);
        }
        membership.outgoing.send(block, description);
        self.copied.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn refused(&self, refusal: Refusal) -> gst::FlowError {
        match refusal {
            Refusal::Flushing => gst::FlowError::Flushing,
            Refusal::Failed(why) => {
                gst::element_imp_error!(self, gst::ResourceError::Write, ["{why}"]);
                gst::FlowError::Error
            }
        }
    }

    /// When a buffer was captured, in nanoseconds since 1970: as long ago as its running time was.
    fn capture_time(&self, pts: Option<gst::ClockTime>) -> u64 {
        let now = now_ns();
        let segment = self.obj().segment();
        let running = segment.downcast_ref::<gst::ClockTime>().zip(pts);
        let running = running.and_then(|(segment, pts)| segment.to_running_time(pts));
        match (running, self.obj().current_running_time()) {
            (Some(then), Some(here)) => {
                let age = here.nseconds() as i64 - then.nseconds() as i64;
                now.saturating_add_signed(age.saturating_neg())
            }
            _ => now,
        }
    }

    /// Tells the application, and the elements in front, of frames that were dropped.
    fn tell_dropped(&self, membership: &Membership, buffer: &gst::Buffer) {
        let (counts, _) = membership.counts();
        let dropped = counts.late + counts.replaced;
        if dropped == self.told.swap(dropped, Ordering::Relaxed) {
            return;
        }
        let sent = gst::format::Buffers::from_u64(counts.sent);
        let dropped = gst::format::Buffers::from_u64(dropped);
        let message = gst::message::Qos::builder(true)
            .timestamp(buffer.pts())
            .src(&*self.obj())
            .stats(sent, dropped)
            .build();
        // Only a bin that is gone refuses it.
        let _ = self.obj().post_message(message);
    }

    fn stats(&self) -> String {
        let membership = locked(&self.state).clone();
        let counts = membership.map(|membership| (membership.device, membership.counts()));
        let (device, (counts, reconnects)) = counts.unwrap_or_default();
        gst::Structure::builder("airdmasink-stats")
            .field("device", device)
            .field("in-place", self.in_place.load(Ordering::Relaxed))
            .field("copied", self.copied.load(Ordering::Relaxed))
            .field("offered", counts.offered)
            .field("sent", counts.sent)
            .field("bytes", counts.bytes)
            .field("late", counts.late)
            .field("replaced", counts.replaced)
            .field("reconnects", reconnects)
            .build()
            .to_string()
    }
}

/// Bytes of a frame of raw video.
fn frame_bytes(caps: &gst::Caps) -> Option<u32> {
    let info = gst_video::VideoInfo::from_caps(caps).ok()?;
    u32::try_from(info.size()).ok().filter(|size| *size > 0)
}
