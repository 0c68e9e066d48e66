//! Goals of streams, and whether this run reached them.

use super::page::with_costs;
use super::suite::{CAMERAS, CONTROLS, CREDITS, FLOWS, KEPT, LATENCIES, PAPER, WINDOW};
use crate::measurement::{Figure, Measurement, Point};
use crate::peer::CAMERA_RATE;
use crate::suite::VETH_1500;
use crate::targets::Verdict;
use crate::units;

/// Size at which the paper reports 4.6 times the window's throughput.
const SMALL: (u64, f64) = (256, 4.6);
/// Most throughput lost by a kept block, by number of blocks, in per cent.
const LOST_MAX: [f64; 2] = [12.0, 2.0];
/// Cameras of the paper.
const PAPERS_CAMERAS: u64 = 12;

/// All goals that this run measured, for both disciplines with one queue pair.
pub fn verdicts(taken: &Measurement) -> Vec<Verdict> {
    let taken = with_costs(taken);
    let mut all = Vec::new();
    for name in [CREDITS, PAPER] {
        of_discipline(&taken, name, &mut all);
    }
    all
}

fn of_discipline(taken: &Measurement, name: &str, all: &mut Vec<Verdict>) {
    let mut add = |what: String, reached: Option<f64>, goal: f64, at_least: bool, unit| {
        if reached.is_some() {
            all.push(Verdict {
                what: format!("{name}: {what}"),
                reached,
                goal,
                at_least,
                unit,
            });
        }
    };
    let point = |figure, name: &str, x| taken.point(figure, VETH_1500.name, name, x);
    let median = |figure, x| point(figure, name, x).and_then(Point::median);
    let ratio = |figure, x| Some(median(figure, x)? / point(figure, WINDOW, x)?.median()?);
    for blocks in CONTROLS {
        let what = format!("control delay with {blocks} blocks, to the window's");
        add(what, ratio(Figure::Control, blocks), 0.2, false, "x");
    }
    let spread = point(Figure::Control, name, CONTROLS[0]);
    let spread = spread.and_then(|point| Some(point.median_p99()? / point.median()?));
    let what = "99th percentile of the control delay with 3 blocks, to its median";
    add(what.into(), spread, 3.0, false, "x");
    for size in LATENCIES {
        let what = format!("latency of {}, to the window's", units::size(size));
        add(what, ratio(Figure::OneWay, size), 1.0, false, "x");
    }
    for size in FLOWS {
        let goal = if size == SMALL.0 { SMALL.1 } else { 1.0 };
        let what = format!("throughput of {}, to the window's", units::size(size));
        add(what, ratio(Figure::Bandwidth, size), goal, true, "x");
    }
    for size in FLOWS {
        let what = format!(
            "CPU of both ends for a GB of {}, to the window's",
            units::size(size)
        );
        add(what, ratio(Figure::Cpu, size), 0.8, false, "x");
    }
    for (blocks, most) in KEPT.into_iter().zip(LOST_MAX) {
        let what = format!("throughput lost while one of {blocks} blocks is kept");
        add(what, median(Figure::Kept, blocks), most, false, " %");
    }
    for cameras in CAMERAS {
        let what = |what: &str| format!("{cameras} cameras: {what}");
        let found = median(Figure::InTime, cameras);
        add(what("frames in time"), found, 100.0, true, " %");
        let p99 = point(Figure::Cameras, name, cameras).and_then(Point::median_p99);
        let quarter_us = 1e6 / f64::from(CAMERA_RATE) / 4.0;
        add(
            what("99th percentile of the latency"),
            p99,
            quarter_us,
            false,
            " us",
        );
        if cameras == PAPERS_CAMERAS {
            let found = median(Figure::Uneven, cameras);
            add(
                what("distance of the rate in 100 ms"),
                found,
                5.0,
                false,
                " %",
            );
        }
        let found = ratio(Figure::CamerasCpu, cameras);
        add(what("CPU, to the windows'"), found, 0.63, false, "x");
        let found = ratio(Figure::CameraMemory, cameras);
        add(what("memory, to the windows'"), found, 0.54, false, "x");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::StreamCost;
    use crate::measurement::made_up::measurement;

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let mut taken = measurement(&[
            (Figure::Control, "credits", false, 3, &[10.0]),
            (Figure::Control, "window", true, 3, &[20.0]),
            (Figure::Bandwidth, "credits", false, 256, &[5.0]),
            (Figure::Bandwidth, "window", true, 256, &[1.0]),
            (Figure::Kept, "credits", false, 16, &[1.0]),
            (Figure::Cameras, "credits", false, 12, &[300.0]),
        ]);
        let cameras = taken
            .curves
            .iter_mut()
            .find(|curve| curve.figure == Figure::Cameras);
        let point = cameras.unwrap().points.get_mut(&12).unwrap();
        point.samples[0].stream = Some(StreamCost {
            in_time: Some(99.0),
            uneven: Some(4.0),
            ..StreamCost::default()
        });
        let found: Vec<(String, &str)> = verdicts(&taken)
            .iter()
            .map(|verdict| (verdict.reached_text(), verdict.word()))
            .collect();
        let expected = [
            ("0.50x", "NO"),
            ("2.00x", "yes"),
            ("5.00x", "yes"),
            ("1.00 %", "yes"),
            ("99.0 %", "NO"),
            ("600 us", "yes"),
            ("4.00 %", "yes"),
        ];
        assert_eq!(
            found,
            expected.map(|(reached, word)| (reached.into(), word))
        );
    }
}
