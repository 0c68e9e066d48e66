//! Sliding windows, one on a queue pair for each device (Tu et al. 2021; section 2.3 of the
//! paper): a frame is a WRITE with immediate data that names its slot, an ACK a SEND.
//!
//! The sender's thread polls the ACKs itself: a thread for them, as the paper has it, costs more on
//! few cores. ACKs have no bytes but their immediate data, so they consume receives and no memory.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;

use airdma_engine::{Completion, CompletionOpcode, Operation, Qp, RecvWr, SendFlags, SendWr, Sge};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::ends::{Receiving, Resources, Sending};
use crate::load::{Discipline, Load, Stamp};
use crate::meeting::Meeting;
use crate::queue_pair::{Blocks, Queues, There};

#[derive(Deserialize, Serialize)]
struct Card {
    numbers: Vec<u32>,
    blocks: There,
}

/// Queue pairs of an end, one for each device.
struct Pairs {
    queues: Queues,
    qps: Vec<Arc<Qp>>,
    /// Requests that were posted on each.
    posted: Vec<u64>,
    blocks: Blocks,
    /// Slots of each window.
    slots: u32,
}

impl Pairs {
    /// Makes them and connects them with those of the peer.
    fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<(Pairs, Card)> {
        let slots = load.blocks_of_device();
        let entries = 3 * slots * load.devices;
        let queues = Queues::open(meeting.here, entries)?;
        let devices = load.devices as usize;
        // Requests that are done hold their places until a later one is signaled.
        let qps = (0..devices).map(|_| queues.queue_pair(2 * slots, slots));
        let qps = qps.collect::<anyhow::Result<Vec<_>>>()?;
        let blocks = queues.blocks(slots * load.devices, load.bytes)?;
        meeting.say(&Card {
            numbers: qps.iter().map(|qp| qp.number().get()).collect(),
            blocks: blocks.there(),
        })?;
        let theirs: Card = meeting.hear()?;
        ensure!(theirs.numbers.len() == devices, "another number of devices");
        for (qp, number) in qps.iter().zip(&theirs.numbers) {
            queues.connect(qp, meeting.there.ip(), *number)?;
        }
        let this = Pairs {
            queues,
            posted: vec![0; devices],
            qps,
            blocks,
            slots,
        };
        for device in 0..devices {
            for _ in 0..slots {
                this.post_receive(device)?;
            }
        }
        // No request before the other end is ready.
        meeting.say(&"ready")?;
        let _: String = meeting.hear()?;
        Ok((this, theirs))
    }

    fn post_receive(&self, device: usize) -> anyhow::Result<()> {
        let request = RecvWr {
            wr_id: device as u64,
            sges: &[],
        };
        Ok(self.qps[device].post_recv(&request)?)
    }

    /// Posts a request; twice in a round of the window one is signaled.
    fn post(&mut self, device: usize, operation: Operation, sges: &[Sge]) -> anyhow::Result<()> {
        self.posted[device] += 1;
        let every = u64::from(self.slots / 2).max(1);
        let flags = if self.posted[device].is_multiple_of(every) {
            SendFlags::SIGNALLED
        } else {
            SendFlags::empty()
        };
        Ok(self.qps[device].post_send(&SendWr {
            wr_id: device as u64,
            operation,
            sges,
            flags,
            datagram: None,
            srqn: 0,
        })?)
    }

    /// A message of the peer, whose receive is posted again: its device and immediate data.
    fn message(&mut self) -> anyhow::Result<Option<(usize, u32)>> {
        while let Some(completion) = self.queues.completion()? {
            let Completion {
                opcode, imm, wr_id, ..
            } = completion;
            if matches!(
                opcode,
                CompletionOpcode::Receive | CompletionOpcode::ReceiveWriteImm
            ) {
                let device = wr_id as usize;
                self.post_receive(device)?;
                let imm = imm.context("a message without immediate data")?;
                return Ok(Some((device, u32::from_be_bytes(imm))));
            }
        }
        Ok(None)
    }

    fn block(&self, device: usize, slot: u32) -> usize {
        device * self.slots as usize + slot as usize
    }

    fn resources(&self) -> Resources {
        let sum = |of: fn(&Qp) -> u32| -> u32 { self.qps.iter().map(|qp| of(qp)).sum() };
        Resources {
            queue_pairs: self.qps.len() as u32,
            sends: sum(|qp| qp.caps().max_send_wr),
            receives: sum(|qp| qp.caps().max_recv_wr),
            completions: self.queues.completions(),
        }
    }
}

pub struct Sender {
    pairs: Pairs,
    theirs: Card,
    discipline: Discipline,
    windows: Vec<SendWindow>,
}

/// The sender's side of a window.
struct SendWindow {
    /// Frames that were sent, and those whose slots are free again: the head and the tail, modulo
    /// 2^32.
    sent: u32,
    freed: u32,
    /// Free slots, where they are freed in any order.
    free: VecDeque<u32>,
}

impl Sender {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Sender> {
        let (pairs, theirs) = Pairs::open(meeting, load)?;
        let window = || SendWindow {
            sent: 0,
            freed: 0,
            free: (0..pairs.slots).collect(),
        };
        Ok(Sender {
            windows: (0..load.devices).map(|_| window()).collect(),
            pairs,
            theirs,
            discipline: load.discipline,
        })
    }

    fn is_any(&self) -> bool {
        self.discipline == Discipline::WindowAny
    }
}

impl Sending for Sender {
    fn has_room(&mut self, device: u32) -> anyhow::Result<bool> {
        let is_any = self.is_any();
        while let Some((of, acknowledged)) = self.pairs.message()? {
            let window = &mut self.windows[of];
            if is_any {
                window.free.push_back(acknowledged);
            } else {
                window.freed = acknowledged;
            }
        }
        let window = &self.windows[device as usize];
        Ok(match is_any {
            true => !window.free.is_empty(),
            false => window.sent.wrapping_sub(window.freed) < self.pairs.slots,
        })
    }

    fn send(&mut self, stamp: &Stamp) -> anyhow::Result<()> {
        let is_any = self.is_any();
        let device = stamp.device as usize;
        let window = &mut self.windows[device];
        let slot = match is_any {
            true => window.free.pop_front().context("no slot is free")?,
            false => window.sent % self.pairs.slots,
        };
        window.sent = window.sent.wrapping_add(1);
        let block = self.pairs.block(device, slot);
        self.pairs.blocks.fill(block, 0, stamp);
        let source = self.pairs.blocks.sge(block, 0);
        let offset = source.addr - self.pairs.blocks.there().address;
        let target = self.theirs.blocks;
        let operation = Operation::WriteImm {
            va: target.address + offset,
            rkey: target.key(),
            imm: slot.to_be_bytes(),
        };
        self.pairs.post(device, operation, &[source])
    }

    fn wait(&mut self, until: Instant) -> anyhow::Result<()> {
        self.pairs.queues.wait(until, || false)
    }

    fn resources(&self) -> Resources {
        self.pairs.resources()
    }
}

pub struct Receiver {
    pairs: Pairs,
    discipline: Discipline,
    windows: Vec<ReceiveWindow>,
    arrived: VecDeque<(usize, u32)>,
    /// Devices with blocks that were freed and not acknowledged.
    owed: Vec<usize>,
}

/// The receiver's side of a window.
struct ReceiveWindow {
    /// Slots that are free, and were not acknowledged because one before them is not.
    is_free: Vec<bool>,
    /// Slots that were freed in order, modulo 2^32.
    freed: u32,
    is_owed: bool,
}

impl Receiver {
    pub fn open(meeting: &mut Meeting, load: &Load) -> anyhow::Result<Receiver> {
        let (pairs, _) = Pairs::open(meeting, load)?;
        let window = || ReceiveWindow {
            is_free: vec![false; pairs.slots as usize],
            freed: 0,
            is_owed: false,
        };
        Ok(Receiver {
            windows: (0..load.devices).map(|_| window()).collect(),
            pairs,
            discipline: load.discipline,
            arrived: VecDeque::new(),
            owed: Vec::new(),
        })
    }

    fn acknowledge(&mut self, device: usize, what: u32) -> anyhow::Result<()> {
        let operation = Operation::SendImm(what.to_be_bytes());
        self.pairs.post(device, operation, &[])
    }

    fn acknowledge_all(&mut self) -> anyhow::Result<()> {
        while let Some(device) = self.owed.pop() {
            self.windows[device].is_owed = false;
            self.acknowledge(device, self.windows[device].freed)?;
        }
        Ok(())
    }
}

impl Receiving for Receiver {
    type Block = (usize, u32);

    fn next(&mut self, until: Instant) -> anyhow::Result<Option<(Stamp, Self::Block)>> {
        loop {
            if let Some((device, slot)) = self.arrived.pop_front() {
                let (_, stamp) = self.pairs.blocks.read(self.pairs.block(device, slot))?;
                ensure!(stamp.device as usize == device, "a frame of another device");
                return Ok(Some((stamp, (device, slot))));
            }
            while let Some((device, slot)) = self.pairs.message()? {
                ensure!(slot < self.pairs.slots, "a slot that is none");
                self.arrived.push_back((device, slot));
            }
            if self.arrived.is_empty() {
                self.acknowledge_all()?;
                if Instant::now() >= until {
                    return Ok(None);
                }
                self.pairs.queues.wait(until, || false)?;
            }
        }
    }

    fn keep(&mut self, _block: &Self::Block) {}

    fn free(&mut self, (device, slot): Self::Block) -> anyhow::Result<()> {
        if self.discipline == Discipline::WindowAny {
            return self.acknowledge(device, slot);
        }
        let slots = self.pairs.slots;
        let window = &mut self.windows[device];
        window.is_free[slot as usize] = true;
        let before = window.freed;
        while std::mem::take(&mut window.is_free[(window.freed % slots) as usize]) {
            window.freed = window.freed.wrapping_add(1);
        }
        if window.freed == before {
            return Ok(());
        }
        if self.discipline == Discipline::Window {
            let freed = window.freed;
            return self.acknowledge(device, freed);
        }
        if !std::mem::replace(&mut window.is_owed, true) {
            self.owed.push(device);
        }
        Ok(())
    }

    fn resources(&self) -> Resources {
        self.pairs.resources()
    }
}
