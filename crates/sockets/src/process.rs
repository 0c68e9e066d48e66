//! What happens to the program's process: fork, exit.

use std::sync::Once;

use crate::counters::{self, Counter};
use crate::hand_back::{self, Need};
use crate::inside::{self, Inside};
use crate::{agent, datagram, descriptors, socket, turn};

/// Prepares for what may happen to this process. Called with the first connection of each.
pub fn prepare() {
    static HANDLERS: Once = Once::new();
    HANDLERS.call_once(|| {
        // SAFETY: functions that live as long as the library. Without memory they are refused:
        // then a child is noticed by its number alone.
        unsafe {
            libc::pthread_atfork(Some(before_fork), Some(after_fork), Some(in_child));
            libc::atexit(at_exit);
        }
    });
}

extern "C" fn before_fork() {
    let _inside = Inside::enter();
    hand_back::before_fork();
}

extern "C" fn after_fork() {
    let _inside = Inside::enter();
    hand_back::after_fork();
}

extern "C" fn in_child() {
    inside::is_program();
    agent::in_child();
    hand_back::in_child();
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
    hand_back::all(Need::Close);
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
        value(Counter::HandedBack),
        value(Counter::Forged),
        value(Counter::Failed),
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
