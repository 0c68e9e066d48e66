//! The disk's thread at the receiver.
//!
//! It previews an offer, asks whether to accept it, opens and writes chunks, and finishes files.

use crate::SLOT_BYTES;
use crate::cancel::Cancel;
use crate::error::Error;
use crate::lobby::{Finished, Lobby};
use crate::progress::Offered;
use crate::target::Target;
use airdma::{Device, Rights, Shared};
use airdma_files::session::{Cipher, DataKey, Opener, PublicKey, TAG_BYTES};
use airdma_files::{Manifest, ManifestId, Plan, Preview, Report, Unwanted, printable};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Slots in the staging memory, for chunks in flight or waiting for the disk.
const SLOTS: u64 = 32;
/// Interval of checkpoints; also the pause in data after which one is made at once.
const QUIET: Duration = Duration::from_secs(1);
/// Most top-level names that are shown to the user.
const NAMES_MAX: usize = 100;

/// An offer and its sender.
pub(crate) struct Offer {
    pub manifest: Arc<Manifest>,
    pub id: ManifestId,
    pub key: DataKey,
    pub cipher: Cipher,
    pub peer: PublicKey,
    pub address: IpAddr,
}

/// Orders to the thread.
pub(crate) enum Order {
    /// A chunk lies in this slot.
    Take { chunk: u64, slot: u32 },
    /// All chunks were received.
    Finish,
}

/// Replies of the thread.
pub(crate) enum Reply {
    /// The offer is accepted.
    Accepted {
        unwanted: Unwanted,
        first_chunk: u64,
        slots: u32,
        staging: Arc<Shared>,
        bytes_total: u64,
    },
    /// Chunks below `until` were taken from their slots.
    Taken { until: u64, durable: u64 },
    /// All files have their names.
    Finished(Report),
    /// The transfer failed.
    Failed(Error),
}

/// The thread's state, for one connection.
pub(crate) struct Writer<'a> {
    pub lobby: &'a Lobby<'a>,
    pub device: Device,
    pub offer: Offer,
    pub orders: Receiver<Order>,
    pub replies: Sender<Reply>,
    pub waker: Waker,
    /// Cancelled when the connection is over.
    pub over: Cancel,
}

impl Writer<'_> {
    /// Runs until the connection is over.
    pub fn run(self) {
        if let Err(error) = self.receive() {
            self.reply(Reply::Failed(error));
        }
    }

    fn reply(&self, reply: Reply) {
        // Fails if the connection is over.
        let _ = self.replies.send(reply);
        self.waker.wake_by_ref();
    }

    fn receive(&self) -> Result<(), Error> {
        let Offer { id, peer, .. } = self.offer;
        // Held until the files are closed.
        let _seat = self.lobby.take_seat(peer, id, &self.over)?;
        if let Some((report, unwanted)) = self.lobby.finished(peer, id) {
            return self.say_again(report, unwanted);
        }
        let destination = self.lobby.destination();
        let key = self.lobby.job().identity.journal_key();
        let preview = Target::preview(destination, &self.offer.manifest, id, &key)?;
        let offered = self.describe(&preview);
        if !self.lobby.accepts(&offered, id, &self.over) {
            return Err(Error::Refused);
        }
        self.write(Target::open(
            destination,
            Arc::clone(&self.offer.manifest),
            id,
            &key,
        )?)
    }

    fn describe(&self, preview: &Preview) -> Offered {
        let Offer {
            manifest,
            peer,
            address,
            ..
        } = &self.offer;
        let entries = manifest.entries();
        let is_file = |entry: &&airdma_files::manifest::Entry| entry.content().is_some();
        let files = entries.iter().filter(is_file).count() as u64;
        let tops = entries.iter().filter(|entry| entry.depth == 0);
        Offered {
            peer: *peer,
            address: *address,
            files,
            others: entries.len() as u64 - files,
            bytes: self.lobby.destination().bytes(manifest),
            bytes_to_come: preview.bytes,
            goes_on: preview.goes_on,
            names: tops
                .take(NAMES_MAX)
                .map(|entry| printable(&entry.name))
                .collect(),
        }
    }

    /// Repeats the result to a sender that missed it.
    fn say_again(&self, report: Report, unwanted: Unwanted) -> Result<(), Error> {
        let plan = Plan::new(&self.offer.manifest, &unwanted);
        let _staging = self.accept(&plan, &unwanted, plan.chunks())?;
        if let Ok(Order::Finish) = self.orders.recv() {
            self.reply(Reply::Finished(report));
        }
        Ok(())
    }

    /// Accepts chunks from `first_chunk` on.
    fn accept(
        &self,
        plan: &Plan,
        unwanted: &Unwanted,
        first_chunk: u64,
    ) -> Result<Arc<Shared>, Error> {
        let slots = (plan.chunks() - first_chunk).clamp(1, SLOTS);
        let staging = self.device.allocate_private(slots as usize * SLOT_BYTES)?;
        let staging = Arc::new(staging.share(Rights::WRITE)?);
        self.reply(Reply::Accepted {
            unwanted: unwanted.clone(),
            first_chunk,
            slots: slots as u32,
            staging: Arc::clone(&staging),
            bytes_total: plan.bytes(),
        });
        Ok(staging)
    }

    fn write(&self, mut target: Target<'_>) -> Result<(), Error> {
        let first_chunk = target.next();
        let staging = self.accept(target.plan(), &target.unwanted(), first_chunk)?;
        let mut opener = Opener::new(self.offer.cipher, &self.offer.key, first_chunk);
        // Chunks are copied once, then opened, so a peer that writes to a slot later changes
        // nothing.
        let mut sealed = vec![0; SLOT_BYTES];
        let mut checked = Instant::now();
        loop {
            match self.orders.recv_timeout(QUIET) {
                Ok(Order::Take { chunk, slot }) => {
                    let sealed = &mut sealed[..target.plan().chunk_bytes(chunk) + TAG_BYTES];
                    staging.copy_out(slot as usize * SLOT_BYTES, sealed)?;
                    target.write(opener.open(sealed)?)?;
                    if checked.elapsed() >= QUIET {
                        target.checkpoint_beside()?;
                        checked = Instant::now();
                    }
                }
                Ok(Order::Finish) => {
                    let unwanted = target.unwanted();
                    let (report, kept) = target.settle()?;
                    self.lobby.finish(Finished {
                        peer: self.offer.peer,
                        id: self.offer.id,
                        report: report.clone(),
                        unwanted,
                        kept,
                    });
                    self.reply(Reply::Finished(report));
                    return Ok(());
                }
                Err(RecvTimeoutError::Timeout) if target.durable() < target.next() => {
                    target.checkpoint()?;
                }
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return target.checkpoint(),
            }
            let (until, durable) = (target.next(), target.durable());
            self.reply(Reply::Taken { until, durable });
        }
    }
}
