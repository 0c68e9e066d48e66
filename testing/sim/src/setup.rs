//! Connection of two queue pairs: the attributes of `ibv_modify_qp(3)`, with perftest's defaults.

use airdma_transport::{Access, AttrMask, Path, QpAttributes, QpState, QpType};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::endpoint::Endpoint;
use crate::pair::Side;

/// Attributes of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// Path MTU.
    pub mtu: PathMtu,
    /// Local ACK timeout: 4.096 us x 2^timeout.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_count: u8,
    /// Retries after RNR NAKs, 7 is for ever.
    pub rnr_retry: u8,
    /// Timer code of RNR NAKs.
    pub min_rnr_timer: u8,
    /// READs and atomics in flight, as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics in flight, as responder.
    pub max_dest_rd_atomic: u8,
    /// First PSN that A sends, and that B sends.
    pub first_psns: [Psn; 2],
    /// Operations that the peer may use.
    pub access: Access,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            mtu: PathMtu::M1024,
            // 1.05 ms, far above the delays of most simulations.
            timeout: 8,
            retry_count: 7,
            rnr_retry: 7,
            // 640 us.
            min_rnr_timer: 12,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            first_psns: [Psn::new(0x10), Psn::new(0x00ab_cdef)],
            access: Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC,
        }
    }
}

impl Setup {
    fn attributes(&self, side: Side, peer: &Endpoint, peer_qpn: Qpn) -> QpAttributes {
        QpAttributes {
            path_mtu: self.mtu,
            rq_psn: self.first_psns[side.other() as usize],
            sq_psn: self.first_psns[side as usize],
            dest_qpn: peer_qpn,
            access: self.access,
            path: path_to(peer),
            port: 1,
            max_rd_atomic: self.max_rd_atomic,
            max_dest_rd_atomic: self.max_dest_rd_atomic,
            min_rnr_timer: self.min_rnr_timer,
            timeout: self.timeout,
            retry_count: self.retry_count,
            rnr_retry: self.rnr_retry,
            ..QpAttributes::default()
        }
    }

    /// Moves a connected queue pair to `state`.
    pub(crate) fn apply(
        &self,
        side: Side,
        endpoints: &mut [Endpoint; 2],
        qp: usize,
        state: QpState,
    ) {
        let peer = &endpoints[side.other() as usize];
        let attributes = self.attributes(side, peer, peer.queue_pair(qp).qpn());
        let endpoint = &mut endpoints[side as usize];
        let qp_type = endpoint.queue_pair(qp).qp_type();
        move_through(endpoint, qp, attributes, connection_states(qp_type), state);
    }
}

/// The path to another endpoint.
pub(crate) fn path_to(peer: &Endpoint) -> Path {
    Path {
        gid: peer.address().into(),
        hop_limit: 64,
        ..Path::default()
    }
}

/// Moves a datagram queue pair from reset to ready-to-send.
pub(crate) fn start_datagrams(endpoint: &mut Endpoint, qp: usize, qkey: Qkey, first_psn: Psn) {
    let attributes = QpAttributes {
        qkey,
        port: 1,
        sq_psn: first_psn,
        ..QpAttributes::default()
    };
    move_through(endpoint, qp, attributes, UD_STATES, QpState::ReadyToSend);
}

fn move_through(
    endpoint: &mut Endpoint,
    qp: usize,
    attributes: QpAttributes,
    states: [(QpState, AttrMask); 3],
    last: QpState,
) {
    let present = endpoint.queue_pair(qp).state() as u8;
    for (state, mask) in states {
        if state as u8 <= present || state as u8 > last as u8 {
            continue;
        }
        let attributes = QpAttributes {
            state,
            ..attributes
        };
        endpoint
            .modify(qp, &attributes, mask | AttrMask::STATE)
            .expect("the attributes that the transition demands");
    }
}

/// Attributes of each state of a connection; each half has those that it uses.
fn connection_states(qp_type: QpType) -> [(QpState, AttrMask); 3] {
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let retries =
        AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::TIMEOUT;
    let none = AttrMask::empty();
    let (receive, send) = match qp_type {
        QpType::Rc => (answers, retries),
        QpType::XrcSend => (none, retries),
        QpType::XrcReceive => (answers, AttrMask::TIMEOUT),
        QpType::Uc | QpType::Ud | QpType::RawPacket => (none, none),
    };
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    [
        (QpState::Init, init),
        (QpState::ReadyToReceive, path | receive),
        (QpState::ReadyToSend, AttrMask::SQ_PSN | send),
    ]
}

const UD_STATES: [(QpState, AttrMask); 3] = [
    (
        QpState::Init,
        AttrMask::PKEY_INDEX
            .union(AttrMask::PORT)
            .union(AttrMask::QKEY),
    ),
    (QpState::ReadyToReceive, AttrMask::empty()),
    (QpState::ReadyToSend, AttrMask::SQ_PSN),
];
