//! Selection of the cases: the user's choice, limited to what this machine can run.

use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;

use crate::measurement::Missing;
use crate::suite::Series;
use crate::tools;

/// Keeps the cases that match, and the peers that they are compared with.
pub fn choose(mut all: Vec<Series>, only: Option<&Regex>, with_peers: bool) -> Vec<Series> {
    let matches = |series: &Series, x: u64| only.is_none_or(|only| only.is_match(&series.case(x)));
    let ours = all.iter().filter(|series| !series.peer);
    let chosen: BTreeSet<_> = ours
        .flat_map(|series| series.xs.iter().map(move |x| (series, *x)))
        .filter(|(series, x)| matches(series, *x))
        .map(|(series, x)| (series.figure, series.link.name, x))
        .collect();
    for series in &mut all {
        let xs = std::mem::take(&mut series.xs);
        let compared =
            |x: u64| series.peer && chosen.contains(&(series.figure, series.link.name, x));
        let wanted = |x: &u64| {
            let named = matches(series, *x) && (with_peers || !series.peer || only.is_some());
            named || (with_peers && compared(*x))
        };
        series.xs = xs.into_iter().filter(wanted).collect();
    }
    all.retain(|series| !series.xs.is_empty());
    all
}

/// Removes series whose programs are not installed; returns the removed ones too.
pub fn installed(all: Vec<Series>) -> (Vec<Series>, Vec<Missing>) {
    without(all, |program| tools::find(program).is_some())
}

fn without(all: Vec<Series>, is_there: impl Fn(&str) -> bool) -> (Vec<Series>, Vec<Missing>) {
    let mut missing: BTreeMap<&str, Missing> = BTreeMap::new();
    let mut there = Vec::new();
    for series in all {
        let programs = series.programs();
        let Some(program) = programs.into_iter().find(|program| !is_there(program)) else {
            there.push(series);
            continue;
        };
        let entry = missing.entry(program).or_insert_with(|| Missing {
            program: program.to_owned(),
            package: tools::package(program).to_owned(),
            labels: Vec::new(),
        });
        let label = format!(
            "{} ({}, {})",
            series.label,
            series.figure.name(),
            series.link.label
        );
        entry.labels.push(label);
    }
    (there, missing.into_values().collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite;

    fn names(series: &[Series]) -> Vec<String> {
        let cases = series
            .iter()
            .flat_map(|series| series.xs.iter().map(|x| series.case(*x)));
        cases.collect()
    }

    #[test]
    fn peers_come_with_what_they_are_compared_with() {
        let only = Regex::new("^bandwidth/veth-1500/write_bw/65536$").unwrap();
        let chosen = names(&choose(suite::all(false), Some(&only), true));
        assert!(chosen.contains(&"bandwidth/veth-1500/write_bw/65536".into()));
        assert!(chosen.contains(&"bandwidth/veth-1500/tcp_cubic/65536".into()));
        assert!(chosen.contains(&"bandwidth/veth-1500/udp_gso/65536".into()));
        assert!(
            chosen.iter().all(|case| case.ends_with("/65536")),
            "{chosen:?}"
        );
        assert!(!chosen.iter().any(|case| case.contains("send_bw")));
        let alone = names(&choose(suite::all(false), Some(&only), false));
        assert_eq!(alone, ["bandwidth/veth-1500/write_bw/65536"]);
    }

    #[test]
    fn a_peer_can_be_chosen_by_itself() {
        let only = Regex::new("sockperf_udp/64$").unwrap();
        let chosen = names(&choose(suite::all(false), Some(&only), true));
        assert_eq!(chosen, ["latency/veth-1500/sockperf_udp/64"]);
    }

    #[test]
    fn nothing_is_missing_in_silence() {
        let (there, missing) = without(suite::all(false), |program| program != "ucx_perftest");
        assert!(there.iter().all(|series| !series.name.starts_with("ucx")));
        assert_eq!(missing.len(), 1);
        assert_eq!(missing[0].package, "ucx-utils");
        assert!(
            missing[0]
                .labels
                .iter()
                .any(|label| label.contains("put over TCP"))
        );
    }
}
