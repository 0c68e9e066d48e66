//! A lab that programs of other processes use: its hosts get names, and it lasts until their user
//! ends.

use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd};

use crate::error::{LabError, Tried};
use crate::named::{Named, lab_name, remove_abandoned};
use crate::topology::Lab;

impl Lab {
    /// Names the hosts, for `ip netns` and [`crate::exec`], after process `owner`; the names last
    /// as long as the result.
    ///
    /// # Errors
    ///
    /// If the names are taken, or mounting is refused.
    pub fn publish(&self, owner: u32) -> Result<[Named; 2], LabError> {
        remove_abandoned();
        let named = |host, namespace| {
            let name = lab_name(owner, host);
            let what = format!("naming a network namespace {name}");
            Named::new(name, namespace).tried(what)
        };
        Ok([
            named('a', &self.a.namespace)?,
            named('b', &self.b.namespace)?,
        ])
    }

    /// Waits for the end of `input` or for a signal that ends programs.
    ///
    /// # Errors
    ///
    /// If the kernel refuses to wait or to read.
    pub fn wait_closed(&self, mut input: impl Read + AsFd) -> io::Result<()> {
        let mut waits = [input.as_fd().as_raw_fd(), self.interrupts.raw()].map(|fd| libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        });
        loop {
            // SAFETY: two descriptors that are open throughout the call.
            if unsafe { libc::poll(waits.as_mut_ptr(), 2, -1) } < 0 {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
                continue;
            }
            if self.interrupts.take().is_some() {
                return Ok(());
            }
            if waits[0].revents != 0 && input.read(&mut [0; 64])? == 0 {
                return Ok(());
            }
        }
    }
}
