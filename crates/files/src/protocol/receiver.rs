//! The receiver's side of a transfer.

use super::liveness::Liveness;
use super::message::{Accept, FLAWS_MAX, Message, Offer, RANGES_MAX};
use super::{Config, Failure, Reason, Time};
use crate::manifest::{Decoder, Manifest, ManifestId};
use crate::plan::{Plan, Unwanted};
use crate::session::{Cipher, DataKey, has_fast_aes};
use crate::sink::Report;
use std::collections::VecDeque;
use std::sync::Arc;

/// Slots are granted in portions of the `GRANT_SHARE`-th part of all.
const GRANT_SHARE: u64 = 8;

/// Actions for the caller of a [`Receiver`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReceiverEvent {
    /// Ask the user, then call [`Receiver::accept`] or [`Receiver::abort`]. Nothing is written or
    /// granted yet.
    Offered {
        /// The offered files.
        manifest: Arc<Manifest>,
        /// Hash of the manifest.
        id: ManifestId,
        /// Key of the chunks, for the cipher of [`Receiver::cipher`].
        key: DataKey,
    },
    /// All chunks were received: finish the files, and call [`Receiver::finished`].
    Complete,
    /// The sender knows that everything arrived. The session may end without this event, too.
    Over,
    /// The transfer failed. Send what `poll_message` still returns.
    ///
    /// Durable chunks are kept.
    Failed(Failure),
}

/// The receiver's answer to an offer that it accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Entries that need not be sent: [`crate::Sink::unwanted`].
    pub unwanted: Unwanted,
    /// First wanted chunk: [`crate::Sink::next`].
    pub first_chunk: u64,
    /// Number of slots in the staging memory.
    pub slots: u32,
    /// Description of the staging memory for the code that moves data.
    pub staging: Vec<u8>,
}

/// Receives an offer and its chunks. See [`super`] for the order of calls.
#[derive(Debug)]
pub struct Receiver {
    config: Config,
    state: State,
    liveness: Liveness,
    cipher: Cipher,
    out: VecDeque<Message>,
    events: VecDeque<ReceiverEvent>,
}

#[derive(Debug)]
enum State {
    /// No message was received yet.
    Waiting,
    /// The manifest is being received.
    Listing {
        offer: Offer,
        decoder: Box<Decoder>,
        bytes: u64,
    },
    /// The caller has to decide about the offer.
    Asking {
        manifest: Arc<Manifest>,
    },
    Receiving(Receiving),
    /// All chunks were received, and the caller finishes the files.
    Finishing,
    /// The sender has not confirmed the end yet.
    Leaving,
    Ended,
}

#[derive(Debug)]
struct Receiving {
    chunks: u64,
    slots: u32,
    /// Chunks that were written to their slots, including those taken from there.
    arrived: u64,
    /// Chunks that were given to the caller.
    given: u64,
    /// Chunks that were taken from their slots.
    taken: u64,
    granted: u64,
    durable: u64,
}

impl Receiver {
    /// A receiver that waits for an offer.
    pub fn new(now: Time, config: Config) -> Self {
        let (liveness, cipher) = (Liveness::new(now), Cipher::ChaCha20Poly1305);
        Self {
            config,
            state: State::Waiting,
            liveness,
            cipher,
            out: VecDeque::new(),
            events: VecDeque::new(),
        }
    }

    /// The cipher of the chunks, once there was an offer.
    pub fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Handles a message of the sender.
    pub fn handle_message(&mut self, now: Time, message: Message) {
        if matches!(self.state, State::Ended) {
            return;
        }
        // A sender that knows of the end confirms it: its keepalives do not extend the wait.
        if !matches!(self.state, State::Leaving) {
            self.liveness.heard(now);
        }
        if let Err(failure) = self.take(message) {
            self.fail(failure);
        }
    }

    /// Handles timeouts.
    pub fn handle_timeout(&mut self, now: Time) {
        if matches!(self.state, State::Ended) {
            return;
        }
        if self.liveness.is_silent(now, &self.config) {
            // A sender that knows of the end has nothing left to send.
            if matches!(self.state, State::Leaving) {
                self.end()
            } else {
                self.fail(Failure::Silent)
            }
        } else if self.liveness.is_due(now, &self.config) && self.out.is_empty() {
            self.out.push_back(Message::Alive);
        }
    }

    /// Accepts the offer.
    pub fn accept(&mut self, terms: Terms) {
        let State::Asking { manifest } = &self.state else {
            return;
        };
        let Terms {
            unwanted,
            first_chunk,
            slots,
            staging,
        } = terms;
        let chunks = Plan::new(manifest, &unwanted).chunks();
        let parts = unwanted
            .ranges()
            .chunks(RANGES_MAX)
            .map(|part| Message::Unwanted(part.to_vec()));
        self.out.extend(parts);
        self.out.push_back(Message::Accept(Accept {
            first_chunk,
            cipher: self.cipher,
            slots,
            staging,
        }));
        let (arrived, given, taken, granted, durable) = (
            first_chunk,
            first_chunk,
            first_chunk,
            first_chunk,
            first_chunk,
        );
        self.state = State::Receiving(Receiving {
            chunks,
            slots,
            arrived,
            given,
            taken,
            granted,
            durable,
        });
        self.go_on();
    }

    /// Ends the transfer, or refuses the offer.
    pub fn abort(&mut self, reason: Reason, text: &str) {
        if !matches!(self.state, State::Ended) {
            self.fail(Failure::Here {
                reason,
                text: text.to_owned(),
            });
        }
    }

    /// Notes that all chunks below `until` were written to their slots.
    pub fn chunks_arrived(&mut self, until: u64) {
        if let Err(failure) = self.arrived(until) {
            self.fail(failure);
        }
    }

    /// The next chunk to be opened and written, and its slot.
    pub fn next_chunk(&mut self) -> Option<(u64, u32)> {
        let State::Receiving(receiving) = &mut self.state else {
            return None;
        };
        if receiving.given == receiving.arrived {
            return None;
        }
        let chunk = receiving.given;
        receiving.given += 1;
        Some((chunk, (chunk % u64::from(receiving.slots)) as u32))
    }

    /// Notes that chunks below `until` were taken from their slots, and those below `durable` are
    /// on the disk.
    pub fn chunks_taken(&mut self, until: u64, durable: u64) {
        let State::Receiving(receiving) = &mut self.state else {
            return;
        };
        assert!(
            until <= receiving.given && durable <= until,
            "what was not given was not taken"
        );
        receiving.taken = receiving.taken.max(until);
        receiving.durable = receiving.durable.max(durable);
        self.go_on();
    }

    /// Notes that all files have their names.
    pub fn finished(&mut self, report: &Report) {
        if !matches!(self.state, State::Finishing) {
            return;
        }
        self.out.extend(
            report
                .flaws
                .chunks(FLAWS_MAX)
                .map(|part| Message::Flawed(part.to_vec())),
        );
        self.out.push_back(Message::Finished {
            files: report.files,
            flaws: report.flaws.len() as u32,
        });
        self.state = State::Leaving;
    }

    /// The next message to send.
    pub fn poll_message(&mut self, now: Time) -> Option<Message> {
        let message = self.out.pop_front()?;
        self.liveness.said(now);
        Some(message)
    }

    /// The next action.
    pub fn poll_event(&mut self) -> Option<ReceiverEvent> {
        self.events.pop_front()
    }

    /// When to call [`Receiver::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        (!matches!(self.state, State::Ended)).then(|| self.liveness.timeout(&self.config))
    }

    fn take(&mut self, message: Message) -> Result<(), Failure> {
        match (message, &mut self.state) {
            (Message::Alive, _) => Ok(()),
            (Message::Abort { reason, text }, _) => Err(Failure::Peer { reason, text }),
            (Message::Offer(offer), State::Waiting) => self.offered(offer),
            (Message::Manifest(bytes), State::Listing { .. }) => self.listed(&bytes),
            (Message::Arrived { until }, State::Receiving(_)) => self.arrived(until),
            (Message::Bye, State::Leaving) => {
                self.end();
                Ok(())
            }
            (
                Message::Offer(_)
                | Message::Manifest(_)
                | Message::Unwanted(_)
                | Message::Accept(_)
                | Message::Grant { .. }
                | Message::Arrived { .. }
                | Message::Flawed(_)
                | Message::Finished { .. }
                | Message::Bye,
                _,
            ) => Err(Failure::Protocol("a message out of turn")),
        }
    }

    fn offered(&mut self, offer: Offer) -> Result<(), Failure> {
        let limits = self.config.limits;
        if offer.entries > limits.entries_max || offer.manifest_bytes > limits.bytes_max {
            let text = crate::ManifestError::TooMany.to_string();
            return Err(Failure::Here {
                reason: Reason::Refused,
                text,
            });
        }
        self.cipher = Cipher::choose(offer.fast_aes, has_fast_aes());
        self.state = State::Listing {
            offer,
            decoder: Box::new(Decoder::new(limits)),
            bytes: 0,
        };
        Ok(())
    }

    fn listed(&mut self, piece: &[u8]) -> Result<(), Failure> {
        let State::Listing {
            offer,
            decoder,
            bytes,
        } = &mut self.state
        else {
            return Ok(());
        };
        *bytes += piece.len() as u64;
        decoder.push(piece).map_err(manifest_failure)?;
        if *bytes < offer.manifest_bytes {
            return Ok(());
        }
        let State::Listing {
            offer,
            decoder,
            bytes,
        } = std::mem::replace(&mut self.state, State::Ended)
        else {
            return Ok(());
        };
        let (manifest, id) = decoder.finish().map_err(manifest_failure)?;
        let as_offered = bytes == offer.manifest_bytes
            && id == offer.manifest_id
            && manifest.entries().len() as u32 == offer.entries
            && manifest.content_bytes() == offer.content_bytes;
        if !as_offered {
            return Err(Failure::Protocol(
                "a list of files that is not the one that was offered",
            ));
        }
        let manifest = Arc::new(manifest);
        self.state = State::Asking {
            manifest: Arc::clone(&manifest),
        };
        self.events.push_back(ReceiverEvent::Offered {
            manifest,
            id,
            key: offer.key,
        });
        Ok(())
    }

    fn arrived(&mut self, until: u64) -> Result<(), Failure> {
        let State::Receiving(receiving) = &mut self.state else {
            return Ok(());
        };
        if until < receiving.arrived || until > receiving.granted.min(receiving.chunks) {
            return Err(Failure::Protocol("chunks that were not granted"));
        }
        receiving.arrived = until;
        Ok(())
    }

    /// Grants empty slots once an eighth of them are, so that not every chunk costs a message.
    ///
    /// Grants go beyond the last chunk: from them the sender learns the disk's progress, even if
    /// all chunks fit the slots.
    fn go_on(&mut self) {
        let State::Receiving(receiving) = &mut self.state else {
            return;
        };
        if receiving.taken == receiving.chunks {
            self.state = State::Finishing;
            self.events.push_back(ReceiverEvent::Complete);
            return;
        }
        let slots = u64::from(receiving.slots);
        let until = receiving.taken + slots;
        if until - receiving.granted >= slots.div_ceil(GRANT_SHARE) {
            receiving.granted = until;
            self.out.push_back(Message::Grant {
                until,
                durable: receiving.durable,
            });
        }
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.events.push_back(ReceiverEvent::Over);
    }

    fn fail(&mut self, failure: Failure) {
        self.out.extend(super::last_word(&failure));
        self.state = State::Ended;
        self.events.push_back(ReceiverEvent::Failed(failure));
    }
}

fn manifest_failure(error: crate::ManifestError) -> Failure {
    Failure::Here {
        reason: Reason::Refused,
        text: error.to_string(),
    }
}
