//! Which attributes each transition of each service takes.
//!
//! The tables follow `ibv_modify_qp(3)` and IBTA 11.2.5.2 (extended connections: A14.5): a transition names the
//! attributes that must be given and those that may be; anything else is refused.

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

/// Raw packets take a port and nothing else. Their send queue is never drained, since nothing of it stays under way.
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

/// What one kind of connection asks for beyond what all do.
struct Connection {
    /// On the way to ready-to-receive.
    receive: AttrMask,
    /// On the way to ready-to-send.
    send: AttrMask,
    /// May change while it runs.
    running: AttrMask,
    /// May change while its send queue is drained.
    drained: AttrMask,
    /// May be given when a stopped send queue is restarted; `None` if that never stops alone.
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
mod tests {
    use super::*;
    use crate::attributes::{InvalidAttribute, QpAttributes};

    fn in_state(state: QpState) -> QpAttributes {
        QpAttributes {
            state,
            ..QpAttributes::default()
        }
    }

    fn to_state(state: QpState) -> QpAttributes {
        in_state(state)
    }

    const RTR: AttrMask = AttrMask::STATE
        .union(AttrMask::AV)
        .union(AttrMask::PATH_MTU)
        .union(AttrMask::DEST_QPN)
        .union(AttrMask::RQ_PSN)
        .union(AttrMask::MAX_DEST_RD_ATOMIC)
        .union(AttrMask::MIN_RNR_TIMER);

    #[test]
    fn each_required_attribute_of_ready_to_receive_is_missed() {
        let init = in_state(QpState::Init);
        let rtr = to_state(QpState::ReadyToReceive);
        assert_eq!(
            init.check(QpType::Rc, &rtr, RTR),
            Ok(QpState::ReadyToReceive)
        );
        for flag in RTR - AttrMask::STATE {
            assert_eq!(
                init.check(QpType::Rc, &rtr, RTR - flag),
                Err(InvalidAttribute::Missing(flag))
            );
        }
    }

    #[test]
    fn an_attribute_too_many_is_refused() {
        let init = in_state(QpState::Init);
        let rtr = to_state(QpState::ReadyToReceive);
        assert_eq!(
            init.check(QpType::Rc, &rtr, RTR | AttrMask::SQ_PSN),
            Err(InvalidAttribute::Unexpected(AttrMask::SQ_PSN))
        );
        assert_eq!(
            init.check(QpType::Ud, &rtr, AttrMask::STATE | AttrMask::AV),
            Err(InvalidAttribute::Unexpected(AttrMask::AV))
        );
    }

    #[test]
    fn states_cannot_be_skipped_but_reset_and_error_are_always_reached() {
        let reset = in_state(QpState::Reset);
        for to in [
            QpState::ReadyToReceive,
            QpState::ReadyToSend,
            QpState::SendQueueDrain,
        ] {
            assert_eq!(
                reset.check(QpType::Rc, &to_state(to), AttrMask::STATE),
                Err(InvalidAttribute::Transition {
                    from: QpState::Reset,
                    to
                })
            );
        }
        for from in 0..=6 {
            let from = in_state(QpState::from_number(from).unwrap());
            for to in [QpState::Reset, QpState::Error] {
                assert_eq!(
                    from.check(QpType::Rc, &to_state(to), AttrMask::STATE),
                    Ok(to)
                );
            }
        }
    }

    #[test]
    fn states_are_the_numbers_of_ibv_qp_state() {
        for number in 0..=6 {
            let state = QpState::from_number(number).map(|state| state as u32);
            assert_eq!(state, Some(number));
        }
        assert_eq!(QpState::from_number(7), None);
    }

    #[test]
    fn only_unreliable_queue_pairs_recover_from_a_send_queue_error() {
        let broken = in_state(QpState::SendQueueError);
        let rts = to_state(QpState::ReadyToSend);
        for qp_type in [QpType::Ud, QpType::Uc] {
            assert_eq!(
                broken.check(qp_type, &rts, AttrMask::STATE),
                Ok(QpState::ReadyToSend)
            );
        }
        for qp_type in [QpType::Rc, QpType::XrcSend, QpType::XrcReceive] {
            assert!(broken.check(qp_type, &rts, AttrMask::STATE).is_err());
        }
    }

    #[test]
    fn values_out_of_range_and_a_wrong_current_state_are_refused() {
        let rts = in_state(QpState::ReadyToSend);
        let mut new = to_state(QpState::ReadyToSend);
        new.min_rnr_timer = 32;
        assert_eq!(
            rts.check(QpType::Rc, &new, AttrMask::MIN_RNR_TIMER),
            Err(InvalidAttribute::OutOfRange(AttrMask::MIN_RNR_TIMER))
        );
        new.cur_state = QpState::SendQueueDrain;
        assert_eq!(
            rts.check(QpType::Rc, &new, AttrMask::CUR_STATE),
            Err(InvalidAttribute::CurrentState(QpState::ReadyToSend))
        );
    }

    /// What each kind of connection must be given beyond what all are, as `ib_modify_qp_is_ok` of Linux has it.
    #[test]
    fn each_kind_of_connection_needs_what_its_halves_use() {
        let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        let retries = AttrMask::MAX_QP_RD_ATOMIC
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::TIMEOUT;
        let none = AttrMask::empty();
        let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let kinds = [
            (QpType::Rc, answers, retries),
            (QpType::Uc, none, none),
            (QpType::XrcSend, none, retries),
            (QpType::XrcReceive, answers, AttrMask::TIMEOUT),
        ];
        for (qp_type, receive, send) in kinds {
            let missing = |from, to, given| {
                in_state(from).check(qp_type, &to_state(to), AttrMask::STATE | given)
            };
            let (init, rtr, rts) = (QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend);
            assert_eq!(
                missing(init, rtr, none),
                Err(InvalidAttribute::Missing(path | receive))
            );
            assert_eq!(missing(init, rtr, path | receive), Ok(rtr));
            assert_eq!(
                missing(rtr, rts, none),
                Err(InvalidAttribute::Missing(AttrMask::SQ_PSN | send))
            );
            assert_eq!(missing(rtr, rts, AttrMask::SQ_PSN | send), Ok(rts));
            let drained = in_state(QpState::SendQueueDrain);
            for (mask, taken) in [
                (AttrMask::AV, true),
                (AttrMask::TIMEOUT, !send.is_empty()),
                (AttrMask::RETRY_CNT, send == retries),
                (AttrMask::MIN_RNR_TIMER, !receive.is_empty()),
                (AttrMask::PORT, qp_type != QpType::Uc),
            ] {
                let checked = drained.check(qp_type, &drained, mask);
                assert_eq!(checked.is_ok(), taken, "{qp_type:?} {mask:?}");
            }
        }
    }

    #[test]
    fn raw_packets_take_a_port_and_nothing_else() {
        let mut at = QpAttributes::default();
        for (to, mask) in [
            (QpState::Init, AttrMask::PORT),
            (QpState::ReadyToReceive, AttrMask::empty()),
            (QpState::ReadyToSend, AttrMask::empty()),
        ] {
            let extra = AttrMask::STATE | mask | AttrMask::PKEY_INDEX;
            assert!(at.check(QpType::RawPacket, &to_state(to), extra).is_err());
            let given = AttrMask::STATE | mask;
            assert_eq!(at.check(QpType::RawPacket, &to_state(to), given), Ok(to));
            at.state = to;
        }
        let init = in_state(QpState::Init);
        let again = init.check(QpType::RawPacket, &init, AttrMask::PORT);
        assert_eq!(again, Ok(QpState::Init));
        let drain = to_state(QpState::SendQueueDrain);
        assert!(
            at.check(QpType::RawPacket, &drain, AttrMask::STATE)
                .is_err()
        );
    }
}
