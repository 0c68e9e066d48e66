//! What the environment asks of a device, when it is opened and when its port is bound. A simulation asks nobody.
//!
//! A new variable is read here, used by [`super::Core`], and listed in `docs/reference/variables.md`. Those that say which devices there are and how long
//! their packets are ([`crate::host::devices`]), or where files lie ([`crate::sharing::runtime_dir`]), are read there.

use crate::Error;
use crate::air::{AirMode, RateControl};
use crate::seal::Secret;
use crate::worker::peers::Window;
use airdma_port::impair::Impairment;
use std::io;
use std::path::Path;

/// What a variable says. What is not text is not any value, either: it is refused as such.
pub(crate) fn value_of(name: &str) -> Option<String> {
    let value = std::env::var_os(name)?;
    Some(value.to_string_lossy().into_owned())
}

/// The window to one peer, from the environment.
pub(super) fn window_asked_for() -> io::Result<Window> {
    let Some(asked) = value_of("AIRDMA_WINDOW_BYTES") else {
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
    match value_of("AIRDMA_AIR").as_deref() {
        Some("1") => Ok(AirMode::Asks),
        Some("0") => Ok(AirMode::Off),
        Some("auto" | "") | None if !by_itself => Ok(AirMode::Off),
        Some("auto" | "") | None if is_wireless(interface) => Ok(AirMode::Asks),
        // On a wire it costs more than it brings, unless the peer is on the air.
        Some("auto" | "") | None => Ok(AirMode::Answers),
        Some(asked) => {
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
    let Some(asked) = value_of("AIRDMA_RATE") else {
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
    match value_of("AIRDMA_AGGREGATE").as_deref() {
        Some("datagrams") => Ok(true),
        Some("segments") | None => Ok(false),
        Some(asked) => {
            let message = format!("AIRDMA_AGGREGATE is {asked:?}; it may be segments or datagrams");
            Err(io::Error::new(io::ErrorKind::InvalidInput, message))
        }
    }
}

/// Whether packets may leave in segmented sends.
pub(super) fn segmentation_asked_for() -> bool {
    std::env::var_os("AIRDMA_SEGMENTATION").is_none_or(|value| value != "off")
}

/// The secret that all connections are sealed with, from the environment.
pub(super) fn secret_asked_for() -> io::Result<Option<Secret>> {
    let Some(path) = std::env::var_os("AIRDMA_SECRET") else {
        return Ok(None);
    };
    if path.is_empty() {
        // A script whose own variable is not set does not mean to send in the clear.
        let message = "AIRDMA_SECRET is empty; it may be the path of a file, or not set";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Secret::from_file(Path::new(&path))
        .map(Some)
        .map_err(|error| {
            let message = format!("AIRDMA_SECRET {}: {error}", path.display());
            io::Error::new(error.kind(), message)
        })
}

/// What is to happen to packets, for tests.
///
/// # Errors
/// `EINVAL`.
pub(super) fn impairment_asked_for() -> Result<Option<Impairment>, Error> {
    let Some(spec) = value_of("AIRDMA_IMPAIR") else {
        return Ok(None);
    };
    let impairment = spec.parse().map_err(|error| Error::System {
        errno: libc::EINVAL,
        message: format!("AIRDMA_IMPAIR: {error}"),
    })?;
    Ok(Some(impairment))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    const NAMES: [&str; 7] = [
        "AIRDMA_SECRET",
        "AIRDMA_WINDOW_BYTES",
        "AIRDMA_AIR",
        "AIRDMA_RATE",
        "AIRDMA_AGGREGATE",
        "AIRDMA_IMPAIR",
        "AIRDMA_MTU",
    ];
    const INSIDE: &str = "AIRDMA_TEST_INSIDE";

    #[test]
    fn what_is_not_text_is_refused_as_other_wrong_values_are() {
        if std::env::var_os(INSIDE).is_some() {
            assert!(window_asked_for().is_err());
            assert!(secret_asked_for().is_err());
            assert!(air_asked_for("lo", true).is_err());
            assert!(rate_control_asked_for().is_err());
            assert!(bundles_asked_for().is_err());
            assert!(impairment_asked_for().is_err());
            assert!(crate::host::devices::all_devices().is_err());
            return;
        }
        // The environment of this process is that of all its tests.
        let name =
            "core::environment::tests::what_is_not_text_is_refused_as_other_wrong_values_are";
        let wrong = OsStr::from_bytes(b"\xff");
        assert!(secret_asked_for().is_ok_and(|secret| secret.is_none()));
        let status = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(INSIDE, "1")
            .envs(NAMES.map(|name| (name, wrong)))
            .status();
        assert!(status.unwrap().success());
    }
}
