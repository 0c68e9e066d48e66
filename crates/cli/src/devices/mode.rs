//! Where the devices of a program run: in its own process, or in a daemon.

use std::env;
use std::path::PathBuf;

use airdma_engine::{Device, DeviceInfo};

/// The variable that decides.
const VARIABLE: &str = "AIRDMA_DAEMON";

/// What a program with this environment gets, and why.
#[derive(Debug, PartialEq, Eq)]
pub enum Mode {
    /// Its own process has the devices. The reason.
    InProcess(&'static str),
    /// A daemon has them, and serves this user.
    Daemon(PathBuf),
    /// A daemon should have them, and does not. The reason.
    Refused(PathBuf, String),
}

impl Mode {
    /// Looks at the environment, and asks a daemon for the first device.
    pub fn look(devices: &[DeviceInfo]) -> Self {
        let asked = env::var_os(VARIABLE).filter(|asked| !asked.is_empty());
        let Some(asked) = asked else {
            return Mode::InProcess("AIRDMA_DAEMON is not set");
        };
        if asked == "off" {
            return Mode::InProcess("AIRDMA_DAEMON=off");
        }
        let path = PathBuf::from(asked);
        let first = devices.iter().find(|device| device.up);
        match first.or(devices.first()).map(Device::open) {
            Some(Err(error)) => Mode::Refused(path, error.to_string()),
            Some(Ok(_)) | None => Mode::Daemon(path),
        }
    }

    /// The daemon that the environment names.
    pub fn daemon(&self) -> Option<String> {
        match self {
            Mode::InProcess(_) => None,
            Mode::Daemon(path) | Mode::Refused(path, _) => Some(path.display().to_string()),
        }
    }

    /// Why the devices do not open.
    pub fn refusal(&self) -> Option<&str> {
        match self {
            Mode::InProcess(_) | Mode::Daemon(_) => None,
            Mode::Refused(_, why) => Some(why),
        }
    }
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Mode::InProcess(why) => {
                write!(f, "in each program's own process, because {why}")
            }
            Mode::Daemon(path) => write!(
                f,
                "in the daemon at {}, because {VARIABLE} names it",
                path.display()
            ),
            Mode::Refused(path, why) => write!(
                f,
                "in no process: {VARIABLE} names {}, and {why}",
                path.display()
            ),
        }
    }
}
