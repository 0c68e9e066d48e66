//! The attributes of each transition of each service.
//!
//! The tables follow `ibv_modify_qp(3)` and IBTA 11.2.5.2 (extended connections: A14.5): a
//! transition has required and optional attributes; all others are refused.

use crate::attributes::{AttrMask, QpState, QpType};

/// Required and optional attributes of a transition, `IBV_QP_STATE` aside; `None` if there is no
/// such transition.
pub(crate) fn transition(
    qp_type: QpType,
    from: QpState,
    to: QpState,
) -> Option<(AttrMask, AttrMask)> {
    if to == QpState::Reset || to == QpState::Error {
        return Some((AttrMask::empty(), AttrMask::CUR_STATE));
    }
    match qp_type {
        QpType::Rc => connected(&RC, from, to),
        QpType::Uc => connected(&UC, from, to),
        QpType::XrcSend => connected(&XRC_SEND, from, to),
        QpType::XrcReceive => connected(&XRC_RECEIVE, from, to),
        QpType::Ud => datagram(from, to),
        QpType::RawPacket => raw(from, to),
    }
}

/// Raw packets take a port and nothing else. Their send queue is never drained, since nothing stays
/// in flight.
fn raw(from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Init, ReadyToReceive, ReadyToSend, Reset};
    let none = AttrMask::empty();
    match (from, to) {
        (Reset, Init) => Some((AttrMask::PORT, none)),
        (Init, Init) => Some((none, AttrMask::PORT)),
        (Init, ReadyToReceive) => Some((none, none)),
        (ReadyToReceive | ReadyToSend, ReadyToSend) => {
            Some((none, AttrMask::CUR_STATE | AttrMask::RATE_LIMIT))
        }
        _ => None,
    }
}

/// Attributes of one kind of connection beyond those of all.
struct Connection {
    /// In the transition to ready-to-receive.
    receive: AttrMask,
    /// In the transition to ready-to-send.
    send: AttrMask,
    /// May change in ready-to-send.
    running: AttrMask,
    /// May change while the send queue is drained.
    drained: AttrMask,
    /// May be given when a stopped send queue restarts; `None` if it never stops alone.
    restart: Option<AttrMask>,
}

const BASE: AttrMask = AttrMask::PKEY_INDEX
    .union(AttrMask::PORT)
    .union(AttrMask::ACCESS_FLAGS);

/// Attributes of the responder of a reliable connection.
const ANSWERS: AttrMask = AttrMask::MAX_DEST_RD_ATOMIC.union(AttrMask::MIN_RNR_TIMER);

/// Attributes of the requester of a reliable connection.
const RETRIES: AttrMask = AttrMask::MAX_QP_RD_ATOMIC
    .union(AttrMask::RETRY_CNT)
    .union(AttrMask::RNR_RETRY)
    .union(AttrMask::TIMEOUT);

const RC: Connection = Connection {
    receive: ANSWERS,
    send: RETRIES,
    running: AttrMask::MIN_RNR_TIMER.union(AttrMask::RATE_LIMIT),
    drained: AttrMask::PORT.union(ANSWERS).union(RETRIES),
    restart: None,
};

const UC: Connection = Connection {
    receive: AttrMask::empty(),
    send: AttrMask::empty(),
    running: AttrMask::RATE_LIMIT,
    drained: AttrMask::empty(),
    restart: Some(AttrMask::CUR_STATE.union(AttrMask::ACCESS_FLAGS)),
};

const XRC_SEND: Connection = Connection {
    receive: AttrMask::empty(),
    send: RETRIES,
    running: AttrMask::RATE_LIMIT,
    drained: AttrMask::PORT.union(RETRIES),
    restart: None,
};

const XRC_RECEIVE: Connection = Connection {
    receive: ANSWERS,
    send: AttrMask::TIMEOUT,
    running: AttrMask::MIN_RNR_TIMER,
    drained: AttrMask::PORT.union(ANSWERS).union(AttrMask::TIMEOUT),
    restart: None,
};

fn connected(kind: &Connection, from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
    let none = AttrMask::empty();
    let migration = AttrMask::ALT_PATH | AttrMask::PATH_MIG_STATE;
    let running = AttrMask::CUR_STATE | AttrMask::ACCESS_FLAGS | migration | kind.running;
    Some(match (from, to) {
        (Reset, Init) => (BASE, none),
        (Init, Init) => (none, BASE),
        (Init, ReadyToReceive) => (
            AttrMask::AV
                | AttrMask::PATH_MTU
                | AttrMask::DEST_QPN
                | AttrMask::RQ_PSN
                | kind.receive,
            AttrMask::PKEY_INDEX | AttrMask::ACCESS_FLAGS | AttrMask::ALT_PATH,
        ),
        (ReadyToReceive, ReadyToSend) => (AttrMask::SQ_PSN | kind.send, running),
        (ReadyToSend, ReadyToSend) | (SendQueueDrain, ReadyToSend) => (none, running),
        (SendQueueError, ReadyToSend) => (none, kind.restart?),
        (ReadyToSend, SendQueueDrain) => (none, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrain, SendQueueDrain) => (
            none,
            AttrMask::PKEY_INDEX | AttrMask::ACCESS_FLAGS | AttrMask::AV | migration | kind.drained,
        ),
        _ => return None,
    })
}

fn datagram(from: QpState, to: QpState) -> Option<(AttrMask, AttrMask)> {
    use QpState::{Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrain, SendQueueError};
    let none = AttrMask::empty();
    let base = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY;
    let running = AttrMask::CUR_STATE | AttrMask::QKEY;
    Some(match (from, to) {
        (Reset, Init) => (base, none),
        (Init, Init) => (none, base),
        (Init, ReadyToReceive) => (none, AttrMask::PKEY_INDEX | AttrMask::QKEY),
        (ReadyToReceive, ReadyToSend) => (AttrMask::SQ_PSN, running),
        (ReadyToSend | SendQueueDrain | SendQueueError, ReadyToSend) => (none, running),
        (ReadyToSend, SendQueueDrain) => (none, AttrMask::EN_SQD_ASYNC_NOTIFY),
        (SendQueueDrain, SendQueueDrain) => (none, AttrMask::PKEY_INDEX | AttrMask::QKEY),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;
