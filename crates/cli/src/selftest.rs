//! `airdma selftest`: how this kernel treats airdma's packets.

use std::io::{self, Write};
use std::process::ExitCode;

use airdma_engine::selftest;
use anyhow::Result;

/// Prints the findings. Exits with 1 if other RoCE hosts would drop the packets.
pub fn print() -> Result<ExitCode> {
    // It forks; this process has not started a thread yet.
    let findings = selftest::run();
    let mut out = io::stdout().lock();
    writeln!(out, "{findings}")?;
    out.flush()?;
    Ok(if findings.refuted() {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    })
}
