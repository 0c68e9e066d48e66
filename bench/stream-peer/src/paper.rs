//! The discipline of Xiao et al. (Appl. Sci. 2024, 14, 7437, 3.2): three arrays of bytes.
//!
//! S1 says of each block of the sender whether it is filled, S3 of each of the receiver whether it
//! is empty (0), has a frame (1) or is kept (2), and S2 is the sender's copy of S3. A frame is two
//! WRITEs in one list: device (1 byte), packet (2 bytes) and payload, then the byte of S3. The
//! sender has one list or one READ in flight (figure 16: a send queue of two), and reads S3 when S2
//! has no empty block.
//!
//! Where the paper would hang or is silent, this is kind to it: filling and sending are one thread,
//! which takes any block that S2 calls empty, so that a filled block does not wait for a kept one
//! of the same number; and a receiver that has kept a block looks at all blocks, because the
//! sender may skip one that is free by now, at which it would wait for ever.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::time::Instant;

use airdma_engine::{CompletionOpcode, Operation, Qp, SendFlags, SendWr};
use anyhow::bail;
use serde::{Deserialize, Serialize};

use crate::ends::{Receiving, Resources, Sending};
use crate::load::{Load, Stamp};
use crate::meeting::Meeting;
use crate::queue_pair::{Blocks, Bytes, Queues, There};

const EMPTY: u8 = 0;
const FILLED: u8 = 1;
const KEPT: u8 = 2;
/// Device and number of the packet.
const HEADER_BYTES: usize = 3;
/// A list of two WRITEs.
const SENDS: u32 = 2;

#[derive(Deserialize, Serialize)]
struct Card {
    number: u32,
    blocks: There,
    states: There,
}

/// What the sender has in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Busy {
    No,
    Sends(usize),
    Reads,
}

pub struct Sender {
    queues: Queues,
    qp: Arc<Qp>,
    blocks: Blocks,
    /// S1.
    filled: Vec<u8>,
    /// S2.
    copy: Bytes<AtomicU8>,
    /// What is written to S3.
    mark: Bytes<AtomicU8>,
    theirs: Card,
    busy: Busy,
    at: usize,
    packet: u16,
}

impl Sender {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Sender> {
        let queues = Queues::open(meeting.here, SENDS)?;
        let qp = queues.queue_pair(SENDS, 1)?;
        let blocks = queues.blocks(load.blocks, load.bytes)?;
        let copy = queues.bytes(load.blocks as usize)?;
        let mark = queues.bytes(1)?;
        mark.memory[0].store(FILLED, Ordering::Relaxed);
        meeting.say(&Card {
            number: qp.number().get(),
            blocks: blocks.there(),
            states: copy.there(),
        })?;
        let theirs: Card = meeting.hear()?;
        queues.connect(&qp, meeting.there.ip(), theirs.number)?;
        meeting.say(&"ready")?;
        let _: String = meeting.hear()?;
        Ok(Sender {
            queues,
            qp,
            blocks,
            filled: vec![EMPTY; load.blocks as usize],
            copy,
            mark,
            theirs,
            busy: Busy::No,
            at: 0,
            packet: 0,
        })
    }

    /// Takes in what has completed.
    fn attend(&mut self) -> anyhow::Result<()> {
        while let Some(completion) = self.queues.completion()? {
            match (self.busy, completion.opcode) {
                (Busy::Sends(block), CompletionOpcode::Write) => {
                    self.filled[block] = EMPTY;
                    self.copy.memory[block].store(FILLED, Ordering::Relaxed);
                }
                (Busy::Reads, CompletionOpcode::Read) => fence(Ordering::Acquire),
                (busy, opcode) => bail!("{opcode:?} completed, but {busy:?}"),
            }
            self.busy = Busy::No;
        }
        Ok(())
    }

    /// The next block that is empty at both ends.
    fn find_empty(&self) -> Option<usize> {
        let count = self.filled.len();
        let mut order = (self.at..count).chain(0..self.at);
        let is_empty = |block: &usize| {
            let state = self.copy.memory[*block].load(Ordering::Relaxed);
            state == EMPTY && self.filled[*block] == EMPTY
        };
        order.find(is_empty)
    }

    /// Reads S3 in place of S2.
    fn read_states(&mut self) -> anyhow::Result<()> {
        let states = self.theirs.states;
        self.qp.post_send(&SendWr {
            wr_id: 0,
            operation: Operation::Read {
                va: states.address,
                rkey: states.key(),
            },
            sges: &[self.copy.sge(0, self.filled.len())],
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        })?;
        self.busy = Busy::Reads;
        Ok(())
    }
}

impl Sending for Sender {
    fn has_room(&mut self, _device: u32) -> anyhow::Result<bool> {
        self.attend()?;
        if self.busy != Busy::No {
            return Ok(false);
        }
        match self.find_empty() {
            Some(block) => {
                self.at = block;
                Ok(true)
            }
            None => {
                self.read_states()?;
                Ok(false)
            }
        }
    }

    fn send(&mut self, stamp: &Stamp) -> anyhow::Result<()> {
        let block = self.at;
        let head = u64::from(stamp.device as u8) << 40 | u64::from(self.packet) << 48;
        self.packet = self.packet.wrapping_add(1);
        self.blocks.fill(block, head, stamp);
        self.filled[block] = FILLED;
        let (blocks, states) = (self.theirs.blocks, self.theirs.states);
        // The payload ends a block; what is before it begins HEADER_BYTES earlier.
        let source = self.blocks.sge(block, HEADER_BYTES);
        let offset = source.addr - self.blocks.there().address;
        let payload = SendWr {
            wr_id: 0,
            operation: Operation::Write {
                va: blocks.address + offset,
                rkey: blocks.key(),
            },
            sges: &[source],
            flags: SendFlags::empty(),
            datagram: None,
            srqn: 0,
        };
        let state = SendWr {
            operation: Operation::Write {
                va: states.address + block as u64,
                rkey: states.key(),
            },
            sges: &[self.mark.sge(0, 1)],
            flags: SendFlags::SIGNALLED | SendFlags::INLINE,
            ..payload
        };
        let mut list = self.qp.begin_post_send();
        list.push(&payload)?;
        list.push(&state)?;
        drop(list);
        self.busy = Busy::Sends(block);
        self.at = (block + 1) % self.filled.len();
        Ok(())
    }

    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        self.queues.wait(until, || false)
    }

    fn resources(&self) -> Resources {
        resources(&self.queues, &self.qp)
    }
}

pub struct Receiver {
    queues: Queues,
    qp: Arc<Qp>,
    blocks: Blocks,
    /// S3.
    states: Bytes<AtomicU8>,
    /// Blocks whose frames are being processed.
    lent: Vec<bool>,
    at: usize,
    has_kept: bool,
}

impl Receiver {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Receiver> {
        let queues = Queues::open(meeting.here, SENDS)?;
        let qp = queues.queue_pair(1, 1)?;
        let blocks = queues.blocks(load.blocks, load.bytes)?;
        let states = queues.bytes(load.blocks as usize)?;
        let theirs: Card = meeting.hear()?;
        queues.connect(&qp, meeting.there.ip(), theirs.number)?;
        meeting.say(&Card {
            number: qp.number().get(),
            blocks: blocks.there(),
            states: states.there(),
        })?;
        let _: String = meeting.hear()?;
        meeting.say(&"ready")?;
        qp.await_writes(true);
        Ok(Receiver {
            queues,
            qp,
            blocks,
            states,
            lent: vec![false; load.blocks as usize],
            at: 0,
            has_kept: false,
        })
    }

    fn find_filled(&self) -> Option<usize> {
        let is_filled = |block: &usize| {
            let state = self.states.memory[*block].load(Ordering::Acquire);
            state == FILLED && !self.lent[*block]
        };
        let next = Some(self.at).filter(is_filled);
        if next.is_some() || !self.has_kept {
            return next;
        }
        (self.at..self.lent.len()).chain(0..self.at).find(is_filled)
    }
}

impl Receiving for Receiver {
    type Block = usize;

    fn next(&mut self, until: Instant) -> anyhow::Result<Option<(Stamp, usize)>> {
        loop {
            let seen = self.qp.writes_placed();
            if let Some(block) = self.find_filled() {
                let (head, stamp) = self.blocks.read(block)?;
                if (head >> 40) as u8 != stamp.device as u8 {
                    bail!("a header of another device");
                }
                self.lent[block] = true;
                self.at = (block + 1) % self.lent.len();
                return Ok(Some((stamp, block)));
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            let qp = &self.qp;
            self.queues.wait(until, || qp.writes_placed() != seen)?;
        }
    }

    fn keep(&mut self, block: &usize) {
        self.has_kept = true;
        self.states.memory[*block].store(KEPT, Ordering::Release);
    }

    fn free(&mut self, block: usize) -> anyhow::Result<()> {
        self.lent[block] = false;
        self.states.memory[block].store(EMPTY, Ordering::Release);
        Ok(())
    }

    fn resources(&self) -> Resources {
        resources(&self.queues, &self.qp)
    }
}

fn resources(queues: &Queues, qp: &Qp) -> Resources {
    let caps = qp.caps();
    Resources {
        queue_pairs: 1,
        sends: caps.max_send_wr,
        receives: caps.max_recv_wr,
        completions: queues.completions(),
    }
}
