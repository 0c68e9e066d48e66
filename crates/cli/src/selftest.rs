//! `airdma selftest`: what this kernel does with our packets.

use std::io::{self, Write};
use std::process::ExitCode;

use airdma_engine::selftest;
use anyhow::Result;

/// Prints the findings. Exits with 1 if one says that other RoCE hosts would drop our packets.
pub fn print() -> Result<ExitCode> {
    // It forks; nothing in this process has started a thread.
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
