//! Goals of airdma, and whether this run reached them.

use crate::measurement::{Curve, Figure, Measurement, Point};
use crate::suite::{LOSSY, VETH_1500};
use crate::units;

/// One goal.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// Description of the comparison.
    pub what: String,
    /// Value reached; none if this run did not measure it.
    pub reached: Option<f64>,
    /// The goal.
    pub goal: f64,
    /// Whether more is better.
    pub at_least: bool,
    /// Unit: "x" for a ratio.
    pub unit: &'static str,
}

impl Verdict {
    /// "yes", "NO", or "not measured".
    pub fn word(&self) -> &'static str {
        match self.reached {
            None => "not measured",
            Some(reached) if self.met(reached) => "yes",
            Some(_) => "NO",
        }
    }

    /// "1.30x", or "-".
    pub fn reached_text(&self) -> String {
        self.reached.map_or("-".into(), |value| self.text(value))
    }

    /// ">= 1.3x".
    pub fn goal_text(&self) -> String {
        let sign = if self.at_least { ">=" } else { "<=" };
        format!("{sign} {}", self.text(self.goal))
    }

    fn met(&self, reached: f64) -> bool {
        if self.at_least {
            reached >= self.goal
        } else {
            reached <= self.goal
        }
    }

    fn text(&self, value: f64) -> String {
        if self.unit == "x" {
            format!("{value:.2}x")
        } else {
            format!("{}{}", units::three_digits(value), self.unit)
        }
    }
}

/// All goals of this benchmark, on the veth of MTU 1500 where no other link is named.
pub fn verdicts(taken: &Measurement) -> Vec<Verdict> {
    let mut all = Vec::new();
    for size in [1 << 20, 262_144, 65_536, 8192, 1024] {
        for (name, what) in OPERATIONS {
            bandwidth(&mut all, taken, name, what, size);
        }
    }
    for (name, plain, what) in SEALED {
        let of = |name| median(taken, Figure::Bandwidth, name, 65_536);
        let what = format!("{what}, 64 KiB, sealed, to the same in the clear");
        all.push(at_least(what, of(name), of(plain), 0.7));
    }
    for size in [1 << 20, 30_000] {
        for (name, what) in CPU {
            let tcp = best(taken, Figure::Cpu, &TCP, size, f64::min);
            let ours = median(taken, Figure::Cpu, name, size);
            let what = format!(
                "CPU seconds per GB, {what}, {}, to TCP's",
                units::size(size)
            );
            all.push(at_most(what, ours, tcp, 0.6));
        }
    }
    latency(&mut all, taken);
    let lossy = |name| {
        let point = taken.point(Figure::Bandwidth, LOSSY.name, name, 65_536)?;
        point.median()
    };
    let what = "ib_write_bw, 64 KiB, 0.1 % loss, to bare UDP in single packets".into();
    all.push(at_least(what, lossy("write_bw"), lossy("udp"), 0.9));
    all.push(Verdict {
        what: "message rate, WRITE of 64 B, batches of 16, one core a side".into(),
        reached: median(taken, Figure::MessageRate, "write_16", 64),
        goal: 1.0,
        at_least: true,
        unit: " M/s",
    });
    all.push(Verdict {
        what: "bandwidth at the worst number of queue pairs, to the best".into(),
        reached: flatness(taken),
        goal: 0.85,
        at_least: true,
        unit: "x",
    });
    let at = |pairs| median(taken, Figure::QueuePairs, "write_pairs", pairs);
    let what = "bandwidth at 16,384 queue pairs, to that at one".into();
    all.push(at_least(what, at(16_384), at(1), 0.9));
    all.push(Verdict {
        what: "memory of an idle RC queue pair, its rings of one entry included".into(),
        reached: any(taken, Figure::IdleMemory, "idle_pairs"),
        goal: 4096.0,
        at_least: false,
        unit: " B",
    });
    all.push(Verdict {
        what: "connections by rdma_cm, 2,000 begun together".into(),
        reached: median(taken, Figure::Connections, "cmtime", 2000),
        goal: 10_000.0,
        at_least: true,
        unit: "/s",
    });
    all
}

const OPERATIONS: [(&str, &str); 3] = [
    ("write_bw", "ib_write_bw"),
    ("read_bw", "ib_read_bw"),
    ("send_bw", "ib_send_bw"),
];
/// Sealed series, and the same in the clear.
const SEALED: [(&str, &str, &str); 3] = [
    ("write_bw_sealed", "write_bw", "ib_write_bw"),
    ("read_bw_sealed", "read_bw", "ib_read_bw"),
    ("send_bw_sealed", "send_bw", "ib_send_bw"),
];
const CPU: [(&str, &str); 2] = [
    ("send_events", "ib_send_bw -e"),
    ("write_bw", "ib_write_bw"),
];
const TCP: [&str; 2] = ["tcp_cubic", "tcp_bbr"];

fn bandwidth(all: &mut Vec<Verdict>, taken: &Measurement, name: &str, what: &str, size: u64) {
    let ours = median(taken, Figure::Bandwidth, name, size);
    let tcp = best(taken, Figure::Bandwidth, &TCP, size, f64::max);
    let goal = if size <= 1024 { 2.0 } else { 1.3 };
    let size_text = units::size(size);
    let to_tcp = format!("{what}, {size_text}, to the best TCP");
    all.push(at_least(to_tcp, ours, tcp, goal));
    if size >= 65_536 {
        let limit = median(taken, Figure::Bandwidth, "udp_gso", size);
        let to_limit = format!("{what}, {size_text}, to bare UDP with GSO and GRO");
        all.push(at_least(to_limit, ours, limit, 0.7));
    }
}

fn latency(all: &mut Vec<Verdict>, taken: &Measurement) {
    type Value = fn(&Point) -> Option<f64>;
    let (median, p99): (Value, Value) = (Point::median, Point::median_p99);
    let of = |name, value: Value| {
        let point = taken.point(Figure::Latency, VETH_1500.name, name, 64)?;
        value(point)
    };
    let values = [("median", median), ("p99", p99)];
    let mut add = |name, what: &str, (which, value), peer, label, goal| {
        let text = format!("{what}, 64 B, {which}, to {label}");
        all.push(at_most(text, of(name, value), of(peer, value), goal));
    };
    let (tcp, udp) = ("sockperf_tcp", "sockperf_udp");
    for value in values {
        add("send_lat", "ib_send_lat", value, tcp, "sockperf TCP's", 0.6);
        add("send_lat", "ib_send_lat", value, udp, "sockperf UDP's", 0.8);
    }
    let (polls, label) = ("sockperf_tcp_polls", "sockperf TCP's, polling");
    add("send_lat", "ib_send_lat", values[0], polls, label, 1.2);
    let label = "ucx_perftest tag's over TCP";
    add("send_lat", "ib_send_lat", values[0], "ucx_tag", label, 1.2);
    let (name, what) = ("write_lat", "ib_write_lat");
    add(name, what, values[0], tcp, "sockperf TCP's", 0.6);
    add(name, what, values[0], udp, "sockperf UDP's", 0.8);
    let (name, what) = (
        "write_lat_two_cores",
        "ib_write_lat with a core for the helper",
    );
    add(name, what, values[1], tcp, "sockperf TCP's", 2.0);
}

fn at_least(what: String, ours: Option<f64>, theirs: Option<f64>, goal: f64) -> Verdict {
    Verdict {
        what,
        reached: ratio(ours, theirs),
        goal,
        at_least: true,
        unit: "x",
    }
}

fn at_most(what: String, ours: Option<f64>, theirs: Option<f64>, goal: f64) -> Verdict {
    Verdict {
        at_least: false,
        ..at_least(what, ours, theirs, goal)
    }
}

fn ratio(ours: Option<f64>, theirs: Option<f64>) -> Option<f64> {
    let theirs = theirs.filter(|value| *value > 0.0)?;
    Some(ours? / theirs)
}

fn median(taken: &Measurement, figure: Figure, name: &str, x: u64) -> Option<f64> {
    taken.point(figure, VETH_1500.name, name, x)?.median()
}

fn any(taken: &Measurement, figure: Figure, name: &str) -> Option<f64> {
    let curve = taken.curve(figure, VETH_1500.name, name)?;
    curve.points.values().last()?.median()
}

fn best(
    taken: &Measurement,
    figure: Figure,
    names: &[&str],
    x: u64,
    better: fn(f64, f64) -> f64,
) -> Option<f64> {
    let medians = names
        .iter()
        .filter_map(|name| median(taken, figure, name, x));
    medians.reduce(better)
}

/// Smallest median over largest, if more than one number of queue pairs was measured and each has a
/// result.
fn flatness(taken: &Measurement) -> Option<f64> {
    let curve: &Curve = taken.curve(Figure::QueuePairs, VETH_1500.name, "write_pairs")?;
    let medians: Vec<f64> = curve
        .points
        .values()
        .map(|point| point.median().unwrap_or(0.0))
        .collect();
    let largest = medians.iter().copied().reduce(f64::max)?;
    let smallest = medians.iter().copied().reduce(f64::min)?;
    (medians.len() > 1).then(|| ratio(Some(smallest), Some(largest)))?
}

/// Fails unless the verdicts have these values and words, in this order.
#[cfg(test)]
pub fn assert_verdicts(verdicts: &[Verdict], expected: &[(&str, &str)]) {
    let found: Vec<_> = verdicts
        .iter()
        .map(|verdict| (verdict.reached_text(), verdict.word()))
        .collect();
    let found: Vec<_> = found.iter().map(|(text, word)| (&**text, *word)).collect();
    assert_eq!(found, expected);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::made_up::measurement;

    fn verdict(taken: &Measurement, what: &str) -> Verdict {
        let mut all = verdicts(taken).into_iter();
        all.find(|verdict| verdict.what == what).unwrap()
    }

    #[test]
    fn bandwidth_is_held_against_the_better_tcp_and_the_limit() {
        let size = 65_536;
        let taken = measurement(&[
            (
                Figure::Bandwidth,
                "write_bw",
                false,
                size,
                &[26.0, 20.0, 27.0],
            ),
            (
                Figure::Bandwidth,
                "tcp_cubic",
                true,
                size,
                &[10.0, 10.0, 99.0],
            ),
            (Figure::Bandwidth, "tcp_bbr", true, size, &[20.0]),
            (Figure::Bandwidth, "udp_gso", true, size, &[40.0]),
        ]);
        let to_tcp = verdict(&taken, "ib_write_bw, 64 KiB, to the best TCP");
        assert_eq!(
            (to_tcp.reached_text(), to_tcp.word()),
            ("1.30x".into(), "yes")
        );
        assert_eq!(to_tcp.goal_text(), ">= 1.30x");
        let to_limit = verdict(&taken, "ib_write_bw, 64 KiB, to bare UDP with GSO and GRO");
        assert_eq!(
            (to_limit.reached_text(), to_limit.word()),
            ("0.65x".into(), "NO")
        );
        let other = verdict(&taken, "ib_read_bw, 64 KiB, to the best TCP");
        assert_eq!(
            (other.reached_text(), other.word()),
            ("-".into(), "not measured")
        );
    }

    #[test]
    fn latency_and_cpu_are_better_when_less() {
        let taken = measurement(&[
            (Figure::Latency, "send_lat", false, 64, &[5.0]),
            (Figure::Latency, "sockperf_tcp_polls", true, 64, &[4.0]),
            (Figure::Latency, "write_lat_two_cores", false, 64, &[21.0]),
            (Figure::Latency, "sockperf_tcp", true, 64, &[10.0]),
            (Figure::Latency, "sockperf_udp", true, 64, &[6.0]),
            (Figure::Cpu, "send_events", false, 30_000, &[0.5]),
            (Figure::Cpu, "tcp_cubic", true, 30_000, &[0.9]),
            (Figure::Cpu, "tcp_bbr", true, 30_000, &[0.8]),
        ]);
        let reached = |what: &str| {
            let verdict = verdict(&taken, what);
            (verdict.reached_text(), verdict.word())
        };
        assert_eq!(
            reached("ib_send_lat, 64 B, median, to sockperf TCP's"),
            ("0.50x".into(), "yes")
        );
        assert_eq!(
            reached("ib_send_lat, 64 B, p99, to sockperf UDP's"),
            ("0.83x".into(), "NO")
        );
        assert_eq!(
            reached("ib_send_lat, 64 B, median, to sockperf TCP's, polling"),
            ("1.25x".into(), "NO")
        );
        assert_eq!(
            reached("ib_write_lat with a core for the helper, 64 B, p99, to sockperf TCP's"),
            ("2.10x".into(), "NO")
        );
        let cpu = reached("CPU seconds per GB, ib_send_bw -e, 30,000 B, to TCP's");
        assert_eq!(cpu, ("0.62x".into(), "NO"));
    }

    #[test]
    fn sealed_bandwidth_is_held_against_that_in_the_clear() {
        let size = 65_536;
        let taken = measurement(&[
            (Figure::Bandwidth, "write_bw", false, size, &[40.0]),
            (Figure::Bandwidth, "write_bw_sealed", false, size, &[26.0]),
        ]);
        let what = "ib_write_bw, 64 KiB, sealed, to the same in the clear";
        let found = verdict(&taken, what);
        assert_eq!((found.reached_text(), found.word()), ("0.65x".into(), "NO"));
    }

    #[test]
    fn many_queue_pairs_are_held_against_one() {
        let what = "bandwidth at 16,384 queue pairs, to that at one";
        let points = [(1, 20.0), (4096, 10.0), (16_384, 18.0)];
        let values = points.map(|(_, value)| [value]);
        let of = |at: usize| {
            let (pairs, _) = points[at];
            (
                Figure::QueuePairs,
                "write_pairs",
                false,
                pairs,
                &values[at][..],
            )
        };
        let taken = measurement(&[of(0), of(1), of(2)]);
        let found = verdict(&taken, what);
        assert_eq!(
            (found.reached_text(), found.word()),
            ("0.90x".into(), "yes")
        );
        let taken = measurement(&[of(0), of(1)]);
        assert_eq!(verdict(&taken, what).word(), "not measured");
    }

    #[test]
    fn loss_is_held_against_single_packets_on_the_lossy_link() {
        let what = "ib_write_bw, 64 KiB, 0.1 % loss, to bare UDP in single packets";
        let size = 65_536;
        let mut taken = measurement(&[
            (Figure::Bandwidth, "write_bw", false, size, &[8.0]),
            (Figure::Bandwidth, "udp", true, size, &[10.0]),
        ]);
        assert_eq!(verdict(&taken, what).word(), "not measured");
        for curve in &mut taken.curves {
            curve.link = LOSSY.name.into();
        }
        let found = verdict(&taken, what);
        assert_eq!((found.reached_text(), found.word()), ("0.80x".into(), "NO"));
    }

    #[test]
    fn flatness_takes_two_numbers_of_queue_pairs_with_results() {
        let what = "bandwidth at the worst number of queue pairs, to the best";
        let one = (
            Figure::QueuePairs,
            "write_pairs",
            false,
            1,
            [10.0].as_slice(),
        );
        assert_eq!(verdict(&measurement(&[one]), what).word(), "not measured");
        let many = (
            Figure::QueuePairs,
            "write_pairs",
            false,
            256,
            [9.0].as_slice(),
        );
        assert_eq!(
            verdict(&measurement(&[one, many]), what).reached_text(),
            "0.90x"
        );
        let none = (
            Figure::QueuePairs,
            "write_pairs",
            false,
            4096,
            [].as_slice(),
        );
        assert_eq!(verdict(&measurement(&[one, many, none]), what).word(), "NO");
    }
}
