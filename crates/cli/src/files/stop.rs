//! Signals: Ctrl-C and similar ones cancel a transfer, and the second one ends the program at once.
//!
//! A file size limit is an error of the write, not a signal.

use airdma_transfer::Cancel;
use std::io;
use std::sync::OnceLock;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// The signal that cancelled the transfer.
static STOPPED_BY: OnceLock<libc::c_int> = OnceLock::new();

/// Lets signals cancel. Call it before starting threads: they inherit the blocked signals.
pub fn on_signals(cancel: &Cancel) -> io::Result<()> {
    let cancel = cancel.clone();
    then(move || cancel.cancel())
}

/// Lets signals call `stop`. As [`on_signals`].
pub fn then(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    // SAFETY: an all-zero signal set is a valid one to initialise, and all calls get pointers to
    // it; no handler is installed.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        // A write beyond `ulimit -f` then fails with an error, which can be reported.
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        set
    };
    std::thread::Builder::new()
        .name("airdma-signals".into())
        .spawn(move || {
            loop {
                let mut signal = 0;
                // SAFETY: an initialised set, and room for a number.
                if unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {
                    return;
                }
                if STOPPED_BY.set(signal).is_err() {
                    std::process::exit(i32::from(status()));
                }
                stop();
            }
        })?;
    Ok(())
}

/// Whether a signal has come.
pub fn has_come() -> bool {
    STOPPED_BY.get().is_some()
}

/// Exit status of a program that was ended by a signal, as in shells.
pub fn status() -> u8 {
    let signal = STOPPED_BY.get().copied().unwrap_or(libc::SIGINT);
    128 + signal as u8
}
