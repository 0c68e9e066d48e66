//! One connection: its queue pair, its books, and its states from the first message of the
//! connection manager to the last.

use crate::error::Cause;
use crate::hub::{Hub, Member, lock, watch};
use crate::work::{Aftermath, Buffer, RECEIVE_DEPTH, Request, SEND_DEPTH, Work};
use crate::{Blame, Error, Region, Result, device, polling};
use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectRequest, ConnectResponse, ConnectionId, Event, IpAddressing, PortSpace,
    RejReason, Route, ServiceId, TransportService,
};
use airdma_engine::{
    Access, AttrMask, Completion, Cq, Gid, Path, PathMtu, Psn, Qp, QpAttributes, QpCaps, QpInit,
    QpState, QpType, Qpn, RETRY_FOR_EVER, random_u32,
};
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

/// Time in which a peer must answer.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// READs and atomics in flight, in each direction.
const READS_MAX: u8 = 16;
/// 4.096 us * 2^16 = 268 ms, repeated seven times: two to three seconds until a peer counts as
/// unreachable.
const ACK_TIMEOUT: u8 = 16;
const RETRIES: u8 = 7;
/// RNR retry count: a peer without a posted receive is retried for as long as it lives.
const ASK_FOR_EVER: u8 = 7;
/// RNR timer code (IBTA table 45): 0.64 ms until the retry.
const RECEIVER_NOT_READY: u8 = 12;

/// What a connection does otherwise than most.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Manner {
    /// See [`Device::sealed`](crate::Device::sealed).
    pub(crate) seals: bool,
    /// See [`Device::patient`](crate::Device::patient).
    pub(crate) is_patient: bool,
}

pub(crate) struct Connection {
    number: u64,
    pub(crate) hub: Arc<Hub>,
    pub(crate) peer: IpAddr,
    path: Path,
    retries: u8,
    psn: Psn,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    /// Completions between the queue and the books. Its lock keeps them in order.
    polling: Mutex<Vec<Completion>>,
    /// Number of WRITEs of the peer for which tasks were woken.
    writes_noted: AtomicU64,
    /// Whether completed operations raise no event: see [`Endpoint::wake_for_messages_only`].
    ///
    /// [`Endpoint::wake_for_messages_only`]: crate::Endpoint::wake_for_messages_only
    messages_only: AtomicBool,
    state: Mutex<State>,
}

pub(crate) struct State {
    pub(crate) work: Work,
    is_open: bool,
    cm: Option<ConnectionId>,
    /// Parameters of the request, on the active side.
    asked: Option<Asked>,
    /// When to stop waiting for an answer.
    deadline: Instant,
    /// Tasks that wait for the connection to open, or to become idle.
    watchers: Vec<Waker>,
}

/// Parameters of a requested connection.
#[derive(Clone, Copy)]
struct Asked {
    to: SocketAddr,
    source: IpAddr,
    path_mtu: PathMtu,
}

/// The peer's parameters.
struct PeerSide {
    qpn: Qpn,
    psn: Psn,
    path_mtu: PathMtu,
    /// READs and atomics that it handles, and that it sends.
    takes: u8,
    sends: u8,
}

impl Connection {
    /// Requests a connection.
    pub(crate) fn connect(
        hub: &Arc<Hub>,
        to: SocketAddr,
        source: IpAddr,
        path: Path,
        manner: Manner,
    ) -> Result<Arc<Connection>> {
        let this = Self::new(hub, to.ip(), path, manner)?;
        this.ask(Asked {
            to,
            source,
            path_mtu: hub.engine.path_mtu_to(source, to.ip()),
        })?;
        Ok(this)
    }

    fn ask(&self, asked: Asked) -> Result<()> {
        let Asked {
            to,
            source,
            path_mtu,
        } = asked;
        let wanted = Connect {
            route: Route {
                local: Gid::from(source),
                remote: self.path.gid,
                traffic_class: 0,
            },
            service_id: ServiceId::of_port(PortSpace::TCP, to.port()),
            transport: TransportService::Rc,
            qpn: self.qp.number(),
            psn: self.psn,
            path_mtu,
            responder_resources: READS_MAX,
            initiator_depth: READS_MAX,
            retry_count: RETRIES,
            rnr_retry_count: ASK_FOR_EVER,
            srq: false,
            ack_timeout: ACK_TIMEOUT,
            flow_label: 0,
            addressing: IpAddressing::new(source, 0, to.ip()),
            private_data: &[],
        };
        // Held so that no answer is handled before this is complete.
        let mut state = self.state();
        let hub = &self.hub;
        state.cm = Some(hub.engine.cm_connect(&wanted, &hub.events, self.number)?);
        state.asked = Some(asked);
        Ok(())
    }

    /// Requests the next smaller path MTU, as the peer's port has a smaller one. False if there is
    /// none.
    fn ask_for_less(&self) -> bool {
        let asked = self.state().asked;
        let smaller = asked.and_then(|asked| {
            let mut sizes = PathMtu::ALL.into_iter().rev();
            let path_mtu = sizes.find(|size| size.bytes() < asked.path_mtu.bytes())?;
            Some(Asked { path_mtu, ..asked })
        });
        smaller.is_some_and(|asked| self.ask(asked).is_ok())
    }

    /// Accepts a requested connection, which opens when the peer has confirmed it.
    pub(crate) fn answer(
        hub: &Arc<Hub>,
        request: &ConnectRequest,
        manner: Manner,
    ) -> Result<Arc<Connection>> {
        hub.engine.cm_waits(request.id)?;
        let route = request.route;
        let info = hub.engine.current();
        let own = info.gids.iter().position(|row| row.gid == route.local);
        let own = own.and_then(|index| u8::try_from(index).ok());
        let index = own.ok_or_else(|| Error::you("the address that was asked for is gone"))?;
        let peer = route.remote.to_ip();
        let this = Self::new(hub, peer, device::path_to(peer, index), manner)?;
        this.make_ready(&PeerSide {
            qpn: request.qpn,
            psn: request.psn,
            path_mtu: request.path_mtu,
            takes: request.responder_resources,
            sends: request.initiator_depth,
        })?;
        let mut state = this.state();
        hub.engine
            .cm_hand_over(request.id, &hub.events, this.number)?;
        state.cm = Some(request.id);
        let with = Accept {
            qpn: this.qp.number(),
            psn: this.psn,
            responder_resources: request.initiator_depth.min(READS_MAX),
            initiator_depth: request.responder_resources.min(READS_MAX),
            rnr_retry_count: ASK_FOR_EVER,
            srq: false,
            private_data: &[],
        };
        hub.engine.cm_accept(request.id, &with)?;
        drop(state);
        Ok(this)
    }

    fn new(hub: &Arc<Hub>, peer: IpAddr, path: Path, manner: Manner) -> Result<Arc<Connection>> {
        let number = hub.number();
        // Room for all posted requests, so it never overflows.
        let entries = 2 * (SEND_DEPTH + RECEIVE_DEPTH);
        let cq = hub
            .engine
            .create_cq(entries, Some((Arc::clone(&hub.channel), number)))?;
        let qp = hub.pd.create_qp(QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: SEND_DEPTH,
                max_recv_wr: RECEIVE_DEPTH,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: true,
        })?;
        if manner.seals {
            qp.seal()?;
        }
        let words = Region::allocate_private(hub, Work::WORDS_BYTES)?;
        let this = Arc::new(Connection {
            number,
            hub: Arc::clone(hub),
            peer,
            path,
            retries: if manner.is_patient {
                RETRY_FOR_EVER
            } else {
                RETRIES
            },
            psn: Psn::new(random_u32()),
            qp,
            cq,
            polling: Mutex::new(Vec::with_capacity(polling::BATCH)),
            writes_noted: AtomicU64::new(0),
            messages_only: AtomicBool::new(false),
            state: Mutex::new(State {
                work: Work::new(words),
                is_open: false,
                cm: None,
                asked: None,
                deadline: Instant::now() + CONNECT_TIME,
                watchers: Vec::new(),
            }),
        });
        hub.enter(number, Member::Connection(Arc::downgrade(&this)));
        Ok(this)
    }

    pub(crate) fn queue_pair(&self) -> &Qp {
        &self.qp
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    /// Takes the queue pair from RESET to RTS.
    fn make_ready(&self, peer: &PeerSide) -> Result<()> {
        let mut attributes = QpAttributes {
            state: QpState::Init,
            port: 1,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
            ..QpAttributes::default()
        };
        let init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        self.qp.modify(&attributes, init)?;
        attributes = QpAttributes {
            state: QpState::ReadyToReceive,
            path: self.path,
            path_mtu: peer.path_mtu,
            dest_qpn: peer.qpn,
            rq_psn: self.psn,
            max_dest_rd_atomic: peer.sends.min(READS_MAX),
            min_rnr_timer: RECEIVER_NOT_READY,
            ..attributes
        };
        let to_receive = AttrMask::STATE
            | AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        self.qp.modify(&attributes, to_receive)?;
        attributes = QpAttributes {
            state: QpState::ReadyToSend,
            sq_psn: peer.psn,
            timeout: ACK_TIMEOUT,
            retry_count: self.retries,
            rnr_retry: ASK_FOR_EVER,
            max_rd_atomic: peer.takes.min(READS_MAX),
            ..attributes
        };
        let to_send = AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::TIMEOUT
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::MAX_QP_RD_ATOMIC;
        self.qp.modify(&attributes, to_send)?;
        Ok(())
    }

    /// Handles an event of the connection manager.
    pub(crate) fn handle(&self, event: Event) {
        match event {
            Event::ConnectResponse(response) => self.accepted(&response),
            Event::Established { .. } => self.open(),
            Event::Rejected { reason, .. } => {
                self.state().cm = None;
                if reason == RejReason::INVALID_PATH_MTU && self.ask_for_less() {
                    return;
                }
                self.end(refusal(reason, self.peer));
            }
            Event::Unreachable { .. } => {
                self.state().cm = None;
                self.end(no_answer(self.peer));
            }
            Event::Disconnected { .. } => {
                // Completions from before the event count.
                self.arm_and_progress();
                self.end(Cause::closed(
                    Blame::Peer,
                    "the peer closed the connection, or its process ended",
                ));
            }
            Event::TimewaitExit { .. } => self.state().cm = None,
            Event::ConnectRequest(_)
            | Event::SidrRequest(_)
            | Event::SidrResponse(_)
            | Event::SidrUnreachable { .. }
            | Event::SidrWithdrawn { .. } => {}
        }
    }

    fn accepted(&self, response: &ConnectResponse) {
        let asked = self.state().asked;
        let ready = self.make_ready(&PeerSide {
            qpn: response.qpn,
            psn: response.psn,
            path_mtu: asked.map_or(PathMtu::M256, |asked| asked.path_mtu),
            takes: response.responder_resources,
            sends: response.initiator_depth,
        });
        let told = ready.and_then(|()| Ok(self.hub.engine.cm_ready(response.id, &[])?));
        match told {
            Ok(()) => self.open(),
            Err(error) => {
                let reject = RejReason::CONSUMER;
                // A peer that misses this finds no queue pair.
                drop(self.hub.engine.cm_reject(response.id, reject, &[]));
                self.end(Cause::new(error.blame(), error.to_string()));
            }
        }
    }

    fn open(&self) {
        let watchers = {
            let mut state = self.state();
            state.is_open = true;
            std::mem::take(&mut state.watchers)
        };
        watchers.into_iter().for_each(Waker::wake);
    }

    /// Whether it is open, or why not; if that is not known, keeps `waker` and returns `None`.
    pub(crate) fn opened(&self, waker: Option<&Waker>) -> Option<Result<()>> {
        let mut state = self.state();
        if let Some(cause) = &state.work.failure {
            return Some(Err(cause.clone().into()));
        }
        if state.is_open {
            return Some(Ok(()));
        }
        if state.deadline <= Instant::now() {
            return Some(Err(no_answer(self.peer).into()));
        }
        watch(&mut state.watchers, waker);
        None
    }

    /// Closes the connection once nothing is in flight; until then, keeps `waker` and returns
    /// `None`.
    pub(crate) fn close_at_rest(&self, waker: Option<&Waker>) -> Option<Result<()>> {
        let mut state = self.state();
        if let Some(cause) = &state.work.failure {
            let is_fine = cause.closed && state.work.is_idle();
            return Some(if is_fine {
                Ok(())
            } else {
                Err(cause.clone().into())
            });
        }
        if !state.work.is_idle() {
            watch(&mut state.watchers, waker);
            return None;
        }
        drop(state);
        self.end_by_us();
        Some(Ok(()))
    }

    pub(crate) fn end_by_us(&self) {
        self.end(Cause::closed(Blame::You, "you closed the endpoint"));
    }

    /// Ends the connection because its interface is gone.
    pub(crate) fn lose_device(&self) {
        let interface = &self.hub.engine.info().interface;
        let message = format!("the interface {interface}, over which it went, is gone");
        self.end(Cause::new(Blame::Network, message));
    }

    /// Ends the connection for any reason: wakes everything that waits for it, and notifies the
    /// peer.
    fn end(&self, cause: Cause) {
        let mut after = Aftermath::default();
        {
            let mut state = self.state();
            state.work.fail(cause, &mut after);
            after.wakers.append(&mut state.watchers);
        }
        self.take_down();
        after.settle();
        self.arm_and_progress();
    }

    fn take_down(&self) {
        let cm = self.state().cm;
        if let Some(id) = cm {
            // Fails if the peer has ended it already.
            drop(self.hub.engine.cm_disconnect(id, &[]));
        }
        let attributes = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        // A queue pair in RESET has nothing to flush.
        drop(self.qp.modify(&attributes, AttrMask::STATE));
    }

    /// Starts a request.
    pub(crate) fn request(&self, request: Request, buffer: Option<Buffer>) -> usize {
        let mut after = Aftermath::default();
        let (number, overflows) = {
            let mut state = self.state();
            let number = state.work.request(request, buffer);
            state.work.post(&self.qp, &mut after);
            (number, state.work.overflows())
        };
        after.settle();
        if overflows {
            // A request that waits for room must be posted even if no thread waits for it. Without
            // the hub's thread, a waiting thread does so.
            drop(self.hub.drive());
            self.arm_and_progress();
        }
        number
    }

    /// Handles completions since the last [`Connection::arm_and_progress`].
    pub(crate) fn attend(&self) {
        self.progress();
        let is_watched = {
            let state = self.state();
            state.work.is_watched() || !state.watchers.is_empty()
        };
        if is_watched {
            self.arm();
        }
    }

    /// Adds a region to receive into; returns the ticket of a reader.
    pub(crate) fn receive(&self, buffer: Buffer) -> u64 {
        let mut after = Aftermath::default();
        let ticket = {
            let mut state = self.state();
            let ticket = state.work.receive(buffer);
            state.work.post(&self.qp, &mut after);
            ticket
        };
        after.settle();
        ticket
    }

    /// Reports the fill of the buffer that the peer fills.
    pub(crate) fn tell_buffer(&self, bytes: u64, capacity: u64) {
        self.qp.set_application_buffer(bytes, capacity);
    }

    /// Changes the books, and wakes the tasks that the change concerns.
    pub(crate) fn amend<T>(&self, change: impl FnOnce(&mut Work, &mut Aftermath) -> T) -> T {
        let mut after = Aftermath::default();
        let changed = change(&mut self.state().work, &mut after);
        after.settle();
        changed
    }

    /// Runs the device until `look` finds its result in the books. If it does not, it must keep
    /// `waker`.
    pub(crate) fn poll<T>(
        &self,
        waker: Option<&Waker>,
        mut look: impl FnMut(&mut Work, Option<&Waker>) -> Option<T>,
    ) -> Poll<T> {
        let mut looked = look(&mut self.state().work, None);
        if looked.is_none() && (self.progress() || waker.is_some()) {
            looked = look(&mut self.state().work, waker);
        }
        if looked.is_none() && waker.is_some() {
            // Later completions raise an event; earlier ones are handled here.
            self.arm_and_progress();
            looked = look(&mut self.state().work, None);
        }
        looked.map_or(Poll::Pending, Poll::Ready)
    }

    /// Enters completions into the books, unless another thread is doing so. Returns whether there
    /// were any.
    pub(crate) fn progress(&self) -> bool {
        let mut after = Aftermath::default();
        let mut polling = match self.polling.try_lock() {
            Ok(polling) => polling,
            Err(TryLockError::Poisoned(left)) => left.into_inner(),
            // The other thread may have entered the awaited one.
            Err(TryLockError::WouldBlock) => return true,
        };
        let any = polling::take(&self.cq, &mut polling, |batch| {
            self.enter(batch, &mut after)
        });
        drop(polling);
        self.note_writes(&mut after);
        after.settle();
        any
    }

    /// Runs the device once, enters completions into the books, and arms the queue for later ones.
    /// Returns whether there were any.
    pub(crate) fn arm_and_progress(&self) -> bool {
        self.take_and_arm(true)
    }

    pub(crate) fn wake_for_messages_only(&self, messages_only: bool) {
        self.messages_only.store(messages_only, Ordering::Relaxed);
    }

    fn wakes_for_messages_only(&self) -> bool {
        self.messages_only.load(Ordering::Relaxed)
    }

    /// As [`Connection::arm_and_progress`], without running the device.
    pub(crate) fn arm(&self) -> bool {
        self.take_and_arm(false)
    }

    fn take_and_arm(&self, runs: bool) -> bool {
        let mut after = Aftermath::default();
        let mut polling = lock(&self.polling);
        // Requests that wait for room are posted once others are entered.
        let messages_only = self.wakes_for_messages_only() && !self.state().work.overflows();
        let any = polling::take_and_arm(&self.cq, runs, messages_only, &mut polling, |batch| {
            self.enter(batch, &mut after);
        });
        drop(polling);
        self.note_writes(&mut after);
        after.settle();
        any
    }

    /// Wakes tasks that wait for a WRITE, if one was placed since this was last called.
    fn note_writes(&self, after: &mut Aftermath) {
        let placed = self.qp.writes_placed();
        // Tasks that begin to wait from now on read the number afterwards.
        if self.writes_noted.swap(placed, Ordering::Relaxed) != placed {
            self.state().work.wake_write_watchers(&self.qp, after);
        }
    }

    /// Enters completions into the books.
    fn enter(&self, batch: &[Completion], after: &mut Aftermath) {
        let has_failed = {
            let mut state = self.state();
            let had_failed = state.work.failure.is_some();
            for completion in batch {
                state.work.completed(completion, after);
            }
            state.work.post(&self.qp, after);
            let has_failed = state.work.failure.is_some() && !had_failed;
            if has_failed || state.work.is_idle() {
                after.wakers.append(&mut state.watchers);
            }
            has_failed
        };
        if has_failed {
            self.take_down();
        }
    }

    /// Periodic checks: a deadline may be over, and a silent peer may be gone.
    pub(crate) fn tick(&self) {
        if self.wakes_for_messages_only() {
            self.progress();
        }
        let mut after = Aftermath::default();
        {
            let mut state = self.state();
            if !state.is_open {
                after.wakers.append(&mut state.watchers);
            } else if state.work.failure.is_none() && state.work.only_listens() {
                state.work.request(Request::SignOfLife, None);
                state.work.post(&self.qp, &mut after);
            }
        }
        after.settle();
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.hub.leave(self.number);
        // The device must release the memory in the books first.
        drop(self.qp.destroy());
        if let Some(id) = self.state().cm {
            self.hub.engine.cm_destroy(id);
        }
    }
}

fn no_answer(peer: IpAddr) -> Cause {
    Cause::new(
        Blame::Network,
        format!(
            "{peer} does not answer: is the host up, does RDMA run there, and does UDP port 4791 pass?"
        ),
    )
}

fn refusal(reason: RejReason, peer: IpAddr) -> Cause {
    let message = match reason {
        RejReason::INVALID_SERVICE_ID => {
            format!("no program listens at {peer}; start the listener first, with the same port")
        }
        RejReason::TIMEOUT => return no_answer(peer),
        reason => format!("{peer} refused the connection: {reason}"),
    };
    Cause::new(Blame::Peer, message)
}
