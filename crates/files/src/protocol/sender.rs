//! The sender's side of a transfer.

use super::liveness::Liveness;
use super::message::{Accept, Message, Offer, PIECE_BYTES_MAX};
use super::{Config, Failure, Reason, Time};
use crate::manifest::{Manifest, ManifestId};
use crate::plan::{Plan, Unwanted};
use crate::session::{Cipher, DataKey, has_fast_aes};
use crate::trailer::Flaw;
use std::collections::VecDeque;
use std::sync::Arc;

/// Actions for the caller of a [`Sender`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SenderEvent {
    /// The receiver accepted: make a [`crate::Source`] and a [`crate::session::Sealer`], and write
    /// chunks.
    Accepted {
        /// Entries that need not be sent.
        unwanted: Unwanted,
        /// First wanted chunk.
        first_chunk: u64,
        /// Cipher of the chunks; the key is the offered one.
        cipher: Cipher,
        /// Number of slots in the staging memory.
        slots: u32,
        /// Description of the staging memory.
        staging: Vec<u8>,
    },
    /// Progress at the last grant, for display: it shows which part is slow.
    Taken {
        /// Chunks taken from the staging memory.
        chunks: u64,
    },
    /// Progress of the receiver's disk, for display.
    Durable {
        /// Chunks on the disk.
        chunks: u64,
    },
    /// All files that arrived have their names.
    Finished {
        /// Files that arrived.
        files: u64,
        /// Files that did not arrive.
        flaws: Vec<(u32, Flaw)>,
    },
    /// The transfer failed. Send what `poll_message` still returns.
    Failed(Failure),
}

/// Offers a manifest, and yields chunks once it is accepted. See [`super`] for the order of calls.
#[derive(Debug)]
pub struct Sender {
    config: Config,
    key: DataKey,
    manifest: Arc<Manifest>,
    state: State,
    liveness: Liveness,
    /// Rest of the manifest to send.
    encoded: VecDeque<u8>,
    out: VecDeque<Message>,
    events: VecDeque<SenderEvent>,
    unwanted: Unwanted,
    flaws: Vec<(u32, Flaw)>,
}

#[derive(Debug)]
enum State {
    /// The offer is not known yet.
    Preparing,
    /// Waits for the receiver to accept, until this time.
    Offering {
        until: Time,
    },
    Sending {
        plan: Plan,
        slots: u32,
        /// The next chunk to write.
        next: u64,
        granted: u64,
        durable: u64,
        /// Chunks reported to the receiver, if they must be reported.
        arrived: u64,
    },
    Ended,
}

impl Sender {
    /// Offers `manifest`; its chunks will be encrypted with `key`, which must be fresh.
    pub fn new(now: Time, config: Config, manifest: Arc<Manifest>, key: DataKey) -> Self {
        let mut sender = Self::preparing(now, config, key);
        sender.offer(now, manifest);
        sender
    }

    /// Only keeps the session alive until [`Sender::offer`].
    pub fn preparing(now: Time, config: Config, key: DataKey) -> Self {
        Self {
            config,
            key,
            manifest: Arc::default(),
            state: State::Preparing,
            liveness: Liveness::new(now),
            encoded: VecDeque::new(),
            out: VecDeque::new(),
            events: VecDeque::new(),
            unwanted: Unwanted::default(),
            flaws: Vec::new(),
        }
    }

    /// Offers `manifest`, unless the transfer has failed meanwhile.
    pub fn offer(&mut self, now: Time, manifest: Arc<Manifest>) {
        if !matches!(self.state, State::Preparing) {
            return;
        }
        let encoded = manifest.encode();
        self.out.push_back(Message::Offer(Offer {
            entries: manifest.entries().len() as u32,
            content_bytes: manifest.content_bytes(),
            manifest_bytes: encoded.len() as u64,
            manifest_id: ManifestId::of(&encoded),
            key: self.key.clone(),
            fast_aes: has_fast_aes(),
        }));
        self.encoded = encoded.into();
        self.manifest = manifest;
        self.state = State::Offering {
            until: now + self.config.accept_within,
        };
    }

    /// Handles a message of the receiver.
    pub fn handle_message(&mut self, now: Time, message: Message) {
        if matches!(self.state, State::Ended) {
            return;
        }
        self.liveness.heard(now);
        if let Err(failure) = self.take(message) {
            self.fail(failure);
        }
    }

    /// Handles timeouts.
    pub fn handle_timeout(&mut self, now: Time) {
        match self.state {
            State::Ended => {}
            State::Offering { until } if now >= until => self.fail(Failure::NotAccepted),
            State::Preparing | State::Offering { .. } | State::Sending { .. }
                if self.liveness.is_silent(now, &self.config) =>
            {
                self.fail(Failure::Silent);
            }
            State::Preparing | State::Offering { .. } | State::Sending { .. } => {
                if self.liveness.is_due(now, &self.config) && self.out.is_empty() {
                    self.out.push_back(Message::Alive);
                }
            }
        }
    }

    /// Ends the transfer.
    pub fn abort(&mut self, reason: Reason, text: &str) {
        if !matches!(self.state, State::Ended) {
            self.fail(Failure::Here {
                reason,
                text: text.to_owned(),
            });
        }
    }

    /// The next message to send.
    pub fn poll_message(&mut self, now: Time) -> Option<Message> {
        let message = self.out.pop_front().or_else(|| self.piece())?;
        self.liveness.said(now);
        Some(message)
    }

    /// The next action.
    pub fn poll_event(&mut self) -> Option<SenderEvent> {
        self.events.pop_front()
    }

    /// When to call [`Sender::handle_timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        let silence = self.liveness.timeout(&self.config);
        match self.state {
            State::Offering { until } => Some(until.min(silence)),
            State::Preparing | State::Sending { .. } => Some(silence),
            State::Ended => None,
        }
    }

    /// The next chunk to read, seal and write, and its slot; `None` until the receiver grants one.
    pub fn next_chunk(&mut self) -> Option<(u64, u32)> {
        match &mut self.state {
            State::Sending {
                plan,
                next,
                granted,
                slots,
                ..
            } if *next < plan.chunks().min(*granted) => {
                let chunk = *next;
                *next += 1;
                Some((chunk, (chunk % u64::from(*slots)) as u32))
            }
            State::Sending { .. } | State::Preparing | State::Offering { .. } | State::Ended => {
                None
            }
        }
    }

    /// Notes that all chunks below `until` were written.
    ///
    /// Call it if the receiver cannot see that from the writes, and only if messages and writes
    /// arrive in order.
    pub fn chunks_written(&mut self, until: u64) {
        if let State::Sending { next, arrived, .. } = &mut self.state {
            assert!(until <= *next, "what was not given was not written");
            if until > *arrived {
                *arrived = until;
                self.out.push_back(Message::Arrived { until });
            }
        }
    }

    /// The next part of the manifest.
    fn piece(&mut self) -> Option<Message> {
        if !matches!(self.state, State::Offering { .. }) || self.encoded.is_empty() {
            return None;
        }
        let length = self.encoded.len().min(PIECE_BYTES_MAX);
        Some(Message::Manifest(self.encoded.drain(..length).collect()))
    }

    fn take(&mut self, message: Message) -> Result<(), Failure> {
        match (message, &mut self.state) {
            (Message::Alive, _) => Ok(()),
            (Message::Abort { reason, text }, _) => Err(Failure::Peer { reason, text }),
            (Message::Unwanted(ranges), State::Offering { .. }) if self.encoded.is_empty() => {
                let entries = self.manifest.entries().len() as u32;
                let sound = ranges
                    .into_iter()
                    .all(|range| range.end <= entries && self.unwanted.push_range(range));
                if sound {
                    Ok(())
                } else {
                    Err(Failure::Protocol("entries that were not offered"))
                }
            }
            (Message::Accept(accept), State::Offering { .. }) if self.encoded.is_empty() => {
                self.accepted(accept)
            }
            (Message::Grant { until, durable }, State::Sending { .. }) => {
                self.granted(until, durable)
            }
            (Message::Flawed(flaws), State::Sending { .. }) => self.flawed(flaws),
            (Message::Finished { files, flaws }, State::Sending { plan, next, .. }) => {
                let sent = *next == plan.chunks();
                if !sent || flaws as usize != self.flaws.len() {
                    return Err(Failure::Protocol("an end before the end"));
                }
                self.out.push_back(Message::Bye);
                self.state = State::Ended;
                self.events.push_back(SenderEvent::Finished {
                    files,
                    flaws: std::mem::take(&mut self.flaws),
                });
                Ok(())
            }
            (
                Message::Offer(_)
                | Message::Manifest(_)
                | Message::Arrived { .. }
                | Message::Bye
                | Message::Unwanted(_)
                | Message::Accept(_)
                | Message::Grant { .. }
                | Message::Flawed(_)
                | Message::Finished { .. },
                _,
            ) => Err(Failure::Protocol("a message out of turn")),
        }
    }

    fn accepted(&mut self, accept: Accept) -> Result<(), Failure> {
        let Accept {
            first_chunk,
            cipher,
            slots,
            staging,
        } = accept;
        let plan = Plan::new(&self.manifest, &self.unwanted);
        if first_chunk > plan.chunks() || slots > self.config.slots_max {
            return Err(Failure::Protocol("terms that make no sense"));
        }
        let unwanted = self.unwanted.clone();
        self.events.push_back(SenderEvent::Accepted {
            unwanted,
            first_chunk,
            cipher,
            slots,
            staging,
        });
        let (next, granted, durable, arrived) =
            (first_chunk, first_chunk, first_chunk, first_chunk);
        self.state = State::Sending {
            plan,
            slots,
            next,
            granted,
            durable,
            arrived,
        };
        Ok(())
    }

    fn granted(&mut self, until: u64, on_disk: u64) -> Result<(), Failure> {
        let State::Sending {
            plan,
            slots,
            next,
            granted,
            durable,
            ..
        } = &mut self.state
        else {
            return Ok(());
        };
        let slots = u64::from(*slots);
        let sound = until >= *granted
            && until <= plan.chunks() + slots
            && until - *granted <= slots
            && on_disk >= *durable
            && on_disk <= *next;
        if !sound {
            return Err(Failure::Protocol("a grant that makes no sense"));
        }
        *granted = until;
        let chunks = until.saturating_sub(slots);
        self.events.push_back(SenderEvent::Taken { chunks });
        if on_disk > *durable {
            *durable = on_disk;
            self.events
                .push_back(SenderEvent::Durable { chunks: on_disk });
        }
        Ok(())
    }

    fn flawed(&mut self, flaws: Vec<(u32, Flaw)>) -> Result<(), Failure> {
        let entries = self.manifest.entries().len() as u32;
        for (entry, flaw) in flaws {
            if entry >= entries || self.flaws.last().is_some_and(|(last, _)| *last >= entry) {
                return Err(Failure::Protocol("entries that were not offered"));
            }
            self.flaws.push((entry, flaw));
        }
        Ok(())
    }

    /// Ends the transfer. The peer is told unless it ended the transfer itself, or is lost.
    fn fail(&mut self, failure: Failure) {
        self.out.extend(super::last_word(&failure));
        self.encoded.clear();
        self.state = State::Ended;
        self.events.push_back(SenderEvent::Failed(failure));
    }
}
