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
fn only_reset_and_error_are_reached_from_every_state() {
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

/// Required attributes of each kind of connection, as in `ib_modify_qp_is_ok` of Linux.
#[test]
fn each_kind_of_connection_needs_what_its_halves_use() {
    let answers = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
    let retries =
        AttrMask::MAX_QP_RD_ATOMIC | AttrMask::RETRY_CNT | AttrMask::RNR_RETRY | AttrMask::TIMEOUT;
    let none = AttrMask::empty();
    let path = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let kinds = [
        (QpType::Rc, answers, retries),
        (QpType::Uc, none, none),
        (QpType::XrcSend, none, retries),
        (QpType::XrcReceive, answers, AttrMask::TIMEOUT),
    ];
    for (qp_type, receive, send) in kinds {
        let missing =
            |from, to, given| in_state(from).check(qp_type, &to_state(to), AttrMask::STATE | given);
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

/// All of `ibv_modify_qp(3)` and `ib_modify_qp_is_ok` of Linux: required and optional attributes of
/// each transition.
#[test]
fn every_transition_of_every_service_is_written_down() {
    let states = (0..=6).map(|number| QpState::from_number(number).unwrap());
    let names = |mask: AttrMask| mask.iter_names().map(|(name, _)| format!(" {name}"));
    let mut rows = vec![];
    for qp_type in [
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::XrcSend,
        QpType::XrcReceive,
        QpType::RawPacket,
    ] {
        for (from, to) in states
            .clone()
            .flat_map(|from| states.clone().map(move |to| (from, to)))
        {
            let Some((needs, takes)) = transition(qp_type, from, to) else {
                continue;
            };
            if to == QpState::Reset || to == QpState::Error {
                assert_eq!((needs, takes), (AttrMask::empty(), AttrMask::CUR_STATE));
                continue;
            }
            let (needs, takes): (String, String) = (names(needs).collect(), names(takes).collect());
            rows.push(format!(
                "{qp_type:?} {from:?} to {to:?} needs{needs}; takes{takes}"
            ));
        }
    }
    assert_eq!(rows, TRANSITIONS.lines().collect::<Vec<_>>());
}

/// Without the transitions to reset and error, which every state has.
const TRANSITIONS: &str = "\
Rc Reset to Init needs ACCESS_FLAGS PKEY_INDEX PORT; takes
Rc Init to Init needs; takes ACCESS_FLAGS PKEY_INDEX PORT
Rc Init to ReadyToReceive needs AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN; takes ACCESS_FLAGS PKEY_INDEX ALT_PATH
Rc ReadyToReceive to ReadyToSend needs TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE RATE_LIMIT
Rc ReadyToSend to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE RATE_LIMIT
Rc ReadyToSend to SendQueueDrain needs; takes EN_SQD_ASYNC_NOTIFY
Rc SendQueueDrain to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE RATE_LIMIT
Rc SendQueueDrain to SendQueueDrain needs; takes ACCESS_FLAGS PKEY_INDEX PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH MIN_RNR_TIMER MAX_DEST_RD_ATOMIC PATH_MIG_STATE
Uc Reset to Init needs ACCESS_FLAGS PKEY_INDEX PORT; takes
Uc Init to Init needs; takes ACCESS_FLAGS PKEY_INDEX PORT
Uc Init to ReadyToReceive needs AV PATH_MTU RQ_PSN DEST_QPN; takes ACCESS_FLAGS PKEY_INDEX ALT_PATH
Uc ReadyToReceive to ReadyToSend needs SQ_PSN; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
Uc ReadyToSend to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
Uc ReadyToSend to SendQueueDrain needs; takes EN_SQD_ASYNC_NOTIFY
Uc SendQueueDrain to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
Uc SendQueueDrain to SendQueueDrain needs; takes ACCESS_FLAGS PKEY_INDEX AV ALT_PATH PATH_MIG_STATE
Uc SendQueueError to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS
Ud Reset to Init needs PKEY_INDEX PORT QKEY; takes
Ud Init to Init needs; takes PKEY_INDEX PORT QKEY
Ud Init to ReadyToReceive needs; takes PKEY_INDEX QKEY
Ud ReadyToReceive to ReadyToSend needs SQ_PSN; takes CUR_STATE QKEY
Ud ReadyToSend to ReadyToSend needs; takes CUR_STATE QKEY
Ud ReadyToSend to SendQueueDrain needs; takes EN_SQD_ASYNC_NOTIFY
Ud SendQueueDrain to ReadyToSend needs; takes CUR_STATE QKEY
Ud SendQueueDrain to SendQueueDrain needs; takes PKEY_INDEX QKEY
Ud SendQueueError to ReadyToSend needs; takes CUR_STATE QKEY
XrcSend Reset to Init needs ACCESS_FLAGS PKEY_INDEX PORT; takes
XrcSend Init to Init needs; takes ACCESS_FLAGS PKEY_INDEX PORT
XrcSend Init to ReadyToReceive needs AV PATH_MTU RQ_PSN DEST_QPN; takes ACCESS_FLAGS PKEY_INDEX ALT_PATH
XrcSend ReadyToReceive to ReadyToSend needs TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC SQ_PSN; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
XrcSend ReadyToSend to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
XrcSend ReadyToSend to SendQueueDrain needs; takes EN_SQD_ASYNC_NOTIFY
XrcSend SendQueueDrain to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH PATH_MIG_STATE RATE_LIMIT
XrcSend SendQueueDrain to SendQueueDrain needs; takes ACCESS_FLAGS PKEY_INDEX PORT AV TIMEOUT RETRY_CNT RNR_RETRY MAX_QP_RD_ATOMIC ALT_PATH PATH_MIG_STATE
XrcReceive Reset to Init needs ACCESS_FLAGS PKEY_INDEX PORT; takes
XrcReceive Init to Init needs; takes ACCESS_FLAGS PKEY_INDEX PORT
XrcReceive Init to ReadyToReceive needs AV PATH_MTU RQ_PSN MIN_RNR_TIMER MAX_DEST_RD_ATOMIC DEST_QPN; takes ACCESS_FLAGS PKEY_INDEX ALT_PATH
XrcReceive ReadyToReceive to ReadyToSend needs TIMEOUT SQ_PSN; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE
XrcReceive ReadyToSend to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE
XrcReceive ReadyToSend to SendQueueDrain needs; takes EN_SQD_ASYNC_NOTIFY
XrcReceive SendQueueDrain to ReadyToSend needs; takes CUR_STATE ACCESS_FLAGS ALT_PATH MIN_RNR_TIMER PATH_MIG_STATE
XrcReceive SendQueueDrain to SendQueueDrain needs; takes ACCESS_FLAGS PKEY_INDEX PORT AV TIMEOUT ALT_PATH MIN_RNR_TIMER MAX_DEST_RD_ATOMIC PATH_MIG_STATE
RawPacket Reset to Init needs PORT; takes
RawPacket Init to Init needs; takes PORT
RawPacket Init to ReadyToReceive needs; takes
RawPacket ReadyToReceive to ReadyToSend needs; takes CUR_STATE RATE_LIMIT
RawPacket ReadyToSend to ReadyToSend needs; takes CUR_STATE RATE_LIMIT
";
