//! Errors of the box.

use std::io;

use airdma_radio::Unreadable;

/// An error: what was tried, and what to do about it.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// The kernel refused a step.
    #[error("{what}: {error}{hint}")]
    Refused {
        /// The step.
        what: String,
        /// The kernel's error.
        error: io::Error,
        /// The remedy, or nothing.
        hint: &'static str,
    },
    /// The rate of the radio is unknown.
    #[error("{interface}: nothing says how fast it is ({reason}): name its rate, --rate MBIT")]
    NoRate {
        /// The radio.
        interface: String,
        /// Why it cannot be read.
        reason: Unreadable,
    },
    /// The interface has disappeared.
    #[error("{0} is gone: `ip link` lists the interfaces of this network namespace")]
    Gone(String),
    /// A station may not send with other hosts' addresses.
    #[error(
        "{0} is a Wi-Fi station, which sends frames in its own name alone: `iw dev {0} set 4addr on`, with an access point \
         that takes part; or let the box be the access point"
    )]
    OwnNameAlone(String),
    /// The configuration is invalid.
    #[error("{0}")]
    Asked(String),
}

/// Adds the failed step to an error of the kernel.
pub(crate) trait Tried<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, ControllerError>;
}

impl<T> Tried<T> for io::Result<T> {
    fn tried(self, what: impl Into<String>) -> Result<T, ControllerError> {
        self.map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::EPERM) => {
                    "\n  this needs CAP_NET_RAW and CAP_NET_ADMIN in the network namespace: run it with sudo, or in `unshare -Urn`"
                }
                Some(libc::ENODEV | libc::ENXIO) => {
                    "\n  `ip link` lists the interfaces of this network namespace"
                }
                Some(libc::ENETDOWN) => "\n  bring it up: ip link set INTERFACE up",
                _ => "",
            };
            ControllerError::Refused {
                what: what.into(),
                error,
                hint,
            }
        })
    }
}
