//! `airdma run`: becomes a program that has libairdma.so preloaded.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use airdma_engine::selftest;

use crate::complain;

/// Exit status when something was not found, and when it was but cannot be run (as POSIX shells have it).
const NOT_FOUND: u8 = 127;
const CANNOT_RUN: u8 = 126;

const LIBRARY: &str = "libairdma.so";

/// Becomes `command`; returns only if that fails.
pub fn run(verbose: bool, command: &[OsString]) -> ExitCode {
    let Some((program, arguments)) = command.split_first() else {
        complain("no command given: airdma run -- CMD ARGS");
        return ExitCode::from(NOT_FOUND);
    };
    let preload = library().and_then(|library| preload(&library, env::var_os("LD_PRELOAD")));
    let preload = match preload {
        Ok(preload) => preload,
        Err(message) => {
            complain(&message);
            return ExitCode::from(NOT_FOUND);
        }
    };
    let findings = selftest::run();
    if verbose {
        complain(&format!("LD_PRELOAD={}", preload.to_string_lossy()));
    }
    if verbose || findings.refuted() {
        complain(&format!("self-test on loopback:\n{findings}"));
    }
    if findings.refuted() {
        complain(
            "hosts that are not airdma will drop what this one sends over IPv4; use IPv6 addresses",
        );
    }
    let error = Command::new(program)
        .args(arguments)
        .env("LD_PRELOAD", preload)
        .exec();
    complain(&format!("{}: {error}", program.to_string_lossy()));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound {
        NOT_FOUND
    } else {
        CANNOT_RUN
    })
}

/// Where libairdma.so is: `AIRDMA_LIB`, or a place relative to this binary.
fn library() -> Result<PathBuf, String> {
    if let Some(given) = env::var_os("AIRDMA_LIB").filter(|value| !value.is_empty()) {
        let given = PathBuf::from(given);
        return match given.canonicalize() {
            Ok(path) if path.is_file() => Ok(path),
            Ok(_) => Err(format!("AIRDMA_LIB={}: not a file", given.display())),
            Err(error) => Err(format!("AIRDMA_LIB={}: {error}", given.display())),
        };
    }
    let binary = env::current_exe().map_err(|error| format!("cannot find myself: {error}"))?;
    let folder = binary.parent().unwrap_or(Path::new("/"));
    let places = places(folder);
    let found = places.iter().find(|place| place.is_file());
    found.map_or_else(|| Err(missing(&places)), |place| Ok(place.clone()))
}

/// Where the library may lie, best first.
fn places(folder: &Path) -> [PathBuf; 3] {
    [
        folder.join(LIBRARY),
        folder.join("../lib").join(LIBRARY),
        folder.join("../lib/airdma").join(LIBRARY),
    ]
}

fn missing(places: &[PathBuf]) -> String {
    let mut message = format!("{LIBRARY} is in none of these places:");
    for place in places {
        message.push_str(&format!("\n  {}", place.display()));
    }
    message.push_str(
        "\nbuild it with `cargo build --release -p airdma-verbs`, or set AIRDMA_LIB to its path",
    );
    message
}

/// The value of `LD_PRELOAD`: our library first, then what was there.
fn preload(library: &Path, existing: Option<OsString>) -> Result<OsString, String> {
    let bytes = library.as_os_str().as_bytes();
    if bytes.iter().any(|byte| matches!(byte, b' ' | b':')) {
        return Err(format!(
            "{}: a path with spaces or colons cannot be preloaded; move the library, or link to it",
            library.display()
        ));
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(existing) = existing.filter(|existing| !existing.is_empty()) {
        value.push(OsStr::new(":"));
        value.push(existing);
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_existing_preload_is_kept_behind_ours() {
        let library = Path::new("/usr/lib/airdma/libairdma.so");
        let value = |existing: &str| preload(library, Some(existing.into()));
        assert_eq!(
            value("/a.so:/b.so"),
            Ok("/usr/lib/airdma/libairdma.so:/a.so:/b.so".into())
        );
        assert_eq!(value(""), Ok(library.into()));
        assert_eq!(preload(library, None), Ok(library.into()));
    }

    #[test]
    fn a_path_that_the_loader_would_split_is_refused() {
        assert!(preload(Path::new("/my files/libairdma.so"), None).is_err());
        assert!(preload(Path::new("/a:b/libairdma.so"), None).is_err());
    }

    #[test]
    fn an_installed_tree_and_a_build_folder_are_both_searched() {
        let places = places(Path::new("/usr/bin"));
        assert_eq!(places[0], Path::new("/usr/bin/libairdma.so"));
        assert_eq!(places[2], Path::new("/usr/bin/../lib/airdma/libairdma.so"));
        let message = missing(&places);
        assert!(message.contains("AIRDMA_LIB"), "{message}");
    }
}
