//! `airdma sim air`: transfers on simulated Wi-Fi, in virtual time, as a table that is the same on
//! every machine.

use airdma_engine::{PathMtu, RateControl};
use airdma_link::{Profile as Radio, Signal, Walk};
use airdma_sim::wifi::Profile;
use airdma_worlds::cell::{
    Load, SNR_STEP, Seen, Sender, Setting, completion, line_completion, line_rate, throughput,
};
use std::fmt::Write as _;
use std::time::Duration;

const SEED: u64 = 1;
/// Time that each row measures.
const TIME: Duration = Duration::from_secs(4);
/// Time where randomness matters less, or millions of packets are dropped.
const SHORT_TIME: Duration = Duration::from_secs(1);
const GOOD_DB: f64 = 35.0;
const FAIR_DB: f64 = 22.0;
/// Worlds at a fair signal, where the radio's rate varies and a single world is not representative.
const FAIR_SEEDS: u64 = 8;
const LOSSES: [f64; 4] = [0.0, 0.001, 0.01, 0.05];

const AIR: Sender = Sender::air(RateControl::Buffers);
/// Senders by name.
const SENDERS: [(&str, Sender); 3] = [
    ("RoCEv2", Sender::ROCE),
    ("air", AIR),
    ("air, latency", Sender::air(RateControl::Latency)),
];

fn setting(profile: Profile, snr_db: f64, loss: f64) -> Setting {
    Setting {
        profile,
        snr_db: vec![snr_db],
        loss,
        seed: SEED,
    }
}

/// The whole table in Markdown.
pub fn table() -> anyhow::Result<String> {
    let mut text = String::from(INTRODUCTION);
    signals(&mut text)?;
    losses(&mut text)?;
    aggregation(&mut text)?;
    sizes(&mut text)?;
    messages(&mut text)?;
    reads(&mut text)?;
    sharing(&mut text)?;
    walks(&mut text)?;
    foreground(&mut text)?;
    Ok(text)
}

const INTRODUCTION: &str = "# Air mode in virtual time

Written by `airdma sim air > docs/benchmarks/air-virtual.md`; `make air-virtual` compares. Devices, as programs use them, in a simulated cell ([the
model](../design/010-wifi-model.md)): RDMA WRITEs of 64 KiB where nothing else is said, 128 of each queue pair under way, at a path MTU of 1,024 bytes, in
packets of 1,452 bytes where both ends are in air mode. The line is what a queue that is always full gets through in UDP datagrams of 1,472 bytes. Times in the queue are those of the sender's packets, until they arrive or are
given up.

";

fn signals(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "## Throughput\n\nAt {FAIR_DB} dB the radio's rate goes up and down by chance: means over {FAIR_SEEDS} seeds.\n"
    )?;
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
        for (snr_db, seeds) in [(GOOD_DB, 1), (FAIR_DB, FAIR_SEEDS)] {
            let settings: Vec<Setting> = (SEED..SEED + seeds)
                .map(|seed| Setting {
                    seed,
                    ..setting(profile.clone(), snr_db, 0.0)
                })
                .collect();
            let line = mean(&settings, |setting| line_rate(setting, 1, TIME));
            for (name, sender) in SENDERS {
                let all: Vec<Seen> = (settings.iter())
                    .map(|setting| throughput(setting, sender, Load::USUAL, TIME))
                    .collect();
                let mbit = mean(&all, |seen| seen.mbit);
                let [median, high] = [0, 1].map(|part| mean(&all, |seen| seen.queued_ms[part]));
                writeln!(
                    text,
                    "| {} | {snr_db} dB | {line:.0} | {name} | {mbit:.0} | {:.3} | {median:.1} | {high:.1} | {} | {:.1} |",
                    profile.name,
                    mbit / line,
                    all.iter().map(|seen| seen.overflowed).sum::<u64>(),
                    mean(&all, |seen| seen.answers_per_mb),
                )?;
            }
        }
    }
    Ok(())
}

fn mean<T>(all: &[T], value: impl Fn(&T) -> f64) -> f64 {
    all.iter().map(value).sum::<f64>() / all.len() as f64
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
        let left = line_rate(&setting, 1, TIME);
        let plain = throughput(&setting, Sender::ROCE, Load::USUAL, TIME).mbit;
        let air = throughput(&setting, AIR, Load::USUAL, TIME).mbit;
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

/// How packets leave in air mode: singly, in datagrams of up to 64 KB, and longer than the MTU.
const AGGREGATES: [(&str, Sender); 3] = [
    ("long packets", AIR),
    (
        "datagrams",
        Sender {
            bundles: true,
            ..AIR
        },
    ),
    (
        "path MTU of 4,096",
        Sender {
            path_mtu: PathMtu::M4096,
            ..AIR
        },
    ),
];

fn aggregation(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Long packets, datagrams and a longer path MTU\n\nAir mode at {GOOD_DB} dB, by how packets leave ([why so](../design/020-air-mode.md#aggregation)): each in an IP packet of its own, of 1,452 bytes (*long packets*, as ever), up to 64 KB \
         of them in one datagram (`AIRDMA_AGGREGATE=datagrams`), or each 4,096 bytes long (`AIRDMA_MTU=4096`). The latter two leave as IP fragments of up to 1,500 bytes, of which one \
         that vanishes takes the others of its datagram along. Datagrams are given up soon where 0.1 % vanish; the rest of the time it is long packets.\n"
    )?;
    write!(text, "| radio | vanish")?;
    for (name, _) in AGGREGATES {
        write!(text, " | {name}, Mb/s | in the queue, 99 %, ms")?;
    }
    writeln!(
        text,
        " |\n| --- | --: | --: | --: | --: | --: | --: | --: |"
    )?;
    for profile in [Profile::AC_80, Profile::AX_160] {
        for loss in &LOSSES[..3] {
            let setting = setting(profile.clone(), GOOD_DB, *loss);
            write!(text, "| {} | {:.1} %", setting.profile.name, loss * 100.0)?;
            for (_, sender) in AGGREGATES {
                let seen = throughput(&setting, sender, Load::USUAL, TIME);
                write!(text, " | {:.0} | {:.1}", seen.mbit, seen.queued_ms[1])?;
            }
            writeln!(text, " |")?;
        }
    }
    Ok(())
}

fn sizes(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Completion\n\nFrom the first request to the last completion at {GOOD_DB} dB: ms, and how much longer than size / line. A queue that is full from the beginning takes \
         longer, too: the radio has been idle for 300 ms, and finds its rate again.\n"
    )?;
    writeln!(text, "| radio | MB | full queue | | RoCEv2 | | air | |")?;
    writeln!(text, "| --- | --: | --: | --: | --: | --: | --: | --: |")?;
    for profile in [Profile::AC_80, Profile::AX_160, Profile::BE_320] {
        let setting = setting(profile, GOOD_DB, 0.0);
        let line = line_rate(&setting, 1, TIME);
        for megabytes in [1_u32, 10, 100] {
            write!(text, "| {} | {megabytes}", setting.profile.name)?;
            let least_ms = f64::from(megabytes) * 8e3 / line;
            let bytes = u64::from(megabytes) * 1_000_000;
            let full_ms = line_completion(&setting, bytes).as_secs_f64() * 1e3;
            write!(text, " | {full_ms:.1} | {:.2}", full_ms / least_ms)?;
            for sender in [Sender::ROCE, AIR] {
                match completion(&setting, sender, bytes) {
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

/// Sizes of messages in bytes, and their names.
const MESSAGES: [(u32, &str); 9] = [
    (2, "2 B"),
    (64, "64 B"),
    (512, "512 B"),
    (4 << 10, "4 KiB"),
    (16 << 10, "16 KiB"),
    (64 << 10, "64 KiB"),
    (256 << 10, "256 KiB"),
    (512 << 10, "512 KiB"),
    (1 << 20, "1 MiB"),
];

/// Senders without rate control: with reports and selective repeat, and with go-back-N.
const UNCONTROLLED: [Sender; 2] = [
    Sender {
        air: Some(RateControl::Window),
        has_window: false,
        ..Sender::ROCE
    },
    Sender {
        has_window: false,
        ..Sender::ROCE
    },
];

fn messages(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Message sizes\n\nMb/s at {GOOD_DB} dB on ac-80, and packets that found the queue full, by who sends. *Without control*: neither a rate nor the window that \
         the engine has towards every peer, as a NIC.\n"
    )?;
    writeln!(
        text,
        "| message | air | dropped | RoCEv2 | dropped | air without control | dropped | RoCEv2 without control | dropped |"
    )?;
    writeln!(
        text,
        "| --: | --: | --: | --: | --: | --: | --: | --: | --: |"
    )?;
    let setting = setting(Profile::AC_80, GOOD_DB, 0.0);
    for (message_bytes, name) in MESSAGES {
        write!(text, "| {name}")?;
        let load = Load {
            message_bytes,
            ..Load::USUAL
        };
        for sender in [&[AIR, Sender::ROCE][..], &UNCONTROLLED].concat() {
            let seen = throughput(&setting, sender, load, SHORT_TIME);
            write!(text, " | {:.1} | {}", seen.mbit, seen.overflowed)?;
        }
        writeln!(text, " |")?;
    }
    Ok(())
}

fn reads(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## READs\n\nAt {GOOD_DB} dB: READs of 64 KiB, 16 of them under way, beside WRITEs in air mode, in Mb/s and of what the loss leaves of the line. Answers that \
         are lost are asked for again, and with them what follows: in air mode to the end of 64 KiB, else all of it.\n"
    )?;
    writeln!(
        text,
        "| radio | vanish | what it leaves | READs, RoCEv2 | | READs, air | | WRITEs, air | |"
    )?;
    writeln!(
        text,
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: |"
    )?;
    let asked = Load {
        reads: true,
        ..Load::USUAL
    };
    for profile in [Profile::AC_80, Profile::AX_160] {
        for loss in &LOSSES[..3] {
            let setting = setting(profile.clone(), GOOD_DB, *loss);
            let left = line_rate(&setting, 1, SHORT_TIME);
            write!(
                text,
                "| {} | {:.1} % | {left:.0}",
                setting.profile.name,
                loss * 100.0
            )?;
            for (sender, load) in [(Sender::ROCE, asked), (AIR, asked), (AIR, Load::USUAL)] {
                let seen = throughput(&setting, sender, load, SHORT_TIME);
                write!(text, " | {:.0} | {:.3}", seen.mbit, seen.mbit / left)?;
            }
            writeln!(text, " |")?;
        }
    }
    Ok(())
}

/// Time over which shares are measured.
const SHARING_TIME: Duration = Duration::from_secs(2);

fn sharing(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Several queue pairs, and two hosts\n\nAt {GOOD_DB} dB on ac-80: the sum in Mb/s, how much that is of what one queue pair of one host gets, and of what the queues of as many hosts get through that are \
         always full; and the least and the greatest share of a queue pair, where 1 is an equal one.\n"
    )?;
    writeln!(
        text,
        "| hosts | queue pairs of each | sender | Mb/s | of one | of the line | least | greatest | dropped by a full queue |"
    )?;
    writeln!(
        text,
        "| --: | --: | --- | --: | --: | --: | --: | --: | --: |"
    )?;
    let setting = setting(Profile::AC_80, GOOD_DB, 0.0);
    let lines = [1, 2].map(|hosts| line_rate(&setting, hosts, SHARING_TIME));
    for (name, sender) in SENDERS {
        let one = throughput(&setting, sender, Load::USUAL, SHARING_TIME).mbit;
        for (hosts, queue_pairs) in [(1, 2), (1, 4), (1, 8), (1, 16), (2, 1), (2, 4)] {
            let load = Load {
                hosts,
                queue_pairs,
                ..Load::USUAL
            };
            let seen = throughput(&setting, sender, load, SHARING_TIME);
            let [least, greatest] = extremes(&seen);
            writeln!(
                text,
                "| {hosts} | {queue_pairs} | {name} | {:.0} | {:.3} | {:.3} | {least:.3} | {greatest:.3} | {} |",
                seen.mbit,
                seen.mbit / one,
                seen.mbit / lines[hosts - 1],
                seen.overflowed,
            )?;
        }
    }
    Ok(())
}

/// The least and the greatest share, relative to an equal one.
fn extremes(seen: &Seen) -> [f64; 2] {
    let equal = seen.mbit / seen.shares_mbit.len() as f64;
    let least = seen.shares_mbit.iter().copied().fold(f64::MAX, f64::min);
    let greatest = seen.shares_mbit.iter().copied().fold(0.0, f64::max);
    [least, greatest].map(|share| share / equal)
}

fn walks(text: &mut String) -> anyhow::Result<()> {
    let radio = Radio::find("wifi5-80")?;
    writeln!(
        text,
        "\n## Walks\n\nSomebody walks from 2 m to 60 m, or back, as by `airdma link up --walk`: Mb/s over all of it, and how much that is of the line's.\n"
    )?;
    writeln!(
        text,
        "| walk | line, Mb/s | sender | Mb/s | of the line | in the queue, ms: median | 99 % | dropped by a full queue |"
    )?;
    writeln!(text, "| --- | --: | --- | --: | --: | --: | --: | --: |")?;
    for (way, walk) in [("away", Walk::Away), ("toward", Walk::Toward)] {
        let signal = Signal::walk(walk, &radio, WALK_SEED);
        let steps = signal.duration().as_nanos().div_ceil(SNR_STEP.as_nanos()) as u32;
        let setting = Setting {
            snr_db: (0..steps)
                .map(|step| signal.snr_db(SNR_STEP * step))
                .collect(),
            ..setting(radio.mac.clone(), 0.0, 0.0)
        };
        let time = SNR_STEP * steps;
        let line = line_rate(&setting, 1, time);
        for (name, sender) in SENDERS {
            let seen = throughput(&setting, sender, Load::USUAL, time);
            let [median, high] = seen.queued_ms;
            writeln!(
                text,
                "| {way} | {line:.0} | {name} | {:.0} | {:.3} | {median:.1} | {high:.1} | {} |",
                seen.mbit,
                seen.mbit / line,
                seen.overflowed,
            )?;
        }
    }
    Ok(())
}

/// Seed of the walks; the same as in `airdma bench wireless`.
const WALK_SEED: u64 = 3;

fn foreground(text: &mut String) -> std::fmt::Result {
    writeln!(
        text,
        "\n## Beside a foreground\n\nAnother program of the sending host has datagrams of 1,500 bytes for the same receiver, at an even rate, which it keeps whatever comes of them (so it is no TCP): \
         how much of them arrives, how long 99 % take, and what is sent beside them. At {GOOD_DB} dB on ac-80.\n"
    )?;
    writeln!(
        text,
        "| foreground, Mb/s | beside | arrives | 99 %, ms | beside it, Mb/s | of the line | dropped by a full queue |"
    )?;
    writeln!(text, "| --: | --- | --: | --: | --: | --: | --: |")?;
    let setting = setting(Profile::AC_80, GOOD_DB, 0.0);
    let line = line_rate(&setting, 1, SHORT_TIME);
    let senders = [&SENDERS[..], &[("RoCEv2 without control", UNCONTROLLED[1])]].concat();
    for foreground_mbit in [10, 80, 160] {
        let load = Load {
            foreground_mbit,
            ..Load::USUAL
        };
        for (name, sender) in &senders {
            let seen = throughput(&setting, *sender, load, SHORT_TIME);
            let [arrives, high] = seen.foreground;
            writeln!(
                text,
                "| {foreground_mbit} | {name} | {arrives:.3} | {high:.1} | {:.0} | {:.3} | {} |",
                seen.mbit,
                seen.mbit / line,
                seen.overflowed,
            )?;
        }
    }
    Ok(())
}
