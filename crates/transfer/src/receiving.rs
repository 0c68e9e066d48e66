//! The receiver's side of one connection.

use crate::cancel::Cancel;
use crate::channel::{Channel, LAST_WORD, hear_the_rest};
use crate::error::Error;
use crate::handshake::Doorkeeper;
use crate::lobby::{Lobby, LongList};
use crate::parking::park;
use crate::progress::{Account, Event, Progress, Wait};
use crate::sending::CANCELLED;
use crate::writer::{Offer, Order, Reply, Writer};
use airdma::Shared;
use airdma_files::protocol::{Failure, Message, Reason, Receiver, ReceiverEvent, Terms};
use airdma_files::session::Session;
use airdma_files::{CHUNK_BYTES, Manifest, Report};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::{Builder, Scope};
use std::time::{Duration, Instant};

/// Most bytes of a list of files that any connection may hold. In memory it takes up to eight times
/// as much.
const SHORT_LIST_BYTES_MAX: u64 = 256 << 10;

/// Most frames handled before anything else: a peer may send without a pause.
pub(crate) const FRAMES_AT_ONCE_MAX: usize = 64;

/// Result of an offer.
pub(crate) struct Outcome {
    pub manifest: Arc<Manifest>,
    pub report: Report,
    /// Whether the sender knows.
    pub is_heard: bool,
}

pub(crate) struct Receiving<'scope, 'env> {
    scope: &'scope Scope<'scope, 'env>,
    lobby: &'env Lobby<'env>,
    address: IpAddr,
    start: Instant,
    channel: Channel,
    session: Session,
    machine: Receiver,
    over: Cancel,
    writer: Option<Orders>,
    data: Option<Data>,
    outcome: Option<Outcome>,
    /// Whether the sender has confirmed the end.
    is_over: bool,
    /// The right to hold a long list of files, if taken.
    long_list: Option<LongList<'env>>,
}

/// Channels to the disk's thread and back.
struct Orders {
    manifest: Arc<Manifest>,
    orders: mpsc::Sender<Order>,
    replies: mpsc::Receiver<Reply>,
}

struct Data {
    /// Data may be in flight to it until the connection ends, also when the disk has failed.
    _staging: Arc<Shared>,
    bytes_total: u64,
    taken: u64,
    durable: u64,
    /// Chunks that wait for the disk's thread.
    waiting: u64,
    waiting_max: u64,
    account: Account,
}

impl<'scope, 'env> Receiving<'scope, 'env> {
    /// Waits for an offer, until `over`.
    pub fn new(
        scope: &'scope Scope<'scope, 'env>,
        lobby: &'env Lobby<'env>,
        over: &Cancel,
        address: IpAddr,
        channel: Channel,
        session: Session,
    ) -> Self {
        Self {
            scope,
            lobby,
            address,
            start: Instant::now(),
            channel,
            session,
            machine: Receiver::new(Duration::ZERO, lobby.job().config),
            over: over.clone(),
            writer: None,
            data: None,
            outcome: None,
            is_over: false,
            long_list: None,
        }
    }

    /// Whether it was accepted: then another connection can resume it.
    pub fn is_accepted(&self) -> bool {
        self.data.is_some()
    }

    /// Number of durable chunks, which no connection has to send again.
    pub fn durable(&self) -> u64 {
        self.data.as_ref().map_or(0, |data| data.durable)
    }

    /// Receives everything.
    pub fn run(&mut self) -> Result<Outcome, Error> {
        let result = loop {
            match self.step() {
                Ok(false) => {}
                Ok(true) => break Ok(()),
                Err(error) => break Err(error),
            }
            let timeout = self.machine.poll_timeout();
            park(timeout.map(|timeout| self.start + timeout));
        };
        let durable = self.durable();
        let result = result.map_err(|error| match self.is_accepted() {
            true => self.lobby.judge_meddling(error, durable),
            // The transfer goes on, whatever the number.
            false if error.is_forged() => Error::Meddled(Box::new(error)),
            false => error,
        });
        // A peer that is told the reason would take it for the end.
        if let Err(error) = &result
            && !matches!(error, Error::Meddled(_))
        {
            let (reason, text) = last_word(error);
            self.machine.abort(reason, &text);
        }
        self.channel.say_rest(&mut self.session, || {
            self.machine.poll_message(self.start.elapsed())
        });
        self.over.cancel();
        match (self.outcome.take(), result) {
            (Some(outcome), Ok(())) => Ok(Outcome {
                is_heard: true,
                ..outcome
            }),
            // Everything has its final name.
            (Some(outcome), Err(_)) => Ok(outcome),
            (None, Err(error)) => Err(error),
            (None, Ok(())) => Err(Error::NoAnswer),
        }
    }

    /// Closes the connection, after the messages sent before.
    pub fn close(mut self) {
        // A connection that waits for the disk need not wait for the peer.
        self.writer = None;
        self.channel.close(LAST_WORD);
    }

    /// Does everything that is possible now; returns whether the transfer is over. If the peer of
    /// an accepted transfer has closed the connection, what it said before counts.
    fn step(&mut self) -> Result<bool, Error> {
        let result = self.advance();
        if matches!(result, Err(Error::Rdma(_))) && self.is_accepted() {
            hear_the_rest(|| self.hear())?;
            if self.is_over {
                return Ok(true);
            }
        }
        result
    }

    /// Handles the next message, if one has come.
    fn hear(&mut self) -> Result<bool, Error> {
        let Some(frame) = self.channel.hear()? else {
            return Ok(false);
        };
        let message = Message::decode(&self.session.open(&frame)?)?;
        self.make_room_for(&message)?;
        self.machine.handle_message(self.start.elapsed(), message);
        // The next message may be the last: what arrived before it is kept.
        self.hand_over();
        self.handle_events()?;
        Ok(!self.is_over)
    }

    fn advance(&mut self) -> Result<bool, Error> {
        let now = self.start.elapsed();
        let mut frames = 0;
        while frames < FRAMES_AT_ONCE_MAX && self.hear()? {
            frames += 1;
        }
        if self.is_over {
            return Ok(true);
        }
        if frames == FRAMES_AT_ONCE_MAX {
            // There may be more.
            self.channel.waker().wake_by_ref();
        }
        if self.machine.poll_timeout().is_some_and(|due| due <= now) {
            self.machine.handle_timeout(now);
        }
        self.handle_replies()?;
        self.handle_events()?;
        if self.over.is_cancelled() {
            return Err(replaced());
        }
        if self.lobby.is_cancelled() {
            return Err(Error::Cancelled);
        }
        self.hand_over();
        (self.channel).say_sealed(&mut self.session, || {
            self.machine.poll_message(self.start.elapsed())
        })?;
        Ok(false)
    }

    /// Takes the right to a long list, of which only one is held at a time.
    fn make_room_for(&mut self, message: &Message) -> Result<(), Error> {
        if let Message::Offer(offer) = message
            && offer.manifest_bytes > SHORT_LIST_BYTES_MAX
            && self.long_list.is_none()
        {
            let peer = self.session.peer();
            let list = self
                .lobby
                .take_long_list(peer, offer.manifest_id, &self.over)?;
            self.long_list = Some(list);
        }
        Ok(())
    }

    fn handle_events(&mut self) -> Result<(), Error> {
        while let Some(event) = self.machine.poll_event() {
            match event {
                ReceiverEvent::Offered { manifest, id, key } => {
                    let cipher = self.machine.cipher();
                    let (peer, address) = (self.session.peer(), self.address);
                    self.begin(Offer {
                        manifest,
                        id,
                        key,
                        cipher,
                        peer,
                        address,
                    })?;
                }
                ReceiverEvent::Complete => self.order(Order::Finish),
                ReceiverEvent::Over => self.is_over = true,
                ReceiverEvent::Failed(failure) => return Err(failure.into()),
            }
        }
        Ok(())
    }

    /// Starts the disk's thread, which first asks the user.
    fn begin(&mut self, offer: Offer) -> Result<(), Error> {
        let (orders, to_do) = mpsc::channel();
        let (answer, replies) = mpsc::channel();
        self.writer = Some(Orders {
            manifest: Arc::clone(&offer.manifest),
            orders,
            replies,
        });
        let writer = Writer {
            lobby: self.lobby,
            device: self.channel.device().clone(),
            offer,
            orders: to_do,
            replies: answer,
            waker: self.channel.waker().clone(),
            over: self.over.clone(),
        };
        let thread = Builder::new().name("airdma-writer".into());
        thread.spawn_scoped(self.scope, move || writer.run())?;
        Ok(())
    }

    fn order(&self, order: Order) {
        if let Some(writer) = &self.writer {
            // A thread that has ended has reported why.
            let _ = writer.orders.send(order);
        }
    }

    fn handle_replies(&mut self) -> Result<(), Error> {
        let reply = |this: &Self| this.writer.as_ref()?.replies.try_recv().ok();
        while let Some(reply) = reply(self) {
            match reply {
                Reply::Accepted {
                    unwanted,
                    first_chunk,
                    slots,
                    staging,
                    bytes_total,
                } => {
                    let terms = Terms {
                        unwanted,
                        first_chunk,
                        slots,
                        staging: self.channel.remote(&staging)?.to_bytes().to_vec(),
                    };
                    let data = self.data.insert(Data {
                        _staging: staging,
                        bytes_total,
                        taken: terms.first_chunk,
                        durable: terms.first_chunk,
                        waiting: 0,
                        waiting_max: terms.slots.into(),
                        account: Account::new(Wait::Network),
                    });
                    self.lobby.tell(Event::Accepted(data.progress()));
                    self.machine.accept(terms);
                }
                Reply::Taken { until, durable } => {
                    if let Some(data) = &mut self.data {
                        data.waiting -= until - data.taken;
                        (data.taken, data.durable) = (until, durable);
                    }
                    self.machine.chunks_taken(until, durable);
                }
                Reply::Finished(report) => {
                    self.machine.finished(&report);
                    self.outcome = self.writer.as_ref().map(|writer| Outcome {
                        manifest: Arc::clone(&writer.manifest),
                        report,
                        is_heard: false,
                    });
                }
                // A cancelled transfer makes the disk's thread fail.
                Reply::Failed(_) if self.lobby.is_cancelled() => return Err(Error::Cancelled),
                Reply::Failed(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Passes received chunks to the disk's thread.
    fn hand_over(&mut self) {
        while let Some((chunk, slot)) = self.machine.next_chunk() {
            self.order(Order::Take { chunk, slot });
            if let Some(data) = &mut self.data {
                data.waiting += 1;
            }
        }
        if let Some(data) = &mut self.data {
            // Does not count the one that is being written.
            let waiting = data.waiting.saturating_sub(1) * CHUNK_BYTES;
            let most = data.waiting_max * CHUNK_BYTES;
            self.channel.tell_waiting(waiting, most);
            data.account.turn(if data.waiting > 0 {
                Wait::Writing
            } else {
                Wait::Network
            });
            if data.account.is_due() {
                self.lobby.tell(Event::Progress(data.progress()));
            }
        }
    }
}

impl Data {
    fn progress(&self) -> Progress {
        let bytes = |chunks: u64| (chunks * CHUNK_BYTES).min(self.bytes_total);
        Progress {
            bytes: bytes(self.taken),
            bytes_total: self.bytes_total,
            bytes_durable: bytes(self.durable),
            waits: self.account.waits(),
        }
    }
}

fn replaced() -> Error {
    let text = "the same files were offered again from elsewhere, which goes on with them";
    Error::Failure(Failure::Here {
        reason: Reason::Busy,
        text: text.to_owned(),
    })
}

/// The reason and text that the sender gets for an error.
fn last_word(error: &Error) -> (Reason, String) {
    let reason = match error {
        Error::Files(error) => Reason::from(error.problem),
        Error::Failure(Failure::Here { reason, text }) => return (*reason, text.clone()),
        Error::Unfit(_) => Reason::Refused,
        Error::Refused => return (Reason::Refused, "the receiver does not want it".to_owned()),
        Error::Cancelled => return (Reason::Cancelled, CANCELLED.to_owned()),
        Error::Rdma(_)
        | Error::System(_)
        | Error::Interrupted(_)
        | Error::Fruitless(_)
        | Error::Meddled(_)
        | Error::NoAnswer => Reason::Files,
        Error::Handshake(_)
        | Error::NoCode
        | Error::CodeTried(_)
        | Error::OtherName { .. }
        | Error::Record(_)
        | Error::Malformed(_)
        | Error::Forged(_)
        | Error::Failure(_) => Reason::Protocol,
    };
    (reason, error.to_string())
}
