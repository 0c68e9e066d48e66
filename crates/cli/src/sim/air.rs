//! `airdma sim air`: transfers on simulated Wi-Fi, in virtual time, as a table that is the same on every machine.

use airdma_engine::RateControl;
use airdma_proof::cell::{Setting, completion, line_rate, throughput};
use airdma_sim::wifi::Profile;
use std::fmt::Write as _;
use std::time::Duration;

const SEED: u64 = 1;
/// For so long each row is looked at.
const TIME: Duration = Duration::from_secs(1);
const GOOD_DB: f64 = 35.0;
const FAIR_DB: f64 = 22.0;
const LOSSES: [f64; 4] = [0.0, 0.001, 0.01, 0.05];

/// Who sends: a name, and the rate control, if it is not plain RoCEv2.
const SENDERS: [(&str, Option<RateControl>); 3] = [
    ("RoCEv2", None),
    ("air", Some(RateControl::Buffers)),
    ("air, latency", Some(RateControl::Latency)),
];

fn setting(profile: Profile, snr_db: f64, loss: f64) -> Setting {
    Setting {
        profile,
        snr_db,
        loss,
        seed: SEED,
    }
}

/// All of it, in Markdown.
pub fn table() -> Result<String, std::fmt::Error> {
    let mut text = String::from(INTRODUCTION);
    signals(&mut text)?;
    losses(&mut text)?;
    sizes(&mut text)?;
    Ok(text)
}

const INTRODUCTION: &str = "# Air mode in virtual time

Written by `airdma sim air > docs/benchmarks/air-virtual.md`; `make air-virtual` compares. Two devices, as programs use them, in a simulated cell ([the
model](../design/010-wifi-model.md)): RDMA WRITEs of 64 KiB, 128 under way, at a path MTU of 1,024 bytes. The line is what a queue that is always full gets
through in packets of the same size. Times in the queue are those of the sender's packets, until they arrive or are given up.

";

fn signals(text: &mut String) -> std::fmt::Result {
    writeln!(text, "## Throughput\n")?;
    writeln!(
        text,
        "| radio | SNR | line, Mb/s | sender | Mb/s | of the line | in the queue, ms: median | 99 % | dropped by a full queue | answers/MB |"
    )?;
    writeln!(
        text,
        "| --- | --: | --: | --- | --: | --: | --: | --: | --: | --: |"
    )?;
    let radios = [
        Profile::AC_80,
        Profile::AX_80,
        Profile::AX_160,
        Profile::BE_320,
    ];
    for profile in radios {
        for snr_db in [GOOD_DB, FAIR_DB] {
            let setting = setting(profile.clone(), snr_db, 0.0);
            let line = line_rate(&setting, TIME);
            for (name, air) in SENDERS {
                let seen = throughput(&setting, air, TIME);
                let [median, high] = seen.queued_ms;
                writeln!(
                    text,
                    "| {} | {snr_db} dB | {line:.0} | {name} | {:.0} | {:.3} | {median:.1} | {high:.1} | {} | {:.1} |",
                    setting.profile.name,
                    seen.mbit,
                    seen.mbit / line,
                    seen.overflowed,
                    seen.answers_per_mb,
                )?;
            }
        }
    }
    Ok(())
}

fn losses(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Residual loss\n\nPackets that vanish behind the radio, at {GOOD_DB} dB on ac-80: Mb/s, and how much that is of what the loss leaves.\n"
    )?;
    writeln!(text, "| loss | what it leaves | RoCEv2 | | air | |")?;
    writeln!(text, "| --: | --: | --: | --: | --: | --: |")?;
    for loss in LOSSES {
        let setting = setting(Profile::AC_80, GOOD_DB, loss);
        let left = line_rate(&setting, TIME);
        let plain = throughput(&setting, None, TIME).mbit;
        let air = throughput(&setting, Some(RateControl::Buffers), TIME).mbit;
        writeln!(
            text,
            "| {:.1} % | {left:.0} | {plain:.0} | {:.3} | {air:.0} | {:.3} |",
            loss * 100.0,
            plain / left,
            air / left,
        )?;
    }
    Ok(())
}

fn sizes(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Completion\n\nFrom the first request to the last completion at {GOOD_DB} dB: ms, and how much longer than size / line.\n"
    )?;
    writeln!(text, "| radio | MB | RoCEv2 | | air | |")?;
    writeln!(text, "| --- | --: | --: | --: | --: | --: |")?;
    for profile in [Profile::AC_80, Profile::AX_160, Profile::BE_320] {
        let setting = setting(profile, GOOD_DB, 0.0);
        let line = line_rate(&setting, TIME);
        for megabytes in [1_u32, 10, 100] {
            write!(text, "| {} | {megabytes}", setting.profile.name)?;
            let least_ms = f64::from(megabytes) * 8e3 / line;
            for air in [None, Some(RateControl::Buffers)] {
                match completion(&setting, air, u64::from(megabytes) * 1_000_000) {
                    Some(time) => {
                        let ms = time.as_secs_f64() * 1e3;
                        write!(text, " | {ms:.1} | {:.2}", ms / least_ms)?;
                    }
                    None => write!(text, " | never |")?,
                }
            }
            writeln!(text, " |")?;
        }
    }
    Ok(())
}
