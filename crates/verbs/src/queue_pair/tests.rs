#![allow(clippy::unwrap_used)]

use super::*;
use airdma_engine::{Gid, Path};
use std::net::IpAddr;

/// A struct as a careless program leaves it: every byte set.
fn garbage() -> abi::ibv_qp_attr {
    let mut attr = std::mem::MaybeUninit::<abi::ibv_qp_attr>::uninit();
    // SAFETY: plain integers, every bit pattern is valid.
    unsafe {
        attr.as_mut_ptr().write_bytes(0xff, 1);
        attr.assume_init()
    }
}

fn attributes() -> QpAttributes {
    QpAttributes {
        state: QpState::ReadyToSend,
        path_mtu: PathMtu::M2048,
        qkey: Qkey(0x1111_1111),
        rq_psn: Psn::new(5),
        sq_psn: Psn::new(6),
        dest_qpn: Qpn::new(0x123456),
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path: Path {
            gid: Gid::from("10.5.0.2".parse::<IpAddr>().unwrap()),
            sgid_index: 1,
            traffic_class: 4,
            hop_limit: 64,
            flow_label: 0,
        },
        port: 1,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 15,
        min_rnr_timer: 12,
        timeout: 14,
        retry_count: 7,
        rnr_retry: 6,
        ..QpAttributes::default()
    }
}

const ALL: AttrMask = AttrMask::STATE
    .union(AttrMask::PATH_MTU)
    .union(AttrMask::AV)
    .union(AttrMask::PORT)
    .union(AttrMask::PKEY_INDEX)
    .union(AttrMask::ACCESS_FLAGS);

#[test]
fn what_was_set_is_what_is_queried() {
    let cap = abi::ibv_qp_cap {
        max_send_wr: 1,
        max_recv_wr: 2,
        max_send_sge: 3,
        max_recv_sge: 4,
        max_inline_data: 5,
    };
    let c = c_attributes(&attributes(), QpType::Rc, cap);
    assert_eq!(attributes_of(&c, ALL), Ok(attributes()));
    assert_eq!(c.cap.max_inline_data, 5);
}

#[test]
fn fields_outside_the_mask_may_hold_anything() {
    let mut attr = garbage();
    attr.qp_state = abi::IBV_QPS_ERR;
    let out = attributes_of(&attr, AttrMask::STATE).unwrap();
    assert_eq!(out.state, QpState::Error);
}

#[test]
fn each_value_that_does_not_exist_is_refused() {
    let attr = garbage();
    for flag in ALL | AttrMask::CUR_STATE {
        assert_eq!(attributes_of(&attr, flag), Err(Errno::INVALID), "{flag:?}");
    }
}

#[test]
fn an_address_without_grh_is_refused() {
    let mut c = c_attributes(
        &attributes(),
        QpType::Rc,
        abi::ibv_qp_cap {
            max_send_wr: 0,
            max_recv_wr: 0,
            max_send_sge: 0,
            max_recv_sge: 0,
            max_inline_data: 0,
        },
    );
    c.ah_attr.is_global = 0;
    assert_eq!(attributes_of(&c, AttrMask::AV), Err(Errno::INVALID));
}

#[test]
fn later_services_are_unsupported_and_others_invalid() {
    assert_eq!(type_of(abi::IBV_QPT_RC), Ok(QpType::Rc));
    assert_eq!(type_of(abi::IBV_QPT_UD), Ok(QpType::Ud));
    assert_eq!(type_of(abi::IBV_QPT_UC), Ok(QpType::Uc));
    assert_eq!(type_of(abi::IBV_QPT_XRC_RECV), Err(Errno::INVALID));
    assert_eq!(type_of(abi::IBV_QPT_RAW_PACKET), Ok(QpType::RawPacket));
    assert_eq!(type_of(abi::IBV_QPT_DRIVER), Err(Errno::UNSUPPORTED));
    assert_eq!(type_of(1), Err(Errno::INVALID));
}
