//! Goals of Write-Record, and whether this run reached them.

use super::suite::{
    BANDWIDTHS, CONNECTED, DESTINATIONS, LATENCIES, LOSSES, LOSSY, READ_LOSS, SOURCES, UD_MAX,
    WHOLE,
};
use crate::measurement::{Figure, Measurement, Point};
use crate::suite::{Link, VETH_1500};
use crate::targets::Verdict;
use crate::units;

/// Latency of short messages, compared with RC WRITE's: the paper says 24.4 % less.
const OF_WRITE: f64 = 0.76;
const SHORT_MAX: u64 = 2048;
/// Sizes with a higher goal for bandwidth.
const MIDDLE: std::ops::RangeInclusive<u64> = 1024..=16_384;
/// Distance from the share that the loss leaves, in per cent of all bytes.
const SHARE_WITHIN: f64 = 1.0;
/// Least size at which the paper's rule loses nine bytes of ten.
const SEVERAL_DATAGRAMS: u64 = 262_144;

/// All goals that this run measured.
pub fn verdicts(taken: &Measurement) -> Vec<Verdict> {
    let mut all = Vec::new();
    let mut add = |what: String, reached: Option<f64>, goal: f64, at_least: bool, unit| {
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
    let veth = VETH_1500.name;
    let ratio = |figure, link, other, x| {
        let of = |name| taken.point(figure, link, name, x)?.median();
        Some(of("write_record")? / of(other)?)
    };
    for size in LATENCIES.into_iter().filter(|size| *size <= SHORT_MAX) {
        let text = units::size(size);
        let found = ratio(Figure::Latency, veth, "rc_write", size);
        let what = format!("latency of {text}, to RC WRITE's on memory");
        add(what, found, OF_WRITE, false, "x");
        let found = ratio(Figure::Latency, veth, "rc_write_polls", size);
        let what = format!("latency of {text}, to RC WRITE's, whose target polls too");
        add(what, found, OF_WRITE, false, "x");
        if size <= UD_MAX {
            let found = ratio(Figure::Latency, veth, "ud_send", size);
            add(
                format!("latency of {text}, to UD SEND's"),
                found,
                1.0,
                false,
                "x",
            );
        }
    }
    for size in BANDWIDTHS {
        let found = ratio(Figure::Bandwidth, veth, "rc_write", size);
        let goal = if MIDDLE.contains(&size) { 1.5 } else { 1.0 };
        let what = format!("bandwidth of {}, to RC WRITE's", units::size(size));
        add(what, found, goal, true, "x");
    }
    for (link, lost) in LOSSY {
        let point = |size| taken.point(Figure::Bandwidth, link.name, "write_record", size);
        for size in LOSSES {
            let found = point(size).and_then(Point::median_valid);
            let found = found.map(|valid| (valid - (100.0 - lost)).abs());
            let what = format!(
                "valid bytes of {} at {lost} % loss, from what it leaves",
                units::size(size)
            );
            add(what, found, SHARE_WITHIN, false, " %");
        }
    }
    let (worst, lost) = LOSSY[LOSSY.len() - 1];
    for size in LOSSES.into_iter().filter(|size| *size >= SEVERAL_DATAGRAMS) {
        let point = taken.point(Figure::Bandwidth, worst.name, "write_record", size);
        let found = point.and_then(|point| Some(point.median_valid()? / point.median_paper()?));
        let what = format!(
            "goodput of {} at {lost} % loss, to the paper's rule",
            units::size(size)
        );
        add(what, found, 10.0, true, "x");
    }
    for size in CONNECTED {
        let found = ratio(Figure::Bandwidth, worst.name, "rc_write", size);
        let what = format!(
            "goodput of {} at {lost} % loss, to RC WRITE's",
            units::size(size)
        );
        add(what, found, 3.0, true, "x");
    }
    let (lossy, lost) = READ_LOSS;
    for size in CONNECTED {
        let of = |link: Link| {
            let point = taken.point(Figure::Bandwidth, link.name, "ud_read", size)?;
            point.median()
        };
        let left = 1.0 - lost / 100.0;
        let found = of(lossy).and_then(|found| Some(found / (of(WHOLE)? * left)));
        let what = format!(
            "UD READ of {} at {lost} % loss, to what the loss leaves of it without",
            units::size(size)
        );
        add(what, found, 0.9, true, "x");
    }
    let memory = taken.point(Figure::SourceMemory, veth, "write_record", SOURCES);
    let what = format!(
        "memory at the target of one of {} sources",
        units::thousands(SOURCES)
    );
    add(what, memory.and_then(Point::median), 0.0, false, " B");
    let others = taken.point(
        Figure::Survivors,
        veth,
        "write_record_reliable",
        DESTINATIONS,
    );
    let what = format!("rate of the others when 1 of {DESTINATIONS} destinations has died");
    add(what, others.and_then(Point::median), 95.0, true, " %");
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::made_up::measurement;
    use crate::targets::assert_verdicts;

    #[test]
    fn goals_are_judged_by_what_was_measured() {
        let taken = measurement(&[
            (Figure::Latency, "write_record", false, 64, &[7.0]),
            (Figure::Latency, "rc_write", true, 64, &[10.0]),
            (Figure::Latency, "ud_send", true, 64, &[6.0]),
            (Figure::Bandwidth, "write_record", false, 1024, &[4.0]),
            (Figure::Bandwidth, "rc_write", true, 1024, &[2.0]),
            (
                Figure::Survivors,
                "write_record_reliable",
                false,
                64,
                &[94.0],
            ),
        ]);
        let expected = [
            ("0.70x", "yes"),
            ("1.17x", "NO"),
            ("2.00x", "yes"),
            ("94.0 %", "NO"),
        ];
        assert_verdicts(&verdicts(&taken), &expected);
    }
}
