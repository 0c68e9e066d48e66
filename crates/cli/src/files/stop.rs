//! Ctrl-C and its like end a transfer in an orderly way; the second time at once. A limit of file sizes does not end it by a signal.

use airdma_transfer::Cancel;
use std::io;
use std::sync::OnceLock;

const SIGNALS: [libc::c_int; 3] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP];

/// Which one it was.
static STOPPED_BY: OnceLock<libc::c_int> = OnceLock::new();

/// Lets signals cancel. To be called before any other thread is started: they inherit that they take none.
pub fn on_signals(cancel: &Cancel) -> io::Result<()> {
    let cancel = cancel.clone();
    then(move || cancel.cancel())
}

/// Lets signals call `stop`. As [`on_signals`].
pub fn then(stop: impl Fn() + Send + 'static) -> io::Result<()> {
    // SAFETY: an all-zero signal set is a valid one to initialise, and all calls get pointers to it; no handler is installed.
    let set = unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
        // A file that would grow beyond `ulimit -f` is an error of its write then, which can be told.
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

/// The exit status of a program that a signal ended, as shells have it.
pub fn status() -> u8 {
    let signal = STOPPED_BY.get().copied().unwrap_or(libc::SIGINT);
    128 + signal as u8
}
