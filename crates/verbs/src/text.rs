//! Texts for enumerators, as rdma-core's library words them: scripts compare them.

use std::ffi::CStr;

use crate::abi;

const UNKNOWN: &CStr = c"unknown";

fn pick(texts: &[&'static CStr], value: u32) -> &'static CStr {
    usize::try_from(value)
        .ok()
        .and_then(|index| texts.get(index).copied())
        .unwrap_or(UNKNOWN)
}

/// `ibv_wc_status_str(3)`.
pub fn wc_status(status: abi::ibv_wc_status) -> &'static CStr {
    pick(
        &[
            c"success",
            c"local length error",
            c"local QP operation error",
            c"local EE context operation error",
            c"local protection error",
            c"Work Request Flushed Error",
            c"memory management operation error",
            c"bad response error",
            c"local access error",
            c"remote invalid request error",
            c"remote access error",
            c"remote operation error",
            c"transport retry counter exceeded",
            c"RNR retry counter exceeded",
            c"local RDD violation error",
            c"remote invalid RD request",
            c"aborted error",
            c"invalid EE context number",
            c"invalid EE context state",
            c"fatal error",
            c"response timeout error",
            c"general error",
            c"TM error",
            c"TM software rendezvous",
        ],
        status,
    )
}

/// `ibv_node_type_str(3)`.
pub fn node_type(node_type: abi::ibv_node_type) -> &'static CStr {
    let texts = [
        UNKNOWN,
        c"InfiniBand channel adapter",
        c"InfiniBand switch",
        c"InfiniBand router",
        c"iWARP NIC",
        c"usNIC",
        c"usNIC UDP",
        c"unspecified",
    ];
    u32::try_from(node_type).map_or(UNKNOWN, |value| pick(&texts, value))
}

/// `ibv_port_state_str(3)`.
pub fn port_state(state: abi::ibv_port_state) -> &'static CStr {
    pick(
        &[
            c"no state change (NOP)",
            c"down",
            c"init",
            c"armed",
            c"active",
            c"active defer",
        ],
        state,
    )
}

/// `ibv_wr_opcode_str`.
pub fn wr_opcode(opcode: abi::ibv_wr_opcode) -> &'static CStr {
    pick(
        &[
            c"rdma-write",
            c"rdma-write-with-imm",
            c"send",
            c"send-with-imm",
            c"rdma-read",
            c"atomic-cmp-and-swp",
            c"atomic-fetch-and-add",
            c"local-inv",
            c"bind-mw",
            c"send-with-inv",
            c"tso",
            c"driver1",
            UNKNOWN,
            UNKNOWN,
            c"flush",
            c"atomic-write",
        ],
        opcode,
    )
}

/// `ibv_event_type_str(3)`.
pub fn event_type(event: abi::ibv_event_type) -> &'static CStr {
    pick(
        &[
            c"CQ error",
            c"local work queue catastrophic error",
            c"invalid request local work queue error",
            c"local access violation work queue error",
            c"communication established",
            c"send queue drained",
            c"path migrated",
            c"path migration request error",
            c"local catastrophic error",
            c"port active",
            c"port error",
            c"LID change",
            c"P_Key change",
            c"SM change",
            c"SRQ catastrophic error",
            c"SRQ limit reached",
            c"last WQE reached",
            c"client reregistration",
            c"GID table change",
            c"WQ fatal",
            c"Device link speed change",
        ],
        event,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_of_each_table_are_where_the_header_puts_them() {
        assert_eq!(
            wc_status(abi::IBV_WC_TM_RNDV_INCOMPLETE),
            c"TM software rendezvous"
        );
        assert_eq!(
            wc_status(abi::IBV_WC_RETRY_EXC_ERR),
            c"transport retry counter exceeded"
        );
        assert_eq!(wc_status(99), UNKNOWN);
        assert_eq!(node_type(abi::IBV_NODE_CA), c"InfiniBand channel adapter");
        assert_eq!(node_type(abi::IBV_NODE_UNSPECIFIED), c"unspecified");
        assert_eq!(node_type(abi::IBV_NODE_UNKNOWN), UNKNOWN);
        assert_eq!(port_state(abi::IBV_PORT_ACTIVE), c"active");
        assert_eq!(event_type(abi::IBV_EVENT_WQ_FATAL), c"WQ fatal");
        assert_eq!(
            event_type(abi::IBV_EVENT_QP_LAST_WQE_REACHED),
            c"last WQE reached"
        );
    }
}
