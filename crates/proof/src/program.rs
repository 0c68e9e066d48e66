//! What a program does, done on the engine and told to the judge.
// What is not named here is as it is for everything else.
#![allow(clippy::wildcard_enum_match_arm)]

use crate::host::{
    Area, CELLS, LANDINGS, RECEIVES, RECEIVES_USED, SOURCES, TARGETS, Window, region,
};
use crate::plan::{Action, Fault, LENGTH_MAX, Send, Service, Verb, Whom};
use crate::world::{QKEY, Ticket, World};
use airdma_engine::{
    Access, AsyncEvent, AttrMask, Bind, Completion, CompletionOpcode, Datagram, Error, Lkey,
    MwType, Operation, QpAttributes, QpEvent, QpState, Qpn, RecvWr, Rkey, SendFlags, SendWr, Sge,
    Status,
};
use airdma_model as model;
use airdma_model::{Kind, Request, Rights};
use core::time::Duration;
use std::sync::Arc;

/// Bits of a key that a bind may choose.
const KEY_CHOSEN: u32 = 0xff;

/// How long a packet may be under way: what is held back longest, and queues.
const LIFETIME_MAX: Duration = Duration::from_millis(50);

/// By how much the numbers of a connection differ from those that it had before.
const PSN_LEAP: u32 = 1 << 22;

/// Bytes before a datagram.
const GRH: usize = 40;

/// Inline bytes that every queue pair takes.
const INLINE_MAX: usize = 64;

/// A request, both ways.
struct Built {
    kind: Kind,
    operation: Operation,
    sges: Vec<Sge>,
    payload: Vec<u8>,
}

impl World {
    /// Carries out one action.
    ///
    /// # Errors
    /// What the judge says.
    pub fn act(&mut self, action: &Action) -> Result<(), String> {
        self.counts.actions += 1;
        self.judge.now += 1;
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
            Action::Pass { time } => self.pass(*time),
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

    /// Whether the queue pair is there, and its host.
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

    fn act_send(&mut self, whom: Whom, requests: &[Send]) -> Result<(), String> {
        let end = self.end_of(whom);
        if !self.lives(end) {
            return Ok(());
        }
        for request in requests {
            self.send(end, request)?;
        }
        self.run(self.ends[end].host)
    }

    /// Builds a request and posts it.
    fn send(&mut self, end: usize, send: &Send) -> Result<(), String> {
        let id = self.next_id();
        let Some(built) = self.build(end, id, send) else {
            self.hosts[self.ends[end].host].give_back(id);
            return Ok(());
        };
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
        let datagram = (connection.service == Service::Ud).then(|| self.datagram_to(end ^ 1));
        let wr = SendWr {
            wr_id: id,
            operation: built.operation,
            sges: &sges,
            flags,
            datagram,
            srqn: 0,
        };
        let qp = self.ends[end].qp.clone();
        let Some(qp) = qp else { return Ok(()) };
        // The judge hears of it first: it may be on its way when the call returns.
        let request = Request {
            id,
            kind: built.kind,
            sges: built.sges.iter().map(part).collect(),
            payload: built.payload,
            inline,
            signalled,
            to: datagram.is_some().then_some(end ^ 1),
        };
        let path = self.path(end);
        let outstanding = self.judge.sends(end).count() as u32;
        match qp.post_send(&wr) {
            Ok(()) => {}
            Err(Error::NoMemory(_)) if outstanding >= self.ends[end].granted.0 => {
                self.hosts[self.ends[end].host].give_back(id);
                return Ok(());
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
        self.note_window(end, &request.kind);
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
            // The buffer is the program's again: what is sent now must not be what is there now.
            self.hosts[self.ends[end].host].give_back(id);
            for sge in &sges {
                self.scribble(end, sge);
            }
        }
        Ok(())
    }

    fn scribble(&mut self, end: usize, pointer: &Sge) {
        let host = self.ends[end].host;
        let base = self.hosts[host].pointer(0);
        let at = (pointer.addr - base) as usize;
        let bytes = self.random.bytes(pointer.length as usize);
        self.store(host, at, &bytes);
    }

    /// The program stores bytes, and the judge knows.
    fn store(&mut self, host: usize, at: usize, bytes: &[u8]) {
        self.hosts[host].store(at, bytes);
        let now = self.judge.now;
        self.judge.memories[host].store(at, bytes, now);
    }

    fn goes_inline(&self, send: &Send, built: &Built) -> bool {
        let sends = match built.kind {
            Kind::Send { .. } | Kind::Write { .. } | Kind::AtomicWrite { .. } => true,
            Kind::Read { .. } | Kind::Atomic { .. } | Kind::Bind(_) | Kind::Invalidate { .. } => {
                false
            }
        };
        send.inline && sends && send.fault.is_none() && built.payload.len() <= INLINE_MAX
    }

    /// The same list with addresses of this process, as inline data is given.
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

    /// Whether mistakes are made on purpose in this world.
    fn careful(&self) -> bool {
        self.plan.careful
    }

    fn verb_for(&self, end: usize, verb: Verb) -> Verb {
        let connection = self.plan.connections[end / 2];
        let unreliable = match verb {
            Verb::Read | Verb::AtomicWrite => Verb::Write,
            Verb::CompareSwap | Verb::FetchAdd | Verb::SendInvalidate => Verb::Send,
            other => other,
        };
        let datagram = match verb {
            Verb::SendImmediate | Verb::WriteImmediate => Verb::SendImmediate,
            _ => Verb::Send,
        };
        let verb = match connection.service {
            Service::Rc => verb,
            Service::Uc => unreliable,
            Service::Ud => datagram,
        };
        if !self.careful() {
            return verb;
        }
        let rights = connection.rights[1 - end % 2];
        let needs = match verb {
            Verb::Read => 1,
            Verb::Write | Verb::WriteImmediate | Verb::AtomicWrite => 2,
            Verb::CompareSwap | Verb::FetchAdd => 4,
            _ => 0,
        };
        let answered = matches!(
            verb,
            Verb::Read | Verb::CompareSwap | Verb::FetchAdd | Verb::AtomicWrite
        );
        if rights & needs != needs || (answered && connection.answers_max == 0) {
            return Verb::Send;
        }
        verb
    }

    fn length_for(&self, end: usize, verb: Verb, asked: u16) -> usize {
        let asked = usize::from(asked.min(LENGTH_MAX));
        let datagram = self.plan.connections[end / 2].service == Service::Ud;
        let takes_receive = matches!(
            verb,
            Verb::Send | Verb::SendImmediate | Verb::SendInvalidate
        );
        match self.careful() {
            true if datagram => asked.min(1024),
            true if takes_receive => asked.min(RECEIVES.slot - GRH),
            _ => asked,
        }
    }

    fn build(&mut self, end: usize, id: u64, send: &Send) -> Option<Built> {
        let verb = self.verb_for(end, send.verb);
        let length = self.length_for(end, verb, send.length);
        let immediate = id as u32;
        match verb {
            Verb::Send => self.build_message(end, id, send, length, Operation::Send, (None, None)),
            Verb::SendImmediate => {
                let operation = Operation::SendImm(immediate.to_be_bytes());
                self.build_message(end, id, send, length, operation, (Some(immediate), None))
            }
            Verb::SendInvalidate => {
                let key = self.closable_window(end ^ 1)?;
                let operation = Operation::SendInvalidate(Rkey(key));
                self.build_message(end, id, send, length, operation, (None, Some(key)))
            }
            Verb::Write => self.build_write(end, id, send, length, None),
            Verb::WriteImmediate => self.build_write(end, id, send, length, Some(immediate)),
            Verb::AtomicWrite => self.build_atomic_write(end, id, send),
            Verb::Read => self.build_read(end, id, send, length),
            Verb::CompareSwap | Verb::FetchAdd => self.build_atomic(end, id, send, verb),
            Verb::Bind => self.build_bind(end, send),
            Verb::Invalidate => {
                let key = self.closable_window(end)?;
                Some(Built {
                    kind: Kind::Invalidate { key },
                    operation: Operation::LocalInvalidate(Rkey(key)),
                    sges: Vec::new(),
                    payload: Vec::new(),
                })
            }
        }
    }

    /// Fills a slot with what is to be sent, and makes a list of it.
    fn source(
        &mut self,
        end: usize,
        id: u64,
        send: &Send,
        length: usize,
    ) -> Option<(Vec<Sge>, Vec<u8>)> {
        let index = self.ends[end].host;
        let at = self.hosts[index].take(SOURCES, id)?;
        let bytes = self.random.bytes(length);
        self.store(index, at, &bytes);
        let mut sges = self.list(index, region::SOURCES, SOURCES, at, length, send.pieces);
        if send.place & 1 == 1 {
            sges.reverse();
        }
        let base = self.hosts[index].regions[region::SOURCES].va;
        let memory = &self.judge.memories[index];
        let gathered = sges.iter().flat_map(|sge| {
            let from = SOURCES.at + (sge.addr - base) as usize;
            memory.bytes(from..from + sge.length as usize).to_vec()
        });
        let payload = gathered.collect();
        self.spoil(&mut sges, send.fault, SOURCES, base);
        Some((sges, payload))
    }

    /// A list of up to `pieces` parts.
    fn list(
        &self,
        host: usize,
        number: usize,
        area: Area,
        at: usize,
        length: usize,
        pieces: u8,
    ) -> Vec<Sge> {
        let of = &self.hosts[host].regions[number];
        let pieces = usize::from(pieces);
        let mut sges = Vec::new();
        let mut done = 0;
        for piece in 0..pieces {
            let here = if piece + 1 == pieces {
                length - done
            } else {
                (length / pieces + piece).min(length - done)
            };
            let addr = of.va + (at + done - area.at) as u64;
            sges.push(Sge {
                addr,
                length: here as u32,
                lkey: of.key,
            });
            done += here;
        }
        sges
    }

    /// Makes a list wrong on purpose.
    fn spoil(&self, sges: &mut [Sge], fault: Option<Fault>, area: Area, va: u64) {
        let Some(sge) = sges.iter_mut().find(|sge| sge.length > 0) else {
            return;
        };
        match fault {
            Some(Fault::LocalKey) => sge.lkey ^= 0x00ab_c000,
            Some(Fault::LocalBounds) => sge.addr = va + area.range().len() as u64,
            _ => {}
        }
    }

    fn build_message(
        &mut self,
        end: usize,
        id: u64,
        send: &Send,
        length: usize,
        operation: Operation,
        (immediate, invalidate): (Option<u32>, Option<u32>),
    ) -> Option<Built> {
        let (sges, payload) = self.source(end, id, send, length)?;
        let kind = Kind::Send {
            immediate,
            invalidate,
        };
        Some(Built {
            kind,
            operation,
            sges,
            payload,
        })
    }

    /// Where in the peer's targets, and by which key.
    fn target(&self, end: usize, send: &Send, length: usize, writes: bool) -> (u32, u64) {
        let peer = &self.ends[end ^ 1];
        let host = &self.hosts[peer.host];
        let room = TARGETS.slot - length;
        let mut number = region::TARGETS;
        let mut key_mask = 0;
        let mut offset = usize::from(send.place) % (room + 1);
        match send.fault {
            Some(Fault::RemoteKey) => key_mask = 0x00ab_c000,
            Some(Fault::RemoteBounds) => offset = room + 1,
            Some(Fault::RemoteRight) if writes && send.place & 1 == 0 => number = region::READ_ONLY,
            Some(Fault::RemoteRight) => number = region::FOREIGN,
            _ => {}
        }
        let opens = peer
            .window
            .as_ref()
            .and_then(|window| Some((window.key, window.opens?)));
        if let Some((key, (va, bytes))) = opens
            && send.window
            && bytes as usize >= length
            && (peer
                .window
                .as_ref()
                .is_some_and(|window| window.pending == 0)
                || !self.careful())
        {
            let within = usize::from(send.place) % (bytes as usize - length + 1);
            return (key ^ key_mask, va + within as u64);
        }
        let of = &host.regions[number];
        (of.key ^ key_mask, of.va + offset as u64)
    }

    fn build_write(
        &mut self,
        end: usize,
        id: u64,
        send: &Send,
        length: usize,
        immediate: Option<u32>,
    ) -> Option<Built> {
        let (key, va) = self.target(end, send, length, true);
        let (sges, payload) = self.source(end, id, send, length)?;
        let rkey = Rkey(key);
        let operation = match immediate {
            Some(immediate) => Operation::WriteImm {
                va,
                rkey,
                imm: immediate.to_be_bytes(),
            },
            None => Operation::Write { va, rkey },
        };
        Some(Built {
            kind: Kind::Write { key, va, immediate },
            operation,
            sges,
            payload,
        })
    }

    fn build_atomic_write(&mut self, end: usize, id: u64, send: &Send) -> Option<Built> {
        let (key, va) = self.target(
            end,
            &Send {
                window: false,
                ..*send
            },
            8,
            true,
        );
        let va = if send.fault == Some(Fault::Misaligned) {
            va | 4
        } else {
            va & !7
        };
        let (sges, payload) = self.source(end, id, &Send { pieces: 1, ..*send }, 8)?;
        let operation = Operation::AtomicWrite {
            va,
            rkey: Rkey(key),
        };
        Some(Built {
            kind: Kind::AtomicWrite { key, va },
            operation,
            sges,
            payload,
        })
    }

    /// Takes a slot for an answer, and makes a list of it.
    fn landing(&mut self, end: usize, id: u64, send: &Send, length: usize) -> Option<Vec<Sge>> {
        let index = self.ends[end].host;
        let at = self.hosts[index].take(LANDINGS, id)?;
        let mut sges = self.list(index, region::LANDINGS, LANDINGS, at, length, send.pieces);
        if send.fault == Some(Fault::LocalRight) {
            sges = self.list(
                index,
                region::SOURCES,
                SOURCES,
                SOURCES.at,
                length,
                send.pieces,
            );
        }
        let base = self.hosts[index].regions[region::LANDINGS].va;
        self.spoil(&mut sges, send.fault, LANDINGS, base);
        Some(sges)
    }

    fn build_read(&mut self, end: usize, id: u64, send: &Send, length: usize) -> Option<Built> {
        let (key, va) = self.target(end, send, length, false);
        let sges = self.landing(end, id, send, length)?;
        let operation = Operation::Read {
            va,
            rkey: Rkey(key),
        };
        Some(Built {
            kind: Kind::Read { key, va },
            operation,
            sges,
            payload: vec![0; length],
        })
    }

    fn build_atomic(&mut self, end: usize, id: u64, send: &Send, verb: Verb) -> Option<Built> {
        let peer = self.ends[end ^ 1].host;
        let cell = CELLS.at + usize::from(send.place) % CELLS.slots * CELLS.slot;
        let mut key = self.hosts[peer].regions[region::CELLS].key;
        let mut va = self.hosts[peer].va(region::CELLS, cell);
        match send.fault {
            Some(Fault::RemoteKey) => key ^= 0x00ab_c000,
            Some(Fault::RemoteRight) => {
                key = self.hosts[peer].regions[region::TARGETS].key;
                va = self.hosts[peer].va(region::TARGETS, TARGETS.at);
            }
            Some(Fault::RemoteBounds) => va += (CELLS.slot * CELLS.slots) as u64,
            Some(Fault::Misaligned) => va += 4,
            _ => {}
        }
        let sges = self.landing(end, id, &Send { pieces: 1, ..*send }, 8)?;
        let rkey = Rkey(key);
        // No two do the same, and none does nothing: so the judge can tell which of them happened.
        let distinct = self.random.next_u64() | 1;
        let (atomic, operation) = if verb == Verb::FetchAdd {
            (
                model::Atomic::Add(distinct),
                Operation::FetchAdd {
                    va,
                    rkey,
                    add: distinct,
                },
            )
        } else {
            let bytes = self.judge.memories[peer].bytes(cell..cell + 8);
            let now = u64::from_ne_bytes(bytes.try_into().ok()?);
            let compare = if send.place & 0x100 == 0 {
                now
            } else {
                distinct
            };
            let swap = distinct.rotate_left(17);
            (
                model::Atomic::Swap { compare, swap },
                Operation::CompareSwap {
                    va,
                    rkey,
                    compare,
                    swap,
                },
            )
        };
        Some(Built {
            kind: Kind::Atomic { key, va, atomic },
            operation,
            sges,
            payload: vec![0; 8],
        })
    }

    /// The key of an end's window, if it may be closed: when nothing is to go wrong, only one that is surely open.
    fn closable_window(&self, end: usize) -> Option<u32> {
        if !self.lives(end) {
            return None;
        }
        let window = self.ends[end].window.as_ref()?;
        let surely_open = window.pending == 0 && window.opens.is_some();
        (surely_open || !self.careful()).then_some(window.key)
    }

    fn build_bind(&mut self, end: usize, send: &Send) -> Option<Built> {
        if self.ends[end].window.is_none() {
            let pd = &self.hosts[self.ends[end].host].pd;
            let mw = pd.alloc_mw(MwType::Two).ok()?;
            let key = mw.first_rkey().0;
            self.ends[end].window = Some(Window {
                mw,
                key,
                opens: None,
                pending: 0,
            });
        }
        let host = &self.hosts[self.ends[end].host];
        let window = self.ends[end].window.as_ref()?;
        let free = window.pending == 0 && window.opens.is_none();
        if !free && self.careful() {
            return None;
        }
        let length = 1 + usize::from(send.length) % 2048;
        let offset = usize::from(send.place) % (TARGETS.slot - length);
        let mut number = region::TARGETS;
        if send.fault == Some(Fault::RemoteRight) {
            number = region::READ_ONLY;
        }
        let of = &host.regions[number];
        let va = of.va + offset as u64;
        let key = window.key & !KEY_CHOSEN
            | window.key.wrapping_add(1 + u32::from(send.pieces)) & KEY_CHOSEN;
        let bind = Bind {
            window: Rkey(window.key),
            new_key: Rkey(key),
            region: Lkey(of.key),
            va,
            length: length as u64,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
        };
        let part = model::Sge {
            key: of.key,
            va,
            length: length as u32,
        };
        let rights = Rights(bind.access.bits());
        let kind = Kind::Bind(model::Bind {
            window: window.key,
            key,
            part,
            rights,
        });
        Some(Built {
            kind,
            operation: Operation::BindWindow(bind),
            sges: Vec::new(),
            payload: Vec::new(),
        })
    }

    /// Keeps what is known of windows in step with what is posted.
    fn note_window(&mut self, end: usize, kind: &Kind) {
        let (of, bound) = match *kind {
            Kind::Bind(bind) => (end, Some((bind.key, bind.part))),
            Kind::Invalidate { .. } => (end, None),
            Kind::Send {
                invalidate: Some(_),
                ..
            } => (end ^ 1, None),
            _ => return,
        };
        if let Some(window) = &mut self.ends[of].window {
            window.pending += 1;
            window.opens = bound.map(|(_, part)| (part.va, part.length));
            if let Some((key, _)) = bound {
                window.key = key;
            }
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

    /// Posts a receive. Returns quietly when there is no room.
    ///
    /// # Errors
    /// It was refused without reason.
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

    fn act_poll(&mut self, host: u8, cq: u8) -> Result<(), String> {
        match self.host_of(host) {
            Some(host) => self.poll(host, usize::from(cq & 1)),
            None => Ok(()),
        }
    }

    /// Takes all completions out of a queue.
    ///
    /// # Errors
    /// What the judge says of them.
    pub fn poll(&mut self, host: usize, number: usize) -> Result<(), String> {
        let mut found = Vec::new();
        let cq = Arc::clone(&self.hosts[host].cqs[number]);
        let polled = cq.poll(usize::MAX, |completion| found.push(completion));
        polled.map_err(|error| format!("polling: {error}"))?;
        // Polling runs the device.
        self.run(host)?;
        let special = found
            .iter()
            .filter(|completion| completion.solicited || completion.status != Status::Success);
        let special = special.count();
        self.hosts[host].alarms[number].poll(found.len(), special)?;
        for completion in found {
            self.complete(host, &completion)?;
        }
        Ok(())
    }

    fn complete(&mut self, host: usize, completion: &Completion) -> Result<(), String> {
        let id = completion.wr_id;
        self.note(|_| {
            format!(
                "host {host}: {id} completes, {:?} {:?} {} B",
                completion.status, completion.opcode, completion.byte_len
            )
        });
        self.counts.completions += 1;
        self.counts.failures += u64::from(completion.status != Status::Success);
        let Some(ticket) = self.tickets.remove(&id) else {
            return Err(format!(
                "a completion for {id}, which was never posted or completed before: {completion:?}"
            ));
        };
        if ticket.orphan {
            return Ok(());
        }
        let Some(end) = self
            .ends
            .iter()
            .position(|end| end.number == completion.qpn && end.host == host)
        else {
            return Err(format!(
                "a completion of a queue pair that is not there: {completion:?}"
            ));
        };
        let shares =
            self.judge.queue_pairs[end].receives == self.judge.queue_pairs[ticket.end].receives;
        if end != ticket.end && !(ticket.receives && shares) {
            return Err(format!(
                "{id} was posted to end {}, and completed at end {end}",
                ticket.end
            ));
        }
        let done = model::Done {
            id,
            status: status(completion.status),
            opcode: opcode(completion.opcode),
            bytes: completion.byte_len,
            immediate: completion.imm.map(u32::from_be_bytes),
            invalidated: completion.invalidated.map(|key| key.0),
            source: self.source_of(end, completion),
        };
        let path = self.path(end);
        let unsignalled: Vec<u64> = self.judge.sends(end).map(|(id, _)| id).collect();
        let verdict = if ticket.receives {
            self.judge.received(end, &done, path)
        } else {
            self.judge.sent(end, &done, path)
        };
        verdict.map_err(|why| format!("end {end}: {why}"))?;
        let told = match done.status {
            model::Status::RemoteAccess => Some(QpEvent::AccessError),
            model::Status::RemoteInvalidRequest => Some(QpEvent::RequestError),
            model::Status::RemoteOperation => Some(QpEvent::Fatal),
            _ => None,
        };
        self.ends[end ^ 1].owed.extend(told);
        self.hosts[host].give_back(id);
        if !ticket.receives {
            let kept: Vec<u64> = self.judge.sends(end).map(|(id, _)| id).collect();
            for gone in unsignalled.into_iter().filter(|id| !kept.contains(id)) {
                self.hosts[host].give_back(gone);
                self.tickets.remove(&gone);
            }
            self.settle_windows(end, completion);
        }
        Ok(())
    }

    /// After a bind or an invalidation completed, the window is as it was left.
    fn settle_windows(&mut self, end: usize, completion: &Completion) {
        let about_windows = matches!(
            completion.opcode,
            CompletionOpcode::BindWindow | CompletionOpcode::LocalInvalidate
        );
        let outstanding = self.judge.sends(end).count();
        for of in [end, end ^ 1] {
            if let Some(window) = &mut self.ends[of].window
                && (about_windows || outstanding == 0)
                && window.pending > 0
            {
                window.pending -= 1;
                if completion.status != Status::Success {
                    window.opens = None;
                }
            }
        }
    }

    fn source_of(&self, end: usize, completion: &Completion) -> Option<usize> {
        let from = self.ends[end ^ 1].host;
        let mut ends = self.ends.iter().enumerate();
        ends.find(|(_, other)| other.number == completion.src_qpn && other.host == from)
            .map(|(index, _)| index)
    }

    fn act_arm(&mut self, host: u8, cq: u8, solicited: bool) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(cq & 1);
        self.fetch_events(host)?;
        // Some programs poll and then arm, others arm and then poll.
        if cq & 2 == 0 {
            self.poll(host, number)?;
        }
        let armed = self.hosts[host].cqs[number].arm(solicited);
        armed.map_err(|error| format!("arming: {error}"))?;
        self.hosts[host].alarms[number].arm(solicited);
        if cq & 2 != 0 {
            self.poll(host, number)?;
        }
        Ok(())
    }

    fn act_event(&mut self, host: u8) -> Result<(), String> {
        match self.host_of(host) {
            Some(host) => self.fetch_events(host),
            None => Ok(()),
        }
    }

    /// Fetches completion events until there is none.
    ///
    /// # Errors
    /// One that should not be, or none where there should be.
    pub fn fetch_events(&mut self, host: usize) -> Result<(), String> {
        let channel = Arc::clone(&self.hosts[host].channel);
        loop {
            match channel.wait_event() {
                Ok(cookie) => {
                    self.counts.events += 1;
                    self.hosts[host].alarms[cookie as usize].event()?;
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("waiting for an event: {error}")),
            }
        }
        for number in 0..self.hosts[host].alarms.len() {
            let silence = self.hosts[host].alarms[number].silence();
            silence.map_err(|why| format!("completion queue {number} of host {host}: {why}"))?;
        }
        self.run(host)
    }

    /// Fetches asynchronous events until there is none.
    ///
    /// # Errors
    /// One that nothing explains.
    pub fn fetch_async_events(&mut self, host: usize) -> Result<(), String> {
        let device = Arc::clone(self.hosts[host].device.device());
        loop {
            match device.wait_async_event() {
                Ok(AsyncEvent::Qp { number, event, .. }) => self.take_event(host, number, event)?,
                Ok(other) => return Err(format!("host {host} has the event {other:?}")),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(format!("waiting for an asynchronous event: {error}")),
            }
        }
        self.run(host)
    }

    fn take_event(&mut self, host: usize, number: Qpn, event: QpEvent) -> Result<(), String> {
        let mut ends = self.ends.iter();
        let end = ends.position(|end| end.number == number && end.host == host);
        let Some(end) = end.filter(|&end| self.lives(end)) else {
            return Err(format!(
                "{event:?} of queue pair {number}, which is not there"
            ));
        };
        self.note(|_| format!("end {end} has the event {event:?}"));
        let failed = self.judge.may_have_failed(end, self.path(end));
        let connection = self.plan.connections[end / 2];
        let explained = match event {
            QpEvent::AccessError | QpEvent::RequestError | QpEvent::Fatal => failed,
            QpEvent::LastWqeReached => failed && connection.shared[end % 2],
            // Between two states that were asked for, maybe.
            QpEvent::SendQueueDrained => true,
            QpEvent::CommunicationEstablished => false,
        };
        let once = event == QpEvent::SendQueueDrained || !self.ends[end].events.contains(&event);
        self.ends[end].events.push(event);
        if explained && once {
            return Ok(());
        }
        Err(format!(
            "end {end} has the event {event:?}, which nothing explains: {:?}",
            self.ends[end].events
        ))
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

    /// Puts a queue pair into the error state.
    fn fail(&mut self, end: usize) -> Result<(), String> {
        self.modify(end, QpState::Error)?;
        self.judge.fail(end);
        self.run(self.ends[end].host)
    }

    /// The same, for the end of a world.
    ///
    /// # Errors
    /// What the judge says.
    pub fn fail_end(&mut self, end: usize) -> Result<(), String> {
        self.judge.now += 1;
        self.fail(end)
    }

    fn state_of(&self, end: usize) -> Option<QpState> {
        self.ends[end]
            .qp
            .as_ref()?
            .query()
            .ok()
            .map(|attributes| attributes.state)
    }

    fn modify(&mut self, end: usize, state: QpState) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is moved to {state:?}"));
        let attributes = QpAttributes {
            state,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE)
            .map_err(|error| format!("moving end {end} to {state:?}: {error}"))
    }

    fn drain(&mut self, end: usize) -> Result<(), String> {
        if self.state_of(end) != Some(QpState::ReadyToSend) {
            return Ok(());
        }
        self.modify(end, QpState::SendQueueDrain)?;
        self.ends[end].drained = true;
        self.run(self.ends[end].host)
    }

    /// Lets a drained queue pair go on, if it is drained.
    ///
    /// # Errors
    /// What the judge says.
    pub fn resume(&mut self, end: usize) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.clone() else {
            return Ok(());
        };
        if !self.ends[end].drained || self.state_of(end) != Some(QpState::SendQueueDrain) {
            return Ok(());
        }
        let attributes = QpAttributes {
            state: QpState::ReadyToSend,
            ..QpAttributes::default()
        };
        // Refused while something is still under way.
        if qp.modify(&attributes, AttrMask::STATE).is_ok() {
            self.ends[end].drained = false;
        }
        self.run(self.ends[end].host)
    }

    /// Destroys a queue pair.
    ///
    /// # Errors
    /// What the judge says.
    pub fn destroy(&mut self, end: usize) -> Result<(), String> {
        let Some(qp) = self.ends[end].qp.take() else {
            return Ok(());
        };
        self.note(|_| format!("end {end} is destroyed"));
        self.ends[end].window = None;
        qp.destroy()
            .map_err(|error| format!("destroying end {end}: {error}"))?;
        let host = self.ends[end].host;
        let outstanding = self.outstanding(end);
        self.observe(host)?;
        self.judge.destroy(end);
        for id in outstanding {
            self.hosts[host].give_back(id);
            if let Some(ticket) = self.tickets.get_mut(&id) {
                ticket.orphan = true;
            }
        }
        self.run(host)
    }

    /// Resets both ends of a connection, and connects them again with other numbers.
    fn reconnect(&mut self, end: usize, at_once: bool) -> Result<(), String> {
        let (first, second) = (end & !1, end | 1);
        if !self.lives(first) || !self.lives(second) {
            return Ok(());
        }
        let reliable = self.plan.connections[end / 2].service == Service::Rc;
        for end in [first, second] {
            // Events are kept when a queue pair is reset: those of before are fetched before.
            self.fetch_async_events(self.ends[end].host)?;
            self.reset(end)?;
        }
        if at_once && reliable {
            // What is still under way may come back as a ghost.
            self.ends[first].haunted = true;
            self.ends[second].haunted = true;
        } else {
            self.pass(LIFETIME_MAX)?;
        }
        for psn in &mut self.plan.connections[end / 2].psns {
            *psn = (*psn + PSN_LEAP) & 0x00ff_ffff;
        }
        let connection = self.plan.connections[end / 2];
        self.bring_up(connection, first, second);
        self.bring_up(connection, second, first);
        self.run(self.ends[first].host)?;
        self.run(self.ends[second].host)
    }

    fn reset(&mut self, end: usize) -> Result<(), String> {
        let host = self.ends[end].host;
        if let Some(window) = self.ends[end].window.take() {
            drop(window.mw);
            self.judge.close_window(host, window.key);
        }
        self.modify(end, QpState::Reset)?;
        self.observe(host)?;
        for id in self.outstanding(end) {
            self.hosts[host].give_back(id);
            // It is taken out of the completion queue, or was never in it.
            self.tickets.remove(&id);
        }
        self.judge.reset(end);
        for alarm in &mut self.hosts[host].alarms {
            alarm.purge();
        }
        let of = &mut self.ends[end];
        of.drained = false;
        of.events.clear();
        of.owed.clear();
        self.run(host)
    }

    /// What a queue pair has outstanding, without receives of a shared queue.
    fn outstanding(&self, end: usize) -> Vec<u64> {
        let shared = self.plan.connections[end / 2].shared[end % 2];
        let own = |ticket: &Ticket| ticket.end == end && !(ticket.receives && shared);
        let tickets = self.tickets.iter().filter(|(_, ticket)| own(ticket));
        let mut ids: Vec<u64> = tickets.map(|(&id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    fn act_deregister(&mut self, host: u8, number: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(number) % self.hosts[host].regions.len();
        let registered = &mut self.hosts[host].regions[number];
        let Some(mr) = registered.mr.clone() else {
            return Ok(());
        };
        let key = registered.key;
        match mr.deregister() {
            Ok(()) => {
                self.hosts[host].regions[number].mr = None;
                self.note(|_| format!("host {host} deregisters region {number}"));
                self.observe(host)?;
                self.judge.deregister(host, key);
                Ok(())
            }
            Err(Error::Busy(_)) if number == region::TARGETS => {
                let area = TARGETS.range();
                match self.judge.grants.windows_in(host, &area, self.judge.now) {
                    true => Ok(()),
                    false => Err(
                        "deregistering says that windows are bound, and there is none".to_owned(),
                    ),
                }
            }
            Err(error) => Err(format!(
                "deregistering region {number} of host {host}: {error}"
            )),
        }
    }

    fn act_register(&mut self, host: u8, number: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        let number = usize::from(number) % self.hosts[host].regions.len();
        if self.hosts[host].regions[number].mr.is_some() {
            return Ok(());
        }
        self.registrations += 1;
        let registered = self.hosts[host].register(number, self.registrations);
        self.hosts[host].regions[number] = registered;
        self.note(|_| format!("host {host} registers region {number}"));
        self.introduce_region(host, number);
        Ok(())
    }

    fn act_cut(&mut self, from: u8, to: u8, both: bool) -> Result<(), String> {
        let from = usize::from(from) % self.hosts.len();
        let to = usize::from(to) % self.hosts.len();
        if from == to {
            return Ok(());
        }
        self.note(|_| {
            format!(
                "nothing reaches host {to} from host {from} any more, {}",
                if both { "nor back" } else { "but back" }
            )
        });
        self.network.cut(from, to);
        if both {
            self.network.cut(to, from);
        }
        Ok(())
    }

    fn act_kill(&mut self, host: u8) -> Result<(), String> {
        let Some(host) = self.host_of(host) else {
            return Ok(());
        };
        self.note(|_| format!("host {host} is killed"));
        self.counts.kills += 1;
        self.hosts[host].alive = false;
        for end in 0..self.ends.len() {
            if self.ends[end].host == host {
                self.judge.queue_pairs[end].life = model::Life::Gone;
            }
        }
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
        CompletionOpcode::Receive => model::Opcode::Receive,
        CompletionOpcode::ReceiveWriteImm => model::Opcode::ReceiveImmediate,
    }
}
