//! A daemon in a process of its own, and clients that keep to no rule ([`raw`]).
#![allow(clippy::unwrap_used)]

mod connections;
mod greetings;
mod leaving;
mod objects;
mod raw;
mod starving;
mod waking;

use crate::common::{self, ROLE, Running, SOCKET, TWO_INTERFACES, info_of, isolated, open, say};
use crate::worker::Worker;
use raw::Raw;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

/// Not a test: the processes of the others run this.
#[test]
fn in_a_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    assert_eq!(role, "daemon");
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    let (_stop, never) = UnixStream::pair().unwrap();
    let daemon = common::daemon(&socket);
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

impl Running {
    fn start(name: &str) -> Self {
        Running::start_by("daemon::tests::in_a_process", name)
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
        self.daemon.tell(interface);
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

/// Runs the body in a network of its own. `name` is the test's, below this module.
fn in_network(name: &str, body: impl FnOnce()) {
    isolated(&format!("daemon::tests::{name}"), TWO_INTERFACES, body);
}
