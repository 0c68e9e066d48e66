//! The symbols that block. Their sleep is a cancellation point (`pthreads(7)`), as it is in rdma-core's library: see
//! [`crate::blocking`].

use std::ffi::{c_int, c_void};
use std::ptr;

use super::{entry, guard};
use crate::abi::*;
use crate::blocking::Attempt;
use crate::rdma::abi::{rdma_cm_event, rdma_event_channel};
use crate::rdma::event;
use crate::{async_event, completion};

// The C library's, which may unwind: libc declares it as if it could not.
unsafe extern "C-unwind" {
    fn ppoll(
        descriptors: *mut libc::pollfd,
        count: libc::nfds_t,
        timeout: *const libc::timespec,
        signals: *const libc::sigset_t,
    ) -> c_int;
}

/// Defines C functions that attempt and sleep in turns. While they sleep their stack holds nothing that wants to be dropped.
macro_rules! blocking {
    ($(export fn $name:ident($($arg:ident: $ty:ty),*) = $module:ident :: $body:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $ty),*) -> c_int {
            let mut slept = None;
            loop {
                // SAFETY: what the man page demands of the C caller is what the body demands.
                match guard(|| unsafe { $module::$body($($arg,)* slept) }) {
                    Attempt::Done(answer) => {
                        entry!(@trace $name($($arg),*) answer);
                        return answer;
                    }
                    Attempt::Sleep(bed) => {
                        let timeout = bed.timeout.as_ref().map_or(ptr::null(), ptr::from_ref);
                        // SAFETY: the attempt's arguments, good until the next one.
                        let ready = unsafe { ppoll(bed.descriptors, bed.count, timeout, ptr::null()) };
                        slept = Some(ready);
                    }
                }
            }
        }
    )*};
}

blocking! {
    export fn ibv_get_cq_event(channel: *mut ibv_comp_channel, cq: *mut *mut ibv_cq, cq_context: *mut *mut c_void) = completion::get_cq_event;
    export fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) = async_event::get;
    export fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) = event::get;
}
