//! `airdma selftest` prints its findings, and succeeds if nothing is wrong.

use std::process::Command;

#[test]
fn every_rule_is_named_with_its_outcome() {
    let output = Command::new(env!("CARGO_BIN_EXE_airdma"))
        .arg("selftest")
        .output()
        .expect("the binary was built for this test");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("identification 0: "), "{text}");
    assert!(text.contains("UDP_SEGMENT: "), "{text}");
    let refuted = text.contains("REFUTED");
    assert_eq!(output.status.success(), !refuted, "{text}");
}
