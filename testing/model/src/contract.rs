//! The contract of queue pairs: order, status and contents of completions.

mod head;
mod receives;
mod sends;
mod unreliable;

use crate::grants::{Asker, Owner, Region};
use crate::memory::{Operation, Origin};
use crate::request::{Atomic, Done, Kind, Opcode, Path, Recv, Request, Service, Status};
use crate::{Grants, Memory, Placement, Rights, Sge, Span, Standing, Step};
use core::time::Duration;
use std::collections::VecDeque;
use std::net::IpAddr;

/// State of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs, or has failed by itself.
    Running,
    /// It was put into the error state, or a completion showed that it is.
    Failed,
    /// It was destroyed, or its host killed.
    Gone,
}

/// A queue pair, as it was created and connected.
#[derive(Debug)]
pub struct QueuePair {
    /// Host.
    pub host: usize,
    /// Protection domain.
    pub domain: usize,
    /// Service.
    pub service: Service,
    /// The other end of a connection.
    pub peer: Option<usize>,
    /// Rights that it grants its peer, or granted at some time.
    pub rights: Rights,
    /// Rights that it has granted all the time.
    pub rights_surely: Rights,
    /// Index of its receive queue.
    pub receives: usize,
    /// Least time for which it waits for an acknowledgement.
    pub timeout: Duration,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// RNR timer that it sends to its peer.
    pub rnr_timer: Duration,
    /// Retries after an RNR NAK; 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics in flight.
    pub answers_max: u8,
    /// Most bytes of a datagram.
    pub mtu: usize,
    /// State.
    pub life: Life,
    /// Whether its peer's requests may have made it fail.
    pub refused: bool,
    /// Whether one of its sends failed or was flushed: those that follow are flushed.
    stopped: bool,
    /// Whether one of its receives was flushed: those that follow are flushed.
    drained: bool,
    outstanding: VecDeque<Posted>,
    /// Requests that failed or were flushed: their packets may still reach the peer.
    ghosts: Vec<Posted>,
    /// Writes of an unreliable connection that have left.
    sent: Vec<Posted>,
    posted: u64,
    messages: Vec<Message>,
    /// Whether it may keep a receive of a shared queue.
    holds: bool,
    /// Number of its messages whose success was reported.
    delivered: usize,
    /// Number of the peer's messages that were received or skipped.
    received: usize,
}

#[derive(Debug)]
struct Posted {
    request: Request,
    at: Step,
    /// State of the network when it was posted.
    path: Path,
    /// Whether its binds and invalidations could be valid when posted, and whether they certainly
    /// were.
    windows: (bool, bool),
}

#[derive(Clone, Debug)]
struct Message {
    /// Number of the request.
    number: u64,
    /// Step in which it was posted.
    at: Step,
    /// State of the network when it was posted.
    path: Path,
    /// Whether its receiver accepts such messages.
    receivable: bool,
    /// Whether it was received.
    heard: bool,
    /// Whether it will no longer arrive.
    over: bool,
    solicited: bool,
    kind: Kind,
    bytes: Vec<u8>,
    to: Option<usize>,
}

#[derive(Debug, Default)]
struct Queue {
    posted: VecDeque<Accepted>,
    shared: bool,
    /// Receives posted in total.
    ever: usize,
    /// Length of the shortest receive.
    shortest: usize,
    /// Whether a receive had memory that may not have been accessible.
    doubtful: bool,
    /// Receives of a shared queue that queue pairs may have taken with them.
    vanished: usize,
    /// Last step with fewer receives than messages for them.
    scarce: Option<Step>,
}

#[derive(Debug)]
struct Accepted {
    recv: Recv,
    at: Step,
    /// Content of its memory before, if it is known to stay.
    before: Option<Vec<u8>>,
}

/// A world of hosts.
#[derive(Debug, Default)]
pub struct Contract {
    /// Present step.
    pub now: Step,
    /// Whether no program makes mistakes: then all failures come from the network.
    pub careful: bool,
    /// Memories, by host.
    pub memories: Vec<Memory>,
    /// Addresses, by host.
    pub addresses: Vec<IpAddr>,
    /// All keys.
    pub grants: Grants,
    /// Queue pairs, by number.
    pub queue_pairs: Vec<QueuePair>,
    queues: Vec<Queue>,
}

/// Bytes that the network puts in front of a datagram.
const GRH: usize = 40;

impl QueuePair {
    /// A queue pair without requests.
    pub fn new(host: usize, domain: usize, service: Service, receives: usize) -> Self {
        QueuePair {
            host,
            domain,
            service,
            peer: None,
            rights: Rights(0),
            rights_surely: Rights(0),
            receives,
            timeout: Duration::ZERO,
            retry_count: 0,
            rnr_timer: Duration::ZERO,
            rnr_retry: 0,
            answers_max: 0,
            mtu: 0,
            life: Life::Running,
            refused: false,
            stopped: false,
            drained: false,
            outstanding: VecDeque::new(),
            ghosts: Vec::new(),
            sent: Vec::new(),
            posted: 0,
            messages: Vec::new(),
            holds: false,
            delivered: 0,
            received: 0,
        }
    }
}

impl Contract {
    /// Adds a receive queue, shared or of one queue pair, and returns its number.
    pub fn add_queue(&mut self, shared: bool) -> usize {
        self.queues.push(Queue {
            shared,
            shortest: usize::MAX,
            ..Queue::default()
        });
        self.queues.len() - 1
    }

    /// Outstanding send requests of a queue pair: identifier, and whether success is reported.
    pub fn sends(&self, qp: usize) -> impl Iterator<Item = (u64, bool)> + '_ {
        let posted = self.queue_pairs[qp].outstanding.iter();
        posted.map(|posted| (posted.request.id, posted.request.signalled))
    }

    /// Outstanding receives of a queue.
    pub fn receives(&self, queue: usize) -> usize {
        self.queues[queue].posted.len()
    }

    /// Receives that are certainly left.
    pub fn receives_left(&self, queue: usize) -> usize {
        self.receives(queue)
            .saturating_sub(self.queues[queue].vanished)
    }

    /// Receives of a shared queue that are certainly left, before any poll.
    pub fn receives_at_least(&self, queue: usize) -> usize {
        let taken = self.messages(queue, |_| true) + self.datagrams(queue) + self.held(queue);
        self.receives_left(queue).saturating_sub(taken)
    }

    /// Whether a datagram of one queue pair to another may still arrive.
    pub fn sends_to(&self, from: usize, to: usize) -> bool {
        let mut messages = self.queue_pairs[from].messages.iter();
        messages.any(|message| message.to == Some(to))
    }

    /// Changes the rights that a queue pair grants its peer.
    pub fn grant(&mut self, qp: usize, rights: Rights) {
        let of = &mut self.queue_pairs[qp];
        of.rights = Rights(of.rights.0 | rights.0);
        of.rights_surely = Rights(of.rights_surely.0 & rights.0);
    }

    /// Restarts the send queue after a failure; all posted requests were flushed.
    pub fn restart(&mut self, qp: usize) {
        for message in &mut self.queue_pairs[qp].messages {
            message.receivable = false;
        }
        self.queue_pairs[qp].stopped = false;
    }

    /// Messages of reliable connections that will take a receive of this queue, and wait until
    /// there is one.
    pub fn messages_due(&self, queue: usize) -> usize {
        self.messages(queue, |peer| {
            peer.service == Service::Rc && peer.life == Life::Running && !peer.stopped
        })
    }

    /// Messages of peers that were not received.
    fn messages(&self, queue: usize, of: impl Fn(&QueuePair) -> bool) -> usize {
        let due = |qp: &QueuePair| {
            let peer = &self.queue_pairs[qp.peer?];
            of(peer).then_some(peer.messages.len().saturating_sub(qp.received))
        };
        self.users(queue).filter_map(|(_, qp)| due(qp)).sum()
    }

    fn users(&self, queue: usize) -> impl Iterator<Item = (usize, &QueuePair)> {
        let all = self.queue_pairs.iter().enumerate();
        all.filter(move |(_, qp)| qp.receives == queue)
    }

    /// Whether messages may arrive twice at the receive queue of a queue pair.
    fn hears_unreliably(&self, qp: &QueuePair) -> bool {
        let mut users = self.users(qp.receives);
        users.any(|(_, user)| user.service != Service::Rc)
    }

    /// Datagrams for users of this queue that may still arrive.
    fn datagrams(&self, queue: usize) -> usize {
        let sent = self.queue_pairs.iter().flat_map(|qp| &qp.messages);
        let is_user = |to| self.users(queue).any(|(qp, _)| to == Some(qp));
        sent.filter(|message| !message.over && !message.heard && is_user(message.to))
            .count()
    }

    fn local(&self, qp: usize, sges: &[Sge], needs: Rights, period: (Step, Step)) -> Standing {
        let of = &self.queue_pairs[qp];
        let asker = Asker {
            host: of.host,
            domain: of.domain,
            peer_of: None,
        };
        let standings = sges
            .iter()
            .map(|&sge| self.grants.standing(asker, sge, needs, period));
        standings.fold(Standing::EMPTY, |all, one| Standing {
            ever: all.ever && one.ever,
            always: all.always && one.always,
            at: None,
        })
    }

    fn remote(
        &self,
        peer: usize,
        key: u32,
        va: u64,
        length: usize,
        needs: Rights,
        period: (Step, Step),
    ) -> Standing {
        let of = &self.queue_pairs[peer];
        let asker = Asker {
            host: of.host,
            domain: of.domain,
            peer_of: Some(peer),
        };
        let sge = Sge {
            key,
            va,
            length: length as u32,
        };
        self.grants.standing(asker, sge, needs, period)
    }

    /// Ranges of a list in the host's memory, without empty ones.
    fn places(&self, qp: usize, sges: &[Sge]) -> Vec<core::ops::Range<usize>> {
        let of = &self.queue_pairs[qp];
        let asker = Asker {
            host: of.host,
            domain: of.domain,
            peer_of: None,
        };
        let ever = (0, Step::MAX);
        let place = |&sge: &Sge| {
            let at = self.grants.standing(asker, sge, Rights(0), ever).at?;
            Some(at..at + sge.length as usize)
        };
        sges.iter().filter_map(place).collect()
    }

    /// Opens the writable parts of a list, to be filled for `id`.
    fn open(&mut self, qp: usize, id: u64, sges: &[Sge]) {
        let of = &self.queue_pairs[qp];
        let host = of.host;
        let asker = Asker {
            host,
            domain: of.domain,
            peer_of: None,
        };
        let from_now_on = (self.now, Step::MAX);
        for &sge in sges {
            let needs = Rights::LOCAL_WRITE;
            let standing = self.grants.standing(asker, sge, needs, from_now_on);
            if let Some(at) = standing.at {
                self.memories[host].open(id, sge.key, at..at + sge.length as usize);
            }
        }
    }

    fn gather(&self, qp: usize, sges: &[Sge]) -> Vec<u8> {
        let memory = &self.memories[self.queue_pairs[qp].host];
        let mut bytes = Vec::new();
        for place in self.places(qp, sges) {
            bytes.extend_from_slice(memory.bytes(place));
        }
        bytes
    }

    /// Records an accepted send request.
    pub fn post_send(&mut self, qp: usize, request: Request, path: Path) {
        let (service, peer) = {
            let of = &self.queue_pairs[qp];
            (of.service, of.peer)
        };
        let number = self.queue_pairs[qp].posted;
        let from = Origin { qp, number };
        let id = request.id;
        if request.kind.takes_receive() {
            let (to, head) = match service {
                Service::Ud => (request.to, GRH),
                Service::Uc | Service::Rc => (peer, 0),
            };
            let placed = match request.kind {
                Kind::Send { .. } => head + request.payload.len(),
                _ => 0,
            };
            let receivable = self.is_receivable(to, placed);
            self.queue_pairs[qp].messages.push(Message {
                receivable,
                solicited: request.solicited,
                kind: request.kind,
                bytes: request.payload.clone(),
                to: request.to,
                ..Message::since(self.now, number, path)
            });
        }
        if request.kind.lands() {
            self.open(qp, id, &request.sges);
        }
        if let (Some((key, va, needs)), Some(peer)) = (request.kind.access(), peer) {
            let length = request.payload.len();
            let standing = self.remote(peer, key, va, length, needs, (self.now, Step::MAX));
            let memory = &mut self.memories[self.queue_pairs[peer].host];
            match (request.kind, standing.at) {
                (Kind::Write { .. } | Kind::AtomicWrite { .. }, Some(at)) => {
                    memory.begin_write(Placement {
                        id,
                        from,
                        key,
                        at,
                        bytes: request.payload.clone(),
                        late: request.after.is_some(),
                        begun: self.now,
                        settled: None,
                    })
                }
                (Kind::Read { .. }, Some(at)) => {
                    memory.begin_read(id, from, at..at + length, self.now);
                }
                (Kind::Atomic { atomic, .. }, Some(at)) if at % 8 == 0 => {
                    let operation = match atomic {
                        Atomic::Add(add) => Operation::Add(add),
                        Atomic::Swap { compare, swap } => Operation::Swap(compare, swap),
                    };
                    memory.begin_atomic(id, qp, at, operation);
                }
                _ => {}
            }
        }
        let windows = self.windows_for(qp, &request.kind);
        self.begin_keys(qp, &request);
        let at = self.now;
        let to = request.to.or(peer);
        let of = &mut self.queue_pairs[qp];
        of.posted += 1;
        of.outstanding.push_back(Posted {
            request,
            at,
            path,
            windows,
        });
        if let Some(to) = to {
            self.note_scarcity(self.queue_pairs[to].receives);
        }
    }

    /// Whether the binds and invalidations of a request may be valid, and whether they certainly
    /// are.
    fn windows_for(&self, qp: usize, kind: &Kind) -> (bool, bool) {
        let of = &self.queue_pairs[qp];
        let now = self.now;
        match (*kind, of.peer) {
            (Kind::Invalidate { key }, _) => self.grants.bound(of.host, key, Some(qp), now),
            (
                Kind::Send {
                    invalidate: Some(key),
                    ..
                },
                Some(peer),
            ) => {
                let there = self.queue_pairs[peer].host;
                self.grants.bound(there, key, Some(peer), now)
            }
            (Kind::Bind(bind), _) => {
                // A bound window must be invalidated first.
                let (maybe, surely) = self.grants.bound(of.host, bind.window, None, now);
                (!surely, !maybe)
            }
            _ => (true, true),
        }
    }

    /// Records that the keys of a request may open or close from now on.
    fn begin_keys(&mut self, qp: usize, request: &Request) {
        let (host, domain, peer, now) = {
            let of = &self.queue_pairs[qp];
            (of.host, of.domain, of.peer, self.now)
        };
        let mut close = |host: usize, key: u32| {
            if let Some(window) = self.grants.window(host, key) {
                window.closers += 1;
            }
            if let Some(window) = self
                .grants
                .find(host, key)
                .filter(|region| region.owner != Owner::Domain)
            {
                window.span.until = (now, Step::MAX);
            }
        };
        match request.kind {
            Kind::Invalidate { key } => close(host, key),
            Kind::Send {
                invalidate: Some(key),
                ..
            } => {
                if let Some(peer) = peer {
                    close(self.queue_pairs[peer].host, key);
                }
            }
            Kind::Bind(bind) => {
                self.grants.promise(host, bind.key);
                let asker = Asker {
                    host,
                    domain,
                    peer_of: None,
                };
                let standing =
                    self.grants
                        .standing(asker, bind.part, Rights::MW_BIND, (now, Step::MAX));
                if let Some(at) = standing.at {
                    self.grants.add(Region {
                        host,
                        domain,
                        key: bind.key,
                        va: bind.part.va,
                        length: u64::from(bind.part.length),
                        at,
                        rights: bind.rights,
                        owner: Owner::QueuePair(qp),
                        closers: 0,
                        span: Span {
                            from: (now, Step::MAX),
                            until: (Step::MAX, Step::MAX),
                        },
                    });
                }
            }
            _ => {}
        }
    }

    /// Records the data of a READ, which a fenced write sends.
    fn reveal(&mut self, qp: usize, read: u64, data: &[u8]) {
        let of = &self.queue_pairs[qp];
        let mut writes = of.outstanding.iter();
        let write = writes.find(|posted| posted.request.after == Some(read));
        if let (Some(write), Some(peer)) = (write, of.peer) {
            let (id, there) = (write.request.id, self.queue_pairs[peer].host);
            self.memories[there].reveal(id, data);
        }
    }

    /// Records an accepted receive, of a queue pair or of the shared queue that `qp` uses.
    pub fn post_receive(&mut self, qp: usize, recv: Recv) {
        self.open(qp, recv.id, &recv.sges);
        let standing = self.local(qp, &recv.sges, Rights::LOCAL_WRITE, (self.now, self.now));
        // Memory without write access may be changed by the program.
        let before = standing.always.then(|| self.gather(qp, &recv.sges));
        let number = self.queue_pairs[qp].receives;
        let at = self.now;
        let queue = &mut self.queues[number];
        queue.ever += 1;
        queue.doubtful |= !standing.always;
        queue.shortest = queue.shortest.min(recv.length());
        queue.posted.push_back(Accepted { recv, at, before });
        self.note_scarcity(number);
    }

    fn note_scarcity(&mut self, queue: usize) {
        // Messages of a failed peer may still be in flight.
        let messages = self.messages(queue, |_| true) + self.datagrams(queue);
        if self.receives_left(queue) < messages + self.held(queue) {
            self.queues[queue].scarce = Some(self.now);
        }
    }

    /// Records the error state of a queue pair: no peer writes through it any more.
    pub fn fail(&mut self, qp: usize) {
        self.queue_pairs[qp].life = Life::Failed;
        self.silence(qp);
    }

    fn silence(&mut self, qp: usize) {
        let (host, peer) = (self.queue_pairs[qp].host, self.queue_pairs[qp].peer);
        if let Some(peer) = peer {
            let now = self.now;
            self.memories[host].forget(now, |placement| placement.from.qp == peer);
            self.memories[host].forget_atomics(peer);
        }
    }

    /// Records the end of a queue pair: none of its requests completes or changes anything any
    /// more.
    pub fn destroy(&mut self, qp: usize) {
        let host = self.queue_pairs[qp].host;
        let outstanding = std::mem::take(&mut self.queue_pairs[qp].outstanding);
        let there = self.queue_pairs[qp]
            .peer
            .map(|peer| self.queue_pairs[peer].host);
        for posted in outstanding {
            self.memories[host].close(posted.request.id);
            if let Some(there) = there {
                // Without data there is nothing to compare.
                self.memories[there].end_read(posted.request.id, None).ok();
            }
            self.queue_pairs[qp].ghosts.push(posted);
        }
        let queue = self.queue_pairs[qp].receives;
        if self.queues[queue].shared {
            // A message may have been arriving, whose receive is lost with it.
            self.queues[queue].vanished += 1;
        } else {
            for accepted in std::mem::take(&mut self.queues[queue].posted) {
                self.memories[host].close(accepted.recv.id);
            }
            self.queues[queue].ever = 0;
        }
        self.silence(qp);
        self.queue_pairs[qp].life = Life::Gone;
    }

    /// Records a reset of a queue pair: earlier requests are forgotten on both sides.
    pub fn reset(&mut self, qp: usize) {
        self.destroy(qp);
        self.excuse(qp);
        let of = &mut self.queue_pairs[qp];
        of.life = Life::Running;
        of.refused = false;
        of.stopped = false;
        of.drained = false;
        // Datagrams that have left may still arrive elsewhere.
        of.messages.retain(|message| message.to.is_some());
        of.ghosts.clear();
        of.sent.clear();
        of.holds = false;
        of.received = 0;
        of.delivered = 0;
    }

    /// Records that a window is closed by now: packets in flight with its key are refused.
    fn certainly_closed(&mut self, host: usize, key: u32) {
        let now = self.now;
        if let Some(window) = self.grants.window(host, key) {
            window.span.until.1 = window.span.until.1.min(now);
        }
        self.memories[host].forget(now, |placement| placement.key == key);
    }

    /// Records that a window was deallocated: its key opens nothing from now on.
    pub fn close_window(&mut self, host: usize, key: u32) {
        let now = self.now;
        for window in self.grants.windows(host, key) {
            window.span.until.1 = window.span.until.1.min(now);
            window.span.until.0 = window.span.until.0.min(now);
        }
        self.memories[host].forget(now, |placement| placement.key == key);
    }

    /// Records that a region was deregistered: its key opens nothing from now on, and packets in
    /// flight with it are refused.
    pub fn deregister(&mut self, host: usize, key: u32) {
        let now = self.now;
        if let Some(region) = self.grants.find(host, key) {
            region.span.until = (now, now);
        }
        self.memories[host].forget(now, |placement| placement.key == key);
        self.memories[host].close_region(key);
        for queue in &mut self.queues {
            let mut sges = queue.posted.iter().flat_map(|accepted| &accepted.recv.sges);
            queue.doubtful |= sges.any(|sge| sge.key == key);
        }
    }
}
