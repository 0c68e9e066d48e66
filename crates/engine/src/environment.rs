//! The environment variables of this process. No other file of the engine, nor of the crates below
//! it, reads them (`tests/architecture.py`).
//!
//! A new variable of a device gets a field of [`DeviceConfig`](crate::DeviceConfig), which says
//! what its values mean, and a row in `docs/reference/variables.md`.

use std::ffi::OsString;
use std::path::PathBuf;

/// A variable of the environment that a device heeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variable {
    Aggregate,
    Air,
    Daemon,
    Impair,
    Local,
    Loopback,
    Mtu,
    Port,
    Rate,
    Sack,
    Secret,
    Segmentation,
    WindowBytes,
}

/// The values of a device's variables at one moment.
pub(crate) struct Snapshot([Option<OsString>; OF_DEVICE.len()]);

/// The variables that become a [`DeviceConfig`](crate::DeviceConfig).
const OF_DEVICE: [Variable; 12] = [
    Variable::Aggregate,
    Variable::Air,
    Variable::Daemon,
    Variable::Impair,
    Variable::Local,
    Variable::Mtu,
    Variable::Port,
    Variable::Rate,
    Variable::Sack,
    Variable::Secret,
    Variable::Segmentation,
    Variable::WindowBytes,
];

impl Snapshot {
    pub(crate) fn take() -> Self {
        Snapshot(OF_DEVICE.map(Variable::raw))
    }

    /// The names of the variables that have another value in `other`.
    pub(crate) fn changes(&self, other: &Self) -> Vec<&'static str> {
        let values = self.0.iter().zip(&other.0);
        let pairs = OF_DEVICE.into_iter().zip(values);
        let changed = pairs.filter(|(_, (one, two))| one != two);
        changed.map(|(variable, _)| variable.name()).collect()
    }
}

impl Variable {
    /// The name in the environment.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Variable::Aggregate => "AIRDMA_AGGREGATE",
            Variable::Air => "AIRDMA_AIR",
            Variable::Daemon => "AIRDMA_DAEMON",
            Variable::Impair => "AIRDMA_IMPAIR",
            Variable::Local => "AIRDMA_LOCAL",
            Variable::Loopback => "AIRDMA_LOOPBACK",
            Variable::Mtu => "AIRDMA_MTU",
            Variable::Port => "AIRDMA_PORT",
            Variable::Rate => "AIRDMA_RATE",
            Variable::Sack => "AIRDMA_SACK",
            Variable::Secret => "AIRDMA_SECRET",
            Variable::Segmentation => "AIRDMA_SEGMENTATION",
            Variable::WindowBytes => "AIRDMA_WINDOW_BYTES",
        }
    }

    /// The value, byte for byte.
    pub(crate) fn raw(self) -> Option<OsString> {
        std::env::var_os(self.name())
    }

    /// The value as text. Bytes that are not UTF-8 become replacement characters, so that the value
    /// is refused as a wrong one.
    pub(crate) fn text(self) -> Option<String> {
        self.raw().map(|value| value.to_string_lossy().into_owned())
    }

    /// Whether the value is `1`.
    pub(crate) fn is_one(self) -> bool {
        self.raw().is_some_and(|value| value == "1")
    }
}

/// The directory of the user's session, `$XDG_RUNTIME_DIR`.
pub(crate) fn session_directory() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from)
}
