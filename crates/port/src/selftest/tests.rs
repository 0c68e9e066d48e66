use std::process::Command;

use super::*;

/// Whether this system lets us have a network namespace: asked of another program, independently of
/// the code under test.
fn namespaces_work() -> bool {
    [["-n", "true"], ["-Urn", "true"]].iter().any(|arguments| {
        Command::new("unshare")
            .args(arguments)
            .output()
            .is_ok_and(|output| output.status.success())
    })
}

#[test]
fn the_rules_hold_on_this_kernel() {
    let result = run();
    assert!(!result.refuted(), "{result}");
    if namespaces_work() {
        assert!(result.isolated);
        assert_eq!(result.plain_id, Finding::Confirmed);
        assert_eq!(result.segment_ids, Finding::Confirmed);
        assert_eq!(result.coalesced, Finding::Confirmed);
    }
}

#[test]
fn what_could_not_be_tried_says_why() {
    let refused = Report {
        stage: Stage::RawSocket,
        errno: libc::EPERM,
        segmentation: true,
        coalescing: true,
        ..Report::default()
    };
    let text = SelfTest::from_report(&refused).to_string();
    assert!(
        text.contains("not verified: watching packets takes a network namespace or a raw socket"),
        "{text}"
    );

    let shared = Report {
        stage: Stage::Done,
        errno: 0,
        plain: Outcome::Confirmed,
        coalesced: Outcome::Confirmed,
        ..refused
    };
    let found = SelfTest::from_report(&shared);
    assert_eq!(found.plain_id, Finding::Confirmed);
    let text = found.to_string();
    assert!(text.contains("namespaces are refused"), "{text}");
    assert!(!found.refuted());
}
