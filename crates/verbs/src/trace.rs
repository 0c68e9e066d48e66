//! `AIRDMA_TRACE=verbs`: each call, its arguments and its answer, on standard error.

use std::fmt::{Debug, Display, Write as _};
use std::io::Write as _;
use std::sync::atomic::{AtomicU8, Ordering};

use airdma_preload::Uncancelled;

use crate::errno::Errno;

const UNKNOWN: u8 = 0;
const OFF: u8 = 1;
const ON: u8 = 2;

static STATE: AtomicU8 = AtomicU8::new(UNKNOWN);

/// Whether calls are traced. One relaxed load once the environment was read.
#[inline]
pub fn enabled() -> bool {
    match STATE.load(Ordering::Relaxed) {
        OFF => false,
        ON => true,
        _ => read_environment(),
    }
}

#[cold]
fn read_environment() -> bool {
    let on = std::env::var("AIRDMA_TRACE").is_ok_and(|list| wants_verbs(&list));
    STATE.store(if on { ON } else { OFF }, Ordering::Relaxed);
    on
}

fn wants_verbs(list: &str) -> bool {
    list.split(',').any(|layer| layer.trim() == "verbs")
}

/// Prints one call. Leaves `errno` as it was.
#[cold]
pub fn call(name: &str, arguments: &[(&str, &dyn Debug)], answer: &dyn Debug) {
    let _whole = Uncancelled::new();
    let errno = Errno::current();
    let mut line = format!("airdma: verbs: {name}(");
    for (position, (label, value)) in arguments.iter().enumerate() {
        let separator = if position == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(line, "{separator}{label}={value:?}");
    }
    let _ = writeln!(line, ") = {answer:?} errno={}", errno.0);
    // A closed standard error cannot be reported.
    let _ = std::io::stderr().write_all(line.as_bytes());
    errno.set();
}

/// Prints why a verb failed.
#[cold]
pub fn warn(reason: &dyn Display) {
    let _whole = Uncancelled::new();
    // As above.
    let _ = writeln!(std::io::stderr(), "airdma: {reason}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_verbs_layer_turns_it_on() {
        assert!(wants_verbs("verbs"));
        assert!(wants_verbs("engine, verbs"));
        assert!(!wants_verbs("engine"));
        assert!(!wants_verbs(""));
    }

    #[test]
    fn a_traced_call_keeps_errno() {
        Errno::INVALID.set();
        call("ibv_test", &[("n", &1)], &2);
        assert_eq!(Errno::current(), Errno::INVALID);
    }
}
