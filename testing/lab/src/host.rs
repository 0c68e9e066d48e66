//! One of the two machines of a lab.

use std::net::IpAddr;
use std::time::Duration;

use crate::error::LabError;
use crate::interrupts::Interrupts;
use crate::loss;
use crate::namespace::Namespace;
use crate::program::{Outcome, Program};

/// A network namespace with one interface, and the core that its programs run on.
#[derive(Debug)]
pub struct Host {
    pub(crate) namespace: Namespace,
    /// Its IPv4 address on the cable.
    pub ipv4: IpAddr,
    /// Its IPv6 address on the cable.
    pub ipv6: IpAddr,
    /// The core of its programs.
    pub core: usize,
    pub(crate) variables: Vec<(String, String)>,
}

impl Host {
    /// Starts a program on this host, on its core. It dies with the calling thread.
    pub fn start(&self, command: &[String]) -> Result<Program, LabError> {
        Program::start(command, &self.namespace, self.core, &self.variables)
    }

    /// Runs a program on this host until its end, or until SIGKILL after `limit`.
    pub(crate) fn run(
        &self,
        command: &[String],
        limit: Duration,
        interrupts: &Interrupts,
    ) -> Result<Outcome, LabError> {
        self.start(command)?.wait(limit, interrupts)
    }

    /// Makes the host's interface lose one of `one_in` arriving packets, at random; none if 0.
    /// Needs `nft`.
    pub fn drop_one_in(&self, one_in: u32) -> Result<(), LabError> {
        loss::set(&self.namespace, one_in)
    }
}
