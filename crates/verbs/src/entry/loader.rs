//! The names of libibverbs and of librdmacm that programs look up by `dlsym(3)` and `dlvsym(3)`:
//! programs that are built without them (NCCL, sideway, PyPI's ibverbs, Mooncake).
//!
//! Such a program has a handle of rdma-core's library, so an answer that lies in one of rdma-core's
//! libraries is exchanged for this library's function of that name. A function of that name in
//! another library, which wraps verbs or opens libibverbs itself, is left alone. A library that is
//! linked with rdma-core's is opened without `RTLD_DEEPBIND`, behind which it would call these. On
//! other machines than x86-64 such programs use the drop-in directory.

use std::ffi::CStr;

use airdma_preload::{LookUps, Object, look_ups};

use crate::unknown_verbs;

look_ups!(RdmaCore);

/// The two libraries that this one replaces.
struct RdmaCore;

impl LookUps for RdmaCore {
    fn may_be_replaced(name: &CStr) -> bool {
        let name = name.to_bytes();
        let prefixes: [&[u8]; 5] = [b"ibv_", b"_ibv_", b"mult_to_ibv", b"mbps_to_ibv", b"rdma_"];
        prefixes.iter().any(|prefix| name.starts_with(prefix))
    }

    fn replaces(path: &CStr, soname: Option<&CStr>) -> bool {
        // Wheels of PyPI have it under a longer name.
        [Some(path), soname]
            .into_iter()
            .flatten()
            .map(Object::file_name)
            .any(|name| name.starts_with(b"libibverbs") || name.starts_with(b"librdmacm"))
    }

    fn handed_out(name: &CStr) {
        unknown_verbs::handed_out(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_both_libraries_are_known_and_others_are_left_alone() {
        for name in [
            c"ibv_open_device",
            c"_ibv_query_gid_ex",
            c"mult_to_ibv_rate",
            c"rdma_create_id",
        ] {
            assert!(RdmaCore::may_be_replaced(name), "{name:?}");
        }
        for name in [c"malloc", c"ibverbs", c"", c"rsocket", c"rdmacm"] {
            assert!(!RdmaCore::may_be_replaced(name), "{name:?}");
        }
    }

    #[test]
    fn a_library_is_known_by_its_file_or_by_its_soname() {
        assert!(RdmaCore::replaces(c"/usr/lib/libibverbs.so.1", None));
        assert!(RdmaCore::replaces(
            c"/opt/verbs-1a2b.so",
            Some(c"librdmacm.so.1")
        ));
        assert!(!RdmaCore::replaces(
            c"/opt/libibverbs.d/wrap.so",
            Some(c"wrap.so")
        ));
    }
}
