//! Translation of the kernel's structs, which librdmacm hands through. Field by field: the names
//! match.

use crate::abi;

/// `ibv_copy_ah_attr_from_kern`.
pub unsafe fn copy_ah_attr(dst: *mut abi::ibv_ah_attr, src: *mut abi::ib_uverbs_ah_attr) {
    // SAFETY: the caller's structs.
    if let (Some(dst), Some(src)) = unsafe { (dst.as_mut(), src.as_ref()) } {
        *dst = ah_attr(src);
    }
}

/// `ibv_copy_qp_attr_from_kern`.
pub unsafe fn copy_qp_attr(dst: *mut abi::ibv_qp_attr, src: *mut abi::ib_uverbs_qp_attr) {
    // SAFETY: the caller's structs.
    let (Some(dst), Some(src)) = (unsafe { (dst.as_mut(), src.as_ref()) }) else {
        return;
    };
    *dst = abi::ibv_qp_attr {
        // Not part of the kernel's struct; the caller sets it.
        qp_state: dst.qp_state,
        cur_qp_state: src.cur_qp_state,
        path_mtu: src.path_mtu,
        path_mig_state: src.path_mig_state,
        qkey: src.qkey,
        rq_psn: src.rq_psn,
        sq_psn: src.sq_psn,
        dest_qp_num: src.dest_qp_num,
        qp_access_flags: src.qp_access_flags,
        cap: abi::ibv_qp_cap {
            max_send_wr: src.max_send_wr,
            max_recv_wr: src.max_recv_wr,
            max_send_sge: src.max_send_sge,
            max_recv_sge: src.max_recv_sge,
            max_inline_data: src.max_inline_data,
        },
        ah_attr: ah_attr(&src.ah_attr),
        alt_ah_attr: ah_attr(&src.alt_ah_attr),
        pkey_index: src.pkey_index,
        alt_pkey_index: src.alt_pkey_index,
        en_sqd_async_notify: src.en_sqd_async_notify,
        sq_draining: src.sq_draining,
        max_rd_atomic: src.max_rd_atomic,
        max_dest_rd_atomic: src.max_dest_rd_atomic,
        min_rnr_timer: src.min_rnr_timer,
        port_num: src.port_num,
        timeout: src.timeout,
        retry_cnt: src.retry_cnt,
        rnr_retry: src.rnr_retry,
        alt_port_num: src.alt_port_num,
        alt_timeout: src.alt_timeout,
        rate_limit: dst.rate_limit,
    };
}

/// `ibv_copy_path_rec_from_kern`.
pub unsafe fn copy_path_from(dst: *mut abi::ibv_sa_path_rec, src: *mut abi::ib_user_path_rec) {
    // SAFETY: the caller's structs.
    let (Some(dst), Some(src)) = (unsafe { (dst.as_mut(), src.as_ref()) }) else {
        return;
    };
    *dst = abi::ibv_sa_path_rec {
        dgid: abi::ibv_gid { raw: src.dgid },
        sgid: abi::ibv_gid { raw: src.sgid },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_signed(),
        flow_label: src.flow_label,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        reversible: src.reversible.cast_signed(),
        numb_path: src.numb_path,
        pkey: src.pkey,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        mtu: src.mtu as u8,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}

/// `ibv_copy_path_rec_to_kern`.
pub unsafe fn copy_path_to(dst: *mut abi::ib_user_path_rec, src: *mut abi::ibv_sa_path_rec) {
    // SAFETY: the caller's structs; every bit pattern is a GID.
    let (Some(dst), Some(src)) = (unsafe { (dst.as_mut(), src.as_ref()) }) else {
        return;
    };
    *dst = abi::ib_user_path_rec {
        // SAFETY: as above.
        dgid: unsafe { src.dgid.raw },
        // SAFETY: as above.
        sgid: unsafe { src.sgid.raw },
        dlid: src.dlid,
        slid: src.slid,
        raw_traffic: src.raw_traffic.cast_unsigned(),
        flow_label: src.flow_label,
        reversible: src.reversible.cast_unsigned(),
        mtu: u32::from(src.mtu),
        pkey: src.pkey,
        hop_limit: src.hop_limit,
        traffic_class: src.traffic_class,
        numb_path: src.numb_path,
        sl: src.sl,
        mtu_selector: src.mtu_selector,
        rate_selector: src.rate_selector,
        rate: src.rate,
        packet_life_time_selector: src.packet_life_time_selector,
        packet_life_time: src.packet_life_time,
        preference: src.preference,
    };
}

fn ah_attr(src: &abi::ib_uverbs_ah_attr) -> abi::ibv_ah_attr {
    abi::ibv_ah_attr {
        grh: abi::ibv_global_route {
            dgid: abi::ibv_gid { raw: src.grh.dgid },
            flow_label: src.grh.flow_label,
            sgid_index: src.grh.sgid_index,
            hop_limit: src.grh.hop_limit,
            traffic_class: src.grh.traffic_class,
        },
        dlid: src.dlid,
        sl: src.sl,
        src_path_bits: src.src_path_bits,
        static_rate: src.static_rate,
        is_global: src.is_global,
        port_num: src.port_num,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::zeroed;

    #[test]
    fn a_path_record_survives_the_way_to_the_kernel_and_back() {
        // SAFETY: plain integers.
        let (mut kernel, mut there, mut back): (
            abi::ib_user_path_rec,
            abi::ibv_sa_path_rec,
            abi::ib_user_path_rec,
        ) = unsafe { (zeroed(), zeroed(), zeroed()) };
        kernel.dgid = [7; 16];
        kernel.mtu = 5;
        kernel.pkey = 0xffff;
        kernel.preference = 9;
        kernel.reversible = 1;
        // SAFETY: live structs.
        unsafe {
            copy_path_from(&raw mut there, &raw mut kernel);
            copy_path_to(&raw mut back, &raw mut there);
        }
        assert_eq!((back.dgid, back.mtu), ([7; 16], 5));
        assert_eq!(
            (back.pkey, back.preference, back.reversible),
            (0xffff, 9, 1)
        );
    }

    #[test]
    fn null_is_not_followed() {
        // SAFETY: NULL is checked.
        unsafe { copy_ah_attr(std::ptr::null_mut(), std::ptr::null_mut()) };
    }
}
