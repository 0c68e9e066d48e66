//! What the environment asks of a device, when it is opened and when its port is bound. A simulation asks nobody.
//!
//! A new variable is read here, used by [`super::Core`], and told of in the README. Those that say which devices there are and how long
//! their packets are ([`crate::devices`]), or where files lie ([`crate::runtime_dir`]), are read there.

use crate::Error;
use crate::air::{AirMode, RateControl};
use crate::peers::Window;
use airdma_port::impair::Impairment;
use std::io;
use std::path::Path;

/// The window to one peer, from the environment.
pub(super) fn window_asked_for() -> io::Result<Window> {
    let Ok(asked) = std::env::var("AIRDMA_WINDOW_BYTES") else {
        return Ok(Window::default());
    };
    Window::from_text(&asked).ok_or_else(|| {
        let message =
            format!("AIRDMA_WINDOW_BYTES is {asked:?}; it may be a number of bytes or none");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Whether something that peers can be offered beyond RoCEv2 is asked for in the environment.
pub(super) fn is_asked_for(name: &str) -> bool {
    std::env::var(name).is_ok_and(|asked| asked == "1")
}

/// Who begins to speak of what goes beyond RoCEv2 ([`crate::air`]), from the environment; if that does not say, whether it comes
/// `by_itself`.
pub(super) fn air_asked_for(interface: &str, by_itself: bool) -> io::Result<AirMode> {
    match std::env::var("AIRDMA_AIR").as_deref() {
        Ok("1") => Ok(AirMode::Asks),
        Ok("0") => Ok(AirMode::Off),
        Ok("auto" | "") | Err(_) if !by_itself => Ok(AirMode::Off),
        Ok("auto" | "") | Err(_) if is_wireless(interface) => Ok(AirMode::Asks),
        // On a wire it costs more than it brings, unless the peer is on the air.
        Ok("auto" | "") | Err(_) => Ok(AirMode::Answers),
        Ok(asked) => {
            let message = format!("AIRDMA_AIR is {asked:?}; it may be 1, 0 or auto");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// Whether an interface is one of 802.11's.
fn is_wireless(interface: &str) -> bool {
    Path::new("/sys/class/net")
        .join(interface)
        .join("phy80211")
        .exists()
}

/// How fast peers are sent to whose rate is controlled, from the environment.
pub(super) fn rate_control_asked_for() -> io::Result<RateControl> {
    let Ok(asked) = std::env::var("AIRDMA_RATE") else {
        return Ok(RateControl::default());
    };
    RateControl::from_name(&asked).ok_or_else(|| {
        let message =
            format!("AIRDMA_RATE is {asked:?}; it may be buffers, latency, dctcp, dcqcn or window");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

/// Whether packets may leave in bundles, to peers that take them, from the environment.
pub(super) fn bundles_asked_for() -> io::Result<bool> {
    match std::env::var("AIRDMA_AGGREGATE").as_deref() {
        Ok("datagrams") => Ok(true),
        Ok("segments") | Err(_) => Ok(false),
        Ok(asked) => {
            let message = format!("AIRDMA_AGGREGATE is {asked:?}; it may be segments or datagrams");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// Whether packets may leave in segmented sends.
pub(super) fn segmentation_asked_for() -> bool {
    std::env::var_os("AIRDMA_SEGMENTATION").is_none_or(|value| value != "off")
}

/// What is to happen to packets, for tests.
///
/// # Errors
/// `EINVAL`.
pub(super) fn impairment_asked_for() -> Result<Option<Impairment>, Error> {
    let Ok(spec) = std::env::var("AIRDMA_IMPAIR") else {
        return Ok(None);
    };
    let impairment = spec.parse().map_err(|error| Error::System {
        errno: libc::EINVAL,
        message: format!("AIRDMA_IMPAIR: {error}"),
    })?;
    Ok(Some(impairment))
}
