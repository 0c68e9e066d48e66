//! Tests whose requirements a host may not meet.

use std::io::Write;

/// Reports that the calling test cannot run here, although the output of successful tests is
/// captured. If `CI` is `true` it fails: that host must meet the requirements (`.ci/run` installs
/// them).
pub fn skipped(why: &str) {
    let thread = std::thread::current();
    let line = format!("skipped: {}: {why}", thread.name().unwrap_or_default());
    assert!(
        std::env::var_os("CI").is_none_or(|ci| ci != "true"),
        "{line}"
    );
    // Not by a macro, whose output the harness captures.
    let _ = writeln!(std::io::stderr(), "{line}");
}
