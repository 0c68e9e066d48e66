//! Models of the kernel: `eventfd(2)`, and `poll(2)` on several descriptors.

use loom::sync::{Arc, Mutex, Notify};
use std::io;
use std::os::fd::RawFd;

#[derive(Default)]
pub(crate) struct EventFd(Mutex<State>);

#[derive(Default)]
struct State {
    ready: bool,
    /// Threads that sleep on it.
    sleepers: Vec<Arc<Notify>>,
}

impl EventFd {
    pub(crate) fn blocking() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub(crate) fn nonblocking() -> io::Result<Self> {
        Ok(Self::default())
    }

    pub(crate) fn fd(&self) -> RawFd {
        unreachable!("a model has no descriptors")
    }

    pub(crate) fn signal(&self) {
        let mut state = self.0.lock().unwrap();
        state.ready = true;
        for sleeper in state.sleepers.drain(..) {
            sleeper.notify();
        }
    }

    pub(crate) fn clear(&self) {
        self.0.lock().unwrap().ready = false;
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.0.lock().unwrap().ready
    }

    /// Whether it is ready; if not, `sleeper` is woken once it is.
    fn watch(&self, sleeper: &Arc<Notify>) -> bool {
        let mut state = self.0.lock().unwrap();
        if !state.ready {
            state.sleepers.push(Arc::clone(sleeper));
        }
        state.ready
    }
}

/// Sleeps until one of them is ready: loom reports a deadlock if that never happens.
pub(crate) fn poll(descriptors: &[&EventFd]) {
    // One for the whole wait: loom wakes each once without a reason.
    let sleeper = Arc::new(Notify::new());
    loop {
        if descriptors.iter().any(|fd| fd.watch(&sleeper)) {
            return;
        }
        // As in the kernel: a woken thread checks again, and sees what another one has cleared
        // meanwhile.
        sleeper.wait();
    }
}
