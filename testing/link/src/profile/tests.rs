use super::*;

#[test]
fn those_that_come_with_airdma_are_those_of_the_model() {
    let pairs = [
        ("wifi4-40", Mac::N_40),
        ("wifi5-80", Mac::AC_80),
        ("wifi5-160", Mac::AC_160),
        ("wifi6-80", Mac::AX_80),
        ("wifi6-160", Mac::AX_160),
        ("wifi7-320", Mac::BE_320),
    ];
    assert_eq!(Profile::names().count(), pairs.len());
    for (name, model) in pairs {
        let found = Profile::find(name).unwrap();
        assert_eq!(found.mac.name, name);
        assert_eq!(
            Mac {
                name: model.name,
                ..found.mac
            },
            model
        );
    }
}

fn complaint(change: (&str, &str)) -> String {
    let text = Profile::text("wifi5-80").unwrap();
    assert!(text.contains(change.0), "{}", change.0);
    let changed = text.replacen(change.0, change.1, 1);
    Profile::parse(&changed, "mine.toml")
        .unwrap_err()
        .to_string()
}

#[test]
fn what_cannot_be_is_named_with_its_line() {
    let cases = [
        (
            ("snr_db = 35.0", "snr_db = nan"),
            "mine.toml:30: snr_db is NaN; it must be between -30 and 100",
        ),
        (
            ("snr_db = 35.0", "snr_db = inf"),
            "mine.toml:30: snr_db is inf; it must be between -30 and 100",
        ),
        (
            ("window = 64", "window = 65"),
            "mine.toml:12: window is 65; it must be between 1 and 64",
        ),
        (
            ("window = 64", "window = -1"),
            "mine.toml:12: invalid value: integer `-1`, expected u16",
        ),
        (
            ("width_mhz = 80", "width_mhz = 81"),
            "mine.toml:7: width_mhz is 81; this standard has no such channel",
        ),
        (
            ("\"vht\"", "\"ac\""),
            "mine.toml:6: standard is \"ac\"; it must be \"ht\"",
        ),
        (
            ("guard_ns = 400", "guard_ns = 3200"),
            "mine.toml:9: guard_ns is 3200; this standard has [400, 800]",
        ),
        (
            ("cw_max = 1023", "cw_max = 7"),
            "mine.toml:23: cw_max is 7; it must be between 15 and 32767",
        ),
        (
            ("[queue]", "[queues]"),
            "mine.toml:26: unknown field `queues`",
        ),
        (
            ("streams = 2", "stream = 2"),
            "mine.toml:8: unknown field `stream`",
        ),
        (("on_ms = 20\n", ""), "mine.toml:37: missing field `on_ms`"),
        (
            ("on_ms = 20", "on_ms = 0"),
            "mine.toml:39: on_ms is 0; it must be between 1 and 3600000",
        ),
        (("packets_max = 1400", "packets_max ="), "mine.toml:27: "),
    ];
    for (change, expected) in cases {
        let found = complaint(change);
        assert!(found.starts_with(expected), "{found}\n{expected}");
    }
}

#[test]
fn no_such_profile() {
    let found = Profile::find("wifi9").unwrap_err().to_string();
    assert!(
        found.contains("wifi5-80") && found.contains("FILE.toml"),
        "{found}"
    );
    let found = Profile::find("./not-there.toml").unwrap_err().to_string();
    assert!(found.contains("not-there.toml"), "{found}");
}

#[test]
fn the_farther_the_weaker() {
    let profile = Profile::find("wifi5-80").unwrap();
    // 20 dBm - 47 dB - 30 dB = -57 dBm over a noise of -88 dBm.
    assert!((profile.snr_at_db(10.0) - 31.0).abs() < 0.1);
    assert!(profile.snr_at_db(20.0) < profile.snr_at_db(10.0) - 9.0);
    assert!(profile.snr_at_db(0.0).is_finite());
}
