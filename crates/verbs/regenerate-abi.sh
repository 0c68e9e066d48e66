#!/bin/sh
# Regenerates src/abi.rs, the C ABI of libibverbs, from rdma-core's headers: those of release 65
# (Debian's unstable libibverbs-dev, unpacked with dpkg -x).
#   regenerate-abi.sh INCLUDE      INCLUDE: the folder that holds infiniband/verbs.h
# Needs: bindgen 0.69 or newer (`cargo install bindgen-cli`), rustfmt. BINDGEN names another binary.
set -eu
include=$(cd "$1" && pwd)
cd "$(dirname "$0")"

"${BINDGEN:-bindgen}" abi.h \
    --output src/abi.rs \
    --rust-target 1.85 \
    --rust-edition 2024 \
    --allowlist-type 'verbs_context|ibv_(device|gid_type|gid_entry|async_event|event_type|fork_status|rate|ece|port_cap_flags2)' \
    --allowlist-type 'ibv_(wc_flags|access_flags|send_flags|qp_attr|qp_attr_mask|qp_init_attr|qp_ex|srq_init_attr|grh|qp_init_attr_mask|device_cap_flags|port_cap_flags)' \
    --allowlist-type 'ibv_sa_path_rec|ib_uverbs_(ah|qp)_attr|ib_user_path_rec' \
    --allowlist-type 'ibv_(parent_domain_init_attr_mask|xrcd_init_attr_mask|srq_init_attr_mask|srq_attr_mask|qp_open_attr_mask|rereg_mr_flags|rereg_mr_err_code|alloc_dm_attr|mw_bind)' \
    --allowlist-type 'ibv_(odp_general_cap_bits|odp_transport_cap_bits|create_cq_attr_flags|create_cq_wc_flags|cq_init_attr_mask|values_mask|qp_create_send_ops_flags|qp_create_flags|raw_packet_caps)' \
    --allowlist-type 'ib_uverbs_advise_mr_flag' \
    --allowlist-type 'ibv_(mr_init_attr|mr_init_attr_mask|buf|dmah|dmah_init_attr|dmah_init_attr_mask|tph_mem_type)' \
    --allowlist-type 'ibv_(comp_cntr|comp_cntr_caps|comp_cntr_init_attr|comp_cntr_type|qp_attach_comp_cntr_attr|qp_attach_comp_cntr_op)' \
    --allowlist-type 'ibv_(query_qp_data_in_order_flags|query_qp_data_in_order_caps|qp_rate_limit_attr)' \
    --allowlist-var 'IBV_(ALLOCATOR_.*|ADVISE_.*|ACCESS_.*|CREATE_CQ_.*|LINK_LAYER_.*|WC_.*|SYSFS_.*)' \
    --blocklist-type 'pthread_.*|__pthread_.*|__atomic_wide_counter|timespec' \
    --opaque-type 'ibv_(flow.*|wq.*|rwq.*|counter.*|ops_wr|tm_cap|rx_hash_conf)' \
    --default-enum-style consts \
    --no-prepend-enum-name \
    --no-doc-comments \
    --no-derive-debug \
    --use-core \
    --formatter rustfmt \
    --raw-line '// Written by regenerate-abi.sh; do not edit.' \
    --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t, timespec};' \
    -- -I "$include"

# The asserted layout is that of x86-64: a mutex is longer on others.
# src/abi_header.rs compares with the headers on each.
sed -i 's/^const _: () = {$/#[cfg(target_arch = "x86_64")]\n&/' src/abi.rs
