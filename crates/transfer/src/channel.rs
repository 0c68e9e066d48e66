//! Frames over a connection: each is one message, and many may be in flight.

use crate::error::Error;
use airdma::{Device, Endpoint, Operation, Region, Remote, Shared};
use airdma_files::protocol::{MESSAGE_BYTES_MAX, Message};
use airdma_files::session::{Frames, Session, TAG_BYTES};
use std::collections::VecDeque;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Number of posted receives.
///
/// A peer whose message finds none has to repeat it, and its writes wait behind that.
const RECEIVES: usize = 32;
/// Most messages in flight to the peer; each has its own memory.
const SENDS: usize = 16;
/// Most messages handled before the caller checks its clock: not each of them completes a frame.
const HEARD_AT_ONCE: usize = RECEIVES;
/// Time in which a last message must reach the peer: chunks may be in flight before it.
pub(crate) const LAST_WORD: Duration = Duration::from_secs(5);
/// Interval of the check for the keys, which wake no thread.
const KEYS_LOOKED_FOR: Duration = Duration::from_millis(1);
const BYTES: usize = 2 + MESSAGE_BYTES_MAX + TAG_BYTES;

pub(crate) struct Channel {
    device: Device,
    endpoint: Endpoint,
    frames: Frames,
    receiving: VecDeque<Operation<airdma::Message>>,
    sending: VecDeque<Operation<Region>>,
    idle: Vec<Region>,
    has_heard: bool,
    waker: Waker,
}

impl Channel {
    /// A channel for the thread that `waker` wakes.
    pub fn new(device: &Device, endpoint: Endpoint, waker: Waker) -> Result<Self, Error> {
        let receiving =
            (0..RECEIVES).map(|_| Ok(endpoint.recv(device.allocate_private(BYTES)?, ..)));
        let receiving = receiving.collect::<airdma::Result<_>>()?;
        Ok(Self {
            device: device.clone(),
            endpoint,
            frames: Frames::default(),
            receiving,
            sending: VecDeque::new(),
            idle: Vec::new(),
            has_heard: false,
            waker,
        })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn waker(&self) -> &Waker {
        &self.waker
    }

    /// The next frame of the peer, if one has come.
    pub fn hear(&mut self) -> Result<Option<Vec<u8>>, Error> {
        for _ in 0..HEARD_AT_ONCE {
            if let Some(frame) = self.frames.take()? {
                return Ok(Some(frame));
            }
            let Some(message) = ready(&mut self.receiving, &self.waker)? else {
                return Ok(None);
            };
            self.frames.push(&message);
            self.has_heard = true;
            let next = self.endpoint.recv(message.into_region(), ..);
            self.receiving.push_back(next);
        }
        // There may be more, for which no other wake-up comes.
        self.waker.wake_by_ref();
        Ok(None)
    }

    /// The connection, for another protocol. Messages of the peer that this channel has not heard
    /// go there.
    pub fn into_endpoint(self) -> Endpoint {
        self.endpoint
    }

    /// Whether the peer has ever sent a message.
    pub fn has_heard(&self) -> bool {
        self.has_heard
    }

    /// Waits for the binding, which the two ends of the underlying connection share with no third.
    ///
    /// The keys are exchanged about a round trip after the connection opened.
    pub fn binding(
        &self,
        deadline: Instant,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<[u8; 32], Error> {
        loop {
            if let Some(binding) = self.endpoint.binding() {
                return Ok(binding);
            }
            if is_cancelled() {
                return Err(Error::Cancelled);
            }
            let now = Instant::now();
            if deadline <= now {
                return Err(Error::NoAnswer);
            }
            crate::parking::park(Some(now + KEYS_LOOKED_FOR));
        }
    }

    /// Waits for the next frame.
    pub fn hear_until(
        &mut self,
        deadline: Instant,
        is_cancelled: impl Fn() -> bool,
    ) -> Result<Vec<u8>, Error> {
        loop {
            if let Some(frame) = self.hear()? {
                return Ok(frame);
            }
            if is_cancelled() {
                return Err(Error::Cancelled);
            }
            if deadline <= Instant::now() {
                return Err(Error::NoAnswer);
            }
            crate::parking::park(Some(deadline));
        }
    }

    /// Whether another message can be sent now.
    pub fn has_room(&mut self) -> Result<bool, Error> {
        while let Some(region) = ready(&mut self.sending, &self.waker)? {
            self.idle.push(region);
        }
        Ok(self.sending.len() < SENDS)
    }

    /// Sends a frame.
    pub fn say(&mut self, frame: &[u8]) -> Result<(), Error> {
        let mut region = match self.idle.pop() {
            Some(region) => region,
            None => self.device.allocate_private(BYTES)?,
        };
        region[..frame.len()].copy_from_slice(frame);
        self.sending
            .push_back(self.endpoint.send(region, ..frame.len()));
        Ok(())
    }

    /// Sends messages as long as there is room.
    pub fn say_sealed(
        &mut self,
        session: &mut Session,
        mut next: impl FnMut() -> Option<Message>,
    ) -> Result<(), Error> {
        while self.has_room()?
            && let Some(message) = next()
        {
            self.say(&session.seal(&message.encode()))?;
        }
        Ok(())
    }

    /// Sends all remaining messages as the last ones, if the connection still exists, even without
    /// room.
    pub fn say_rest(&mut self, session: &mut Session, mut next: impl FnMut() -> Option<Message>) {
        while let Some(message) = next() {
            if self.say(&session.seal(&message.encode())).is_err() {
                // The result of the transfer counts, not this one.
                return;
            }
        }
    }

    /// Writes the first `bytes` of a region into the peer's memory.
    pub fn write(&self, region: Region, bytes: usize, to: &Remote, at: u64) -> Operation<Region> {
        self.endpoint.write(region, ..bytes, to, at)
    }

    /// A key to a local region, for this peer only.
    pub fn remote(&self, shared: &Shared) -> Result<Remote, Error> {
        Ok(shared.remote(&self.endpoint)?)
    }

    /// Reports how much received data waits for the disk, and how much may, to a peer that adapts
    /// its rate.
    pub fn tell_waiting(&self, bytes: u64, most: u64) {
        self.endpoint.tell_buffer(bytes, most);
    }

    /// Waits until the peer has received everything, at most for `limit`, and closes the
    /// connection.
    pub fn close(self, limit: Duration) {
        // The peer may be gone already, and has received all that matters.
        drop(self.endpoint.close().wait_timeout(limit));
    }
}

/// Handles what arrived before the connection was lost: `hear` handles one message.
pub(crate) fn hear_the_rest(mut hear: impl FnMut() -> Result<bool, Error>) -> Result<(), Error> {
    loop {
        match hear() {
            Ok(true) => {}
            Ok(false) | Err(Error::Rdma(_)) => return Ok(()),
            Err(error) => return Err(error),
        }
    }
}

/// The result of the oldest operation, if it is done.
pub(crate) fn ready<T>(
    operations: &mut VecDeque<Operation<T>>,
    waker: &Waker,
) -> Result<Option<T>, Error> {
    let Some(oldest) = operations.front_mut() else {
        return Ok(None);
    };
    match Pin::new(oldest).poll(&mut Context::from_waker(waker)) {
        Poll::Ready(result) => {
            operations.pop_front();
            Ok(Some(result?))
        }
        Poll::Pending => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isolated::isolated;
    use airdma_files::session::{Door, Identity, Initiator, Introduction};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;

    const FAR: Duration = Duration::from_secs(20);

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A channel, and the other end of its connection.
    fn pair(waker: Waker) -> (Channel, Device, Endpoint) {
        let [here, there] = [(); 2].map(|()| Device::open("127.0.0.1").unwrap().sealed());
        let listener = there.listen(7500).unwrap();
        let (mut connecting, mut accepting) = (here.connect("127.0.0.1:7500"), listener.accept());
        let [near, far] = std::thread::scope(|scope| {
            let near = scope.spawn(|| connecting.wait_timeout(FAR).unwrap().unwrap());
            let far = accepting.wait_timeout(FAR).unwrap().unwrap();
            [near.join().unwrap(), far]
        });
        (Channel::new(&here, near, waker).unwrap(), there, far)
    }

    /// A session of the initiator.
    fn session() -> Session {
        let [near, far] = [(); 2].map(|()| Identity::draw());
        let mut door = Door::new(far.clone(), None);
        let known = Introduction::Known(vec![far.public()]);
        let (initiator, first) = Initiator::start(&near, known, b"binding");
        let (answer, second) = door.answer(&first, b"binding").unwrap();
        let (confirming, third) = initiator.prove(&second).unwrap();
        let (_, fourth) = door.admit(answer, &third, |_| true).unwrap();
        confirming.confirm(&fourth).unwrap()
    }

    #[test]
    fn what_was_said_before_a_connection_was_lost_counts() {
        let lost = || Err(Error::Rdma(Device::open("nowhere").unwrap_err()));
        let said = || Err(Error::Refused);
        for (mut heard, is_said) in [
            (vec![Ok(true), Ok(true), lost()], false),
            (vec![Ok(true), Ok(false)], false),
            (vec![Ok(true), said(), lost()], true),
        ] {
            heard.reverse();
            let result = hear_the_rest(|| heard.pop().unwrap());
            assert_eq!(matches!(result, Err(Error::Refused)), is_said);
            assert_eq!(result.is_ok(), !is_said);
        }
    }

    #[test]
    fn messages_without_a_frame_do_not_starve_the_clock() {
        isolated(
            "channel::tests::messages_without_a_frame_do_not_starve_the_clock",
            "",
            || {
                let woken = Arc::new(Woken::default());
                let (mut channel, device, peer) = pair(Arc::clone(&woken).into());
                for _ in 0..HEARD_AT_ONCE {
                    let mut empty = peer.send(device.allocate(1).unwrap(), ..0);
                    empty.wait_timeout(FAR).unwrap().unwrap();
                }
                assert!(channel.hear().unwrap().is_none());
                assert_eq!(woken.0.load(Ordering::Relaxed), 1, "it is to ask again");
            },
        );
    }

    #[test]
    fn the_last_word_is_said_though_there_is_no_room_for_it() {
        isolated(
            "channel::tests::the_last_word_is_said_though_there_is_no_room_for_it",
            "",
            || {
                let (mut channel, device, peer) = pair(crate::parking::waker());
                for _ in 0..SENDS {
                    channel.say(b"word").unwrap();
                }
                assert!(!channel.has_room().unwrap());
                let mut last = [Message::Bye].into_iter();
                channel.say_rest(&mut session(), || last.next());
                for said in 0..=SENDS {
                    let mut heard = peer.recv(device.allocate(BYTES).unwrap(), ..);
                    let heard = heard.wait_timeout(FAR).unwrap().unwrap();
                    assert_eq!(heard[..] == *b"word", said < SENDS, "{said}");
                }
            },
        );
    }
}
