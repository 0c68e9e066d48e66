//! The library under test. Cargo does not build a package's `cdylib` for its integration tests, so
//! the test asks it to, with the settings it was built with itself.

use std::path::PathBuf;
use std::process::Command;

/// `libairdma.so`, up to date.
pub fn path() -> PathBuf {
    let binary = std::env::current_exe().expect("a running test has a path");
    // TARGET/PROFILE/deps/TEST
    let profile = binary
        .ancestors()
        .nth(2)
        .expect("a test lies in a build folder");
    let target = profile.parent().expect("a build folder has a parent");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .args(["build", "--quiet", "--offline", "--lib"])
        .args([
            "--manifest-path",
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
        ])
        .arg("--target-dir")
        .arg(target);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    let status = build
        .status()
        .expect("cargo runs this test, so it is there");
    assert!(status.success(), "cargo build: {status}");
    let library = profile.join("libairdma.so");
    assert!(library.is_file(), "{} is not there", library.display());
    library
}
