//! Actions of a program, run on the engine and reported to the judge.
// The variants not named here need no special treatment.
#![allow(clippy::wildcard_enum_match_arm)]

mod completions;
mod life;
mod reads;
mod records;
mod requests;

use crate::host::{
    Area, CELLS, LANDINGS, RECEIVES, RECEIVES_USED, SOURCES, TARGETS, Window, region,
};
use crate::plan::{Action, Fault, Job, LENGTH_MAX, Service, Verb, Whom};
use crate::world::{QKEY, Ticket, World};
use airdma_engine::{
    Access, AsyncEvent, AttrMask, Bind, Completion, CompletionOpcode, Datagram, Error, Feth, Lkey,
    MwType, Operation, QpAttributes, QpEvent, QpState, Qpn, RecvWr, Rkey, SendFlags, SendWr, Sge,
    Status,
};
use airdma_model as model;
use airdma_model::{Kind, Request, Rights};
use core::time::Duration;
use std::sync::Arc;

/// Bits of a key that a bind may choose.
const KEY_CHOSEN: u32 = 0xff;

/// Longest time of a packet in flight: the longest delay, and queues.
const LIFETIME_MAX: Duration = Duration::from_millis(500);

/// Pause after which a program polls everything.
const LONG: Duration = Duration::from_millis(5);

/// Difference between the PSNs of a connection and those of its predecessor.
///
/// Not a power of two: repeated reconnects must not return to numbers whose packets are still in
/// flight.
const PSN_LEAP: u32 = (1 << 22) + 0x821;

/// Bytes in front of a datagram.
const GRH: usize = 40;

/// Inline bytes that every queue pair supports.
const INLINE_MAX: usize = 64;

/// A request, as the engine's and as the judge's.
struct Built {
    kind: Kind,
    operation: Operation,
    sges: Vec<Sge>,
    payload: Vec<u8>,
}

impl World {
    /// Runs one action.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub fn act(&mut self, action: &Action) -> Result<(), String> {
        self.counts.actions += 1;
        self.judge.now += 1;
        self.violent |= matches!(
            action,
            Action::Fail { .. }
                | Action::Destroy { .. }
                | Action::Reconnect { .. }
                | Action::Cut { .. }
                | Action::Kill { .. }
        );
        match action {
            Action::Send { whom, requests } => self.act_send(*whom, requests),
            Action::Receive {
                whom,
                count,
                length,
                fault,
            } => self.act_receive(*whom, *count, *length, *fault),
            Action::Poll { host, cq } => self.act_poll(*host, *cq),
            Action::Arm {
                host,
                cq,
                solicited,
            } => self.act_arm(*host, *cq, *solicited),
            Action::Event { host } => self.act_event(*host),
            Action::Pass { time } => {
                self.pass(*time)?;
                // In a long pause the program only polls.
                if *time >= LONG && self.is_quiet() {
                    return self.poll_all();
                }
                Ok(())
            }
            Action::Store { host, at, length } => self.act_store(*host, *at, *length),
            Action::Fail { whom } => self.with_end(*whom, World::fail),
            Action::Drain { whom } => self.with_end(*whom, World::drain),
            Action::Resume { whom } => self.with_end(*whom, World::resume),
            Action::Destroy { whom } => self.with_end(*whom, World::destroy),
            Action::Reconnect { whom, at_once } => {
                self.with_end(*whom, |world, end| world.reconnect(end, *at_once))
            }
            Action::Deregister { host, region } => self.act_deregister(*host, *region),
            Action::Register { host, region } => self.act_register(*host, *region),
            Action::Cut { from, to, both } => self.act_cut(*from, *to, *both),
            Action::Heal => {
                self.network.heal();
                Ok(())
            }
            Action::Kill { host } => self.act_kill(*host),
            Action::Limit { host, receives } => self.act_limit(*host, *receives),
            Action::Tune {
                whom,
                min_rnr_timer,
                rights,
            } => self.with_end(*whom, |world, end| world.tune(end, *min_rnr_timer, *rights)),
            Action::Record { step } => self.act_record(*step),
            Action::LimitRate {
                whom,
                kbps,
                burst_max,
            } => self.with_end(*whom, |world, end| world.limit_rate(end, *kbps, *burst_max)),
        }
    }

    fn end_of(&self, whom: Whom) -> usize {
        let connections = self.plan.connections.len();
        usize::from(whom.connection) % connections * 2 + usize::from(whom.side)
    }

    fn with_end(
        &mut self,
        whom: Whom,
        act: impl FnOnce(&mut World, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        let end = self.end_of(whom);
        if !self.lives(end) {
            return Ok(());
        }
        act(self, end)
    }

    /// Whether a queue pair and its host exist.
    pub fn lives(&self, end: usize) -> bool {
        self.ends[end].qp.is_some() && self.hosts[self.ends[end].host].alive
    }

    fn host_of(&self, number: u8) -> Option<usize> {
        let host = usize::from(number) % self.hosts.len();
        self.hosts[host].alive.then_some(host)
    }

    fn next_id(&mut self) -> u64 {
        self.last_id += 1;
        self.last_id
    }

    fn act_send(&mut self, whom: Whom, requests: &[Job]) -> Result<(), String> {
        let end = self.end_of(whom);
        if !self.lives(end) {
            return Ok(());
        }
        for request in requests {
            self.send(end, request)?;
        }
        self.run(self.ends[end].host)
    }

    /// Builds and posts a request.
    fn send(&mut self, end: usize, send: &Job) -> Result<(), String> {
        if self.verb_for(end, send.verb) == Verb::Echo {
            return self.echo(end, send);
        }
        let id = self.next_id();
        match self.build(end, id, send) {
            Some(built) => self.post(end, id, send, built, None).map(|_| ()),
            None => {
                self.hosts[self.ends[end].host].give_back(id);
                Ok(())
            }
        }
    }

    /// Reads from the peer and writes the result to another place there. The fence makes the WRITE
    /// wait.
    fn echo(&mut self, end: usize, send: &Job) -> Result<(), String> {
        let (read, write) = (self.next_id(), self.next_id());
        let plain = Job {
            window: false,
            fault: None,
            ..*send
        };
        let length = usize::from(send.length.min(LENGTH_MAX));
        let host = self.ends[end].host;
        let Some(landing) = self.landing(end, read, &plain, length) else {
            self.hosts[host].give_back(read);
            return Ok(());
        };
        let (key, va) = self.target(end, &plain, length, false);
        let built = Built {
            kind: Kind::Read { key, va },
            operation: Operation::Read {
                va,
                rkey: Rkey(key),
            },
            sges: landing.clone(),
            payload: vec![0; length],
        };
        if !self.post(end, read, &plain, built, None)? {
            return Ok(());
        }
        let elsewhere = Job {
            place: send.place.rotate_left(5) ^ 0x0aaa,
            ..plain
        };
        let (key, va) = self.target(end, &elsewhere, length, true);
        let built = Built {
            kind: Kind::Write {
                key,
                va,
                immediate: None,
            },
            operation: Operation::Write {
                va,
                rkey: Rkey(key),
            },
            sges: landing,
            payload: vec![0; length],
        };
        let fenced = Job {
            fence: true,
            inline: false,
            ..plain
        };
        if self.post(end, write, &fenced, built, Some(read))? {
            // The READ's result stays there until it is written.
            self.hosts[host].hand_over(read, write);
        }
        Ok(())
    }

    /// Posts a request; returns false if there was no room.
    fn post(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
        built: Built,
        after: Option<u64>,
    ) -> Result<bool, String> {
        let connection = self.plan.connections[end / 2];
        let inline = self.goes_inline(send, &built);
        let signalled = send.signalled || connection.signal_all;
        let mut flags = SendFlags::empty();
        flags.set(SendFlags::SIGNALLED, send.signalled);
        flags.set(SendFlags::SOLICITED, send.solicited);
        flags.set(SendFlags::FENCE, send.fence);
        flags.set(SendFlags::INLINE, inline);
        let sges: Vec<Sge> = if inline {
            self.as_pointers(end, &built.sges)
        } else {
            built.sges.clone()
        };
        let to = (connection.service == Service::Ud).then(|| self.receiver_of(end, send));
        let datagram = to.map(|to| self.datagram_to(to));
        let wr = SendWr {
            wr_id: id,
            operation: built.operation,
            sges: &sges,
            flags,
            datagram,
            srqn: 0,
        };
        let qp = self.ends[end].qp.clone();
        let Some(qp) = qp else { return Ok(false) };
        // The judge is told first: the request may be in flight when the call returns.
        let request = Request {
            id,
            kind: built.kind,
            sges: built.sges.iter().map(part).collect(),
            payload: built.payload,
            inline,
            signalled,
            solicited: send.solicited,
            to,
            after,
        };
        let path = self.path_to(end, to.unwrap_or(end ^ 1));
        let outstanding = self.judge.sends(end).count() as u32;
        match qp.post_send(&wr) {
            Ok(()) => {}
            Err(Error::NoMemory(_)) if outstanding >= self.ends[end].granted.0 => {
                self.hosts[self.ends[end].host].give_back(id);
                return Ok(false);
            }
            Err(error) => {
                return Err(format!(
                    "send {id} of end {end} was refused with {outstanding} outstanding: {error}; {:?}",
                    request.kind
                ));
            }
        }
        self.note(|_| {
            format!(
                "end {end} sends {id}: {:?}, {} B{}",
                request.kind,
                request.payload.len(),
                if signalled { "" } else { ", unsignalled" }
            )
        });
        self.counts.requests += 1;
        self.counts.bytes += request.payload.len() as u64;
        self.note_window(end, id, &request.kind);
        self.judge.post_send(end, request, path);
        self.tickets.insert(
            id,
            Ticket {
                end,
                receives: false,
                orphan: false,
            },
        );
        if inline {
            // The buffer is the program's again: packets must not carry what is stored there later.
            self.hosts[self.ends[end].host].give_back(id);
            for sge in &sges {
                self.scribble(end, sge);
            }
        }
        Ok(true)
    }

    fn scribble(&mut self, end: usize, pointer: &Sge) {
        let host = self.ends[end].host;
        let base = self.hosts[host].pointer(0);
        let at = (pointer.addr - base) as usize;
        let bytes = self.random.bytes(pointer.length as usize);
        self.store(host, at, &bytes);
    }

    /// Stores bytes as the program does, and tells the judge.
    fn store(&mut self, host: usize, at: usize, bytes: &[u8]) {
        self.hosts[host].store(at, bytes);
        let now = self.judge.now;
        self.judge.memories[host].store(at, bytes, now);
    }

    fn goes_inline(&self, send: &Job, built: &Built) -> bool {
        let sends = match built.kind {
            Kind::Send { .. } | Kind::Write { .. } | Kind::AtomicWrite { .. } => true,
            Kind::Read { .. }
            | Kind::Flush { .. }
            | Kind::Atomic { .. }
            | Kind::Bind(_)
            | Kind::Invalidate { .. } => false,
        };
        send.inline && sends && send.fault.is_none() && built.payload.len() <= INLINE_MAX
    }

    /// The same list with addresses of this process, as inline data requires.
    fn as_pointers(&self, end: usize, sges: &[Sge]) -> Vec<Sge> {
        let host = &self.hosts[self.ends[end].host];
        let at =
            |sge: &Sge| host.pointer(SOURCES.at) + (sge.addr - host.regions[region::SOURCES].va);
        sges.iter()
            .map(|sge| Sge {
                addr: at(sge),
                lkey: 0,
                ..*sge
            })
            .collect()
    }

    /// Receiver of a datagram: mostly the other end, else any datagram queue pair.
    fn receiver_of(&self, end: usize, send: &Job) -> usize {
        let takes = |other: &usize| {
            self.plan.connections[other / 2].service == Service::Ud && *other != end
        };
        let all: Vec<usize> = (0..self.ends.len()).filter(takes).collect();
        match send.place & 3 {
            0 => all[usize::from(send.place >> 2) % all.len()],
            _ => end ^ 1,
        }
    }

    fn datagram_to(&self, end: usize) -> Datagram {
        let to = &self.ends[end];
        Datagram {
            path: airdma_engine::Path {
                gid: self.hosts[to.host].address.into(),
                hop_limit: 64,
                ..airdma_engine::Path::default()
            },
            qpn: to.number,
            qkey: QKEY,
        }
    }

    fn act_receive(
        &mut self,
        whom: Whom,
        count: u8,
        length: u16,
        fault: Option<Fault>,
    ) -> Result<(), String> {
        let end = self.end_of(whom);
        if !self.lives(end) {
            return Ok(());
        }
        let host = self.ends[end].host;
        for _ in 0..count {
            if self.hosts[host].taken(RECEIVES) < RECEIVES_USED {
                self.receive(end, length, fault)?;
            }
        }
        self.run(self.ends[end].host)
    }

    /// Posts a receive, if there is room.
    ///
    /// # Errors
    /// It was refused without a reason.
    pub fn receive(&mut self, end: usize, length: u16, fault: Option<Fault>) -> Result<(), String> {
        let connection = self.plan.connections[end / 2];
        let id = self.next_id();
        let index = self.ends[end].host;
        let Some(at) = self.hosts[index].take(RECEIVES, id) else {
            return Ok(());
        };
        let datagrams = connection.service == Service::Ud;
        let shared = connection.shared[end % 2];
        let whole = self.careful() || shared || datagrams;
        let length = if whole {
            RECEIVES.slot
        } else {
            usize::from(length).min(RECEIVES.slot)
        };
        let mut sges = self.list(
            index,
            region::RECEIVES,
            RECEIVES,
            at,
            length,
            1 + (id % 3) as u8,
        );
        let base = self.hosts[index].regions[region::RECEIVES].va;
        self.spoil(&mut sges, fault, RECEIVES, base);
        if fault == Some(Fault::LocalRight) {
            sges = self.list(
                index,
                region::SOURCES,
                SOURCES,
                SOURCES.at,
                length.min(SOURCES.slot),
                1,
            );
        }
        let wr = RecvWr {
            wr_id: id,
            sges: &sges,
        };
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        if shared {
            self.note_level(index);
        }
        let srq = self.hosts[index].srq.as_ref().filter(|_| shared);
        let posted = match srq {
            Some(srq) => srq.begin_post().push(&wr),
            None => qp.post_recv(&wr),
        };
        let queue = self.judge.queue_pairs[end].receives;
        let outstanding = self.judge.receives(queue) as u32;
        let room = if shared { 16 } else { self.ends[end].granted.1 };
        match posted {
            Ok(()) => {}
            Err(Error::NoMemory(_)) if outstanding >= room => {
                self.hosts[index].give_back(id);
                return Ok(());
            }
            Err(error) => {
                return Err(format!(
                    "receive {id} of end {end} was refused with {outstanding} outstanding: {error}"
                ));
            }
        }
        self.note(|_| format!("end {end} posts receive {id} of {length} B"));
        self.counts.receives += 1;
        let recv = model::Recv {
            id,
            sges: sges.iter().map(part).collect(),
        };
        self.judge.post_receive(end, recv);
        self.tickets.insert(
            id,
            Ticket {
                end,
                receives: true,
                orphan: false,
            },
        );
        Ok(())
    }

    fn act_store(&mut self, host: u8, at: u16, length: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let at = TARGETS.at + usize::from(at) % (TARGETS.slot - 256);
        let bytes = self.random.bytes(usize::from(length));
        self.store(host, at, &bytes);
        Ok(())
    }
}

fn part(sge: &Sge) -> model::Sge {
    model::Sge {
        key: sge.lkey,
        va: sge.addr,
        length: sge.length,
    }
}

fn status(status: Status) -> model::Status {
    match status {
        Status::Success => model::Status::Success,
        Status::LocalLengthError => model::Status::LocalLength,
        Status::LocalQpOperationError => model::Status::LocalQpOperation,
        Status::LocalProtectionError => model::Status::LocalProtection,
        Status::WrFlushError => model::Status::Flush,
        Status::MwBindError => model::Status::MwBind,
        Status::BadResponse => model::Status::BadResponse,
        Status::RemoteInvalidRequest => model::Status::RemoteInvalidRequest,
        Status::RemoteAccessError => model::Status::RemoteAccess,
        Status::RemoteOperationError => model::Status::RemoteOperation,
        Status::RetryExceeded => model::Status::RetryExceeded,
        Status::RnrRetryExceeded => model::Status::RnrRetryExceeded,
    }
}

fn opcode(opcode: CompletionOpcode) -> model::Opcode {
    match opcode {
        CompletionOpcode::Send => model::Opcode::Send,
        CompletionOpcode::Write => model::Opcode::Write,
        CompletionOpcode::Read => model::Opcode::Read,
        CompletionOpcode::CompareSwap => model::Opcode::CompareSwap,
        CompletionOpcode::FetchAdd => model::Opcode::FetchAdd,
        CompletionOpcode::BindWindow => model::Opcode::Bind,
        CompletionOpcode::LocalInvalidate => model::Opcode::Invalidate,
        CompletionOpcode::AtomicWrite => model::Opcode::AtomicWrite,
        CompletionOpcode::Flush => model::Opcode::Flush,
        CompletionOpcode::Receive => model::Opcode::Receive,
        CompletionOpcode::ReceiveWriteImm => model::Opcode::ReceiveImmediate,
        CompletionOpcode::Record | CompletionOpcode::ReceiveRecord => {
            panic!("a record at a queue pair of a connection")
        }
    }
}
