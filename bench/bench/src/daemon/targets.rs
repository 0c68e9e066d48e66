//! Goals of a daemon, as ratios to the same program in a process.

use super::suite::{LARGE, SEND, SEND_ON_TWO, SMALL, STOPPED, STOPPED_S, WRITE, WRITE_ON_TWO};
use crate::measurement::{Figure, Measurement, Point};
use crate::suite::VETH_1500;
use crate::targets::Verdict;

/// Least share of the bandwidth in a process, for private memory.
const BANDWIDTH_MIN: f64 = 0.75;
/// Most that a SEND takes longer than in a process, in microseconds.
const LONGER_MAX_US: f64 = 2.0;
/// Most that the 99th percentile of a program that spins is of its median.
const P99_MAX: f64 = 2.0;
/// Least share of the bandwidth to a program that runs on.
const STOPPED_MIN: f64 = 0.95;

/// All goals that this run measured.
pub fn verdicts(taken: &Measurement) -> Vec<Verdict> {
    let mut all = Vec::new();
    let mut add = |what: String, reached: Option<f64>, goal, at_least, unit| {
        if reached.is_some() {
            all.push(Verdict {
                what,
                reached,
                goal,
                at_least,
                unit,
            });
        }
    };
    let point = |figure, name: &str, x| taken.point(figure, VETH_1500.name, name, x);
    let median = |figure, name, x| point(figure, name, x).and_then(Point::median);
    for (program, [process, daemon]) in [("ib_send_bw", SEND), ("ib_write_bw", WRITE)] {
        let value = |name| median(Figure::Bandwidth, name, LARGE);
        let ratio = || Some(value(daemon)? / value(process)?);
        let what = format!("{program} 64 KiB, private memory, to that in a process");
        add(what, ratio(), BANDWIDTH_MIN, true, "x");
    }
    for (cores, [process, daemon]) in [("one core", SEND), ("two cores", SEND_ON_TWO)] {
        let value = |name| median(Figure::Latency, name, SMALL);
        let longer = || Some(value(daemon)? - value(process)?);
        let what = format!("ib_send_lat 64 B, {cores} a side, longer than in a process");
        add(what, longer(), LONGER_MAX_US, false, " us");
    }
    let names = WRITE.into_iter().chain(WRITE_ON_TWO);
    let places = [
        "in a process",
        "at a daemon",
        "in a process, two cores",
        "at a daemon, two cores",
    ];
    for (name, place) in names.zip(places) {
        let spread = || {
            let point = point(Figure::Latency, name, SMALL)?;
            Some(point.median_p99()? / point.median()?)
        };
        let what = format!("ib_write_lat 64 B {place}, 99th percentile to median");
        add(what, spread(), P99_MAX, false, "x");
    }
    let [running, stopped] = STOPPED;
    let value = |name| median(Figure::Stopped, name, STOPPED_S);
    let ratio = || Some(value(stopped)? / value(running)?);
    let what = format!("WRITEs to a program that is stopped for {STOPPED_S} s, to one that runs");
    add(what, ratio(), STOPPED_MIN, true, "x");
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::made_up::measurement;
    use crate::targets::assert_verdicts;

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let mut taken = measurement(&[
            (Figure::Bandwidth, SEND[0], true, LARGE, &[10.0]),
            (Figure::Bandwidth, SEND[1], false, LARGE, &[8.0]),
            (Figure::Latency, SEND[0], true, SMALL, &[20.0]),
            (Figure::Latency, SEND[1], false, SMALL, &[25.0]),
            (Figure::Latency, WRITE[1], false, SMALL, &[10.0]),
            (Figure::Stopped, STOPPED[0], true, STOPPED_S, &[10.0]),
            (Figure::Stopped, STOPPED[1], false, STOPPED_S, &[5.0]),
        ]);
        for curve in &mut taken.curves {
            for point in curve.points.values_mut() {
                point.samples[0].p99 = (curve.name == WRITE[1]).then_some(15.0);
            }
        }
        let expected = [
            ("0.80x", "yes"),
            ("5.00 us", "NO"),
            ("1.50x", "yes"),
            ("0.50x", "NO"),
        ];
        assert_verdicts(&verdicts(&taken), &expected);
    }
}
