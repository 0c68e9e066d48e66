//! What happens to the program's process: fork, exit.

use std::ffi::c_int;
use std::sync::Once;

use crate::counters::{self, Counter};
use crate::hand_back::{self, Need};
use crate::inside::{self, Inside};
use crate::{agent, closing, datagram, descriptors, liveness, socket, turn};

/// Prepares for what may happen to this process. Called with the first connection of each.
pub fn prepare() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions that live as long as the library. Without memory they are refused:
        // then a child is noticed by its number alone.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
            libc::atexit(at_exit);
            at_quick_exit(at_exit);
        }
    });
}

unsafe extern "C" {
    fn at_quick_exit(function: extern "C" fn()) -> c_int;
}

/// Before a fork, also by calls that run no handlers.
pub extern "C" fn before_fork() {
    let _inside = Inside::enter();
    hand_back::before_fork();
}

/// After one, in the parent.
pub extern "C" fn after_fork() {
    let _inside = Inside::enter();
    hand_back::after_fork();
}

/// After one, in the child.
pub extern "C" fn in_child() {
    inside::is_program();
    agent::in_child();
    hand_back::in_child();
    closing::in_child();
    liveness::in_child();
    descriptors::in_child();
    socket::in_child();
    counters::reset();
    turn::in_child();
}

/// Before the process ends: the kernel delivers what was written.
pub extern "C" fn at_exit() {
    if !socket::is_own_table() {
        return;
    }
    let _inside = Inside::enter();
    hand_back::all(Need::Exit);
    report();
}

/// A line on standard error at once, if `AIRDMA_SOCKETS_VERBOSE` is 2.
pub fn note(text: impl FnOnce() -> String) {
    if std::env::var_os("AIRDMA_SOCKETS_VERBOSE").is_some_and(|value| value == "2") {
        eprintln!("airdma sockets: {}", text());
    }
}

/// A line on standard error, if `AIRDMA_SOCKETS_VERBOSE` asks for it.
fn report() {
    if std::env::var_os("AIRDMA_SOCKETS_VERBOSE").is_none() {
        return;
    }
    let value = counters::value;
    eprintln!(
        "airdma sockets: {} connections on a lane, {} bytes sent and {} received by lanes; {} handed back, {} peers without proof, {} lanes lost",
        value(Counter::Lanes),
        value(Counter::Sent),
        value(Counter::Received),
        counters::handed_back(),
        value(Counter::Forged),
        value(Counter::Lost),
    );
    if datagram::is_on() {
        eprintln!(
            "airdma sockets: {} ends of UDP on a lane, {} datagrams sent and {} received by lanes, {} lost",
            value(Counter::DatagramLanes),
            value(Counter::DatagramsSent),
            value(Counter::DatagramsReceived),
            value(Counter::DatagramsLost),
        );
    }
}
