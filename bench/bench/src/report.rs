//! The measurement as text and tables.

use std::fmt::Write as _;

use crate::measurement::{Curve, Figure, LinkFacts, Measurement, Point};
use crate::targets::{self, Verdict};
use crate::units;
use crate::{plot, table};

/// The whole page; `name` is the stem of the plots' and the data's files.
pub fn markdown(taken: &Measurement, name: &str) -> String {
    let mut page = format!("# Benchmark: {name}\n\n{}\n", how(taken, name));
    for (picture, seen) in plot::pictures(taken) {
        let file = plot::file(name, &picture, "svg");
        let _ = write!(page, "\n![{seen}]({file})\n");
    }
    let _ = write!(
        page,
        "\n## Targets\n\n{}\n\n## Where airdma loses\n\n{}\n\n## What failed, and what was not measured\n\n{}\n",
        targets_text(taken),
        losses(taken),
        gaps(taken, &targets::verdicts(taken))
    );
    for (figure, link) in taken.groups() {
        let rows = table::markdown(&rows(taken, figure, link), 1);
        let _ = write!(page, "\n## {}; {}\n\n{rows}\n", figure.title(), link.label);
        if figure.has_p99() {
            let rows = table::markdown(&p99_rows(taken, figure, link), 1);
            let _ = write!(page, "\n99th percentiles, us:\n\n{rows}\n");
        }
    }
    let _ = write!(
        page,
        "\n## Commands\n\nAt the largest `x` of each:\n\n{}",
        commands(taken)
    );
    page
}

/// The targets as a table.
pub fn target_rows(taken: &Measurement) -> Vec<Vec<String>> {
    verdict_rows(&targets::verdicts(taken))
}

/// As [`target_rows`], of these verdicts.
pub fn verdict_rows(verdicts: &[Verdict]) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["what", "reached", "target", "met"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for verdict in verdicts.iter().filter(|verdict| verdict.reached.is_some()) {
        rows.push(vec![
            verdict.what.clone(),
            verdict.reached_text(),
            verdict.goal_text(),
            verdict.word().to_owned(),
        ]);
    }
    rows
}

fn targets_text(taken: &Measurement) -> String {
    let rows = target_rows(taken);
    if rows.len() == 1 {
        return "None of them was measured in this run.".into();
    }
    let table = table::markdown(&rows, 1);
    format!(
        "{table}\n\nRatios are of medians, on a veth of MTU 1500 unless loss is named. \"The best TCP\" is CUBIC or BBR, whichever did better."
    )
}

fn how(taken: &Measurement, name: &str) -> String {
    let stopped = if taken.interrupted {
        "**Stopped before its end: what is below is what was measured until then.** "
    } else {
        ""
    };
    format!(
        "{stopped}Two network namespaces joined by a veth, one core a side. Medians of {} runs (smallest to largest in \
         brackets) of {} s each; at each size all programs take turns. CPU is user and system time of both programs, from their \
         start to their end, and of soft interrupts on their cores where the kernel counts those apart. airdma's two ends may agree on more than RoCEv2, as any two airdma hosts; the series called plain RoCE agree on nothing (`AIRDMA_AIR=0`). perftest polls, and so takes its core for as long as it runs, unless it says sleeping; sockperf \
         blocks in its receive call, unless it says polling, and sends 65,507 bytes at most. TCP with writes of up to 8 KiB runs \
         without Nagle's algorithm, unless it says otherwise.\n\n{}",
        taken.runs,
        taken.seconds,
        about(taken, name)
    )
}

/// Size of the measurement, and [`about`] it.
pub fn facts(taken: &Measurement, name: &str) -> String {
    format!(
        "Medians of {} runs (smallest to largest in brackets) of {} s each. {}",
        taken.runs,
        taken.seconds,
        about(taken, name)
    )
}

/// The machine, the versions and the command.
fn about(taken: &Measurement, name: &str) -> String {
    let list = |facts: &std::collections::BTreeMap<String, String>| {
        let facts = facts.iter().map(|(key, value)| format!("{key} {value}"));
        facts.collect::<Vec<_>>().join(", ")
    };
    format!(
        "Machine: {}. Versions: {}. Begun {}: `{}`. All samples: [{name}.json]({name}.json).",
        list(&taken.machine),
        list(&taken.versions),
        taken.started,
        taken.command
    )
}

/// Text of the losses: every peer that did better than airdma, and where; and the missed targets.
pub fn losses(taken: &Measurement) -> String {
    let mut lines = Vec::new();
    for (figure, link) in taken.groups() {
        let curves = taken.curves_of(figure, &link.name);
        for ours in curves.iter().filter(|curve| !curve.peer) {
            // READ's latency is a whole round trip, not half of one.
            if ours.name == "read_lat" {
                continue;
            }
            for theirs in curves.iter().filter(|curve| curve.peer) {
                lines.extend(lost(figure, link, ours, theirs));
            }
        }
    }
    let missed = targets::verdicts(taken);
    for verdict in missed.iter().filter(|verdict| verdict.word() == "NO") {
        lines.push(format!(
            "- Target missed: {}: {}, not {}.",
            verdict.what,
            verdict.reached_text(),
            verdict.goal_text()
        ));
    }
    if lines.is_empty() {
        return "Nowhere in this run.".into();
    }
    lines.join("\n")
}

fn lost(figure: Figure, link: &LinkFacts, ours: &Curve, theirs: &Curve) -> Option<String> {
    let mut cells = Vec::new();
    let mut compared = 0;
    for (x, point) in &ours.points {
        let (mine, other) = (point.median(), theirs.points.get(x).and_then(Point::median));
        let (Some(mine), Some(other)) = (mine, other) else {
            continue;
        };
        compared += 1;
        let behind = if figure.more_is_better() {
            mine < other
        } else {
            mine > other
        };
        if behind && other > 0.0 {
            cells.push(format!("{:.2}x at {}", mine / other, figure.x_text(*x)));
        }
    }
    let verb = match figure {
        Figure::Bandwidth | Figure::QueuePairs | Figure::Survivors | Figure::Stopped => {
            "is slower than"
        }
        Figure::Latency | Figure::Response | Figure::Control | Figure::OneWay | Figure::Cameras => {
            "takes longer than"
        }
        Figure::Cpu => "costs more CPU for a byte than",
        Figure::CamerasCpu => "costs more CPU than",
        Figure::Kept => "loses more than",
        Figure::InTime | Figure::Uneven => "is less regular than",
        Figure::MessageRate | Figure::Connections | Figure::Sources | Figure::Valid => {
            "does less than"
        }
        Figure::Web | Figure::Get | Figure::Set => "serves less than",
        Figure::IdleMemory
        | Figure::SourceMemory
        | Figure::ClientMemory
        | Figure::CameraMemory
        | Figure::CameraQueues => "takes more memory than",
    };
    let everywhere = if cells.len() == compared && compared > 1 {
        " at every size measured"
    } else {
        ""
    };
    (!cells.is_empty()).then(|| {
        let (ours, theirs, link) = (&ours.label, &theirs.label, &link.label);
        format!(
            "- {ours} {verb} {theirs}{everywhere} ({link}): {}.",
            cells.join(", ")
        )
    })
}

/// What failed or was not measured.
pub fn gaps(taken: &Measurement, verdicts: &[Verdict]) -> String {
    let mut lines = Vec::new();
    let unknown = verdicts.iter().filter(|verdict| verdict.reached.is_none());
    let unknown = unknown
        .map(|verdict| verdict.what.as_str())
        .collect::<Vec<_>>();
    if !unknown.is_empty() {
        lines.push(format!(
            "- Targets not measured in this run: {}.",
            unknown.join("; ")
        ));
    }
    for missing in &taken.missing {
        let (program, package) = (&missing.program, &missing.package);
        let labels = missing.labels.join("; ");
        lines.push(format!("- `{program}` is not there ({package}): {labels}."));
    }
    for curve in &taken.curves {
        for (x, point) in curve
            .points
            .iter()
            .filter(|(_, point)| !point.failures.is_empty())
        {
            let runs = point.failures.len() + point.samples.len();
            let (label, x) = (&curve.label, curve.figure.x_text(*x));
            let (failed, link) = (point.failures.len(), &curve.link);
            let figure = curve.figure.name();
            lines.push(format!("- {label}, {figure} of {x} on {link}: {failed} of {runs} runs failed; what both ends said is in the JSON file."));
        }
    }
    if lines.is_empty() {
        return "Nothing.".into();
    }
    lines.join("\n")
}

/// Medians, with the smallest and largest values.
pub fn rows(taken: &Measurement, figure: Figure, link: &LinkFacts) -> Vec<Vec<String>> {
    cells(taken, figure, link, |point| {
        let Some((low, high)) = point.spread() else {
            return "failed".into();
        };
        let [median, low, high] =
            [point.median().unwrap_or(low), low, high].map(units::three_digits);
        format!("{median} ({low}-{high})")
    })
}

/// Medians of the 99th percentiles.
pub fn p99_rows(taken: &Measurement, figure: Figure, link: &LinkFacts) -> Vec<Vec<String>> {
    cells(taken, figure, link, |point| {
        point.median_p99().map_or("-".into(), units::three_digits)
    })
}

fn cells(
    taken: &Measurement,
    figure: Figure,
    link: &LinkFacts,
    cell: impl Fn(&Point) -> String,
) -> Vec<Vec<String>> {
    let curves = taken.curves_of(figure, &link.name);
    let mut titles = vec![figure.x_title().to_owned()];
    titles.extend(curves.iter().map(|curve| curve.label.clone()));
    let mut xs: Vec<u64> = curves
        .iter()
        .flat_map(|curve| curve.points.keys().copied())
        .collect();
    xs.sort_unstable();
    xs.dedup();
    let mut rows = vec![titles];
    for x in xs {
        let mut row = vec![figure.x_text(x)];
        for curve in &curves {
            row.push(curve.points.get(&x).map_or("-".into(), &cell));
        }
        rows.push(row);
    }
    rows
}

/// Command lines at the largest `x` of each curve.
pub fn commands(taken: &Measurement) -> String {
    let mut text = String::new();
    for curve in &taken.curves {
        let Some(point) = curve.points.values().last() else {
            continue;
        };
        let (label, figure, link) = (&curve.label, curve.figure.name(), &curve.link);
        let _ = write!(text, "- {label}, {figure}, {link}: ");
        if let Some(server) = &point.server {
            let _ = write!(text, "`{server}`, then ");
        }
        let _ = writeln!(text, "`{}`", point.client);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::made_up::measurement;
    use crate::measurement::{Missing, Point};

    fn taken() -> Measurement {
        measurement(&[
            (Figure::Bandwidth, "write_bw", false, 64, &[1.0]),
            (Figure::Bandwidth, "write_bw", false, 1024, &[5.0]),
            (Figure::Bandwidth, "tcp_cubic", true, 64, &[2.0]),
            (Figure::Bandwidth, "tcp_cubic", true, 1024, &[4.0]),
            (Figure::Latency, "send_lat", false, 64, &[5.0]),
            (Figure::Latency, "read_lat", false, 64, &[9.0]),
            (Figure::Latency, "sockperf_tcp", true, 64, &[4.0]),
        ])
    }

    #[test]
    fn where_we_lose_follows_from_the_numbers() {
        let text = losses(&taken());
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "- label of write_bw is slower than label of tcp_cubic (veth, MTU 1500): 0.50x at 64 B."
        );
        assert_eq!(
            lines[1],
            "- label of send_lat takes longer than label of sockperf_tcp (veth, MTU 1500): 1.25x at 64 B."
        );
        assert!(lines[2].starts_with("- Target missed: "), "{text}");
        // A whole round trip is not compared with half of one.
        assert!(!text.contains("label of read_lat"), "{text}");
        let good = measurement(&[
            (Figure::Bandwidth, "write_bw", false, 64, &[3.0]),
            (Figure::Bandwidth, "tcp_cubic", true, 64, &[2.0]),
        ]);
        assert_eq!(losses(&good), "Nowhere in this run.");
    }

    #[test]
    fn the_page_names_what_failed_and_what_is_missing() {
        let mut taken = taken();
        taken.interrupted = true;
        taken.missing.push(Missing {
            program: "ucx_perftest".into(),
            package: "ucx-utils".into(),
            labels: vec!["UCX (bandwidth, veth)".into()],
        });
        let failed = Point {
            failures: vec!["--- server".into()],
            ..Point::default()
        };
        taken.curves[0].points.insert(4096, failed);
        let page = markdown(&taken, "name");
        for words in [
            "**Stopped before its end",
            "- `ucx_perftest` is not there (ucx-utils): UCX (bandwidth, veth).",
            "bandwidth of 4 KiB on veth-1500: 1 of 1 runs failed",
            "| 4 KiB   |            failed |",
            "(name-veth-1500.svg)",
            "- Targets not measured in this run: ",
        ] {
            assert!(page.contains(words), "{words:?} in\n{page}");
        }
    }
}
