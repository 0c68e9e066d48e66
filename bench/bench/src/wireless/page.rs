//! The measurement as a page.

use std::fmt::Write as _;

use super::plan::{SIGNALS, Signal};
use super::shape;
use super::taken::{Beside, Case, Taken, middle};
use super::targets;
use crate::table;

const TITLES: [&str; 11] = [
    "transport",
    "MB",
    "Mb/s",
    "of the line rate",
    "seconds",
    "CPU s/GB",
    "busy s/GB",
    "answers/MB",
    "ping ms",
    "ping 95 %",
    "failed",
];

/// Renders the page.
///
/// `pictures` are files beside it, each with its caption; `remarks` is a comment written by hand.
pub fn markdown(taken: &Taken, pictures: &[(String, String)], remarks: &str) -> String {
    let mut text = String::from("# Transports on an emulated Wi-Fi link\n\n");
    for session in &taken.sessions {
        let _ = writeln!(text, "`{}`, {}.\n", session.command, session.started);
        for (what, value) in &session.machine {
            let _ = writeln!(text, "- {what}: {value}");
        }
        text.push('\n');
    }
    text.push_str(remarks);
    text.push_str(
        "Medians. The line rate is the best second of bare UDP on that link. scp and rsync count from start to end, as their user does, the \
         others from the first byte to the last. CPU is that of all programs of both ends; busy is what both cores of the machine were not idle, with what the kernel \
         does in interrupts (all that TCP receives), the link's own work and the pings. A failed run is one that did not end well \
         in time; why is in the JSON file.\n",
    );
    for missing in &taken.missing {
        let _ = writeln!(text, "\nLeft out: {missing}.");
    }
    let targets = targets::targets(taken);
    if targets.len() > 1 {
        text.push_str("\n## What is aimed at, in air mode\n\n");
        let _ = writeln!(text, "{}", table::markdown(&targets, 2));
    }
    for (file, what) in pictures {
        let _ = writeln!(text, "\n![{what}]({file})");
    }
    for signal in &SIGNALS {
        let cases = taken.of(signal.name);
        if let Some(first) = cases.first() {
            let (name, label, link) = (signal.name, signal.label, &first.link);
            let _ = writeln!(text, "\n## {name}: {label}\n\n`airdma link up {link}`\n");
            let _ = writeln!(text, "{}", table::markdown(&table_of(signal, &cases), 1));
        }
    }
    if !taken.beside.is_empty() {
        text.push_str(
            "\n## A flow of TCP CUBIC beside it\n\nAt a good signal, for four seconds. Half would be fair.\n\n",
        );
        let _ = writeln!(text, "{}", table::markdown(&beside(&taken.beside), 1));
    }
    shapes(&mut text, taken);
    text
}

/// Tables of the other shapes, if any was measured.
fn shapes(text: &mut String, taken: &Taken) {
    let parts = [
        (
            shape::messages(&taken.shapes),
            "Messages of all sizes",
            "Mb/s of perftest's WRITE at a good signal. `airdma_write_wide` is RoCEv2 as a NIC sends it: all at once, whatever gets lost, in packets \
             that leave one by one (`AIRDMA_WINDOW_BYTES=none AIRDMA_SEGMENTATION=off`).",
        ),
        (
            shape::sharing(&taken.shapes),
            "Several at once",
            "At a good signal, in air mode, by programs that sleep while nothing is to be done: the sum in Mb/s, and the least and the greatest share, \
             where 1 is an equal one. Connections are of one program, programs have one each.",
        ),
        (
            shape::foregrounds(&taken.shapes),
            "Beside a program that has so much to send",
            "By TCP CUBIC, at a good signal, for three seconds.",
        ),
    ];
    for (rows, title, what) in parts {
        if rows.len() > 1 {
            let _ = writeln!(text, "\n## {title}\n\n{what}\n");
            let _ = writeln!(text, "{}", table::markdown(&rows, 1));
        }
    }
}

fn table_of(signal: &Signal, cases: &[&Case]) -> Vec<Vec<String>> {
    let udp = cases.iter().find(|case| case.transport == "udp");
    let line = udp.and_then(|case| case.median(|sample| sample.mbit));
    let cell = |value: Option<f64>, digits: usize| {
        value.map_or("-".into(), |value| format!("{value:.digits$}"))
    };
    let mut rows = vec![TITLES.map(String::from).to_vec()];
    for case in cases {
        let mbit = case.median(|sample| sample.mbit);
        let size = match (&*case.transport, signal.walk) {
            ("udp", _) | (_, Some(_)) => "-".into(),
            _ => case.megabytes.to_string(),
        };
        rows.push(vec![
            case.transport.clone(),
            size,
            cell(mbit, 0),
            cell(mbit.zip(line).map(|(mbit, line)| mbit / line), 2),
            cell(case.median(|sample| sample.seconds), 2),
            cell(case.median(|sample| sample.cpu_s_per_gb), 2),
            cell(case.busy_s_per_gb(), 2),
            cell(case.median(|sample| sample.answers_per_mb), 0),
            cell(case.ping_ms(0), 1),
            cell(case.ping_ms(1), 1),
            format!("{} of {}", case.failures(), case.samples.len()),
        ]);
    }
    rows
}

fn beside(all: &[Beside]) -> Vec<Vec<String>> {
    let titles = [
        "beside",
        "Mb/s alone",
        "Mb/s beside",
        "share left",
        "failed",
    ];
    let mut rows = vec![titles.map(String::from).to_vec()];
    for beside in all {
        let [alone, both] = [&beside.alone_mbit, &beside.beside_mbit]
            .map(|runs| middle(runs.clone()).unwrap_or(f64::NAN));
        rows.push(vec![
            beside.transport.clone(),
            format!("{alone:.0}"),
            format!("{both:.0}"),
            format!("{:.2}", both / alone),
            format!("{} of {}", beside.errors.len(), beside.alone_mbit.len()),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::super::taken::made_up::{case, taken};
    use super::*;

    #[test]
    fn a_failed_run_is_no_sample_and_is_said() {
        let mut taken = taken(vec![
            case("good", "udp", 10, &[600.0]),
            case("good", "tcp_cubic", 10, &[300.0, 0.0, 200.0, 400.0]),
            case("good", "airdma_write", 10, &[0.0]),
        ]);
        taken.beside.push(Beside {
            transport: "udp".into(),
            alone_mbit: vec![400.0],
            beside_mbit: vec![100.0],
            errors: vec!["no".into()],
        });
        taken.missing.push("croc is not installed".into());
        let page = markdown(
            &taken,
            &[("x-mbit.svg".into(), "goodput".into())],
            "Good.\n\n",
        );
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("| ")).collect();
        let is_median = rows[3].contains(" 300 ") && rows[3].contains("0.50");
        assert!(is_median && rows[3].contains("1 of 4"), "{page}");
        assert!(rows[4].contains("1 of 1"), "{page}");
        assert!(page.contains("0.25"), "{page}");
        assert!(page.contains("Left out: croc is not installed."), "{page}");
        assert!(page.contains("![goodput](x-mbit.svg)"), "{page}");
        assert!(page.contains("Good.\n\nMedians"), "{page}");
    }
}
