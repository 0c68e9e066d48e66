//! Queue pairs as the caller holds them.

use crate::control::{
    Beside, Control, NewQueuePair, QueuePairControl, QueuePairInit, ReceivesFrom, Reply,
    WRONG_REPLY,
};
use crate::core::Core;
use crate::index::{PdIndex, QpHandle};
use crate::objects::pd::check_path;
use crate::queues::application_buffer::Fill;
use crate::queues::async_event::EventOwner;
use crate::queues::qp_caps::QpCaps;
use crate::queues::qp_shared::QpShared;
use crate::queues::use_count::UseCount;
use crate::queues::work_request::{RecvWr, SendWr};
use crate::{
    AttrMask, CompletionCounter, CountedOperations, Cq, Device, Error, Gid, LIMITS, Pd,
    QpAttributes, QpState, QpType, Qpn, Srq, Xrcd,
};
use crate::{RecvPost, SendBatch, SendPost};
use airdma_port::RawSocket;
use airdma_shm::{RecvWqe, RingConsumer, RingProducer, SendWqe, ring};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What a queue pair is created with.
pub struct QpInit {
    /// Transport.
    pub qp_type: QpType,
    /// Where send completions go.
    pub send_cq: Arc<Cq>,
    /// Queue of receive completions. The initiator of an extended connection has none; the send
    /// queue's serves.
    pub recv_cq: Arc<Cq>,
    /// Where receives come from, if not from a queue of its own.
    pub srq: Option<Arc<Srq>>,
    /// The wanted sizes.
    pub caps: QpCaps,
    /// Whether every send work request gets a completion (`sq_sig_all`).
    pub signal_all: bool,
}

/// A queue pair. Any thread may post to it.
pub struct Qp {
    device: Arc<Device>,
    pub(crate) shared: Arc<QpShared>,
    handle: QpHandle,
    uses: Uses,
}

impl Qp {
    /// Whether the program asked for an event of its completion queues: it may sleep without a
    /// further poll.
    pub(crate) fn awaits_event(&self) -> bool {
        let queues = [&self.uses.send_cq, &self.uses.recv_cq];
        queues.into_iter().flatten().any(|cq| cq.is_armed())
    }

    pub(crate) fn create(pd: &Arc<Pd>, init: QpInit) -> Result<Arc<Qp>, Error> {
        let device = &pd.device;
        let mut caps = init.caps;
        let mut recv_cq = Some(init.recv_cq);
        let mut receives = ReceivesFrom::Own;
        match init.qp_type {
            QpType::Rc | QpType::Uc | QpType::Ud | QpType::RawPacket => {
                if let Some(srq) = &init.srq {
                    if srq.is_extended() {
                        return Err(Error::Invalid(
                            "the shared receive queue is one of extended connections",
                        ));
                    }
                    receives = ReceivesFrom::Shared { srq: srq.handle() };
                }
            }
            QpType::XrcSend => {
                if init.srq.is_some() {
                    return Err(Error::Invalid("an initiator does not receive"));
                }
                recv_cq = None;
            }
            QpType::XrcReceive => {
                return Err(Error::Invalid(
                    "a target queue pair is created in a domain of extended connections",
                ));
            }
        }
        if receives != ReceivesFrom::Own || init.qp_type == QpType::XrcSend {
            (caps.max_recv_wr, caps.max_recv_sge) = (0, 0);
        }
        let uses = Uses {
            pd: Some(Arc::clone(pd)),
            send_cq: Some(init.send_cq),
            recv_cq,
            srq: init.srq,
            xrcd: None,
            released: AtomicBool::new(true),
        };
        Self::new(device, init.qp_type, caps, init.signal_all, receives, uses)
    }

    /// A target of extended connections.
    pub(crate) fn create_target(domain: &Arc<Xrcd>) -> Result<Arc<Qp>, Error> {
        let uses = Uses {
            pd: None,
            send_cq: None,
            recv_cq: None,
            srq: None,
            xrcd: Some(Arc::clone(domain)),
            released: AtomicBool::new(true),
        };
        let receives = ReceivesFrom::Domain { domain: domain.id };
        let caps = QpCaps::default();
        Self::new(
            &domain.device,
            QpType::XrcReceive,
            caps,
            false,
            receives,
            uses,
        )
    }

    fn new(
        device: &Arc<Device>,
        qp_type: QpType,
        caps: QpCaps,
        signal_all: bool,
        receives: ReceivesFrom,
        uses: Uses,
    ) -> Result<Arc<Qp>, Error> {
        caps.check()?;
        uses.check_device(device)?;
        let core = device.core();
        core.bind()?;
        let uses = uses.acquire()?;
        let init = QueuePairInit {
            serial: core.next_serial(),
            qp_type,
            caps,
            signal_all,
            receives,
            pd: uses.pd.as_ref().map_or(PdIndex::NONE, |pd| pd.id),
            send_cq: uses.send_cq.as_ref().map(|cq| cq.handle()),
            recv_cq: uses.recv_cq.as_ref().map(|cq| cq.handle()),
            // What a datagram may hold. It stays, whatever becomes of the interface.
            port_mtu: core.current().path_mtu,
        };
        let shared = insert(device, init)?;
        let handle = QpHandle {
            index: shared.index,
            serial: init.serial,
        };
        Ok(Arc::new(Qp {
            device: Arc::clone(device),
            shared,
            handle,
            uses,
        }))
    }

    /// Its name in requests to the worker.
    pub(crate) fn handle(&self) -> QpHandle {
        self.handle
    }

    pub(crate) fn ask(&self, call: QueuePairControl) -> Result<Reply, Error> {
        let qp = self.handle;
        self.core().ask(Control::QueuePair { qp, call })
    }

    fn ask_yes_no(&self, call: QueuePairControl) -> Result<bool, Error> {
        let Reply::Answer { yes } = self.ask(call)? else {
            return Err(WRONG_REPLY);
        };
        Ok(yes)
    }

    /// The device it belongs to.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Whether it is a target of this domain of extended connections.
    pub fn is_target_of(&self, domain: &Xrcd) -> bool {
        let of = self.uses.xrcd.as_ref();
        of.is_some_and(|of| of.id == domain.id && self.device.is_same_worker(&domain.device))
    }

    /// Whether receives are posted to the queue pair itself.
    pub(crate) fn has_receive_queue(&self) -> bool {
        self.uses.srq.is_none() && self.uses.recv_cq.is_some()
    }

    /// Its number.
    pub fn number(&self) -> Qpn {
        self.shared.number
    }

    /// Its transport.
    pub fn qp_type(&self) -> QpType {
        self.shared.qp_type
    }

    /// Its state now; ERROR once destroyed, and in a child after fork.
    ///
    /// Never behind what events and completions have reported.
    pub fn state(&self) -> QpState {
        self.query()
            .map_or(QpState::Error, |attributes| attributes.state)
    }

    /// The granted sizes.
    pub fn caps(&self) -> QpCaps {
        self.shared.caps
    }

    /// Whether every send work request gets a completion.
    pub fn signal_all(&self) -> bool {
        self.shared.signal_all
    }

    /// The number that asynchronous events of this queue pair carry from now on.
    pub fn set_cookie(&self, cookie: u64) {
        self.shared.cookie.store(cookie, Ordering::Relaxed);
    }

    /// Encrypts and authenticates every packet from the next connection on.
    ///
    /// The two queue pairs exchange the keys. The peer's queue pair must seal as well: with one
    /// that does not, also another implementation's, no data is exchanged. The exchange does not
    /// authenticate the peer: [`Qp::sealed_binding`] does, once the ends have compared it over a
    /// channel that both trust.
    ///
    /// # Errors
    /// `EINVAL` for a transport without connections, and for a queue pair that is connected.
    pub fn seal(&self) -> Result<(), Error> {
        self.core().check_process()?;
        if !self.qp_type().is_connected() {
            return Err(Error::Invalid("only connections are sealed"));
        }
        self.ask(QueuePairControl::Seal)?;
        Ok(())
    }

    /// Attaches a completion counter for some operations, until the queue pair is destroyed.
    ///
    /// # Errors
    /// `EINVAL` for a queue pair that is beyond INIT, or a counter of another device or one that
    /// was destroyed; `EBUSY` if one of the operations has a counter.
    pub fn attach_counter(
        &self,
        operations: CountedOperations,
        counter: &Arc<CompletionCounter>,
    ) -> Result<(), Error> {
        self.core().check_process()?;
        if operations.is_empty() || !counter.device().is_same_worker(&self.device) {
            return Err(Error::Invalid(
                "no operation, or the completion counter is of another device",
            ));
        }
        let counter: Arc<CompletionCounter> = Arc::clone(counter);
        let control = Control::QueuePair {
            qp: self.handle,
            call: QueuePairControl::AttachCounter { operations },
        };
        self.core().ask_with(control, Beside::Counter(counter))?;
        Ok(())
    }

    /// A value that is the same at both ends of a sealed connection, and at the ends of no other.
    ///
    /// A third host that has exchanged keys with both has made two connections, whose values
    /// differ. `None` until the keys are exchanged.
    pub fn sealed_binding(&self) -> Option<[u8; 32]> {
        let Ok(Reply::Binding { binding }) = self.ask(QueuePairControl::QueryBinding) else {
            return None;
        };
        binding
    }

    /// Number of WRITEs of the peer that are placed. What they placed is visible to the caller.
    pub fn writes_placed(&self) -> u64 {
        self.shared.writes.placed()
    }

    /// Sets whether a WRITE of the peer raises the event of the receive completion queue, if that
    /// is armed. Arm the queue afterwards, and then read [`Qp::writes_placed`]: a WRITE that the
    /// count lacks raises the event.
    pub fn await_writes(&self, are_awaited: bool) {
        let writes = &self.shared.writes;
        if !are_awaited {
            return writes.leave();
        }
        if !writes.is_watched() {
            self.core().control(|_, _| writes.watch());
        }
        writes.wait();
    }

    /// Reports the bytes that wait in a buffer of the program, which the peer fills through this
    /// queue pair, and its capacity; 0 of 0 if there is none. The capacity should be many times
    /// what the program takes at once.
    ///
    /// A peer that follows the buffers (in air mode, with a rate by `buffers` or `latency`) sends
    /// no faster than this one empties. Other peers are not told.
    pub fn set_application_buffer(&self, bytes: u64, capacity: u64) {
        let most = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (bytes, capacity) = (most(bytes), most(capacity));
        let is_news = self.shared.application_buffer.set(Fill { bytes, capacity });
        if is_news && self.core().seems_ours() {
            // A queue pair that is gone has no peer.
            self.ask(QueuePairControl::NoteApplicationBuffer).ok();
        }
    }

    /// Moves a queue pair of a reliable connection from RESET to RTS with these attributes,
    /// whatever state they name.
    ///
    /// # Errors
    /// As [`Qp::modify`].
    pub fn connect(&self, attributes: &QpAttributes) -> Result<(), Error> {
        let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
        let receive = AttrMask::AV
            | AttrMask::PATH_MTU
            | AttrMask::DEST_QPN
            | AttrMask::RQ_PSN
            | AttrMask::MAX_DEST_RD_ATOMIC
            | AttrMask::MIN_RNR_TIMER;
        let send = AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::TIMEOUT;
        for (state, mask) in [
            (QpState::Init, init),
            (QpState::ReadyToReceive, receive),
            (QpState::ReadyToSend, send),
        ] {
            let attributes = QpAttributes {
                state,
                ..*attributes
            };
            self.modify(&attributes, mask | AttrMask::STATE)?;
        }
        Ok(())
    }

    /// Changes state and attributes as `ibv_modify_qp(3)`. On the way to RESET its completions
    /// leave the completion queues.
    ///
    /// # Errors
    /// `EINVAL` for a missing or extra attribute, a transition that is not allowed, or a value out
    /// of range: a path that [`Pd::create_ah`] would refuse, a path MTU above the port's, a port
    /// other than 1, a P_Key index other than 0. `ENODEV` in a child after fork.
    ///
    /// With `AIRDMA_MTU` the port's path MTU may exceed the interface's: such packets leave as IP
    /// fragments. Over IPv4 only an airdma peer accepts those, since their identification, which
    /// the ICRC covers, is hidden from us (`docs/design/001`); over IPv6 every peer does.
    pub fn modify(&self, attributes: &QpAttributes, mask: AttrMask) -> Result<(), Error> {
        let core = self.core();
        core.check_process()?;
        check_attributes(core, attributes, mask)?;
        let local = core.address(attributes.path.sgid_index);
        let source = local.map(|local| {
            let on_link = core.is_on_link(local, &attributes.path, mask);
            (Gid::from(local), on_link)
        });
        if mask.contains(AttrMask::AV) && source.is_none() {
            // It was there a moment ago.
            return Err(Error::Invalid("the source GID's address is gone"));
        }
        let changed = self.ask(QueuePairControl::Modify {
            attributes: *attributes,
            mask,
            source,
        });
        if changed.is_ok() && mask.contains(AttrMask::STATE) && attributes.state == QpState::Reset {
            for cq in self.uses.send_cq.iter().chain(&self.uses.recv_cq) {
                cq.purge(self.shared.number);
            }
        }
        changed.map(|_| ())
    }

    /// Limits the rate of its requests, as `ibv_modify_qp_rate_limit(3)`: to `kbps` kilobits per
    /// second (0 is no limit) in bursts of at most `burst_max` bytes (0: what the rate gives in a
    /// millisecond, and that is the most).
    ///
    /// The limit counts the bytes of packets from the BTH to the padding. Acknowledgements and
    /// responses to READs are not limited. A transition to RESET ends the limit.
    ///
    /// # Errors
    /// `EINVAL` outside of RTS, for datagrams and targets of extended connections, and above
    /// [`RATE_LIMIT_KBPS_MAX`](crate::RATE_LIMIT_KBPS_MAX). `ENODEV` in a child after fork.
    pub fn limit_rate(&self, kbps: u32, burst_max: u32) -> Result<(), Error> {
        self.core().check_process()?;
        self.ask(QueuePairControl::LimitRate { kbps, burst_max })?;
        Ok(())
    }

    /// The attributes now.
    ///
    /// # Errors
    /// `EINVAL` after [`Qp::destroy`], `ENODEV` in a child after fork.
    pub fn query(&self) -> Result<QpAttributes, Error> {
        self.core().check_process()?;
        let Reply::Attributes { attributes } = self.ask(QueuePairControl::Query)? else {
            return Err(WRONG_REPLY);
        };
        Ok(attributes)
    }

    /// Posts one send work request: `begin_post_send`, `push`, and the doorbell.
    ///
    /// # Errors
    /// As [`SendPost::push`].
    pub fn post_send(&self, wr: &SendWr<'_>) -> Result<(), Error> {
        self.begin_post_send().push(wr)
    }

    /// Posts one receive work request.
    ///
    /// # Errors
    /// As [`RecvPost::push`].
    pub fn post_recv(&self, wr: &RecvWr<'_>) -> Result<(), Error> {
        self.begin_post_recv().push(wr)
    }

    /// Starts a list of send work requests. Dropping it rings the doorbell once for all of them.
    pub fn begin_post_send(&self) -> SendPost<'_> {
        SendPost::new(self)
    }

    /// Starts a batch of send work requests that are posted all together or not at all.
    pub fn begin_batch(&self) -> SendBatch<'_> {
        SendBatch::new(self)
    }

    /// Starts a list of receive work requests.
    pub fn begin_post_recv(&self) -> RecvPost<'_> {
        RecvPost::new(self)
    }

    /// Destroys the queue pair. When it returns the worker no longer uses it; outstanding work
    /// requests vanish. Completions already in the completion queues stay readable, as with rxe.
    /// Asynchronous events not yet fetched are removed from the queue.
    ///
    /// # Errors
    /// `EBUSY` while it is attached to a multicast group; `ENODEV` in a child after fork; a second
    /// call does nothing.
    pub fn destroy(&self) -> Result<(), Error> {
        let core = self.core();
        core.check_process()?;
        if !self.ask_yes_no(QueuePairControl::Retire)? {
            return Ok(());
        }
        self.shared.state.set_gone();
        // What it still owes its peer, acknowledgements above all, leaves first.
        for _ in 0..LAST_ACK_REPEATS {
            self.ask(QueuePairControl::RepeatLastAnswer)?;
        }
        self.ask(QueuePairControl::Destroy)?;
        let number = self.shared.number;
        self.device
            .events
            .retain(|&(owner, _)| owner != EventOwner::Qp(number));
        self.uses.release();
        Ok(())
    }

    /// Detaches it from all multicast groups.
    pub fn detach_all(&self) {
        // A queue pair that is gone is attached to none.
        if self
            .ask_yes_no(QueuePairControl::IsAttached)
            .is_ok_and(|yes| yes)
        {
            self.ask(QueuePairControl::DetachAll).ok();
        }
    }

    /// Whether the peer has answered all that was posted, or never will.
    pub(crate) fn is_finished(&self) -> bool {
        self.ask_yes_no(QueuePairControl::IsFinished)
            .is_ok_and(|yes| yes)
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.device.core()
    }
}

/// Repetitions of a destroyed queue pair's last acknowledgement: a network that loses one packet in
/// a hundred loses all of them once in a million times.
const LAST_ACK_REPEATS: usize = 2;

impl Drop for Qp {
    fn drop(&mut self) {
        if self.qp_type() == QpType::Ud && self.core().is_ours() {
            self.detach_all();
        }
        self.destroy().ok();
    }
}

/// What a queue pair keeps others from being destroyed.
struct Uses {
    pd: Option<Arc<Pd>>,
    send_cq: Option<Arc<Cq>>,
    recv_cq: Option<Arc<Cq>>,
    srq: Option<Arc<Srq>>,
    xrcd: Option<Arc<Xrcd>>,
    /// Not counted, or not any more.
    released: AtomicBool,
}

impl Uses {
    fn counts(&self) -> impl Iterator<Item = (&UseCount, &'static str)> {
        let pd = self.pd.as_ref();
        let pd = pd.map(|pd| (&pd.users, "the protection domain"));
        let send_cq = self.send_cq.as_ref();
        let send_cq = send_cq.map(|cq| (&cq.users, "the send completion queue"));
        let recv_cq = self.recv_cq.as_ref();
        let recv_cq = recv_cq.map(|cq| (&cq.users, "the receive completion queue"));
        let srq = self.srq.as_ref();
        let srq = srq.map(|srq| (&srq.users, "the shared receive queue"));
        let xrcd = self.xrcd.as_ref();
        let xrcd = xrcd.map(|xrcd| (&xrcd.users, "the domain of extended connections"));
        [pd, send_cq, recv_cq, srq, xrcd].into_iter().flatten()
    }

    fn check_device(&self, device: &Device) -> Result<(), Error> {
        let cqs = self.send_cq.iter().chain(&self.recv_cq);
        let same = cqs.map(|cq| &cq.device).all(|of| device.is_same_worker(of))
            && (self.srq.iter()).all(|srq| device.is_same_worker(&srq.pd.device));
        if same {
            Ok(())
        } else {
            Err(Error::Invalid(
                "the completion queues or the shared receive queue belong to another device",
            ))
        }
    }

    fn acquire(self) -> Result<Self, Error> {
        for (at, (count, object)) in self.counts().enumerate() {
            if let Err(error) = count.acquire(object) {
                self.counts()
                    .take(at)
                    .for_each(|(count, _)| count.release());
                return Err(error);
            }
        }
        self.released.store(false, Ordering::Release);
        Ok(self)
    }

    fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            self.counts().for_each(|(count, _)| count.release());
        }
    }
}

impl Drop for Uses {
    fn drop(&mut self) {
        self.release();
    }
}

/// Makes the queues, and has the worker enter the queue pair into its table.
fn insert(device: &Arc<Device>, init: QueuePairInit) -> Result<Arc<QpShared>, Error> {
    let core = device.core();
    let raw = if init.qp_type == QpType::RawPacket {
        Some(open_raw(core.info.interface_index)?)
    } else {
        None
    };
    let memory = |(slots, stride): (u32, u32)| -> Result<(RingProducer, RingConsumer), Error> {
        ring(&core.arena, slots.max(1), stride)
            .map_err(|error| Error::system("memory for a queue pair", &error))
    };
    let caps = init.caps;
    let send = memory((
        caps.max_send_wr,
        SendWqe::stride(caps.max_send_sge, caps.max_inline),
    ))?;
    let recv = memory((caps.max_recv_wr, RecvWqe::stride(caps.max_recv_sge)))?;
    let init = QueuePairInit {
        caps: caps.granted(&send.0, &recv.0),
        ..init
    };
    let mut made = None;
    let beside = Beside::QueuePair(NewQueuePair {
        send,
        recv,
        events: Arc::clone(&device.events),
        raw,
        made: &mut made,
    });
    core.ask_with(Control::CreateQueuePair { init }, beside)?;
    made.ok_or(WRONG_REPLY)
}

/// Opens the socket of a queue pair for raw packets.
///
/// # Errors
/// `EPERM` without CAP_NET_RAW.
fn open_raw(interface_index: u32) -> Result<RawSocket, Error> {
    RawSocket::open(interface_index).map_err(|error| {
        Error::system(
            "a queue pair for raw packets (they need CAP_NET_RAW)",
            &error,
        )
    })
}

/// What the transport cannot check, because it depends on the device.
pub(crate) fn check_attributes(
    core: &Core,
    attributes: &QpAttributes,
    mask: AttrMask,
) -> Result<(), Error> {
    if mask.contains(AttrMask::AV) {
        check_path(core, &attributes.path)?;
    }
    if mask.contains(AttrMask::PATH_MTU) && attributes.path_mtu > core.current().path_mtu {
        return Err(Error::Invalid(
            "the path MTU is above the port's: see active_mtu, and AIRDMA_MTU for a larger one",
        ));
    }
    if mask.contains(AttrMask::PORT) && attributes.port != LIMITS.ports {
        return Err(Error::Invalid("the device has port 1 only"));
    }
    if mask.contains(AttrMask::PKEY_INDEX) && attributes.pkey_index >= LIMITS.max_pkeys {
        return Err(Error::Invalid("the P_Key table has entry 0 only"));
    }
    Ok(())
}
