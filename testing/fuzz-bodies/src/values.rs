//! Values of a siege: at what is right, around it, and far from it.

use airdma_transport::{Access, AttrMask, MESSAGE_LEN_MAX, QpAttributes, QpState, QpType};
use airdma_wire::{PathMtu, Psn, Qkey, Qpn};

use crate::host::{BASE, Buffer, VAST};
use crate::input::Input;

/// The peer's queue pair.
pub const PEER: Qpn = Qpn::new(0x22);

/// Queue key of datagrams.
pub const QKEY: Qkey = Qkey(0x1234);

/// Attributes that are in range.
pub fn attributes(input: &mut Input<'_>) -> QpAttributes {
    let [psns, counts, retries, access] = input.bytes();
    let edges = [0, 5, 0xff_fffe, 0x80_0000].map(Psn::new);
    QpAttributes {
        path_mtu: PathMtu::ALL[usize::from(psns >> 4) % 5],
        qkey: QKEY,
        rq_psn: edges[usize::from(psns) & 3],
        sq_psn: edges[usize::from(psns >> 2) & 3],
        dest_qpn: PEER,
        access: Access::from_bits_truncate(u32::from(if access < 0x80 { 0xff } else { access })),
        port: 1,
        max_rd_atomic: [0, 1, 2, 16][usize::from(counts) & 3],
        max_dest_rd_atomic: [0, 1, 2, 128][usize::from(counts >> 2) & 3],
        min_rnr_timer: counts >> 3,
        timeout: retries >> 3,
        retry_count: retries & 7,
        rnr_retry: counts & 7,
        en_sqd_async_notify: counts & 1 != 0,
        ..QpAttributes::default()
    }
}

/// Attributes that a transition to `state` requires.
pub fn mask_to(qp_type: QpType, state: QpState) -> AttrMask {
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
    let connected = qp_type.is_connected();
    let mask = match state {
        QpState::Init if connected => {
            AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS
        }
        QpState::Init => AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        QpState::ReadyToReceive if connected => {
            AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN | receive
        }
        QpState::ReadyToSend => AttrMask::SQ_PSN | send,
        QpState::ReadyToReceive
        | QpState::Reset
        | QpState::SendQueueDrain
        | QpState::SendQueueError
        | QpState::Error => none,
    };
    mask | AttrMask::STATE
}

/// A sequence number at or around `psn`, or at the edges of its window.
pub fn near(psn: Psn, input: &mut Input<'_>) -> Psn {
    let away: i32 = match input.below(16) {
        0..=9 => 0,
        10 => 1,
        11 => -1,
        12 => i32::from(input.byte()) - 128,
        13 => input.pick(&[0x7f_ffff, -0x80_0000, 0x7f_fffe, -0x7f_ffff]),
        14 => -i32::from(input.byte() & 7),
        _ => input.u32().cast_signed(),
    };
    psn.add(away.cast_unsigned())
}

/// A key: one that opens something, or none.
pub fn key(input: &mut Input<'_>) -> u32 {
    match input.below(8) {
        0..=2 => 0x1100,
        3 => 0x1200,
        4 => 0x1300,
        5 | 6 => VAST,
        _ => input.pick(&[0, 1, 0x1101, u32::MAX]),
    }
}

/// An address at or around the edges of the regions.
pub fn address(input: &mut Input<'_>) -> u64 {
    match input.below(4) {
        0 | 1 => BASE + 1024 + 8 * u64::from(input.byte()),
        2 => BASE.wrapping_add(input.number(&[0, 1024, 7 * 1024, 8 * 1024, 10 * 1024, 11 * 1024])),
        _ => input.number(&[BASE, 0, u64::MAX, 1 << 63]),
    }
}

/// A length of a message: at the edges of packets, or any.
pub fn length(input: &mut Input<'_>, mtu: u32) -> u32 {
    match input.below(8) {
        0 => 0,
        1 => mtu,
        2 => mtu + 1,
        3 => u32::from(input.byte()),
        4 => u32::from(input.u16()) % (8 * mtu),
        5 => 64 * 1024 + mtu,
        6 => MESSAGE_LEN_MAX - u32::from(input.byte() & 3),
        _ => input.u32(),
    }
}

/// Memory of a request's data, mostly registered.
pub fn buffer(input: &mut Input<'_>, mtu: u32) -> Buffer {
    let key = key(input);
    let length = length(input, mtu).min(MESSAGE_LEN_MAX);
    Buffer {
        key,
        va: address(input),
        length,
    }
}
