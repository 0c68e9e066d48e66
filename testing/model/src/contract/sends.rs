//! Send completions: their order, and an explanation of their status.

use super::{Contract, Kind, Life, Opcode, Path, Posted, QueuePair, Request, Service, Status};
use crate::grants::Asker;
use crate::{Done, Rights, Span, Standing, Step, Verdict};

impl Contract {
    /// Checks a polled send completion of `qp`.
    ///
    /// # Errors
    /// A violation of the contract.
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
            // The unsignalled request has succeeded without a completion.
            let silent = &self.queue_pairs[qp].outstanding[0];
            if !self.may_end(qp, silent, Status::Success, path) {
                return Err(format!(
                    "the unsignalled send {} was passed over, and cannot have succeeded: {:?}",
                    silent.request.id, silent.request.kind
                ));
            }
            self.retire(qp, true)?;
        }
        let posted = &self.queue_pairs[qp].outstanding[0];
        if done.status == Status::Success && !posted.request.signalled {
            return Err(format!("the unsignalled send {} completed", done.id));
        }
        if !self.allows(qp, posted, done.status, path) {
            return Err(format!(
                "send {} of queue pair {qp} ended with {:?}, which nothing explains: {:?} posted in step {}; the network by now: {path:?}, and then: {:?}",
                done.id, done.status, posted.request.kind, posted.at, posted.path
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

    /// Records that the oldest request has failed: its peer may have refused it, and be in the
    /// error state.
    pub(super) fn note_failure(&mut self, qp: usize, status: Status) {
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

    /// Whether a request may have this status now.
    pub(super) fn allows(&self, qp: usize, posted: &Posted, status: Status, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        match status {
            Status::Flush => of.stopped || self.may_have_failed(qp, path),
            _ => !of.stopped && self.may_end(qp, posted, status, path),
        }
    }

    /// Whether the queue pair may be in the error state: put there, reported so, failed by itself,
    /// or after it refused its peer.
    pub fn may_have_failed(&self, qp: usize, path: Path) -> bool {
        let of = &self.queue_pairs[qp];
        let by_itself = |posted: &Posted| {
            Status::FAILURES
                .iter()
                .any(|&failure| self.may_end(qp, posted, failure, path))
        };
        let by_peer = |peer: usize| self.may_be_refused_anything(peer);
        of.life != Life::Running
            || of.refused
            || self.may_fail_to_receive(qp)
            || of.outstanding.iter().any(by_itself)
            || of.peer.is_some_and(by_peer)
    }

    /// Whether a message may have met a receive that was too short or not writable.
    pub(super) fn may_fail_to_receive(&self, qp: usize) -> bool {
        if self.careful {
            return false;
        }
        let of = &self.queue_pairs[qp];
        let queue = &self.queues[of.receives];
        let mut sent = of
            .peer
            .iter()
            .flat_map(|&peer| &self.queue_pairs[peer].messages);
        queue.doubtful
            || sent.any(|message| {
                matches!(message.kind, Kind::Send { .. }) && message.bytes.len() > queue.shortest
            })
    }

    /// Whether the peer may refuse a request, which puts it into the error state.
    pub(super) fn may_be_refused(&self, qp: usize, posted: &Posted) -> bool {
        let calm = posted.calm();
        let mut refusals = Status::FAILURES
            .into_iter()
            .filter(|status| status.is_refusal());
        refusals.any(|status| self.may_end(qp, posted, status, calm))
    }

    /// Whether the peer may refuse any request that may still arrive.
    fn may_be_refused_anything(&self, qp: usize) -> bool {
        let of = &self.queue_pairs[qp];
        let mut all = of.outstanding.iter().chain(&of.ghosts);
        all.any(|posted| self.may_be_refused(qp, posted))
    }

    /// Whether the peer of `qp` may not answer: gone, or in the error state.
    pub(super) fn may_be_deaf(&self, qp: usize, peer: usize, path: Path) -> bool {
        let other = &self.queue_pairs[peer];
        let by_itself = |posted: &Posted| {
            let calm = Path {
                now: path.now,
                ..posted.calm()
            };
            let tired = posted.may_be_tired(other, path) && posted.has_waited(other, path);
            let mut failures = Status::FAILURES
                .into_iter()
                .filter(|&status| status != Status::RetryExceeded);
            tired || failures.any(|status| self.may_end(peer, posted, status, calm))
        };
        other.life != Life::Running
            || other.refused
            || other.outstanding.iter().any(by_itself)
            || self.may_be_refused_anything(qp)
    }

    /// Whether a request that is the first to fail, or succeeds, may have this status now.
    pub(super) fn may_end(&self, qp: usize, posted: &Posted, status: Status, path: Path) -> bool {
        let by_network = matches!(status, Status::RetryExceeded | Status::RnrRetryExceeded);
        if self.careful && status != Status::Success && !by_network {
            return false;
        }
        let of = &self.queue_pairs[qp];
        let Request {
            kind,
            sges,
            payload,
            inline,
            ..
        } = &posted.request;
        let period = (posted.at, self.now);
        let lands = kind.lands();
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
        let window = self.keys_standing(qp, posted, period);
        let granted = kind
            .access()
            .is_none_or(|(_, _, needs)| peer.is_some_and(|peer| peer.rights.contain(needs)));
        let surely_granted = kind
            .access()
            .is_none_or(|(_, _, needs)| peer.is_some_and(|peer| peer.rights_surely.contain(needs)));
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
                    && (!surely_granted
                        || !aligned
                        || queue.is_some_and(|queue| {
                            matches!(kind, Kind::Send { .. }) && payload.len() > queue.shortest
                        }))
            }
            Status::RemoteOperation => queue.is_some_and(|queue| queue.doubtful),
            Status::RetryExceeded => {
                let deaf = of.peer.is_some_and(|peer| self.may_be_deaf(qp, peer, path));
                let tired = deaf || posted.may_be_tired(of, path);
                reliable && !is_local && tired && posted.has_waited(of, path)
            }
            Status::RnrRetryExceeded => {
                let scarce = queue.and_then(|queue| queue.scarce);
                let scarce = scarce.is_some_and(|scarce| scarce >= posted.at);
                // A copy of a datagram takes a receive as well.
                let copies =
                    path.disorderly && peer.is_some_and(|peer| self.hears_unreliably(peer));
                // It is requested that often, each time after an RNR timer.
                let asked = peer.map(|peer| peer.rnr_timer * u32::from(of.rnr_retry));
                let waited = asked.is_some_and(|asked| path.now - posted.path.now >= asked);
                of.rnr_retry < 7 && queue.is_some() && (scarce || copies) && waited
            }
            Status::BadResponse | Status::Flush => false,
        }
    }

    /// Whether the keys that a request opens or closes may be valid, and certainly are.
    pub(super) fn keys_standing(
        &self,
        qp: usize,
        posted: &Posted,
        period: (Step, Step),
    ) -> Standing {
        let of = &self.queue_pairs[qp];
        let (maybe, surely) = posted.windows;
        match (posted.request.kind, of.peer) {
            (Kind::Bind(bind), _) => {
                let asker = Asker {
                    host: of.host,
                    domain: of.domain,
                    peer_of: None,
                };
                let needs = Rights::MW_BIND;
                let part = self.grants.standing(asker, bind.part, needs, period);
                let is_named = !self.grants.is_only_promised(of.host, bind.window);
                Standing {
                    ever: maybe && part.ever,
                    always: surely && part.always && is_named,
                    at: None,
                }
            }
            (Kind::Invalidate { key }, _) => self.closing(of.host, key, posted),
            (
                Kind::Send {
                    invalidate: Some(key),
                    ..
                },
                Some(peer),
            ) => self.closing(self.queue_pairs[peer].host, key, posted),
            _ => Standing::EMPTY,
        }
    }

    /// Whether a request may find the window that it closes open, and certainly does: another
    /// request may close it first.
    fn closing(&self, host: usize, key: u32, posted: &Posted) -> Standing {
        let (maybe, surely) = posted.windows;
        Standing {
            ever: maybe,
            always: surely && self.grants.closers(host, key) <= 1,
            at: None,
        }
    }

    /// Records the success of a message, which took one of the receives that the peer posted.
    fn note_delivery(&mut self, qp: usize, peer: usize, id: u64) -> Verdict {
        self.queue_pairs[qp].delivered += 1;
        let delivered = self.queue_pairs[qp].delivered;
        let other = &self.queue_pairs[peer];
        let queue = &self.queues[other.receives];
        if other.life == Life::Gone || queue.shared || queue.ever >= delivered {
            return Ok(());
        }
        Err(format!(
            "message {id} succeeded as number {delivered}, and its receiver has posted {} receives",
            queue.ever
        ))
    }

    /// Ends a failed request: it reads nothing any more.
    fn end_failed(&mut self, id: u64, kind: &Kind, peer: usize) -> Verdict {
        let there = self.queue_pairs[peer].host;
        match kind {
            Kind::Read { .. } => self.memories[there].end_read(id, None),
            _ => Ok(()),
        }
    }

    /// Removes the oldest request.
    pub(super) fn retire(&mut self, qp: usize, succeeded: bool) -> Verdict {
        let Some(posted) = self.queue_pairs[qp].outstanding.pop_front() else {
            return Ok(());
        };
        let (host, peer, service) = {
            let of = &self.queue_pairs[qp];
            (of.host, of.peer, of.service)
        };
        let Request {
            id, kind, ref sges, ..
        } = posted.request;
        let data = self.gather(qp, sges);
        self.memories[host].close(id);
        let now = self.now;
        let Some(peer) = peer else {
            return Ok(());
        };
        if !succeeded {
            self.queue_pairs[qp].ghosts.push(posted);
            return self.end_failed(id, &kind, peer);
        }
        let there = self.queue_pairs[peer].host;
        if kind.takes_receive() && service == Service::Rc {
            self.note_delivery(qp, peer, id)?;
        }
        match kind {
            Kind::Write { .. } | Kind::AtomicWrite { .. } if service == Service::Rc => {
                self.memories[there].settle_write(id, now)?;
            }
            Kind::Read { .. } => {
                self.memories[there].end_read(id, Some(&data))?;
                self.reveal(qp, id, &data);
            }
            Kind::Atomic { .. } => {
                if let Some(original) = data.get(..8).and_then(|data| data.try_into().ok()) {
                    self.memories[there].settle_atomic(id, u64::from_ne_bytes(original))?;
                }
            }
            Kind::Invalidate { key } => self.certainly_closed(host, key),
            Kind::Send {
                invalidate: Some(key),
                ..
            } => self.certainly_closed(there, key),
            Kind::Bind(bind) => {
                self.grants.give(host, bind.key);
                if let Some(window) = self.grants.find(host, bind.key) {
                    window.span.from.1 = window.span.from.1.min(now);
                }
            }
            Kind::Write { .. } => self.queue_pairs[qp].sent.push(posted),
            _ => {}
        }
        Ok(())
    }
}

impl Posted {
    /// The state of the network with nothing since.
    fn calm(&self) -> Path {
        Path {
            slow: None,
            haunted: None,
            ..self.path
        }
    }

    /// Most retries without a timeout: each packet that is lost, duplicated or late causes at most
    /// one gap.
    /// gap.
    fn gaps_max(&self, path: Path) -> u64 {
        if path.haunted >= Some(self.path.now) {
            return u64::MAX;
        }
        // The paths of datagrams, which have no retries, differ.
        let (lost, astray) = (self.path.lost, self.path.astray);
        path.lost.saturating_sub(lost) + path.astray.saturating_sub(astray)
    }

    /// Whether the network may have used up all retries of its queue pair.
    fn may_be_tired(&self, of: &QueuePair, path: Path) -> bool {
        self.gaps_max(path) > u64::from(of.retry_count) || path.slow >= Some(self.path.now)
    }

    /// Whether it is in flight for so long that all retries may be used up: each one without a gap
    /// takes a timeout (IBTA 9.7.6.1.3).
    /// (IBTA 9.7.6.1.3).
    fn has_waited(&self, of: &QueuePair, path: Path) -> bool {
        let timeouts = (u64::from(of.retry_count) + 1).saturating_sub(self.gaps_max(path));
        path.now - self.path.now >= of.timeout * timeouts as u32
    }
}
