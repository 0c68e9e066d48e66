//! The package as Python programs use it: assembled, and its tests and examples run by an
//! interpreter.
#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use isolated::isolated;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// The stable ABI has had buffers since this version.
const OLDEST: &str = "import sys; sys.exit(sys.version_info < (3, 11))";

/// The interpreter: `$PYTHON`, Debian's, or the first on the path; `None` if it is too old.
fn interpreter() -> Option<PathBuf> {
    let debians = Path::new("/usr/bin/python3");
    let chosen = match std::env::var_os("PYTHON") {
        Some(python) => PathBuf::from(python),
        None if debians.exists() => debians.into(),
        None => "python3".into(),
    };
    let fits = Command::new(&chosen).args(["-c", OLDEST]).status();
    if fits.is_ok_and(|status| status.success()) {
        return Some(chosen);
    }
    eprintln!("skipped: no Python 3.11 or newer ({})", chosen.display());
    None
}

/// Where Cargo puts what it builds for these tests.
fn profile() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.ancestors().nth(2).unwrap().into()
}

/// The folder of the package, assembled as in a wheel. Cargo does not build a package's `cdylib`
/// for its tests, so this calls it.
fn site() -> &'static Path {
    static SITE: OnceLock<PathBuf> = OnceLock::new();
    SITE.get_or_init(|| {
        let profile = profile();
        let site = profile.join("north-python");
        // A test that re-runs itself in a namespace finds it there.
        if std::env::var_os("AIRDMA_TEST_INSIDE").is_some() {
            return site;
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.args(["build", "--quiet", "--offline", "--lib", "--manifest-path"]);
        build.arg(Path::new(HERE).join("Cargo.toml"));
        build.arg("--target-dir").arg(profile.parent().unwrap());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().unwrap().success());
        let package = site.join("airdma");
        std::fs::create_dir_all(&package).unwrap();
        for entry in Path::new(HERE).join("python/airdma").read_dir().unwrap() {
            let from = entry.unwrap().path();
            if from.is_file() {
                std::fs::copy(&from, package.join(from.file_name().unwrap())).unwrap();
            }
        }
        // Another process may be running the old module: it keeps the file that it has.
        let module = package.join("_airdma.abi3.so");
        std::fs::remove_file(&module).ok();
        std::fs::copy(profile.join("lib_airdma.so"), &module).unwrap();
        site
    })
}

/// NumPy for the interpreter: its own, or one in a folder of the build. Without either, its tests
/// are skipped with a message.
fn numpy(python: &Path) -> PathBuf {
    static NUMPY: OnceLock<PathBuf> = OnceLock::new();
    let bring = || {
        let folder = profile().join("north-python-numpy");
        let inside = std::env::var_os("AIRDMA_TEST_INSIDE").is_some();
        if inside || has_numpy(python, &folder) {
            return folder;
        }
        let mut pip = Command::new(python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--only-binary=:all:",
            "--upgrade",
            "--target",
        ]);
        pip.arg(&folder).arg("numpy");
        if !pip.status().is_ok_and(|status| status.success()) {
            eprintln!("no numpy, and none to be had by pip: its tests are skipped");
        }
        folder
    };
    NUMPY.get_or_init(bring).clone()
}

fn has_numpy(python: &Path, folder: &Path) -> bool {
    let import = Command::new(python)
        .args(["-c", "import numpy"])
        .env("PYTHONPATH", folder)
        .output();
    import.is_ok_and(|output| output.status.success())
}

/// Runs a file of tests in a network namespace of its own.
fn passes(test: &str, file: &str) {
    passes_with(test, "", file);
}

/// As [`passes`], with the variables that `setup` exports.
fn passes_with(test: &str, setup: &str, file: &str) {
    let Some(python) = interpreter() else { return };
    let paths = [site().to_owned(), numpy(&python)];
    isolated(test, setup, || {
        let output = Command::new(&python)
            .args(["-W", "error", "-X", "dev", "-m", "unittest", "-v", file])
            .current_dir(Path::new(HERE).join("tests"))
            .env("PYTHONPATH", std::env::join_paths(&paths).unwrap())
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
    });
}

#[test]
fn messages_and_mistakes() {
    passes("messages_and_mistakes", "test_messages.py");
}

#[test]
fn memory_and_who_has_it() {
    passes("memory_and_who_has_it", "test_memory.py");
}

#[test]
fn buffers_that_a_peer_fills() {
    passes_with(
        "buffers_that_a_peer_fills",
        "export AIRDMA_AIR=1",
        "test_buffers.py",
    );
}

#[test]
fn records_that_arrive_whole() {
    let groups = "ip route add 239.0.0.0/8 dev lo";
    passes_with("records_that_arrive_whole", groups, "test_records.py");
}

#[test]
fn records_with_holes() {
    passes_with(
        "records_with_holes",
        "export AIRDMA_IMPAIR=drop=20%,seed=4",
        "test_records.py",
    );
}

#[test]
fn tasks_of_an_event_loop() {
    passes("tasks_of_an_event_loop", "test_tasks.py");
}

#[test]
fn streams_of_frames() {
    passes("streams_of_frames", "test_streams.py");
}

#[test]
fn examples() {
    passes("examples", "test_examples.py");
}

#[test]
fn stubs_documentation_and_the_book() {
    passes("stubs_documentation_and_the_book", "test_surface.py");
}
