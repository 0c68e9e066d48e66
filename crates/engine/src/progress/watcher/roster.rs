//! Which thread serves each device of a process: its own, or the watcher while it is idle.
//!
//! An idle device is asleep on its worker lock as its own thread would be: whatever wakes that
//! thread wakes the watcher, which starts the thread. All changes are made under the lock of the
//! process's table ([`super`]).

use std::collections::BTreeMap;
use std::io;

/// Number of a device in a [`Roster`], from 1.
pub(crate) type Token = u64;

/// What a device does for its roster.
pub(crate) trait Idle {
    /// A running thread.
    type Thread;
    /// Falls asleep on the worker lock. False if there is work, or a timer runs, or a packet waits
    /// for room: then it is awake.
    fn fall_asleep(&self) -> bool;
    /// Ends the sleep.
    fn wake_up(&self);
    /// Adds what ends the sleep to the watcher's descriptors.
    fn watch(&self, token: Token) -> io::Result<()>;
    /// Removes it.
    fn unwatch(&self);
    /// Starts the device's own thread, which first waits for the end of its `former` one: that
    /// holds on to the device until then.
    fn start(
        &self,
        token: Token,
        former: Option<Self::Thread>,
    ) -> Result<Self::Thread, NotStarted<Self::Thread>>;
}

/// The system refuses a thread.
pub(crate) struct NotStarted<T> {
    pub(crate) error: io::Error,
    /// The former thread.
    pub(crate) former: Option<T>,
}

/// The devices of a process.
pub(crate) struct Roster<D: Idle> {
    entries: BTreeMap<Token, Entry<D>>,
    last: Token,
}

struct Entry<D: Idle> {
    device: D,
    server: Server<D::Thread>,
}

/// The thread that serves a device.
enum Server<T> {
    Own(T),
    /// The watcher. The device's own thread, if it had one, is about to end.
    Watcher(Option<T>),
}

impl<D: Idle> Default for Roster<D> {
    fn default() -> Self {
        Roster {
            entries: BTreeMap::new(),
            last: 0,
        }
    }
}

impl<D: Idle> Roster<D> {
    /// Enters a device: an idle one is the watcher's, any other gets a thread.
    ///
    /// # Errors
    /// Those of the thread.
    pub(crate) fn enter(&mut self, device: D) -> io::Result<Token> {
        self.last += 1;
        let token = self.last;
        let server = if is_watched(&device, token) {
            Server::Watcher(None)
        } else {
            Server::Own(device.start(token, None).map_err(|refused| refused.error)?)
        };
        self.entries.insert(token, Entry { device, server });
        Ok(token)
    }

    /// Leaves a device to the watcher, if it is idle. True if the calling thread, which is the
    /// device's own, must end.
    pub(crate) fn hand_over(&mut self, token: Token) -> bool {
        // A device that is not there is being closed.
        let Some(entry) = self.entries.get_mut(&token) else {
            return true;
        };
        if !is_watched(&entry.device, token) {
            return false;
        }
        let server = std::mem::replace(&mut entry.server, Server::Watcher(None));
        if let Server::Own(thread) = server {
            entry.server = Server::Watcher(Some(thread));
        }
        true
    }

    /// Starts the thread of a device for which the watcher was woken.
    ///
    /// # Errors
    /// The device that still has none, as the system refuses a thread.
    pub(crate) fn wake(&mut self, token: Token) -> Result<(), &D> {
        let Some(entry) = self.entries.get_mut(&token) else {
            return Ok(());
        };
        let Server::Watcher(former) = &mut entry.server else {
            return Ok(());
        };
        match entry.device.start(token, former.take()) {
            Ok(thread) => {
                entry.device.unwatch();
                entry.device.wake_up();
                entry.server = Server::Own(thread);
                Ok(())
            }
            Err(refused) => {
                *former = refused.former;
                Err(&entry.device)
            }
        }
    }

    /// All devices.
    pub(crate) fn devices(&self) -> impl Iterator<Item = &D> {
        self.entries.values().map(|entry| &entry.device)
    }

    /// Removes a device. Returns it with the thread that served it, which ends.
    pub(crate) fn remove(&mut self, token: Token) -> Option<(D, Option<D::Thread>)> {
        let Entry { device, server } = self.entries.remove(&token)?;
        let thread = match server {
            Server::Own(thread) => Some(thread),
            Server::Watcher(former) => {
                device.unwatch();
                device.wake_up();
                former
            }
        };
        Some((device, thread))
    }
}

/// Puts a device to sleep on the watcher's descriptors, if it is idle.
fn is_watched(device: &impl Idle, token: Token) -> bool {
    if !device.fall_asleep() {
        return false;
    }
    let watched = device.watch(token).is_ok();
    if !watched {
        device.unwatch();
        device.wake_up();
    }
    watched
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::rc::Rc;

    /// A thread that holds on to its device until it is joined.
    struct Thread {
        running: Rc<Cell<u32>>,
        former: Option<Box<Thread>>,
    }

    impl Thread {
        fn join(self) {
            self.running.set(self.running.get() - 1);
            if let Some(former) = self.former {
                former.join();
            }
        }
    }

    #[derive(Clone, Default)]
    struct Sleeper {
        running: Rc<Cell<u32>>,
        is_refused: Rc<Cell<bool>>,
    }

    impl Idle for Sleeper {
        type Thread = Thread;

        fn fall_asleep(&self) -> bool {
            self.running.get() > 0
        }

        fn wake_up(&self) {}

        fn watch(&self, _: Token) -> io::Result<()> {
            Ok(())
        }

        fn unwatch(&self) {}

        fn start(&self, _: Token, former: Option<Thread>) -> Result<Thread, NotStarted<Thread>> {
            if self.is_refused.get() {
                let error = io::ErrorKind::WouldBlock.into();
                return Err(NotStarted { error, former });
            }
            self.running.set(self.running.get() + 1);
            Ok(Thread {
                running: Rc::clone(&self.running),
                former: former.map(Box::new),
            })
        }
    }

    #[test]
    fn all_threads_of_a_device_have_ended_when_it_is_gone() {
        let (mut roster, device) = (Roster::default(), Sleeper::default());
        let token = roster.enter(device.clone()).expect("a thread");
        for refuses in [false, true, false] {
            assert!(roster.hand_over(token));
            device.is_refused.set(refuses);
            assert_eq!(roster.wake(token).is_err(), refuses);
            device.is_refused.set(false);
            assert!(roster.wake(token).is_ok());
        }
        assert_eq!(device.running.get(), 4);
        let (_, thread) = roster.remove(token).expect("it is there");
        thread.expect("a thread of its own").join();
        assert_eq!(device.running.get(), 0, "none is left alone");
    }
}
