//! Notifies an event loop that an operation may be done, through a descriptor that it watches.
//!
//! The threads that notify never wait for the interpreter.

use crate::Cell;
use pyo3::prelude::*;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::task::Wake;

/// The descriptor of one event loop: readable while one of its operations may be done.
#[pyclass(frozen, module = "airdma._airdma")]
pub struct Bell {
    pub rope: Arc<Rope>,
}

/// The end of the bell that other threads signal.
pub struct Rope {
    event: OwnedFd,
    /// Numbers of the waits that were woken, each once.
    rung: Cell<Vec<u64>>,
}

/// Waker of one wait.
pub struct Pull {
    pub rope: Arc<Rope>,
    pub number: u64,
}

#[pymethods]
impl Bell {
    #[new]
    fn new() -> PyResult<Bell> {
        // SAFETY: valid flags.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(io::Error::last_os_error().into());
        }
        Ok(Bell {
            rope: Arc::new(Rope {
                // SAFETY: a descriptor that was just created, and that nothing else owns.
                event: unsafe { OwnedFd::from_raw_fd(event) },
                rung: Cell::new(Vec::new()),
            }),
        })
    }

    /// The descriptor to watch for reading.
    fn fileno(&self) -> RawFd {
        self.rope.event.as_raw_fd()
    }

    /// Numbers of the waits that were woken since the last call.
    fn take(&self) -> Vec<u64> {
        let mut count = 0u64;
        let fd = self.rope.event.as_raw_fd();
        // SAFETY: eight bytes, which an eventfd fills. An error only means that there was no
        // signal.
        unsafe { libc::read(fd, (&raw mut count).cast(), 8) };
        std::mem::take(&mut *self.rope.rung.lock())
    }
}

impl Wake for Pull {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let is_first = {
            let mut rung = self.rope.rung.lock();
            if !rung.contains(&self.number) {
                rung.push(self.number);
            }
            rung.len() == 1
        };
        if is_first {
            let one = 1u64;
            // SAFETY: eight bytes. Fails only if the bell is signalled already.
            unsafe { libc::write(self.rope.event.as_raw_fd(), (&raw const one).cast(), 8) };
        }
    }
}
