//! The contract of queue pairs: what completes, when, how, and with what.

use crate::grants::{Asker, Owner, Region};
use crate::memory::{From, Operation};
use crate::{Grants, Memory, Placement, Rights, Sge, Span, Standing, Step, Verdict};
use std::collections::VecDeque;

/// Service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

/// `ibv_wc_status`, as far as it comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Status {
    Success,
    LocalLength,
    LocalQpOperation,
    LocalProtection,
    Flush,
    MwBind,
    BadResponse,
    RemoteInvalidRequest,
    RemoteAccess,
    RemoteOperation,
    RetryExceeded,
    RnrRetryExceeded,
}

impl Status {
    /// What can end the first request that fails.
    const FAILURES: [Status; 10] = [
        Status::LocalLength,
        Status::LocalQpOperation,
        Status::LocalProtection,
        Status::MwBind,
        Status::BadResponse,
        Status::RemoteInvalidRequest,
        Status::RemoteAccess,
        Status::RemoteOperation,
        Status::RetryExceeded,
        Status::RnrRetryExceeded,
    ];

    fn is_refusal(self) -> bool {
        matches!(
            self,
            Status::RemoteInvalidRequest | Status::RemoteAccess | Status::RemoteOperation
        )
    }
}

/// `ibv_wc_opcode`, as far as it comes up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Opcode {
    Send,
    Write,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Bind,
    Invalidate,
    Receive,
    ReceiveImmediate,
}

/// An atomic on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Atomic {
    Add(u64),
    Swap { compare: u64, swap: u64 },
}

/// What a window is to open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bind {
    /// Its key until now.
    pub window: u32,
    /// Its key from now on.
    pub key: u32,
    /// The memory, by the key of its region.
    pub part: Sge,
    /// What peers may do.
    pub rights: Rights,
}

/// What a send request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    Send {
        immediate: Option<u32>,
        invalidate: Option<u32>,
    },
    Write {
        key: u32,
        va: u64,
        immediate: Option<u32>,
    },
    AtomicWrite {
        key: u32,
        va: u64,
    },
    Read {
        key: u32,
        va: u64,
    },
    Atomic {
        key: u32,
        va: u64,
        atomic: Atomic,
    },
    Bind(Bind),
    Invalidate {
        key: u32,
    },
}

impl Kind {
    fn opcode(&self) -> Opcode {
        match self {
            Kind::Send { .. } => Opcode::Send,
            Kind::Write { .. } => Opcode::Write,
            Kind::AtomicWrite { .. } => Opcode::AtomicWrite,
            Kind::Read { .. } => Opcode::Read,
            Kind::Atomic {
                atomic: Atomic::Add(_),
                ..
            } => Opcode::FetchAdd,
            Kind::Atomic {
                atomic: Atomic::Swap { .. },
                ..
            } => Opcode::CompareSwap,
            Kind::Bind(_) => Opcode::Bind,
            Kind::Invalidate { .. } => Opcode::Invalidate,
        }
    }

    /// Whether it takes one of the peer's receives.
    fn takes_receive(&self) -> bool {
        matches!(
            self,
            Kind::Send { .. }
                | Kind::Write {
                    immediate: Some(_),
                    ..
                }
        )
    }

    /// What the peer must grant: key, address, rights.
    fn access(&self) -> Option<(u32, u64, Rights)> {
        match *self {
            Kind::Write { key, va, .. } | Kind::AtomicWrite { key, va } => {
                Some((key, va, Rights::REMOTE_WRITE))
            }
            Kind::Read { key, va } => Some((key, va, Rights::REMOTE_READ)),
            Kind::Atomic { key, va, .. } => Some((key, va, Rights::REMOTE_ATOMIC)),
            Kind::Send { .. } | Kind::Bind(_) | Kind::Invalidate { .. } => None,
        }
    }

    fn is_answered(&self) -> bool {
        matches!(
            self,
            Kind::Read { .. } | Kind::Atomic { .. } | Kind::AtomicWrite { .. }
        )
    }
}

/// A send request, as it was posted.
#[derive(Clone, Debug)]
pub struct Request {
    /// Its identifier, unique in the world.
    pub id: u64,
    /// What it does.
    pub kind: Kind,
    /// Its memory.
    pub sges: Vec<Sge>,
    /// The bytes of the message, as they were when it was posted; what a READ asks for is zeros.
    pub payload: Vec<u8>,
    /// The bytes were copied when it was posted, and no key is looked at.
    pub inline: bool,
    /// Success is to be reported.
    pub signalled: bool,
    /// Where a datagram goes.
    pub to: Option<usize>,
}

/// A receive, as it was posted.
#[derive(Clone, Debug)]
pub struct Recv {
    /// Its identifier, unique in the world.
    pub id: u64,
    /// Its memory.
    pub sges: Vec<Sge>,
}

impl Recv {
    fn length(&self) -> usize {
        self.sges.iter().map(|sge| sge.length as usize).sum()
    }
}

/// A completion.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Done {
    pub id: u64,
    pub status: Status,
    pub opcode: Opcode,
    pub bytes: u32,
    pub immediate: Option<u32>,
    pub invalidated: Option<u32>,
    /// Sender of a datagram.
    pub source: Option<usize>,
}

/// What the network did to packets between a queue pair and its peer, since the world began.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path {
    /// Packets that did not arrive whole, in both directions.
    pub lost: u64,
    /// Some took so long that a timer may have run out before.
    pub slow: bool,
    /// Some may have arrived twice, or after later ones.
    pub disorderly: bool,
}

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
    /// What it grants its peer.
    pub rights: Rights,
    /// Its receive queue.
    pub receives: usize,
    /// Retries after a timeout.
    pub retry_count: u8,
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
    posted: u64,
    messages: Vec<Message>,
    /// Messages of the peer that were received, or passed by.
    received: usize,
}

#[derive(Debug)]
struct Posted {
    request: Request,
    at: Step,
    lost: u64,
}

#[derive(Clone, Debug)]
struct Message {
    kind: Kind,
    bytes: Vec<u8>,
    to: Option<usize>,
}

#[derive(Debug, Default)]
struct Queue {
    posted: VecDeque<Accepted>,
    shared: bool,
    /// The shortest that there ever was.
    shortest: usize,
    /// One had memory that may not have been accessible.
    doubtful: bool,
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
    /// By host.
    pub memories: Vec<Memory>,
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
            receives,
            retry_count: 0,
            rnr_retry: 0,
            answers_max: 0,
            mtu: 0,
            life: Life::Running,
            refused: false,
            stopped: false,
            drained: false,
            outstanding: VecDeque::new(),
            posted: 0,
            messages: Vec::new(),
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

    /// Messages of connections that are under way and take a receive of this queue.
    pub fn messages_due(&self, queue: usize) -> usize {
        let due = |qp: &QueuePair| Some(self.queue_pairs[qp.peer?].messages.len() - qp.received);
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

    /// Datagrams to users of this queue. Whether they arrive nobody knows.
    fn datagrams(&self, queue: usize) -> usize {
        let sent = self.queue_pairs.iter().flat_map(|qp| &qp.messages);
        let is_user = |to| self.users(queue).any(|(qp, _)| to == Some(qp));
        sent.filter(|message| is_user(message.to)).count()
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
        let (host, service, peer) = {
            let of = &self.queue_pairs[qp];
            (of.host, of.service, of.peer)
        };
        let number = self.queue_pairs[qp].posted;
        let from = From { qp, number };
        let id = request.id;
        if request.kind.takes_receive() {
            self.queue_pairs[qp].messages.push(Message {
                kind: request.kind,
                bytes: request.payload.clone(),
                to: request.to,
            });
        }
        if request.kind.is_answered() && !matches!(request.kind, Kind::AtomicWrite { .. }) {
            for place in self.places(qp, &request.sges) {
                self.memories[host].open(id, place);
            }
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
                        begun: self.now,
                        settled: None,
                    })
                }
                (Kind::Read { .. }, Some(at)) => memory.begin_read(id, from, at..at + length),
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
        self.begin_keys(qp, &request);
        let at = self.now;
        let of = &mut self.queue_pairs[qp];
        of.posted += 1;
        of.outstanding.push_back(Posted {
            request,
            at,
            lost: path.lost,
        });
        if service != Service::Ud
            && let Some(peer) = peer
        {
            self.note_scarcity(self.queue_pairs[peer].receives);
        }
    }

    /// Keys that a request opens or closes do so from now on, perhaps.
    fn begin_keys(&mut self, qp: usize, request: &Request) {
        let (host, domain, peer, now) = {
            let of = &self.queue_pairs[qp];
            (of.host, of.domain, of.peer, self.now)
        };
        let mut close = |host: usize, key: u32| {
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

    /// A receive was accepted, by a queue pair or by the shared queue that `qp` uses.
    pub fn post_receive(&mut self, qp: usize, recv: Recv) {
        let host = self.queue_pairs[qp].host;
        for place in self.places(qp, &recv.sges) {
            self.memories[host].open(recv.id, place);
        }
        let standing = self.local(qp, &recv.sges, Rights::LOCAL_WRITE, (self.now, self.now));
        // What may not be written may be the program's to change.
        let before = standing.always.then(|| self.gather(qp, &recv.sges));
        let number = self.queue_pairs[qp].receives;
        let at = self.now;
        let queue = &mut self.queues[number];
        queue.doubtful |= !standing.always;
        queue.shortest = queue.shortest.min(recv.length());
        queue.posted.push_back(Accepted { recv, at, before });
        self.note_scarcity(number);
    }

    fn note_scarcity(&mut self, queue: usize) {
        if self.receives(queue) < self.messages_due(queue) + self.datagrams(queue) {
            self.queues[queue].scarce = Some(self.now);
        }
    }

    /// A send completion of `qp` was polled.
    ///
    /// # Errors
    /// It is not what the contract says.
    pub fn sent(&mut self, qp: usize, done: &Done, path: Path) -> Verdict {
        let of = &self.queue_pairs[qp];
        let Some(index) = of
            .outstanding
            .iter()
            .position(|posted| posted.request.id == done.id)
        else {
            return Err(format!(
                "a completion for send {}, which is not outstanding: {done:?}",
                done.id
            ));
        };
        if let Some(passed) = of
            .outstanding
            .iter()
            .take(index)
            .find(|posted| posted.request.signalled)
        {
            return Err(format!(
                "send {} completed before the signalled send {}",
                done.id, passed.request.id
            ));
        }
        if index > 0 && of.stopped {
            return Err(format!(
                "send {} completed, and an earlier one was not flushed",
                done.id
            ));
        }
        for _ in 0..index {
            self.retire(qp, true)?;
        }
        let posted = &self.queue_pairs[qp].outstanding[0];
        if done.status == Status::Success && !posted.request.signalled {
            return Err(format!("the unsignalled send {} completed", done.id));
        }
        if !self.allows(qp, posted, done.status, path) {
            return Err(format!(
                "send {} of queue pair {qp} ended with {:?}, which nothing explains: {:?} posted in step {}; path {path:?}, {} lost before",
                done.id, done.status, posted.request.kind, posted.at, posted.lost
            ));
        }
        if done.status == Status::Success {
            let (opcode, length) = (
                posted.request.kind.opcode(),
                posted.request.payload.len() as u32,
            );
            let reads = matches!(
                opcode,
                Opcode::Read | Opcode::FetchAdd | Opcode::CompareSwap
            );
            if done.opcode != opcode || (reads && done.bytes != length) {
                return Err(format!(
                    "send {} is {opcode:?} of {length} bytes, its completion says {done:?}",
                    done.id
                ));
            }
        }
        if done.status != Status::Success {
            self.note_failure(qp, done.status);
        }
        if done.status == Status::MwBind
            && let Kind::Bind(bind) = self.queue_pairs[qp].outstanding[0].request.kind
        {
            let host = self.queue_pairs[qp].host;
            let now = self.now;
            if let Some(window) = self.grants.find(host, bind.key) {
                window.span = Span {
                    from: (now, now),
                    until: (now, now),
                };
            }
        }
        self.retire(qp, done.status == Status::Success)
    }

    /// The first request in line has failed: its peer may have refused it, and be in the error state.
    fn note_failure(&mut self, qp: usize, status: Status) {
        let of = &self.queue_pairs[qp];
        let refused = status.is_refusal() || self.may_be_refused(qp, &of.outstanding[0]);
        if let Some(peer) = of.peer.filter(|_| refused) {
            self.queue_pairs[peer].refused = true;
        }
        let of = &mut self.queue_pairs[qp];
        of.stopped = true;
        if of.service == Service::Rc {
            of.life = Life::Failed;
        }
    }

    /// Whether a request may end so now.
    fn allows(&self, qp: usize, posted: &Posted, status: Status, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        match status {
            Status::Flush => of.stopped || self.may_have_failed(qp, path),
            _ => !of.stopped && self.may_end(qp, posted, status, path),
        }
    }

    /// Whether the queue pair may be in the error state: it was put there, said so, failed by itself, or refused its peer.
    pub fn may_have_failed(&self, qp: usize, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        let by_itself = |posted: &Posted| {
            Status::FAILURES
                .iter()
                .any(|&failure| self.may_end(qp, posted, failure, path))
        };
        let by_peer = |peer: usize| {
            let mut asked = self.queue_pairs[peer].outstanding.iter();
            asked.any(|posted| self.may_be_refused(peer, posted))
        };
        of.life != Life::Running
            || of.refused
            || self.may_fail_to_receive(qp)
            || of.outstanding.iter().any(by_itself)
            || of.peer.is_some_and(by_peer)
    }

    /// Whether a message may have found a receive that did not hold it.
    fn may_fail_to_receive(&self, qp: usize) -> bool {
        let of = &self.queue_pairs[qp];
        let queue = &self.queues[of.receives];
        let mut sent = of
            .peer
            .iter()
            .flat_map(|&peer| &self.queue_pairs[peer].messages);
        queue.doubtful || sent.any(|message| message.bytes.len() > queue.shortest)
    }

    /// Whether the other end may refuse a request, which puts it into the error state.
    fn may_be_refused(&self, qp: usize, posted: &Posted) -> bool {
        let calm = Path {
            lost: posted.lost,
            ..Path::default()
        };
        let mut refusals = Status::FAILURES
            .into_iter()
            .filter(|status| status.is_refusal());
        refusals.any(|status| self.may_end(qp, posted, status, calm))
    }

    /// Whether the other end of `qp` may be deaf: gone, or in the error state.
    fn may_be_deaf(&self, qp: usize, peer: usize, path: Path) -> bool {
        let other = &self.queue_pairs[peer];
        let by_itself = |posted: &Posted| {
            let calm = Path {
                lost: posted.lost,
                ..Path::default()
            };
            let tired = path.slow || path.lost - posted.lost > u64::from(other.retry_count);
            let mut failures = Status::FAILURES
                .into_iter()
                .filter(|&status| status != Status::RetryExceeded);
            tired || failures.any(|status| self.may_end(peer, posted, status, calm))
        };
        let by_us = |posted: &Posted| self.may_be_refused(qp, posted);
        other.life != Life::Running
            || other.refused
            || other.outstanding.iter().any(by_itself)
            || self.queue_pairs[qp].outstanding.iter().any(by_us)
    }

    /// Whether a request that is the first to fail, or succeeds, may end so now.
    fn may_end(&self, qp: usize, posted: &Posted, status: Status, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        let Request {
            kind,
            sges,
            payload,
            inline,
            ..
        } = &posted.request;
        let period = (posted.at, self.now);
        let lands = kind.is_answered() && !matches!(kind, Kind::AtomicWrite { .. });
        let needs = if lands {
            Rights::LOCAL_WRITE
        } else {
            Rights(0)
        };
        let local = if *inline {
            Standing::EMPTY
        } else {
            self.local(qp, sges, needs, period)
        };
        let peer = of.peer.map(|peer| &self.queue_pairs[peer]);
        let reliable = of.service == Service::Rc;
        let remote = match (kind.access(), of.peer) {
            (Some((key, va, needs)), Some(peer)) if reliable => {
                self.remote(peer, key, va, payload.len(), needs, period)
            }
            _ => Standing::EMPTY,
        };
        let window = self.keys_standing(qp, kind, period);
        let granted = kind
            .access()
            .is_none_or(|(_, _, needs)| peer.is_some_and(|peer| peer.rights.contain(needs)));
        let aligned = match *kind {
            Kind::Atomic { va, .. } | Kind::AtomicWrite { va, .. } => va % 8 == 0,
            _ => true,
        };
        let queue = peer
            .map(|peer| &self.queues[peer.receives])
            .filter(|_| kind.takes_receive() && reliable);
        let is_local = matches!(kind, Kind::Bind(_) | Kind::Invalidate { .. });
        let too_long = of.service == Service::Ud && payload.len() > of.mtu;
        let no_answers = kind.is_answered() && of.answers_max == 0;
        let wrong_size = matches!(kind, Kind::AtomicWrite { .. }) && payload.len() != 8;
        match status {
            Status::Success => {
                local.ever
                    && remote.ever
                    && window.ever
                    && (granted || !reliable)
                    && aligned
                    && !too_long
                    && !no_answers
                    && !wrong_size
            }
            Status::LocalProtection => !is_local && !local.always,
            Status::LocalLength => too_long || wrong_size,
            Status::LocalQpOperation => no_answers,
            Status::MwBind => is_local && !window.always,
            Status::RemoteAccess => reliable && !is_local && (!remote.always || !window.always),
            Status::RemoteInvalidRequest => {
                reliable
                    && (!granted
                        || !aligned
                        || queue.is_some_and(|queue| {
                            matches!(kind, Kind::Send { .. }) && payload.len() > queue.shortest
                        }))
            }
            Status::RemoteOperation => queue.is_some_and(|queue| queue.doubtful),
            Status::RetryExceeded => {
                let deaf = of.peer.is_some_and(|peer| self.may_be_deaf(qp, peer, path));
                let lost = path.lost - posted.lost > u64::from(of.retry_count);
                reliable && !is_local && (deaf || lost || path.slow)
            }
            Status::RnrRetryExceeded => {
                let scarce = queue.and_then(|queue| queue.scarce);
                let scarce = scarce.is_some_and(|scarce| scarce >= posted.at);
                // A copy of a datagram takes a receive as well.
                let copies =
                    path.disorderly && peer.is_some_and(|peer| self.hears_unreliably(peer));
                of.rnr_retry < 7 && queue.is_some() && (scarce || copies)
            }
            Status::BadResponse | Status::Flush => false,
        }
    }

    /// Whether the keys that a request opens or closes may be, and certainly are, such that it can.
    fn keys_standing(&self, qp: usize, kind: &Kind, period: (Step, Step)) -> Standing {
        let of = &self.queue_pairs[qp];
        let doubtful = Standing {
            ever: true,
            always: false,
            at: None,
        };
        match *kind {
            Kind::Bind(bind) => {
                let asker = Asker {
                    host: of.host,
                    domain: of.domain,
                    peer_of: None,
                };
                let part = self
                    .grants
                    .standing(asker, bind.part, Rights::MW_BIND, period);
                Standing {
                    ever: part.ever,
                    ..doubtful
                }
            }
            Kind::Invalidate { .. }
            | Kind::Send {
                invalidate: Some(_),
                ..
            } => doubtful,
            _ => Standing::EMPTY,
        }
    }

    /// The first request in line is over.
    fn retire(&mut self, qp: usize, succeeded: bool) -> Verdict {
        let Some(posted) = self.queue_pairs[qp].outstanding.pop_front() else {
            return Ok(());
        };
        let (host, peer, service) = {
            let of = &self.queue_pairs[qp];
            (of.host, of.peer, of.service)
        };
        let Request { id, kind, sges, .. } = posted.request;
        let data = succeeded.then(|| self.gather(qp, &sges));
        self.memories[host].close(id);
        let now = self.now;
        let Some(peer) = peer else {
            return Ok(());
        };
        let there = self.queue_pairs[peer].host;
        match kind {
            Kind::Write { .. } | Kind::AtomicWrite { .. }
                if succeeded && service == Service::Rc =>
            {
                self.memories[there].settle_write(id, now)?;
            }
            Kind::Read { .. } => self.memories[there].end_read(id, data.as_deref())?,
            Kind::Atomic { .. } => {
                if let Some(original) = data.and_then(|data| data.get(..8)?.try_into().ok()) {
                    self.memories[there].settle_atomic(id, u64::from_ne_bytes(original))?;
                }
            }
            Kind::Bind(bind) if succeeded => {
                if let Some(window) = self.grants.find(host, bind.key) {
                    window.span.from.1 = window.span.from.1.min(now);
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A receive completion of `qp` was polled.
    ///
    /// # Errors
    /// It is not what the contract says.
    pub fn received(&mut self, qp: usize, done: &Done, path: Path) -> Verdict {
        let number = self.queue_pairs[qp].receives;
        let queue = &self.queues[number];
        let Some(index) = queue
            .posted
            .iter()
            .position(|accepted| accepted.recv.id == done.id)
        else {
            return Err(format!(
                "a completion for receive {}, which is not outstanding: {done:?}",
                done.id
            ));
        };
        if index > 0 && !queue.shared {
            return Err(format!(
                "receive {} completed before receive {}",
                done.id, queue.posted[0].recv.id
            ));
        }
        if done.status == Status::Flush && !self.may_have_failed(qp, path) {
            return Err(format!(
                "receive {} was flushed, and nothing explains it",
                done.id
            ));
        }
        if done.status != Status::Flush && self.queue_pairs[qp].drained {
            return Err(format!(
                "receive {} ended with {:?} after others were flushed",
                done.id, done.status
            ));
        }
        let Some(accepted) = self.queues[number].posted.remove(index) else {
            return Ok(());
        };
        let host = self.queue_pairs[qp].host;
        self.memories[host].close(done.id);
        self.note_scarcity(number);
        let period = (accepted.at, self.now);
        let standing = self.local(qp, &accepted.recv.sges, Rights::LOCAL_WRITE, period);
        match done.status {
            Status::Success => self.receive_message(qp, done, &accepted, path),
            Status::Flush => {
                self.queue_pairs[qp].drained = true;
                Ok(())
            }
            Status::LocalLength | Status::LocalProtection => {
                self.queue_pairs[qp].life = Life::Failed;
                let length = accepted.recv.length();
                let next = self.next_message(qp).map(|message| message.bytes.len());
                let explained = match done.status {
                    Status::LocalLength => next.is_some_and(|next| next > length),
                    _ => !standing.always,
                };
                if explained {
                    return Ok(());
                }
                Err(format!(
                    "receive {} ended with {:?}, and nothing explains it",
                    done.id, done.status
                ))
            }
            _ => Err(format!("receive {} ended with {:?}", done.id, done.status)),
        }
    }

    fn next_message(&self, qp: usize) -> Option<&Message> {
        let of = &self.queue_pairs[qp];
        self.queue_pairs[of.peer?].messages.get(of.received)
    }

    fn receive_message(
        &mut self,
        qp: usize,
        done: &Done,
        accepted: &Accepted,
        path: Path,
    ) -> Verdict {
        let service = self.queue_pairs[qp].service;
        let head = if service == Service::Ud { GRH } else { 0 };
        let now_there = self.gather(qp, &accepted.recv.sges);
        let matches = |message: &Message| -> Verdict {
            let (opcode, immediate, invalidate) = match message.kind {
                Kind::Send {
                    immediate,
                    invalidate,
                } => (Opcode::Receive, immediate, invalidate),
                Kind::Write { immediate, .. } => (Opcode::ReceiveImmediate, immediate, None),
                _ => return Err("no message takes a receive".to_owned()),
            };
            let length = message.bytes.len() + head;
            if (done.opcode, done.immediate, done.invalidated) != (opcode, immediate, invalidate)
                || done.bytes as usize != length
            {
                return Err(format!(
                    "it says {done:?}, the message is {:?} of {length} bytes",
                    message.kind
                ));
            }
            let placed = if opcode == Opcode::Receive { length } else { 0 };
            let Some((filled, rest)) = now_there.split_at_checked(placed) else {
                return Err("the message is longer than the receive".to_owned());
            };
            if placed > 0 && filled[head..] != message.bytes[..] {
                return Err(format!(
                    "its {} bytes are not those of the message",
                    message.bytes.len()
                ));
            }
            // What is left of a message that was given up stays behind the next one in the same receive.
            let before = accepted.before.as_ref().filter(|_| service == Service::Rc);
            if before.is_some_and(|before| rest != &before[placed..]) {
                return Err("bytes behind the message changed".to_owned());
            }
            Ok(())
        };
        let of = &self.queue_pairs[qp];
        let found = match (service, of.peer) {
            (Service::Rc, Some(peer)) => {
                let next = self.queue_pairs[peer].messages.get(of.received);
                let next =
                    next.ok_or_else(|| format!("receive {} completed without a message", done.id))?;
                matches(next).map_err(|why| {
                    format!(
                        "receive {} of queue pair {qp}, message {}: {why}",
                        done.id, of.received
                    )
                })?;
                of.received + 1
            }
            (Service::Uc, Some(peer)) => {
                let rest = self.queue_pairs[peer]
                    .messages
                    .iter()
                    .enumerate()
                    .skip(if path.disorderly { 0 } else { of.received });
                let found = rest
                    .into_iter()
                    .find(|(_, message)| matches(message).is_ok());
                let (index, _) = found.ok_or_else(|| {
                    format!(
                        "receive {} of queue pair {qp}: no message is like it: {done:?}",
                        done.id
                    )
                })?;
                index + 1
            }
            _ => {
                let source = done.source.and_then(|source| self.queue_pairs.get(source));
                let sent = source.into_iter().flat_map(|source| &source.messages);
                let mut to_us = sent.filter(|message| message.to == Some(qp));
                if !to_us.any(|message| matches(message).is_ok()) {
                    return Err(format!(
                        "receive {} of queue pair {qp}: no datagram is like it: {done:?}",
                        done.id
                    ));
                }
                of.received
            }
        };
        self.queue_pairs[qp].received = found;
        let host = self.queue_pairs[qp].host;
        let now = self.now;
        if let Some(key) = done.invalidated
            && let Some(window) = self.grants.window(host, key)
        {
            window.span.until.1 = window.span.until.1.min(now);
        }
        Ok(())
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
        let of = &self.queue_pairs[qp];
        let doubtful = of
            .outstanding
            .iter()
            .any(|posted| self.may_be_refused(qp, posted));
        if let Some(peer) = of.peer.filter(|_| doubtful) {
            self.queue_pairs[peer].refused = true;
        }
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
        }
        let queue = self.queue_pairs[qp].receives;
        if !self.queues[queue].shared {
            for accepted in std::mem::take(&mut self.queues[queue].posted) {
                self.memories[host].close(accepted.recv.id);
            }
        }
        self.silence(qp);
        self.queue_pairs[qp].life = Life::Gone;
    }

    /// The queue pair was reset, and begins anew: what was before is forgotten on both sides of it.
    pub fn reset(&mut self, qp: usize) {
        self.destroy(qp);
        let of = &mut self.queue_pairs[qp];
        of.life = Life::Running;
        of.refused = false;
        of.stopped = false;
        of.drained = false;
        of.messages.clear();
        of.received = 0;
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
        for queue in &mut self.queues {
            let mut sges = queue.posted.iter().flat_map(|accepted| &accepted.recv.sges);
            queue.doubtful |= sges.any(|sge| sge.key == key);
        }
    }
}
