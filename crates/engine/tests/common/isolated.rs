//! Tests that need a network of their own.

use std::process::Command;

#[path = "skipped.rs"]
mod skipped;

#[allow(unused_imports)]
pub use skipped::skipped;

const INSIDE: &str = "AIRDMA_TEST_INSIDE";

/// Waits until the kernel has noticed the carrier of each interface that has one: what is sent
/// before is dropped silently. A change of any interface waits until that is done.
const SETTLED: &str = "while ip -o link show up | grep LOWER_UP | \
    grep -Eq 'state (DOWN|LOWERLAYERDOWN)'; do sleep 0.01; done\nip link set lo up";

/// Runs `body` in its own network namespace, prepared by the shell script `setup`: the test `name`
/// runs itself once more there. Skips it if the kernel gives no namespace.
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
        return skipped("no network namespace to be had (unshare, ip)");
    }
    let output = unshare(&format!(
        "ip link set lo up\n{setup}\n{SETTLED}\nexec timeout 120 \"$0\" --exact \"$1\" --nocapture"
    ))
    .arg(std::env::current_exe().unwrap())
    .arg(name)
    .env(INSIDE, name)
    .output()
    .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // libtest succeeds where no test has the name.
    assert!(said.contains("1 passed"), "no test {name}: {said}");
}
