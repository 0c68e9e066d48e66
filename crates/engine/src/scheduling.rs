//! How the kernel schedules the helper thread.
//!
//! A program that waits by looking at its memory gives the helper no chance but preemption, where both share a processor. The kernel
//! lets a thread that was woken preempt one of the same kind when that one has had its share, which may be in milliseconds. The
//! kernel's own network receive path does not wait, because a soft interrupt goes before threads; nor does a thread at real-time
//! priority. So the helper takes the lowest of these, where the process may have any (`CAP_SYS_NICE`, or `RLIMIT_RTPRIO`), and stays a
//! thread like others where not. Other ways were tried: docs/design/016.

use std::os::raw::c_int;

/// Says "no" where anything else is to be said by not setting it.
const SWITCH: &str = "AIRDMA_REALTIME";

/// Lets the calling thread preempt ordinary ones, if that is permitted; tells whether it does now. Threads and processes that it starts
/// do not inherit it.
pub(crate) fn go_before_others() -> bool {
    if std::env::var(SWITCH).is_ok_and(|value| value == "0") {
        return false;
    }
    let lowest = libc::sched_param { sched_priority: 1 };
    let policy: c_int = libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK;
    // SAFETY: 0 is the calling thread, and `lowest` is a whole sched_param that outlives the call.
    unsafe { libc::sched_setscheduler(0, policy, &raw const lowest) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy() -> c_int {
        // SAFETY: asks for the policy of the calling thread.
        unsafe { libc::sched_getscheduler(0) }
    }

    #[test]
    fn a_thread_goes_before_others_where_it_may_and_its_children_do_not() {
        std::thread::spawn(|| {
            assert_eq!(policy(), libc::SCHED_OTHER);
            let expected = if go_before_others() {
                libc::SCHED_FIFO
            } else {
                libc::SCHED_OTHER
            };
            assert_eq!(policy() & !libc::SCHED_RESET_ON_FORK, expected);
            let child = std::thread::spawn(policy).join().expect("no panic");
            assert_eq!(child, libc::SCHED_OTHER);
        })
        .join()
        .expect("no panic");
    }
}
