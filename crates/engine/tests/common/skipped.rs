//! Tests that need what a host may not have.

use std::io::Write;

/// The calling test cannot run here. It says so, although the output of tests that pass is kept back. Where `CI` is `true` it fails: that
/// host has to have what the test needs (`.ci/run` installs it).
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}", thread.name().unwrap_or_default());
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{line}"
    );
    // Not by a macro, whose output the harness keeps.
    let _ = writeln!(std::io::stderr(), "{line}");
}
