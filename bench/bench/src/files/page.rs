//! The measurement as a page, with its targets.

use std::fmt::Write as _;

use super::content::{CONTENTS, Content, SMALL};
use super::peer::{PEERS, Peer};
use super::taken::{Case, Taken};
use super::wire::{WIRES, Wire};
use crate::{machine, table};

const TITLES: [&str; 8] = [
    "files",
    "by",
    "seconds",
    "on disk",
    "Mb/s",
    "of the line rate",
    "CPU s/GB",
    "failed",
];
/// Targets: shares of a radio's line rate and of iperf3's on a veth, and speed compared with scp's
/// for small files.
const OF_RADIO: f64 = 0.95;
const OF_IPERF3: f64 = 0.8;
const OF_SCP: f64 = 10.0;
/// Targets by rank: first until both ends have ended, and until the data is on the disk.
const FIRST: [(&str, Time); 2] = [
    ("first of all, by seconds", Case::seconds),
    ("first of all, on disk", Case::durable_s),
];
type Time = fn(&Case) -> Option<f64>;

/// Renders the page.
///
/// `pictures` are files beside it, each with its caption; `remarks` is a comment written by hand.
pub fn markdown(taken: &Taken, pictures: &[(String, String)], remarks: &str) -> String {
    let mut text = String::from("# Files\n\n");
    for session in &taken.sessions {
        let _ = writeln!(text, "`{}`, {}.\n", session.command, session.started);
        for (what, value) in &session.machine {
            let _ = writeln!(text, "- {what}: {value}");
        }
        text.push('\n');
        for warning in machine::warnings(&session.machine) {
            let _ = writeln!(text, "**Note**: {warning}.\n");
        }
    }
    text.push_str(remarks);
    text.push_str(
        "Medians. Both hosts are on one machine, so both ends share its cores and its disk; files lie in the page cache when they are read. *seconds*: from the \
         start of the command until both ends have ended, with the first contact: a code (airdma), the handshake of ssh (scp, rsync), of TLS (quic). *on disk*: and until the \
         kernel has written all of it. airdma's receiver ends only when the data is durable, those of the others end before: its *seconds* hold more than theirs, so who is first is \
         judged by both. CPU is that of all programs of both ends. Contents are compared (BLAKE3) after each copy; \
         one that differs has failed. On an emulated radio, whose ends are no wireless interfaces to programs, airdma is told so (`AIRDMA_AIR=1`).\n\n\
         *rsync* is `rsync -a --whole-file`, *scp* `scp -rp`; *quic* one stream by quinn with CUBIC, as it comes; *nc* one connection of TCP, not encrypted, by 64 KiB at a time, in \
         place of one of the many netcats. Through the last two go `cat` of a file, and of a directory what `tar` packs and unpacks.\n",
    );
    for missing in &taken.missing {
        let _ = writeln!(text, "\nLeft out: {missing}.");
    }
    let targets = targets(taken);
    if targets.len() > 1 {
        let _ = writeln!(text, "\n## What is aimed at\n");
        let _ = writeln!(text, "{}", table::markdown(&targets, 2));
    }
    for (file, what) in pictures {
        let _ = writeln!(text, "\n![{what}]({file})");
    }
    for wire in &WIRES {
        let rows = rows(taken, wire);
        if rows.len() > 1 {
            let _ = writeln!(text, "\n## {}: {}\n", wire.name, wire.label);
            if let Some(mbit) = taken.line_mbit(wire.name) {
                let _ = writeln!(text, "Line rate, {}: {mbit:.0} Mb/s.\n", wire.measure());
            }
            let _ = writeln!(text, "{}", table::markdown(&rows, 2));
        }
    }
    text
}

fn contents() -> impl Iterator<Item = Content> {
    CONTENTS.into_iter().chain(SMALL)
}

fn rows(taken: &Taken, wire: &Wire) -> Vec<Vec<String>> {
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    let line = taken.line_mbit(wire.name);
    let mut rows = vec![TITLES.map(String::from).to_vec()];
    for case in contents().flat_map(|content| taken.of(wire.name, content.name)) {
        let mbit = case.median(|sample| sample.mbit);
        rows.push(vec![
            case.content.clone(),
            case.peer.clone(),
            cell(case.median(|sample| sample.seconds), 2),
            cell(case.durable_s(), 2),
            cell(mbit, 0),
            cell(mbit.zip(line).map(|(mbit, line)| mbit / line), 2),
            cell(case.median(|sample| sample.cpu_s_per_gb), 2),
            format!("{} of {}", case.failures(), case.samples.len()),
        ]);
    }
    rows
}

/// Rows of targets and what airdma reached.
fn targets(taken: &Taken) -> Vec<Vec<String>> {
    let titles = ["what", "target", "found", "met"];
    let mut rows = vec![titles.map(String::from).to_vec()];
    let mut row = |what: String, target: String, found: String, is_met: bool| {
        let met = if is_met { "yes" } else { "no" };
        rows.push(vec![what, target, found, met.into()]);
    };
    for wire in &WIRES {
        for content in CONTENTS {
            let cases = taken.of(wire.name, content.name);
            let Some(airdma) = cases.iter().find(|case| is_of(case, Peer::Airdma)) else {
                continue;
            };
            let what = format!("{} on {}", content.name, wire.name);
            for (target, time) in FIRST {
                if let Some((found, is_met)) = first(airdma, &cases, time, |_| true) {
                    row(what.clone(), target.into(), found, is_met);
                }
            }
            let share = airdma
                .median(|sample| sample.mbit)
                .zip(taken.line_mbit(wire.name));
            if content == CONTENTS[0]
                && let Some((mbit, line)) = share
            {
                let least = if wire.profile.is_some() {
                    OF_RADIO
                } else {
                    OF_IPERF3
                };
                let (of, share) = (wire.measure(), mbit / line);
                let target = format!("{least:.2} of {of}");
                row(what.clone(), target, format!("{share:.2}"), share >= least);
            }
            let scp = cases.iter().find(|case| is_of(case, Peer::Scp));
            let times = scp.and_then(|scp| Some(scp.seconds()? / airdma.seconds()?));
            if content.is_directory()
                && let Some(times) = times
            {
                let target = format!("{OF_SCP:.0} times as fast as scp");
                row(what.clone(), target, format!("{times:.1}"), times >= OF_SCP);
            }
            let cpu = |case: &Case| case.median(|sample| sample.cpu_s_per_gb);
            if let Some((found, is_met)) = first(airdma, &cases, cpu, Peer::is_encrypted) {
                row(what, "least CPU of the encrypted".into(), found, is_met);
            }
        }
    }
    rows
}

fn is_of(case: &Case, peer: Peer) -> bool {
    case.peer == peer.name()
}

/// Whether the first peer's value is the lowest, with the best other one; none without others to
/// compare.
fn first(
    airdma: &Case,
    cases: &[&Case],
    value: impl Fn(&Case) -> Option<f64>,
    is_one: impl Fn(Peer) -> bool,
) -> Option<(String, bool)> {
    let others = PEERS
        .into_iter()
        .filter(|peer| *peer != Peer::Airdma && is_one(*peer));
    let found = others.filter_map(|peer| {
        let case = cases.iter().find(|case| is_of(case, peer))?;
        Some((value(case)?, peer.name()))
    });
    let (best, name) = found.min_by(|one, other| one.0.total_cmp(&other.0))?;
    let own = value(airdma)?;
    Some((format!("{own:.2}, {name} {best:.2}"), own <= best))
}

#[cfg(test)]
mod tests {
    use super::super::taken::{Line, Sample};
    use super::*;

    /// A case without time for the disk, except for airdma.
    fn case(wire: &str, peer: &str, content: Content, seconds: f64, cpu_s: f64) -> Case {
        let syncing_s = if peer == "airdma" { 0.0 } else { 0.5 };
        Case {
            wire: wire.into(),
            peer: peer.into(),
            content: content.name.into(),
            samples: vec![
                Sample::moved(content.bytes(), seconds, syncing_s, cpu_s),
                Sample {
                    error: Some("what arrived is something else".into()),
                    ..Sample::default()
                },
            ],
        }
    }

    #[test]
    fn targets_are_judged_by_what_was_measured() {
        let mut taken = Taken::new();
        let [large, _, small] = CONTENTS;
        taken.lines.push(Line {
            wire: "veth".into(),
            mbit: vec![10_000.0],
        });
        taken.cases = vec![
            case("veth", "airdma", large, 0.9, 1.5),
            case("veth", "nc", large, 0.8, 0.5),
            case("veth", "quic", large, 4.0, 4.0),
            case("wifi5-80", "airdma", small, 1.0, 0.1),
            case("wifi5-80", "scp", small, 10.0, 0.2),
        ];
        let rows = targets(&taken);
        let met: Vec<(&str, &str, &str)> = rows[1..]
            .iter()
            .map(|row| (&*row[1], &*row[2], &*row[3]))
            .collect();
        let expected = [
            ("first of all, by seconds", "0.90, nc 0.80", "no"),
            ("first of all, on disk", "0.90, nc 1.30", "yes"),
            ("0.80 of iperf3's TCP", "0.89", "yes"),
            ("least CPU of the encrypted", "1.50, quic 4.00", "yes"),
            ("first of all, by seconds", "1.00, scp 10.00", "yes"),
            ("first of all, on disk", "1.00, scp 10.50", "yes"),
            ("10 times as fast as scp", "10.0", "yes"),
            ("least CPU of the encrypted", "2.44, scp 4.88", "yes"),
        ];
        assert_eq!(met, expected);
        // A failed run has no part in the medians.
        let table = super::rows(&taken, &WIRES[0]);
        let expected = [
            "1GB", "airdma", "0.90", "0.90", "8889", "0.89", "1.50", "1 of 2",
        ];
        assert_eq!(table[1], expected);
        assert!(markdown(&taken, &[], "").contains("10 times as fast as scp"));
    }
}
