//! The symbols that block. Their sleep is a cancellation point (`pthreads(7)`), as it is in
//! rdma-core's library: see [`crate::blocking`].

use std::ffi::{c_int, c_void};

use super::{entry, guard};
use crate::abi::*;
use crate::blocking::Attempt;
use crate::rdma::abi::{rdma_cm_event, rdma_event_channel};
use crate::rdma::event;
use crate::{async_event, completion};

/// Defines C functions that attempt and sleep in turns. While they sleep their stack holds nothing
/// that wants to be dropped.
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
                    // SAFETY: the thread's last attempt.
                    Attempt::Sleep(sleep) => slept = Some(unsafe { sleep.until_ready() }),
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
