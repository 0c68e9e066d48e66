//! The contract of queue pairs: what completes, when, how, and with what.

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

/// What became of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It runs, or fails by itself.
    Running,
    /// It was put into the error state, or a completion said that it is.
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
    /// What it grants its peer, or did at some time.
    pub rights: Rights,
    /// What it grants ever since.
    pub rights_surely: Rights,
    /// Its receive queue.
    pub receives: usize,
    /// How long it waits for an answer, at least.
    pub timeout: Duration,
    /// Retries after a timeout.
    pub retry_count: u8,
    /// How long it makes its peer wait when it has no receive.
    pub rnr_timer: Duration,
    /// Retries after an RNR NAK; 7 for ever.
    pub rnr_retry: u8,
    /// READs and atomics under way.
    pub answers_max: u8,
    /// Bytes of a datagram.
    pub mtu: usize,
    /// What became of it.
    pub life: Life,
    /// Its peer's requests may have made it fail.
    pub refused: bool,
    /// One of its sends failed or was flushed: those that follow are.
    stopped: bool,
    /// One of its receives was flushed: those that follow are.
    drained: bool,
    outstanding: VecDeque<Posted>,
    /// Requests that did not succeed, or went with it: their packets may still come to the peer.
    ghosts: Vec<Posted>,
    /// Writes of an unreliable connection that have left.
    sent: Vec<Posted>,
    posted: u64,
    messages: Vec<Message>,
    /// It may have taken a receive of a shared queue and keep it.
    holds: bool,
    /// Messages of its own whose success was reported.
    delivered: usize,
    /// Messages of the peer that were received, or passed by.
    received: usize,
}

#[derive(Debug)]
struct Posted {
    request: Request,
    at: Step,
    /// The network as it was then.
    path: Path,
    /// Whether the windows that it binds or closes may have been such that it can, and certainly were.
    windows: (bool, bool),
}

#[derive(Clone, Debug)]
struct Message {
    /// Of the request.
    number: u64,
    /// The step in which it was posted.
    at: Step,
    /// The network as it was then.
    path: Path,
    /// Its receiver takes messages like it.
    receivable: bool,
    /// It was received.
    heard: bool,
    /// It comes no more.
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
    /// How many there ever were.
    ever: usize,
    /// The shortest that there ever was.
    shortest: usize,
    /// One had memory that may not have been accessible.
    doubtful: bool,
    /// Receives of a shared queue that may have gone with queue pairs that held them.
    vanished: usize,
    /// The last step in which there were fewer receives than messages for them.
    scarce: Option<Step>,
}

#[derive(Debug)]
struct Accepted {
    recv: Recv,
    at: Step,
    /// What its memory held, if that is known to stay.
    before: Option<Vec<u8>>,
}

/// A world of hosts.
#[derive(Debug, Default)]
pub struct Contract {
    /// The present step.
    pub now: Step,
    /// No program does anything wrong: then nothing fails but what the network makes fail.
    pub careful: bool,
    /// By host.
    pub memories: Vec<Memory>,
    /// Addresses, by host.
    pub addresses: Vec<IpAddr>,
    /// All keys.
    pub grants: Grants,
    /// By number.
    pub queue_pairs: Vec<QueuePair>,
    queues: Vec<Queue>,
}

/// Bytes that the network puts before a datagram.
const GRH: usize = 40;

impl QueuePair {
    /// One that has done nothing yet.
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

    /// Send requests of a queue pair that have not completed, by identifier, and whether success is to be reported.
    pub fn sends(&self, qp: usize) -> impl Iterator<Item = (u64, bool)> + '_ {
        let posted = self.queue_pairs[qp].outstanding.iter();
        posted.map(|posted| (posted.request.id, posted.request.signalled))
    }

    /// Receives of a queue that have not completed.
    pub fn receives(&self, queue: usize) -> usize {
        self.queues[queue].posted.len()
    }

    /// Those of them that are certainly there.
    pub fn receives_left(&self, queue: usize) -> usize {
        self.receives(queue)
            .saturating_sub(self.queues[queue].vanished)
    }

    /// Those of a shared queue that are certainly there although nobody polled.
    pub fn receives_at_least(&self, queue: usize) -> usize {
        let taken = self.messages(queue, |_| true) + self.datagrams(queue) + self.held(queue);
        self.receives_left(queue).saturating_sub(taken)
    }

    /// Whether a datagram of one queue pair to another may still come.
    pub fn sends_to(&self, from: usize, to: usize) -> bool {
        let mut messages = self.queue_pairs[from].messages.iter();
        messages.any(|message| message.to == Some(to))
    }

    /// A queue pair grants its peer something else from now on.
    pub fn grant(&mut self, qp: usize, rights: Rights) {
        let of = &mut self.queue_pairs[qp];
        of.rights = Rights(of.rights.0 | rights.0);
        of.rights_surely = Rights(of.rights_surely.0 & rights.0);
    }

    /// The send queue of a queue pair runs again after a failure; all that was posted was flushed.
    pub fn restart(&mut self, qp: usize) {
        for message in &mut self.queue_pairs[qp].messages {
            message.receivable = false;
        }
        self.queue_pairs[qp].stopped = false;
    }

    /// Messages that will come and take a receive of this queue, and wait until there is one: those of reliable connections.
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

    /// Whether messages may come twice to the receive queue of a queue pair.
    fn hears_unreliably(&self, qp: &QueuePair) -> bool {
        let mut users = self.users(qp.receives);
        users.any(|(_, user)| user.service != Service::Rc)
    }

    /// Datagrams to users of this queue that may still come.
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

    /// Where the parts of a list are in the host's memory, empty ones left out.
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

    /// Hands out the parts of a list that may be written, to be filled for `id`.
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
        let places = self.places(qp, sges);
        places
            .into_iter()
            .flat_map(|place| memory.bytes(place).to_vec())
            .collect()
    }

    /// A send request was accepted.
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
        if request.kind.is_answered() && !matches!(request.kind, Kind::AtomicWrite { .. }) {
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

    /// Whether the windows that a request binds or closes may be such that it can, and certainly are.
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
                // Bound once, it has to be closed first.
                let (maybe, surely) = self.grants.bound(of.host, bind.window, None, now);
                (!surely, !maybe)
            }
            _ => (true, true),
        }
    }

    /// Keys that a request opens or closes do so from now on, perhaps.
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

    /// A READ has brought `data`: what a fenced write of it sends is known from now on.
    fn reveal(&mut self, qp: usize, read: u64, data: &[u8]) {
        let of = &self.queue_pairs[qp];
        let mut writes = of.outstanding.iter();
        let write = writes.find(|posted| posted.request.after == Some(read));
        if let (Some(write), Some(peer)) = (write, of.peer) {
            let (id, there) = (write.request.id, self.queue_pairs[peer].host);
            self.memories[there].reveal(id, data);
        }
    }

    /// A receive was accepted, by a queue pair or by the shared queue that `qp` uses.
    pub fn post_receive(&mut self, qp: usize, recv: Recv) {
        self.open(qp, recv.id, &recv.sges);
        let standing = self.local(qp, &recv.sges, Rights::LOCAL_WRITE, (self.now, self.now));
        // What may not be written may be the program's to change.
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
        // Those of a peer that has failed may still be on their way.
        let messages = self.messages(queue, |_| true) + self.datagrams(queue);
        if self.receives_left(queue) < messages + self.held(queue) {
            self.queues[queue].scarce = Some(self.now);
        }
    }

    /// The queue pair was put into the error state: no peer writes through it any more.
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

    /// The queue pair was destroyed: nothing that it had outstanding completes or changes anything.
    pub fn destroy(&mut self, qp: usize) {
        let host = self.queue_pairs[qp].host;
        let outstanding = std::mem::take(&mut self.queue_pairs[qp].outstanding);
        let there = self.queue_pairs[qp]
            .peer
            .map(|peer| self.queue_pairs[peer].host);
        for posted in outstanding {
            self.memories[host].close(posted.request.id);
            if let Some(there) = there {
                // Without data there is nothing to be wrong.
                self.memories[there].end_read(posted.request.id, None).ok();
            }
            self.queue_pairs[qp].ghosts.push(posted);
        }
        let queue = self.queue_pairs[qp].receives;
        if self.queues[queue].shared {
            // A message may have been arriving: its receive is gone with it.
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

    /// The queue pair was reset, and begins anew: what was before is forgotten on both sides of it.
    pub fn reset(&mut self, qp: usize) {
        self.destroy(qp);
        self.excuse(qp);
        let of = &mut self.queue_pairs[qp];
        of.life = Life::Running;
        of.refused = false;
        of.stopped = false;
        of.drained = false;
        // Datagrams that have left may be heard of by others.
        of.messages.retain(|message| message.to.is_some());
        of.ghosts.clear();
        of.sent.clear();
        of.holds = false;
        of.received = 0;
        of.delivered = 0;
    }

    /// A window was invalidated by now: what is under way by its key stays out.
    fn certainly_closed(&mut self, host: usize, key: u32) {
        let now = self.now;
        if let Some(window) = self.grants.window(host, key) {
            window.span.until.1 = window.span.until.1.min(now);
        }
        self.memories[host].forget(now, |placement| placement.key == key);
    }

    /// A window was given back: its key opens nothing from now on.
    pub fn close_window(&mut self, host: usize, key: u32) {
        let now = self.now;
        for window in self.grants.windows(host, key) {
            window.span.until.1 = window.span.until.1.min(now);
            window.span.until.0 = window.span.until.0.min(now);
        }
        self.memories[host].forget(now, |placement| placement.key == key);
    }

    /// A region was deregistered: its key opens nothing from now on, and what was under way to it stays out.
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
