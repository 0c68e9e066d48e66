//! Reasons why a value cannot be read.

use std::io;

/// Why there is no reading. The text is for display.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// The interface is gone, or was never in this network namespace.
    #[error("there is no such interface in this network namespace")]
    NoInterface,
    /// An interface gets its queue when it is brought up for the first time.
    #[error("the interface has no queue before it is up: ip link set INTERFACE up")]
    NeverUp,
    /// No wireless driver is loaded, so no interface is wireless.
    #[error("the kernel has no nl80211: no wireless driver is loaded")]
    NoNl80211,
    /// nl80211 does not know this interface.
    #[error("not a wireless interface")]
    NotWireless,
    /// The driver does not report it.
    #[error("the driver does not tell")]
    NotOffered,
    /// It was not asked for yet.
    #[error("not read yet")]
    NotYet,
    /// The kernel's answer ended early, or lacks a required attribute.
    #[error("the kernel's answer is not understood: please report which kernel this is")]
    Garbled,
    /// The kernel's error number.
    #[error("the kernel refused: {}", io::Error::from_raw_os_error(*.0))]
    Refused(i32),
}

impl From<io::Error> for Unreadable {
    fn from(error: io::Error) -> Unreadable {
        Unreadable::Refused(error.raw_os_error().unwrap_or(libc::EIO))
    }
}
