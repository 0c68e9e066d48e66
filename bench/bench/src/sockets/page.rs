//! The measurement as a page.

use std::fmt::Write as _;

use super::targets;
use crate::measurement::{Figure, Measurement};
use crate::{report, table};

const INTRODUCTION: &str = "Written by `airdma bench sockets`. Two network namespaces joined by a veth of MTU 1500, one core a side; \
unmodified programs with `libairdma_sockets.so` at both ends, at one, and at none, in turns. With it at one end alone there is no lane, \
and the difference is what the library costs. Each sample includes the time before a lane opens, half a second of three.\n\n\
*Bandwidth*: iperf3, one stream of writes of 128 KiB, CUBIC. *Latency*: sockperf's ping-pong over TCP that blocks, half a round trip. \
*Objects*: wrk with 16 connections that are kept alive, nginx with one process and `sendfile`. *GET* and *SET*: redis-benchmark with 50 clients and no pipeline. \
*Loss* is by nftables at both ends, each packet alone: segmentation is off on that link.";

/// Renders the page; `name` is the stem of the plots' and the data's files.
pub fn markdown(taken: &Measurement, name: &str) -> String {
    let mut page = format!("# Socket programs, measured\n\n{INTRODUCTION}\n\n");
    let _ = writeln!(page, "{}", report::facts(taken, name));
    let verdicts = targets::verdicts(taken);
    let rows = report::verdict_rows(&verdicts);
    if rows.len() > 1 {
        let _ = write!(page, "\n## Targets\n\n{}\n", table::markdown(&rows, 1));
    }
    let _ = write!(
        page,
        "\n## What failed, and what was not measured\n\n{}\n",
        report::gaps(taken, &verdicts)
    );
    for (figure, link) in taken.groups() {
        let rows = table::markdown(&report::rows(taken, figure, link), 1);
        let _ = write!(page, "\n## {}; {}\n\n{rows}\n", figure.title(), link.label);
        if matches!(
            figure,
            Figure::Latency | Figure::Web | Figure::Get | Figure::Set
        ) {
            let rows = table::markdown(&report::p99_rows(taken, figure, link), 1);
            let _ = write!(page, "\n99th percentiles, us:\n\n{rows}\n");
        }
    }
    let _ = write!(
        page,
        "\n## Commands\n\nAt the largest `x` of each:\n\n{}",
        report::commands(taken)
    );
    page
}
