//! `airdma generate`: man pages and completions, from the description that parses the command line.

use std::fs;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;

/// Writes `man1` (a page for each command that is not hidden) and `completions` into a folder.
pub fn generate(mut command: Command, folder: &Path) -> Result<ExitCode> {
    let (pages, completions) = (folder.join("man1"), folder.join("completions"));
    for made in [&pages, &completions] {
        fs::create_dir_all(made).with_context(|| format!("cannot make {}", made.display()))?;
    }
    // First the pages: completions add the command `help`, which needs none.
    clap_mangen::generate_to(command.clone(), &pages)
        .with_context(|| format!("cannot write to {}", pages.display()))?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut command, "airdma", &completions)
            .with_context(|| format!("cannot write to {}", completions.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
