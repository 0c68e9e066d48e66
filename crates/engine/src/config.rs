//! What a program asks of a device, beyond which interface it is on.

use crate::environment::Variable;
use crate::seal::Secret;
use airdma_port::impair::Impairment;
use airdma_wire::PathMtu;
use std::io;
use std::path::{Path, PathBuf};

/// Ceiling of the window: about what the receive socket of an unprivileged process holds
/// (`net.core.rmem_max` is 212,992 bytes by default, and the kernel doubles what is asked for to
/// make up for its own overhead per packet). A larger window only moves the queue from the sender's
/// memory, where it is free, to where packets are dropped.
pub(crate) const WINDOW_BYTES_MAX: u32 = 256 * 1024;

/// How a device works. The default is that of a program with none of the variables set.
///
/// [`Device::open`](crate::Device::open) takes it from the environment; a program that fills it by
/// itself opens the device with [`Device::open_with`](crate::Device::open_with), and its
/// environment has no say.
///
/// ```
/// use airdma_engine::{Air, DeviceConfig, PeerWindow};
///
/// let config = DeviceConfig {
///     air: Air::Ask,
///     window: PeerWindow::AtMost(128 * 1024),
///     ..DeviceConfig::default()
/// };
/// assert!(config.segmentation && config.secret.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct DeviceConfig {
    /// Ceiling of the window to one peer (`AIRDMA_WINDOW_BYTES`: bytes, or `none`). Default:
    /// 262,144 bytes.
    pub window: Window,
    /// What peers that are airdma's are offered (`AIRDMA_AIR`: `auto`, `1` or `0`). Default: by the
    /// interface.
    pub air: Air,
    /// What decides how fast peers are sent to whose rate is controlled (`AIRDMA_RATE`: the name).
    /// Default: the path's buffers.
    pub rate_control: RateControl,
    /// Whether ACKs that say what is missing are offered, and no air mode (`AIRDMA_SACK=1`).
    /// Default: no.
    pub sack: bool,
    /// Whether packets of air mode may leave together in one datagram (`AIRDMA_AGGREGATE`:
    /// `datagrams` or `segments`). Default: no.
    pub bundles: bool,
    /// The secret that seals all connections (`AIRDMA_SECRET`: the path of a file). Default: none,
    /// and connections are in the clear.
    pub secret: Option<Secret>,
    /// Whether packets may leave in segmented sends (`AIRDMA_SEGMENTATION`: `off` for no). Default:
    /// yes.
    pub segmentation: bool,
    /// Path MTU of the device, in place of the largest that fits its interface (`AIRDMA_MTU`:
    /// bytes). Default: the interface's. Packets that the interface cannot carry leave as IP
    /// fragments.
    pub path_mtu: Option<PathMtu>,
    /// How packets reach the network (`AIRDMA_PORT`: `udp` or `packet`). Default: UDP sockets.
    pub port: PortKind,
    /// Whether packets for processes of this user on this host go through memory
    /// ([`airdma_port::local`]; `AIRDMA_LOCAL=1`). Default: no, and they pass the kernel as any
    /// other.
    pub local: bool,
    /// The socket of the daemon that has the device (`AIRDMA_DAEMON`: an absolute path, or `off`),
    /// whose own configuration then counts in place of all other fields. Default: none, and the
    /// device is this process's own.
    pub daemon: Option<PathBuf>,
    /// Damage to what is sent, for tests (`AIRDMA_IMPAIR`: see [`Impairment`]). Default: none.
    pub impairment: Option<Impairment>,
}

/// How the packets of a device reach the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortKind {
    /// UDP sockets, without privilege ([`airdma_port::udp`]).
    #[default]
    Udp,
    /// Whole Ethernet frames, with CAP_NET_RAW ([`airdma_port::packet`]).
    Packet,
}

/// What a device offers its peers beyond RoCEv2: selective repeat and long packets; on the air, air
/// mode, with sparse acknowledgements and a rate by the buffers of the path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Air {
    /// Air mode on a wireless interface; on others that, if the peer asks for it, or else what
    /// suits a wire. With [`DeviceConfig::sack`] or [`RateControl::Dcqcn`], which air mode would
    /// take precedence over, it is not offered.
    #[default]
    Auto,
    /// Air mode on any interface.
    Ask,
    /// Nothing: it neither asks nor answers.
    Off,
}

/// Most bytes in flight of all queue pairs to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Window {
    /// At most this many bytes.
    AtMost(u32),
    /// No window: all is sent at once, as by a NIC, whatever gets lost.
    Unlimited,
}

impl Window {
    /// As users write it.
    pub(crate) fn from_text(text: &str) -> Option<Self> {
        match text {
            "none" => Some(Window::Unlimited),
            bytes => bytes.parse().ok().map(Window::AtMost),
        }
    }
}

impl Default for Window {
    fn default() -> Self {
        Window::AtMost(WINDOW_BYTES_MAX)
    }
}

/// Rate control of peers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RateControl {
    /// By the buffers of the path: as many bytes in flight as the bottleneck needs to stay busy.
    #[default]
    Buffers,
    /// As [`Buffers`](Self::Buffers), with the shortest queues.
    Latency,
    /// By the share of packets with congestion marks.
    Dctcp,
    /// By congestion notification packets, also of other implementations.
    Dcqcn,
    /// None, except for the window of all peers.
    Window,
}

impl RateControl {
    /// Parses the name in `AIRDMA_RATE`.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "buffers" => Some(RateControl::Buffers),
            "latency" => Some(RateControl::Latency),
            "dctcp" => Some(RateControl::Dctcp),
            "dcqcn" => Some(RateControl::Dcqcn),
            "window" => Some(RateControl::Window),
            _ => None,
        }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            window: Window::default(),
            air: Air::default(),
            rate_control: RateControl::default(),
            sack: false,
            bundles: false,
            secret: None,
            segmentation: true,
            path_mtu: None,
            port: PortKind::default(),
            local: false,
            daemon: None,
            impairment: None,
        }
    }
}

impl DeviceConfig {
    /// What the environment asks for.
    ///
    /// # Errors
    /// `InvalidInput` for a value that its variable does not have, by name; those of the file that
    /// `AIRDMA_SECRET` names.
    pub fn from_environment() -> io::Result<Self> {
        let mut config = DeviceConfig {
            window: window_asked_for()?,
            rate_control: rate_control_asked_for()?,
            secret: secret_asked_for()?,
            sack: Variable::Sack.is_one(),
            air: air_asked_for()?,
            segmentation: Variable::Segmentation
                .raw()
                .is_none_or(|value| value != "off"),
            path_mtu: path_mtu_asked_for()?,
            port: port_asked_for()?,
            local: Variable::Local.is_one(),
            daemon: daemon_asked_for()?,
            impairment: impairment_asked_for()?,
            ..DeviceConfig::default()
        };
        // Without air mode the variable means nothing, whatever it says.
        config.bundles = config.has_air() && bundles_asked_for()?;
        Ok(config)
    }

    /// The names of the fields in which `other` differs.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let DeviceConfig {
            window,
            air,
            rate_control,
            sack,
            bundles,
            secret,
            segmentation,
            path_mtu,
            port,
            local,
            daemon,
            impairment,
        } = self;
        let fields = [
            ("window", *window == other.window),
            ("air", *air == other.air),
            ("rate_control", *rate_control == other.rate_control),
            ("sack", *sack == other.sack),
            ("bundles", *bundles == other.bundles),
            ("secret", *secret == other.secret),
            ("segmentation", *segmentation == other.segmentation),
            ("path_mtu", *path_mtu == other.path_mtu),
            ("port", *port == other.port),
            ("local", *local == other.local),
            ("daemon", *daemon == other.daemon),
            ("impairment", *impairment == other.impairment),
        ];
        let different = fields.into_iter().filter(|(_, is_equal)| !is_equal);
        different.map(|(name, _)| name).collect()
    }

    /// What a simulation has: RoCEv2 and no more, wherever it runs.
    pub(crate) fn of_simulation() -> Self {
        DeviceConfig {
            air: Air::Off,
            ..DeviceConfig::default()
        }
    }

    /// Whether the device offers air mode.
    pub(crate) fn has_air(&self) -> bool {
        match self.air {
            Air::Ask => true,
            Air::Off => false,
            Air::Auto => !self.sack && self.rate_control != RateControl::Dcqcn,
        }
    }
}

/// Whether the loopback interface counts as a device.
pub(crate) fn loopback_asked_for() -> bool {
    Variable::Loopback.is_one()
}

/// The path MTU that all devices get.
pub(crate) fn path_mtu_asked_for() -> io::Result<Option<PathMtu>> {
    let Some(asked) = Variable::Mtu.text() else {
        return Ok(None);
    };
    match path_mtu_by_bytes(&asked) {
        Some(mtu) => Ok(Some(mtu)),
        None => Err(refused(
            Variable::Mtu,
            &asked,
            "256, 512, 1024, 2048 or 4096",
        )),
    }
}

fn path_mtu_by_bytes(asked: &str) -> Option<PathMtu> {
    let is_it = |mtu: &PathMtu| asked == mtu.bytes().to_string();
    PathMtu::ALL.into_iter().find(is_it)
}

fn port_asked_for() -> io::Result<PortKind> {
    match Variable::Port.text().as_deref() {
        Some("packet") => Ok(PortKind::Packet),
        Some("udp") | None => Ok(PortKind::Udp),
        Some(asked) => Err(refused(Variable::Port, asked, "udp or packet")),
    }
}

fn daemon_asked_for() -> io::Result<Option<PathBuf>> {
    let Some(asked) = Variable::Daemon.raw().filter(|asked| asked != "off") else {
        return Ok(None);
    };
    let path = PathBuf::from(asked);
    if path.is_absolute() {
        return Ok(Some(path));
    }
    let asked = path.to_string_lossy();
    Err(refused(Variable::Daemon, &asked, "an absolute path or off"))
}

fn window_asked_for() -> io::Result<Window> {
    let Some(asked) = Variable::WindowBytes.text() else {
        return Ok(Window::default());
    };
    Window::from_text(&asked)
        .ok_or_else(|| refused(Variable::WindowBytes, &asked, "a number of bytes or none"))
}

fn air_asked_for() -> io::Result<Air> {
    match Variable::Air.text().as_deref() {
        Some("1") => Ok(Air::Ask),
        Some("0") => Ok(Air::Off),
        Some("auto" | "") | None => Ok(Air::Auto),
        Some(asked) => Err(refused(Variable::Air, asked, "1, 0 or auto")),
    }
}

fn rate_control_asked_for() -> io::Result<RateControl> {
    let Some(asked) = Variable::Rate.text() else {
        return Ok(RateControl::default());
    };
    let names = "buffers, latency, dctcp, dcqcn or window";
    RateControl::from_name(&asked).ok_or_else(|| refused(Variable::Rate, &asked, names))
}

fn bundles_asked_for() -> io::Result<bool> {
    match Variable::Aggregate.text().as_deref() {
        Some("datagrams") => Ok(true),
        Some("segments") | None => Ok(false),
        Some(asked) => Err(refused(Variable::Aggregate, asked, "segments or datagrams")),
    }
}

fn secret_asked_for() -> io::Result<Option<Secret>> {
    let Some(path) = Variable::Secret.raw() else {
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

fn impairment_asked_for() -> io::Result<Option<Impairment>> {
    let Some(spec) = Variable::Impair.text() else {
        return Ok(None);
    };
    spec.parse().map(Some).map_err(|error| {
        let message = format!("AIRDMA_IMPAIR: {error}");
        io::Error::new(io::ErrorKind::InvalidInput, message)
    })
}

fn refused(variable: Variable, asked: &str, values: &str) -> io::Error {
    let name = variable.name();
    let message = format!("{name} is {asked:?}; it may be {values}");
    io::Error::new(io::ErrorKind::InvalidInput, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    use std::process::Command;

    const VARIABLES: [Variable; 9] = [
        Variable::Daemon,
        Variable::Port,
        Variable::Secret,
        Variable::WindowBytes,
        Variable::Air,
        Variable::Rate,
        Variable::Aggregate,
        Variable::Impair,
        Variable::Mtu,
    ];
    const INSIDE: &str = "AIRDMA_TEST_INSIDE";

    #[test]
    fn what_is_not_text_is_refused_as_other_wrong_values_are() {
        if std::env::var_os(INSIDE).is_some() {
            assert!(window_asked_for().is_err());
            assert!(secret_asked_for().is_err());
            assert!(air_asked_for().is_err());
            assert!(rate_control_asked_for().is_err());
            assert!(bundles_asked_for().is_err());
            assert!(port_asked_for().is_err());
            assert!(daemon_asked_for().is_err());
            assert!(impairment_asked_for().is_err());
            assert!(DeviceConfig::from_environment().is_err());
            assert!(crate::all_devices().is_err());
            return;
        }
        // The environment of this process is that of all its tests.
        let name = "config::tests::what_is_not_text_is_refused_as_other_wrong_values_are";
        let wrong = OsStr::from_bytes(b"\xff");
        assert!(secret_asked_for().is_ok_and(|secret| secret.is_none()));
        let output = Command::new(std::env::current_exe().unwrap())
            .args([name, "--exact"])
            .env(INSIDE, "1")
            .envs(VARIABLES.map(|variable| (variable.name(), wrong)))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{said}"
        );
    }

    #[test]
    fn an_environment_without_variables_is_the_default() {
        let text = |config: DeviceConfig| format!("{config:?}");
        let asked = DeviceConfig::from_environment().unwrap();
        assert_eq!(text(asked), text(DeviceConfig::default()));
    }

    #[test]
    fn air_mode_does_not_come_by_itself_before_what_was_asked_for() {
        let sack = DeviceConfig {
            sack: true,
            ..DeviceConfig::default()
        };
        let notified = DeviceConfig {
            rate_control: RateControl::Dcqcn,
            ..DeviceConfig::default()
        };
        assert!(DeviceConfig::default().has_air() && !DeviceConfig::of_simulation().has_air());
        for config in [sack, notified] {
            assert!(!config.has_air());
            let air = Air::Ask;
            assert!(DeviceConfig { air, ..config }.has_air());
        }
    }

    #[test]
    fn the_window_is_a_number_of_bytes_or_none() {
        assert_eq!(Window::from_text("65536"), Some(Window::AtMost(65536)));
        assert_eq!(Window::from_text("none"), Some(Window::Unlimited));
        for wrong in ["", "64k", "-1", "4294967296"] {
            assert_eq!(Window::from_text(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_path_mtu_is_asked_for_by_its_bytes() {
        assert_eq!(path_mtu_by_bytes("4096"), Some(PathMtu::M4096));
        for wrong in ["", "1500", "5", "4096 "] {
            assert_eq!(path_mtu_by_bytes(wrong), None);
        }
        let error = refused(Variable::Mtu, "5", "256 or more").to_string();
        assert_eq!(error, "AIRDMA_MTU is \"5\"; it may be 256 or more");
    }
}
