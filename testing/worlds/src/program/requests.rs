//! Send requests: builds what a plan describes.
// The variants not named here need no special treatment.
#![allow(clippy::wildcard_enum_match_arm)]

use super::*;

impl World {
    /// Whether this world has no deliberate faults.
    pub(super) fn careful(&self) -> bool {
        self.plan.careful
    }

    pub(super) fn verb_for(&self, end: usize, verb: Verb) -> Verb {
        let connection = self.plan.connections[end / 2];
        let unreliable = match verb {
            Verb::Read | Verb::Flush | Verb::AtomicWrite | Verb::Echo => Verb::Write,
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
            Verb::Read | Verb::Flush => 1,
            Verb::Echo => 3,
            Verb::Write | Verb::WriteImmediate | Verb::AtomicWrite => 2,
            Verb::CompareSwap | Verb::FetchAdd => 4,
            _ => 0,
        };
        let answered = matches!(
            verb,
            Verb::Read
                | Verb::Flush
                | Verb::CompareSwap
                | Verb::FetchAdd
                | Verb::AtomicWrite
                | Verb::Echo
        );
        if rights & needs != needs || (answered && connection.answers_max == 0) {
            return Verb::Send;
        }
        verb
    }

    pub(super) fn length_for(&self, end: usize, verb: Verb, asked: u16) -> usize {
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

    pub(super) fn build(&mut self, end: usize, id: u64, send: &Job) -> Option<Built> {
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
                let key = self.closable_window(end, end ^ 1)?;
                let operation = Operation::SendInvalidate(Rkey(key));
                self.build_message(end, id, send, length, operation, (None, Some(key)))
            }
            Verb::Write => self.build_write(end, id, send, length, None),
            Verb::WriteImmediate => self.build_write(end, id, send, length, Some(immediate)),
            Verb::AtomicWrite => self.build_atomic_write(end, id, send),
            Verb::Read => self.build_read(end, id, send, length),
            Verb::Flush => Some(self.build_flush(end, send, length.max(1))),
            Verb::CompareSwap | Verb::FetchAdd => self.build_atomic(end, id, send, verb),
            // Two requests: see `echo`.
            Verb::Echo => None,
            Verb::Bind => self.build_bind(end, send),
            Verb::Invalidate => {
                let key = self.closable_window(end, end)?;
                Some(Built {
                    kind: Kind::Invalidate { key },
                    operation: Operation::LocalInvalidate(Rkey(key)),
                    sges: Vec::new(),
                    payload: Vec::new(),
                })
            }
        }
    }

    /// Fills a slot with the payload, and makes a list of it.
    pub(super) fn source(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
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

    /// A list of up to `pieces` elements.
    pub(super) fn list(
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

    /// Applies a deliberate fault to a list.
    pub(super) fn spoil(&self, sges: &mut [Sge], fault: Option<Fault>, area: Area, va: u64) {
        let Some(sge) = sges.iter_mut().find(|sge| sge.length > 0) else {
            return;
        };
        match fault {
            Some(Fault::LocalKey) => sge.lkey ^= 0x00ab_c000,
            Some(Fault::LocalBounds) => sge.addr = va + area.range().len() as u64,
            _ => {}
        }
    }

    pub(super) fn build_message(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
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

    /// Key and address in the peer's targets.
    pub(super) fn target(&self, end: usize, send: &Job, length: usize, writes: bool) -> (u32, u64) {
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
            && (peer.window.as_ref().is_some_and(Window::is_known) || !self.careful())
        {
            let within = usize::from(send.place) % (bytes as usize - length + 1);
            return (key ^ key_mask, va + within as u64);
        }
        let of = &host.regions[number];
        (of.key ^ key_mask, of.va + offset as u64)
    }

    pub(super) fn build_write(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
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

    pub(super) fn build_atomic_write(&mut self, end: usize, id: u64, send: &Job) -> Option<Built> {
        let (key, va) = self.target(
            end,
            &Job {
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
        let (sges, payload) = self.source(end, id, &Job { pieces: 1, ..*send }, 8)?;
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

    /// Builds a FLUSH of a part of a region of the peer. Its windows open no flushes.
    pub(super) fn build_flush(&mut self, end: usize, send: &Job, length: usize) -> Built {
        let job = Job {
            window: false,
            ..*send
        };
        let (key, va) = self.target(end, &job, length, false);
        Built {
            kind: Kind::Flush { key, va },
            operation: Operation::Flush {
                va,
                rkey: Rkey(key),
                length: length as u32,
                what: Feth {
                    placement: Feth::GLOBAL,
                    selectivity: Feth::RANGE,
                },
            },
            sges: Vec::new(),
            payload: vec![0; length],
        }
    }

    /// Takes a slot for a result, and makes a list of it.
    pub(super) fn landing(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
        length: usize,
    ) -> Option<Vec<Sge>> {
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

    pub(super) fn build_read(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
        length: usize,
    ) -> Option<Built> {
        let (mut key, mut va) = self.target(end, send, length, false);
        let cells = CELLS.range().len();
        if send.fault.is_none() && send.place & 7 == 7 && length <= cells {
            // Memory that atomics change meanwhile.
            let there = &self.hosts[self.ends[end ^ 1].host];
            let offset = usize::from(send.place >> 3) % (cells - length + 1);
            key = there.regions[region::CELLS].key;
            va = there.va(region::CELLS, CELLS.at + offset);
        }
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

    pub(super) fn build_atomic(
        &mut self,
        end: usize,
        id: u64,
        send: &Job,
        verb: Verb,
    ) -> Option<Built> {
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
        let sges = self.landing(end, id, &Job { pieces: 1, ..*send }, 8)?;
        let rkey = Rkey(key);
        // Operands are distinct and nonzero, so that the judge can tell which atomics were
        // executed.
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

    /// Key of an end's window, if `closer` may close it.
    ///
    /// In a careful world the window must surely be open, without requests that may still use it
    /// then. The peer's writes are executed before its message closes the window; results of its
    /// READs may be taken later.
    pub(super) fn closable_window(&self, closer: usize, end: usize) -> Option<u32> {
        if !self.lives(end) {
            return None;
        }
        let window = self.ends[end].window.as_ref()?;
        let surely_open = window.is_known() && window.opens.is_some();
        let mut users = window.users.iter();
        let used = users.any(|&(_, reads)| reads || closer == end);
        (surely_open && !used || !self.careful()).then_some(window.key)
    }

    pub(super) fn build_bind(&mut self, end: usize, send: &Job) -> Option<Built> {
        if self.ends[end].window.is_none() {
            let pd = &self.hosts[self.ends[end].host].pd;
            let mw = pd.alloc_mw(MwType::Two).ok()?;
            self.ends[end].window = Some(Window::new(mw));
        }
        let host = &self.hosts[self.ends[end].host];
        let window = self.ends[end].window.as_ref()?;
        let free = window.is_known() && window.opens.is_none();
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

    /// Updates the known state of windows with a posted request.
    pub(super) fn note_window(&mut self, end: usize, id: u64, kind: &Kind) {
        let (of, after) = match *kind {
            Kind::Bind(bind) => (end, Some((bind.key, bind.part))),
            Kind::Invalidate { .. } => (end, None),
            Kind::Send {
                invalidate: Some(_),
                ..
            } => (end ^ 1, None),
            Kind::Write { key, .. } | Kind::AtomicWrite { key, .. } => {
                return self.note_window_user(end, id, key, false);
            }
            Kind::Read { key, .. } => return self.note_window_user(end, id, key, true),
            _ => return,
        };
        if let Some(window) = &mut self.ends[of].window {
            window.opens = after.map(|(_, part)| (part.va, part.length));
            if let Some((key, _)) = after {
                window.key = key;
            }
            window.pending.push((id, (window.key, window.opens)));
        }
    }

    fn note_window_user(&mut self, end: usize, id: u64, key: u32, reads: bool) {
        let window = self.ends[end ^ 1].window.as_mut();
        if let Some(window) = window.filter(|window| window.key == key) {
            window.users.push((id, reads));
        }
    }

    /// Updates windows with an ended request. `None`: it may have been executed or not.
    pub(super) fn settle_windows(&mut self, end: usize, id: u64, done: Option<bool>) {
        for of in [end, end ^ 1] {
            if let Some(window) = &mut self.ends[of].window {
                window.settle(id, done);
            }
        }
    }
}
