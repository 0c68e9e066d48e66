//! A daemon in a process of its own, and devices at it.

use super::{Process, say};
use airdma_engine::{Daemon, Device, DeviceConfig, DeviceInfo, all_devices};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two interfaces of one host: 10.9.0.1 and 10.9.1.1.
pub const TWO_INTERFACES: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n\
                                  ip link add veth0 type veth peer name veth1\n\
                                  ip link set veth0 up\n\
                                  ip link set veth1 up\n\
                                  ip address add 10.9.0.1/32 dev veth0\n\
                                  ip address add 10.9.1.1/32 dev veth1";

/// A daemon, and the folder of its socket.
pub struct Running {
    pub daemon: Process,
    pub socket: PathBuf,
}

impl Running {
    /// Its process runs the test `process`, which gets a [`daemon`] and says `ready`.
    pub fn start_by(process: &str, name: &str) -> Self {
        let socket = folder(name).join("socket");
        let mut daemon = Process::start(process, "daemon", &socket);
        assert_eq!(daemon.line(), "ready");
        Running { daemon, socket }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.socket.parent().unwrap()).ok();
    }
}

/// A daemon of this process, which does not run yet.
pub fn daemon(socket: &Path) -> Daemon {
    let log = |line: &str| eprintln!("{line}");
    Daemon::bind(socket, DeviceConfig::default(), log).unwrap()
}

/// Runs a daemon for ever, in a process of its own.
pub fn serve(socket: &Path) {
    let (_stop, never) = UnixStream::pair().unwrap();
    let daemon = daemon(socket);
    say("ready");
    daemon.run(&never).unwrap();
}

/// A folder of this process.
pub fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("airdma-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

pub fn info_of(interface: &str) -> DeviceInfo {
    let devices = all_devices().unwrap();
    let found = devices.into_iter().find(|info| info.interface == interface);
    found.unwrap()
}

/// A device of this process, at a daemon or not.
pub fn open(interface: &str, daemon: Option<&Path>) -> Arc<Device> {
    let config = DeviceConfig {
        daemon: daemon.map(Path::to_owned),
        ..DeviceConfig::default()
    };
    Device::open_with(&info_of(interface), &config).unwrap()
}
