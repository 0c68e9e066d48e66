//! `airdma sim congestion`: senders that share a marking queue, in virtual time, as a table that is
//! the same on every machine.

use airdma_engine::RateControl;
use airdma_sim::Marking;
use airdma_worlds::bottleneck::{Bottleneck, Setting};
use std::fmt::Write as _;
use std::time::Duration;

const MS: Duration = Duration::from_millis(1);
const SENDERS: [usize; 5] = [1, 2, 4, 8, 16];
/// Time between the starts of two senders.
const APART: Duration = Duration::from_millis(2);

/// The senders and the queue of a case.
struct Case {
    name: &'static str,
    air: bool,
    control: RateControl,
    line_mbps: u32,
    marking: Marking,
    /// Time before shares are measured, and time of the measurement.
    times: [Duration; 2],
    /// Start of the second of two senders, and length of a row of their rates.
    joins: [Duration; 2],
}

const CASES: [Case; 2] = [
    Case {
        name: "DCQCN",
        air: false,
        control: RateControl::Dcqcn,
        line_mbps: 40_000,
        // Section 5.2 of the paper.
        marking: Marking::Ramp {
            kmin: 5_000,
            kmax: 200_000,
            pmax: 0.01,
        },
        times: [Duration::from_millis(50), Duration::from_millis(50)],
        joins: [Duration::from_millis(10), Duration::from_millis(5)],
    },
    Case {
        name: "DCTCP",
        air: true,
        control: RateControl::Dctcp,
        line_mbps: 10_000,
        // 65 packets of 1,500 bytes: section 4.1 of the paper.
        marking: Marking::Above(100_000),
        times: [Duration::from_millis(100), Duration::from_millis(200)],
        joins: [Duration::from_millis(50), Duration::from_millis(25)],
    },
];
const JOIN_ROWS: usize = 12;

impl Case {
    fn setting(&self, senders: usize, apart: Duration) -> Setting {
        Setting {
            senders,
            air: self.air,
            control: self.control,
            line_mbps: self.line_mbps,
            marking: self.marking,
            apart,
        }
    }
}

/// The whole table in Markdown.
pub fn table() -> Result<String, std::fmt::Error> {
    let mut text = String::from(INTRODUCTION);
    shares(&mut text)?;
    for case in &CASES {
        joins(&mut text, case)?;
    }
    Ok(text)
}

const INTRODUCTION: &str = "# Congestion in virtual time

Written by `airdma sim congestion > docs/benchmarks/congestion.md`; `make congestion` compares. Devices, as programs use them, at the lines of one switch, which
send RDMA WRITEs of 64 KiB to one of them, 16 under way each, at a path MTU of 4,096 bytes. Each line delays by 2 us, the switch's queue
holds 4 MiB and marks, and what the receiver sends is up to 20 us late: for DCQCN along the ramp of the paper's 5.2 (from 5 KB, 1 % at 200 KB, all above), at 40 Gb/s; for DCTCP (`AIRDMA_AIR=1
AIRDMA_RATE=dctcp`) above 100 KB, at 10 Gb/s. *Window* is RoCEv2 that counts notifications and does not slow down. What is used is payload, of what a line
carries of it.

";

fn shares(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "## Shares\n\nSenders begin {} ms apart; after a while (DCQCN {} ms, DCTCP {} ms) they are looked at, for {} and {} ms.\n",
        APART.as_millis(),
        CASES[0].times[0].as_millis(),
        CASES[1].times[0].as_millis(),
        CASES[0].times[1].as_millis(),
        CASES[1].times[1].as_millis(),
    )?;
    writeln!(
        text,
        "| rate | senders | used | Jain's index | least, Mb/s | most | queue, KB: mean | median | 99 % | marked | dropped |"
    )?;
    writeln!(
        text,
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |"
    )?;
    for case in &CASES {
        for senders in SENDERS {
            share(text, case.name, case, case.setting(senders, APART))?;
        }
    }
    for senders in SENDERS {
        let plain = Setting {
            control: RateControl::Window,
            ..CASES[0].setting(senders, APART)
        };
        share(text, "window", &CASES[0], plain)?;
    }
    Ok(())
}

fn share(text: &mut String, name: &str, case: &Case, setting: Setting) -> std::fmt::Result {
    let mut bottleneck = Bottleneck::new(setting);
    bottleneck.run(case.times[0]);
    let seen = bottleneck.run(case.times[1]);
    let least = seen.mbps.iter().copied().fold(f64::MAX, f64::min);
    let most = seen.mbps.iter().copied().fold(0.0, f64::max);
    let [mean, median, high] = seen.queue_bytes.map(|bytes| bytes as f64 / 1e3);
    writeln!(
        text,
        "| {name} | {} | {:.3} | {:.3} | {least:.0} | {most:.0} | {mean:.0} | {median:.0} | {high:.0} | {:.1} % | {} |",
        setting.senders,
        seen.sum_mbps() / setting.payload_mbps(),
        seen.fairness(),
        seen.marked * 100.0,
        seen.dropped,
    )
}

/// Rates while a second sender joins a first one.
fn joins(text: &mut String, case: &Case) -> std::fmt::Result {
    let [begins, every] = case.joins;
    writeln!(
        text,
        "\n## {}: a second sender joins\n\nIt begins after {} ms. Mb/s of both, in the {} ms before.\n",
        case.name,
        begins.as_millis(),
        every.as_millis(),
    )?;
    writeln!(text, "| ms | first | second | queue, KB: mean | 99 % |")?;
    writeln!(text, "| --: | --: | --: | --: | --: |")?;
    let mut bottleneck = Bottleneck::new(case.setting(2, begins));
    for row in 1..=JOIN_ROWS {
        let seen = bottleneck.run(every);
        let [mean, _, high] = seen.queue_bytes.map(|bytes| bytes as f64 / 1e3);
        writeln!(
            text,
            "| {} | {:.0} | {:.0} | {mean:.0} | {high:.0} |",
            (every * row as u32).as_nanos() / MS.as_nanos(),
            seen.mbps[0],
            seen.mbps[1],
        )?;
    }
    Ok(())
}
