//! Operations in progress.

use crate::hub::Hub;
use crate::waiting::{Signal, Sleeper, TICK, deadline};
use crate::{Error, Result};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// How long a blocking wait polls before it sleeps.
///
/// Longer than a message and its answer take on a local network, so that a ping-pong never sleeps,
/// and too short to be noticed otherwise.
const SPIN: Duration = Duration::from_micros(100);

/// Number of polls between two reads of the clock.
const LOOKS_PER_TIME: u32 = 8;

/// An operation of a device, already started: `.await` it with any executor, or call
/// [`Operation::wait`].
///
/// Dropping it cancels it. Data in flight still arrives, and its memory is kept as long; what was
/// not yet posted is not sent.
#[must_use = "dropping an operation gives it up: `.await` it or `.wait()` for it"]
pub struct Operation<T> {
    hub: Arc<Hub>,
    /// `None` once it has returned its result.
    pending: Option<Box<dyn Pending<T>>>,
}

/// The implementation of an operation.
pub(crate) trait Pending<T>: Send {
    /// Polls for the result; if there is none, `waker` is woken when there may be one.
    fn poll(&mut self, waker: Option<&Waker>) -> Poll<Result<T>>;

    /// As [`Pending::poll`], by what is in the books: without running the device.
    fn look(&mut self, waker: &Waker) -> Poll<Result<T>> {
        self.poll(Some(waker))
    }
}

/// An operation that failed to start.
struct Failed(Option<Error>);

impl<T> Pending<T> for Failed {
    fn poll(&mut self, _: Option<&Waker>) -> Poll<Result<T>> {
        Poll::Ready(Err(self.0.take().unwrap_or_else(is_over)))
    }
}

fn is_over() -> Error {
    Error::you("the operation has given its result already")
}

impl<T> Operation<T> {
    pub(crate) fn new(hub: &Arc<Hub>, pending: impl Pending<T> + 'static) -> Operation<T> {
        Operation {
            hub: Arc::clone(hub),
            pending: Some(Box::new(pending)),
        }
    }

    pub(crate) fn failed(hub: &Arc<Hub>, error: Error) -> Operation<T> {
        Self::new(hub, Failed(Some(error)))
    }

    /// Blocks until it is done.
    ///
    /// # Errors
    /// What went wrong, with the side to blame.
    pub fn wait(mut self) -> Result<T> {
        loop {
            if let Some(result) = self.wait_until(None) {
                return result;
            }
        }
    }

    /// Blocks until it is done, but at most for `limit`.
    ///
    /// `None` when the time is over: the operation continues; wait again, or drop it to cancel it.
    ///
    /// # Errors
    /// As [`Operation::wait`].
    pub fn wait_timeout(&mut self, limit: Duration) -> Option<Result<T>> {
        self.wait_until(deadline(limit))
    }

    /// As polling it, for one of many operations of an [`Endpoint`](crate::Endpoint): looks for the
    /// outcome among those that [`Endpoint::attend`](crate::Endpoint::attend) has entered, and does
    /// not run the device.
    ///
    /// If it is pending, `waker` is woken for what an `attend` after this look finds, and for what
    /// comes later: look, attend, and look again if that found something.
    ///
    /// # Errors
    /// As [`Operation::wait`].
    pub fn look(&mut self, waker: &Waker) -> Poll<Result<T>> {
        self.outcome(|pending| pending.look(waker))
    }

    fn wait_until(&mut self, deadline: Option<Instant>) -> Option<Result<T>> {
        let start = Instant::now();
        let is_late = || deadline.is_some_and(|deadline| deadline <= Instant::now());
        loop {
            for _ in 0..LOOKS_PER_TIME {
                if let Poll::Ready(result) = self.check(None) {
                    return Some(result);
                }
                std::hint::spin_loop();
            }
            if is_late() {
                return None;
            }
            if start.elapsed() >= SPIN {
                break;
            }
        }
        let signal = match Signal::of_thread() {
            Ok(signal) => signal,
            Err(error) => return Some(Err(Error::system("a descriptor to wait with", &error))),
        };
        let waker = Waker::from(Arc::clone(&signal));
        let mut sleeper = Sleeper::new(&self.hub, Arc::clone(&signal));
        loop {
            signal.clear();
            if let Poll::Ready(result) = self.check(Some(&waker)) {
                return Some(result);
            }
            if is_late() {
                return None;
            }
            let limit = deadline.map_or(TICK, |at| at.saturating_duration_since(Instant::now()));
            match sleeper.sleep(limit) {
                Ok(event) => self.hub.attend(event),
                Err(error) => return Some(Err(Error::system("waiting for the device", &error))),
            }
        }
    }

    fn check(&mut self, waker: Option<&Waker>) -> Poll<Result<T>> {
        self.outcome(|pending| pending.poll(waker))
    }

    fn outcome(
        &mut self,
        poll: impl FnOnce(&mut dyn Pending<T>) -> Poll<Result<T>>,
    ) -> Poll<Result<T>> {
        let Some(pending) = &mut self.pending else {
            return Poll::Ready(Err(is_over()));
        };
        let polled = poll(&mut **pending);
        if polled.is_ready() {
            self.pending = None;
        }
        polled
    }
}

impl<T> Future for Operation<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let polled = self.check(Some(context.waker()));
        if polled.is_pending()
            && let Err(error) = self.hub.drive()
        {
            return Poll::Ready(Err(Error::system("a thread to wait with", &error)));
        }
        polled
    }
}
