//! Goals of `airdma sockets`, as ratios to the same program without it.

use super::suite::{
    BOTH, CALLERS, CLIENT, CLIENTS, MESSAGES, NONE, OBJECTS, SERVER, STREAM, UDP_BOTH, UDP_NONE,
};
use crate::measurement::{Figure, Measurement, Point};
use crate::suite::{LOSSY, VETH_1500};
use crate::targets::Verdict;
use crate::units;

/// All goals that this run measured.
pub fn verdicts(taken: &Measurement) -> Vec<Verdict> {
    let mut all = Vec::new();
    let veth = VETH_1500.name;
    let ratio_of = |(figure, link, x), name: &str, to: &str, of: fn(&Point) -> Option<f64>| {
        let value = |name| of(taken.point(figure, link, name, x)?);
        Some(value(name)? / value(to)?)
    };
    let ratio = |at, name: &str, of| ratio_of(at, name, NONE, of);
    let mut add = |what: String, reached: Option<f64>, goal: f64, at_least: bool| {
        if reached.is_some() {
            all.push(Verdict {
                what,
                reached,
                goal,
                at_least,
                unit: "x",
            });
        }
    };
    let stream = (Figure::Bandwidth, veth, STREAM);
    let lossy = (Figure::Bandwidth, LOSSY.name, STREAM);
    let found = ratio(stream, BOTH, Point::median);
    add("iperf3, one stream".into(), found, 1.0, true);
    let found = ratio(lossy, BOTH, Point::median);
    let what = "iperf3, one stream, 0.1 % of packets lost";
    add(what.into(), found, 2.0, true);
    for (figure, call) in [(Figure::Get, "GET"), (Figure::Set, "SET")] {
        let at = (figure, veth, CLIENTS);
        let what = format!("redis-benchmark {call}, {CLIENTS} clients, calls a second");
        add(what, ratio(at, BOTH, Point::median), 1.3, true);
        let what = format!("redis-benchmark {call}, {CLIENTS} clients, 99th percentile");
        add(what, ratio(at, BOTH, Point::median_p99), 0.8, false);
    }
    for bytes in OBJECTS {
        let found = ratio((Figure::Web, veth, bytes), BOTH, Point::median);
        let what = format!("nginx and wrk, objects of {}", units::size(bytes));
        add(what, found, 1.2, true);
    }
    let calls = (Figure::Response, veth, 1);
    for (what, to, goal) in [
        (
            "SIPp's first answer, UDP with the library to TCP without",
            NONE,
            0.57,
        ),
        (
            "SIPp's first answer, UDP with the library to UDP without",
            UDP_NONE,
            1.0,
        ),
    ] {
        let found = ratio_of(calls, UDP_BOTH, to, Point::median);
        add(what.into(), found, goal, false);
    }
    let memory = (Figure::ClientMemory, veth, CALLERS);
    let found = ratio_of(memory, UDP_BOTH, BOTH, Point::median);
    let what = format!(
        "memory of {} clients of SIPp, UDP to TCP, with the library",
        units::thousands(CALLERS)
    );
    add(what, found, 0.76, false);
    let costs = [
        ("iperf3", Figure::Bandwidth, &[STREAM][..]),
        ("nginx and wrk", Figure::Web, &OBJECTS[..]),
        ("redis-benchmark GET", Figure::Get, &[CLIENTS][..]),
        ("sockperf", Figure::Latency, &MESSAGES[..]),
    ];
    for (program, figure, xs) in costs {
        for x in xs {
            for (name, end) in [(SERVER, "server"), (CLIENT, "client")] {
                let found = ratio((figure, veth, *x), name, Point::median);
                // More is better, so that the goal is the same for all.
                let found = found.map(|ratio| match figure.more_is_better() {
                    true => ratio,
                    false => 1.0 / ratio,
                });
                let what = format!("{program}, {}, the {end} alone", figure.x_text(*x));
                add(what, found, 0.98, true);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measurement::made_up::measurement;
    use crate::targets::assert_verdicts;

    #[test]
    fn goals_are_ratios_to_the_program_without_the_library() {
        let taken = measurement(&[
            (Figure::Bandwidth, BOTH, false, STREAM, &[4.0]),
            (Figure::Bandwidth, NONE, true, STREAM, &[2.0]),
            (Figure::Web, BOTH, false, 1024, &[11.0]),
            (Figure::Web, NONE, true, 1024, &[10.0]),
            (Figure::Latency, CLIENT, false, 64, &[20.0]),
            (Figure::Latency, NONE, true, 64, &[19.0]),
        ]);
        let expected = [("2.00x", "yes"), ("1.10x", "NO"), ("0.95x", "NO")];
        assert_verdicts(&verdicts(&taken), &expected);
    }
}
