//! Tests that need a network of their own.

use std::process::Command;

const INSIDE: &str = "AIRDMA_TEST_INSIDE";

/// Runs `body` in a network namespace of its own, which the shell script `setup` has prepared: the test `name` runs itself
/// once more there. Does nothing where the kernel gives no namespace.
pub fn isolated(name: &str, setup: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some_and(|inside| inside == name) {
        return body();
    }
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command
            .args(["--user", "--map-root-user", "--net", "sh", "-e", "-c"])
            .arg(script);
        command
    };
    let possible = unshare("ip link set lo up")
        .output()
        .is_ok_and(|output| output.status.success());
    if !possible {
        eprintln!("skipped: no network namespace to be had (unshare, ip)");
        return;
    }
    let output = unshare(&format!(
        "ip link set lo up\n{setup}\nexec timeout 120 \"$0\" --exact \"$1\" --nocapture"
    ))
    .arg(std::env::current_exe().unwrap())
    .arg(name)
    .env(INSIDE, name)
    .output()
    .unwrap();
    assert!(
        output.status.success(),
        "{}\n{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
