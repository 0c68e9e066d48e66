//! Queue pair attributes and states. `transition.rs` has the attributes of each transition.

use airdma_wire::{PathMtu, Psn, Qkey, Qpn, Transport};
use bitflags::bitflags;

use crate::transition::transition;
use crate::work::Path;

/// `retry_count` of a requester that never gives up its peer. Verbs have no such value.
pub const RETRY_FOR_EVER: u8 = u8::MAX;

/// Largest number of READs and atomics in flight, in either direction.
pub const RD_ATOMIC_MAX: u8 = 128;

/// Largest rate limit, in kilobits per second: 1 Tb/s.
pub const RATE_LIMIT_KBPS_MAX: u32 = 1_000_000_000;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection, sending side (the initiator): it has no receive queue.
    XrcSend,
    /// Extended reliable connection, receiving side (the target).
    ///
    /// It has no queues: each message names the shared receive queue that it goes to.
    XrcReceive,
    /// Raw frames of the link, which the host sends: only the states belong to the protocol.
    RawPacket,
}

impl QpType {
    /// The opcode class of its packets.
    pub(crate) const fn transport(self) -> Transport {
        match self {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            // Raw packets have no opcodes; their host passes in no others.
            QpType::Ud | QpType::RawPacket => Transport::Ud,
            QpType::XrcSend | QpType::XrcReceive => Transport::Xrc,
        }
    }

    /// Whether it has one peer, named by its path and `dest_qpn`.
    pub const fn is_connected(self) -> bool {
        match self {
            QpType::Rc | QpType::Uc | QpType::XrcSend | QpType::XrcReceive => true,
            QpType::Ud | QpType::RawPacket => false,
        }
    }
}

/// State of a queue pair; the numbers are those of `ibv_qp_state`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just created.
    #[default]
    Reset = 0,
    /// Receives may be posted.
    Init = 1,
    /// Answers requests of its peer.
    ReadyToReceive = 2,
    /// Also sends requests.
    ReadyToSend = 3,
    /// Finishes requests in progress, starts no new ones.
    SendQueueDrain = 4,
    /// Send queue of an unreliable service stopped by an error; receives go on.
    SendQueueError = 5,
    /// Everything is flushed.
    Error = 6,
}

impl QpState {
    /// The state with this `ibv_qp_state` number.
    pub const fn from_number(number: u32) -> Option<Self> {
        Some(match number {
            0 => QpState::Reset,
            1 => QpState::Init,
            2 => QpState::ReadyToReceive,
            3 => QpState::ReadyToSend,
            4 => QpState::SendQueueDrain,
            5 => QpState::SendQueueError,
            6 => QpState::Error,
            _ => return None,
        })
    }

    /// Whether packets from the peer are accepted.
    pub const fn receives(self) -> bool {
        match self {
            QpState::ReadyToReceive
            | QpState::ReadyToSend
            | QpState::SendQueueDrain
            | QpState::SendQueueError => true,
            QpState::Reset | QpState::Init | QpState::Error => false,
        }
    }

    /// Whether requests are sent and their responses accepted.
    pub const fn sends(self) -> bool {
        match self {
            QpState::ReadyToSend | QpState::SendQueueDrain => true,
            QpState::Reset
            | QpState::Init
            | QpState::ReadyToReceive
            | QpState::SendQueueError
            | QpState::Error => false,
        }
    }
}

bitflags! {
    /// Attributes that a modify call sets: `ibv_qp_attr_mask`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// `IBV_QP_STATE`.
        const STATE = 1 << 0;
        /// `IBV_QP_CUR_STATE`.
        const CUR_STATE = 1 << 1;
        /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// `IBV_QP_ACCESS_FLAGS`.
        const ACCESS_FLAGS = 1 << 3;
        /// `IBV_QP_PKEY_INDEX`.
        const PKEY_INDEX = 1 << 4;
        /// `IBV_QP_PORT`.
        const PORT = 1 << 5;
        /// `IBV_QP_QKEY`.
        const QKEY = 1 << 6;
        /// `IBV_QP_AV`.
        const AV = 1 << 7;
        /// `IBV_QP_PATH_MTU`.
        const PATH_MTU = 1 << 8;
        /// `IBV_QP_TIMEOUT`.
        const TIMEOUT = 1 << 9;
        /// `IBV_QP_RETRY_CNT`.
        const RETRY_CNT = 1 << 10;
        /// `IBV_QP_RNR_RETRY`.
        const RNR_RETRY = 1 << 11;
        /// `IBV_QP_RQ_PSN`.
        const RQ_PSN = 1 << 12;
        /// `IBV_QP_MAX_QP_RD_ATOMIC`.
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// `IBV_QP_ALT_PATH`.
        const ALT_PATH = 1 << 14;
        /// `IBV_QP_MIN_RNR_TIMER`.
        const MIN_RNR_TIMER = 1 << 15;
        /// `IBV_QP_SQ_PSN`.
        const SQ_PSN = 1 << 16;
        /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// `IBV_QP_PATH_MIG_STATE`.
        const PATH_MIG_STATE = 1 << 18;
        /// `IBV_QP_CAP`.
        const CAP = 1 << 19;
        /// `IBV_QP_DEST_QPN`.
        const DEST_QPN = 1 << 20;
        /// `IBV_QP_RATE_LIMIT`.
        const RATE_LIMIT = 1 << 25;
    }

    /// Access rights: `ibv_access_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Access: u32 {
        /// Local writes: receives, READ responses.
        const LOCAL_WRITE = 1;
        /// RDMA WRITE by peers.
        const REMOTE_WRITE = 1 << 1;
        /// RDMA READ by peers.
        const REMOTE_READ = 1 << 2;
        /// Atomics by peers.
        const REMOTE_ATOMIC = 1 << 3;
        /// Memory windows may be bound.
        const MW_BIND = 1 << 4;
        /// Remote addresses count from zero.
        const ZERO_BASED = 1 << 5;
        /// Pages may come and go.
        const ON_DEMAND = 1 << 6;
        /// Backed by huge pages.
        const HUGETLB = 1 << 7;
        /// Global flush.
        const FLUSH_GLOBAL = 1 << 8;
        /// Persistent flush.
        const FLUSH_PERSISTENT = 1 << 9;
        /// Writes may be seen out of order.
        const RELAXED_ORDERING = 1 << 20;
    }
}

/// A transition, an attribute or a value that the queue pair refuses: `EINVAL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidAttribute {
    /// This service has no such transition.
    #[error("no transition from {from:?} to {to:?}")]
    Transition {
        /// Present state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Attributes that the transition requires are missing.
    #[error("the transition needs {0:?} as well")]
    Missing(AttrMask),
    /// Attributes were given that the transition does not allow.
    #[error("the transition does not take {0:?}")]
    Unexpected(AttrMask),
    /// The given current state is not the current state.
    #[error("the queue pair is not in the given current state but in {0:?}")]
    CurrentState(QpState),
    /// A value is out of its range.
    #[error("attribute {0:?} is out of range")]
    OutOfRange(AttrMask),
}

/// Attributes of a queue pair: the part of `ibv_qp_attr` that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpAttributes {
    /// State.
    pub state: QpState,
    /// State that the caller believes the queue pair to be in.
    pub cur_state: QpState,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Q_Key of a datagram queue pair.
    pub qkey: Qkey,
    /// First PSN expected.
    pub rq_psn: Psn,
    /// First PSN sent.
    pub sq_psn: Psn,
    /// Peer's queue pair.
    pub dest_qpn: Qpn,
    /// Rights of the peer.
    pub access: Access,
    /// Path to the peer.
    pub path: Path,
    /// Index into the P_Key table.
    pub pkey_index: u16,
    /// Physical port, from 1.
    pub port: u8,
    /// Whether the send queue is draining (read only).
    pub sq_draining: bool,
    /// Largest number of READs and atomics in flight to the peer.
    pub max_rd_atomic: u8,
    /// Largest number of READs and atomics in flight from the peer.
    pub max_dest_rd_atomic: u8,
    /// Timer code of RNR NAKs that are sent (IBTA table 45).
    pub min_rnr_timer: u8,
    /// Local ACK timeout: 4.096 us x 2^timeout, 0 is for ever.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors, 0 to 7, or [`RETRY_FOR_EVER`].
    pub retry_count: u8,
    /// Retries after RNR NAKs, 7 is for ever.
    pub rnr_retry: u8,
    /// Path migration state, kept but without effect.
    pub path_mig_state: u8,
    /// Whether the end of a drain raises an event.
    pub en_sqd_async_notify: bool,
    /// Limit of the rate of requests in kilobits per second, which the host observes; 0 is none.
    pub rate_limit_kbps: u32,
}

impl Default for QpAttributes {
    fn default() -> Self {
        QpAttributes {
            state: QpState::Reset,
            cur_state: QpState::Reset,
            path_mtu: PathMtu::M256,
            qkey: Qkey::default(),
            rq_psn: Psn::default(),
            sq_psn: Psn::default(),
            dest_qpn: Qpn::default(),
            access: Access::empty(),
            path: Path::default(),
            pkey_index: 0,
            port: 0,
            sq_draining: false,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 0,
            timeout: 0,
            retry_count: 0,
            rnr_retry: 0,
            path_mig_state: 0,
            en_sqd_async_notify: false,
            rate_limit_kbps: 0,
        }
    }
}

impl QpAttributes {
    /// Checks a modify call against the present attributes and returns the state it leads to.
    pub(crate) fn check(
        &self,
        qp_type: QpType,
        new: &QpAttributes,
        mask: AttrMask,
    ) -> Result<QpState, InvalidAttribute> {
        if mask.contains(AttrMask::CUR_STATE) && new.cur_state != self.state {
            return Err(InvalidAttribute::CurrentState(self.state));
        }
        let to = if mask.contains(AttrMask::STATE) {
            new.state
        } else {
            self.state
        };
        let (required, optional) =
            transition(qp_type, self.state, to).ok_or(InvalidAttribute::Transition {
                from: self.state,
                to,
            })?;
        let given = mask - AttrMask::STATE;
        let missing = required - given;
        if !missing.is_empty() {
            return Err(InvalidAttribute::Missing(missing));
        }
        let unexpected = given - required - optional;
        if !unexpected.is_empty() {
            return Err(InvalidAttribute::Unexpected(unexpected));
        }
        new.check_ranges(mask)?;
        Ok(to)
    }

    fn check_ranges(&self, mask: AttrMask) -> Result<(), InvalidAttribute> {
        let limits = [
            (AttrMask::TIMEOUT, self.timeout <= 31),
            (
                AttrMask::RETRY_CNT,
                self.retry_count <= 7 || self.retry_count == RETRY_FOR_EVER,
            ),
            (AttrMask::RNR_RETRY, self.rnr_retry <= 7),
            (AttrMask::MIN_RNR_TIMER, self.min_rnr_timer <= 31),
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                self.max_rd_atomic <= RD_ATOMIC_MAX,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                self.max_dest_rd_atomic <= RD_ATOMIC_MAX,
            ),
            (
                AttrMask::RATE_LIMIT,
                self.rate_limit_kbps <= RATE_LIMIT_KBPS_MAX,
            ),
        ];
        for (attribute, holds) in limits {
            if mask.contains(attribute) && !holds {
                return Err(InvalidAttribute::OutOfRange(attribute));
            }
        }
        Ok(())
    }

    /// Copies the attributes in `mask`, except the state.
    pub(crate) fn apply(&mut self, new: &QpAttributes, mask: AttrMask) {
        macro_rules! take {
            ($($flag:ident => $field:ident),* $(,)?) => {
                $(if mask.contains(AttrMask::$flag) { self.$field = new.$field; })*
            };
        }
        take! {
            PATH_MTU => path_mtu, QKEY => qkey, RQ_PSN => rq_psn, SQ_PSN => sq_psn,
            DEST_QPN => dest_qpn, ACCESS_FLAGS => access, AV => path, PKEY_INDEX => pkey_index,
            PORT => port, MAX_QP_RD_ATOMIC => max_rd_atomic,
            MAX_DEST_RD_ATOMIC => max_dest_rd_atomic, MIN_RNR_TIMER => min_rnr_timer,
            TIMEOUT => timeout, RETRY_CNT => retry_count, RNR_RETRY => rnr_retry,
            PATH_MIG_STATE => path_mig_state, EN_SQD_ASYNC_NOTIFY => en_sqd_async_notify,
            RATE_LIMIT => rate_limit_kbps,
        }
    }
}
