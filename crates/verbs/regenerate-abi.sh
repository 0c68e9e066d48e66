#!/bin/sh
# Regenerates src/abi.rs, the C ABI of libibverbs, from the installed headers.
# Needs: rdma-core's headers (Debian: libibverbs-dev), bindgen 0.69 or newer
# (`cargo install bindgen-cli`), rustfmt. BINDGEN names another binary.
set -eu
cd "$(dirname "$0")"

"${BINDGEN:-bindgen}" abi.h \
    --output src/abi.rs \
    --rust-target 1.85 \
    --rust-edition 2024 \
    --allowlist-type 'verbs_context|ibv_(device|gid_type|gid_entry|async_event|event_type|fork_status|rate|ece|port_cap_flags2)' \
    --allowlist-type 'ibv_(wc_flags|access_flags|send_flags|qp_attr|qp_attr_mask|qp_init_attr|qp_ex|srq_init_attr|grh|qp_init_attr_mask|device_cap_flags|port_cap_flags)' \
    --allowlist-type 'ibv_sa_path_rec|ib_uverbs_(ah|qp)_attr|ib_user_path_rec' \
    --allowlist-var 'IBV_(LINK_LAYER_.*|WC_.*|SYSFS_.*)' \
    --blocklist-type 'pthread_.*|__pthread_.*|__atomic_wide_counter|timespec' \
    --opaque-type 'ibv_(flow.*|wq.*|rwq.*|counter.*|td_.*|xrcd_.*|ops_wr|modify_cq_attr|tm_cap|parent_domain_init_attr|rx_hash_conf)' \
    --default-enum-style consts \
    --no-prepend-enum-name \
    --no-doc-comments \
    --no-derive-debug \
    --use-core \
    --formatter rustfmt \
    --raw-line '// Written by regenerate-abi.sh; do not edit.' \
    --raw-line 'use libc::{pthread_cond_t, pthread_mutex_t, timespec};'
