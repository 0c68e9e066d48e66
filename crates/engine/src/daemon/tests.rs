//! A daemon in a process of its own, and clients that keep to no rule ([`raw`]).
#![allow(clippy::unwrap_used)]

mod greetings;
mod leaving;
mod objects;
mod raw;
mod starving;
mod waking;

use super::Daemon;
use crate::common::{Process, ROLE, SOCKET, isolated, say};
use crate::worker::Worker;
use crate::{Device, DeviceConfig, DeviceInfo, all_devices};
use raw::Raw;
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Two interfaces of one host: 10.9.0.1 and 10.9.1.1.
const SETUP: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6\n\
                     ip link add veth0 type veth peer name veth1\n\
                     ip link set veth0 up\n\
                     ip link set veth1 up\n\
                     ip address add 10.9.0.1/32 dev veth0\n\
                     ip address add 10.9.1.1/32 dev veth1";

/// Not a test: the processes of the others run this.
#[test]
fn in_a_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    assert_eq!(role, "daemon");
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let (_stop, never) = UnixStream::pair().unwrap();
    let log = |line: &str| eprintln!("{line}");
    let daemon = Daemon::bind(&socket, DeviceConfig::default(), log).unwrap();
    say("ready");
    std::thread::spawn(move || daemon.run(&never).unwrap());
    // Each line names an interface, whose objects are counted.
    for interface in std::io::stdin().lines() {
        // The daemon's own, which is open.
        let device = open(&interface.unwrap(), None);
        let count = |worker: &mut Worker, _| {
            let device = &worker.state.device;
            let queues = (device.cqs.count(), worker.state.qps.count());
            format!("{} {} {}", device.memory.count(), queues.0, queues.1)
        };
        say(&device.core().control(count));
    }
}

/// A daemon, and the folder of its socket.
struct Running {
    daemon: Process,
    socket: PathBuf,
}

impl Running {
    fn start(name: &str) -> Self {
        let socket = folder(name).join("socket");
        let mut daemon = Process::start("daemon::tests::in_a_process", "daemon", &socket);
        assert_eq!(daemon.line(), "ready");
        Running { daemon, socket }
    }

    fn raw(&self, interface: &str) -> Raw {
        Raw::connect(&self.socket, info_of(interface).interface_index)
    }

    /// Lines of a file of the daemon's process in `/proc`, and names in a folder of it.
    fn count(&self, file: &str, is_it: impl Fn(&str) -> bool) -> usize {
        let path = format!("/proc/{}/{file}", self.daemon.child.id());
        let lines = std::fs::read_to_string(path).unwrap();
        lines.lines().filter(|line| is_it(line)).count()
    }

    /// Its regions and windows, completion queues and queue pairs on an interface.
    fn objects(&mut self, interface: &str) -> [usize; 3] {
        let stdin = self.daemon.child.stdin.as_mut().unwrap();
        writeln!(stdin, "{interface}").unwrap();
        let line = self.daemon.line();
        let numbers = line.split(' ').map(|word| word.parse().unwrap());
        numbers.collect::<Vec<_>>().try_into().unwrap()
    }

    /// Files of shared memory that it has mapped.
    fn mapped(&self) -> usize {
        self.count("maps", |line| line.contains("memfd:airdma-shm"))
    }

    fn descriptors(&self) -> usize {
        let path = format!("/proc/{}/fd", self.daemon.child.id());
        std::fs::read_dir(path).unwrap().count()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        std::fs::remove_dir_all(self.socket.parent().unwrap()).ok();
    }
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("airdma-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn info_of(interface: &str) -> DeviceInfo {
    let devices = all_devices().unwrap();
    let found = devices.into_iter().find(|info| info.interface == interface);
    found.unwrap()
}

/// A device of this process, at a daemon or not.
fn open(interface: &str, daemon: Option<&Path>) -> Arc<Device> {
    let config = DeviceConfig {
        daemon: daemon.map(Path::to_owned),
        ..DeviceConfig::default()
    };
    Device::open_with(&info_of(interface), &config).unwrap()
}

/// Runs the body in a network of its own. `name` is the test's, below this module.
fn in_network(name: &str, body: impl FnOnce()) {
    isolated(&format!("daemon::tests::{name}"), SETUP, body);
}
