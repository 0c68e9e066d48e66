//! GStreamer elements for streams of frames over RDMA.
//!
//! `airdmasink` sends frames as `airdma stream send` does, and `airdmasrc` receives them as
//! `airdma stream recv` does; each talks to either. `docs/gstreamer.md` is the page of users.
//!
//! | module | holds |
//! |---|---|
//! | `sink`, `source` | the elements |
//! | `outgoing` | the connection that the sinks of a process share |
//! | `incoming` | the receiver that the sources of a process share |
//! | `pool` | buffers that are blocks, for the elements in front of a sink |
//! | `meeting` | who may connect, by code and known keys |

mod incoming;
mod meeting;
mod outgoing;
mod pool;
mod sink;
mod source;

use gst::glib;
use std::sync::{Mutex, MutexGuard, PoisonError};

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The one pad of an element, for any format.
fn pad(name: &str, direction: gst::PadDirection) -> gst::PadTemplate {
    let any = gst::Caps::new_any();
    let template = gst::PadTemplate::new(name, direction, gst::PadPresence::Always, &any);
    template.expect("a pad of this name can be made")
}

/// Number of connections that sinks of this process have.
#[doc(hidden)]
pub fn connections() -> usize {
    outgoing::connections()
}

fn plugin_init(plugin: &gst::Plugin) -> Result<(), glib::BoolError> {
    sink::register(plugin)?;
    source::register(plugin)
}

gst::plugin_define!(
    airdma,
    env!("CARGO_PKG_DESCRIPTION"),
    plugin_init,
    concat!(env!("CARGO_PKG_VERSION"), "-", env!("COMMIT_ID")),
    "MIT/X11",
    env!("CARGO_PKG_NAME"),
    env!("CARGO_PKG_NAME"),
    "airdma",
    env!("BUILD_REL_DATE")
);
