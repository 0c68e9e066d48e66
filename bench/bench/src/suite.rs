//! The whole benchmark: programs, links and sizes.

use airdma_lab::Cable;

use crate::measurement::Figure;
use crate::peer::{
    Bandwidth, CmTime, Datagrams, IdlePairs, Iperf, Latency, ManyPairs, Pairs, Peer, PingPong,
    Plain, Sealed, SecondCore, Sockperf, Ucx,
};

/// A link between the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Name in cases.
    pub name: &'static str,
    /// Description for readers.
    pub label: &'static str,
    /// Kind of link.
    pub cable: Cable,
}

/// One program on one link.
pub struct Series {
    /// Measured quantity.
    pub figure: Figure,
    /// Link of the measurement.
    pub link: Link,
    /// Name in cases.
    pub name: &'static str,
    /// Name in tables and legends.
    pub label: &'static str,
    /// Whether airdma is compared with it.
    pub peer: bool,
    /// Sizes or counts.
    pub xs: Vec<u64>,
    /// The program, with its parser.
    pub program: Box<dyn Peer>,
}

impl Series {
    /// The name of one of its cases: figure/link/series/x.
    pub fn case(&self, x: u64) -> String {
        let (figure, link) = (self.figure.name(), self.link.name);
        format!("{figure}/{link}/{}/{x}", self.name)
    }

    /// Programs that must be installed.
    pub fn programs(&self) -> Vec<&'static str> {
        let mut programs = self.program.programs();
        if self.link.cable.lost_one_in > 0 {
            programs.push("nft");
        }
        programs
    }
}

const fn veth(name: &'static str, label: &'static str, mtu: u32) -> Link {
    let cable = Cable {
        mtu,
        segmented: true,
        lost_one_in: 0,
    };
    Link { name, label, cable }
}

/// Link of all targets.
pub const VETH_1500: Link = veth("veth-1500", "veth, MTU 1500", 1500);
const VETH_4200: Link = veth("veth-4200", "veth, MTU 4200", 4200);
const VETH_9000: Link = veth("veth-9000", "veth, MTU 9000", 9000);
/// Link that loses packets.
pub const LOSSY: Link = Link {
    name: "lossy",
    label: "veth, MTU 1500, one packet of 1,000 lost either way, each packet alone",
    cable: Cable {
        mtu: 1500,
        segmented: false,
        lost_one_in: 1000,
    },
};

/// Largest write for which TCP runs without Nagle's algorithm, as a program with messages would run
/// it.
const NO_DELAY_MAX: u64 = 8192;

/// All series, or those that take a few minutes.
pub fn all(quick: bool) -> Vec<Series> {
    let pick = |sizes: &[u64], few: &[u64]| if quick { few.to_vec() } else { sizes.to_vec() };
    let sizes = pick(
        &[64, 256, 1024, 4096, 8192, 30_000, 65_536, 262_144, 1 << 20],
        &[1024, 8192, 65_536, 1 << 20],
    );
    let large = pick(&[8192, 65_536, 1 << 20], &[65_536]);
    let latencies = pick(&[64, 1024, 8192, 65_536], &[64]);
    let mut all = Vec::new();
    bandwidth(&mut all, VETH_1500, &sizes);
    plain_bandwidth(&mut all, VETH_1500, &sizes);
    sealed_bandwidth(&mut all, VETH_1500);
    cpu(&mut all, VETH_1500, &[30_000, 1 << 20]);
    latency(&mut all, VETH_1500, &latencies);
    message_rate(&mut all, VETH_1500);
    let pairs = pick(&[1, 16, 256, 4096, 16_384], &[1, 16, 256]);
    many_pairs(&mut all, VETH_1500, &pairs);
    one(
        &mut all,
        (
            Figure::IdleMemory,
            VETH_1500,
            vec![if quick { 1024 } else { 8192 }],
        ),
        ("idle_pairs", "airdma, RC, rings of one entry", false),
        IdlePairs,
    );
    one(
        &mut all,
        (Figure::Connections, VETH_1500, vec![2000]),
        ("cmtime", "airdma, cmtime", false),
        CmTime,
    );
    if !quick {
        bandwidth(&mut all, VETH_4200, &large);
        bandwidth(&mut all, VETH_9000, &large);
    }
    bandwidth(&mut all, LOSSY, &large);
    plain_bandwidth(&mut all, LOSSY, &large);
    all
}

type Where = (Figure, Link, Vec<u64>);
type Names = (&'static str, &'static str, bool);

fn one(
    all: &mut Vec<Series>,
    (figure, link, xs): Where,
    (name, label, peer): Names,
    program: impl Peer + 'static,
) {
    all.push(Series {
        figure,
        link,
        name,
        label,
        peer,
        xs,
        program: Box::new(program),
    });
}

fn bandwidth(all: &mut Vec<Series>, link: Link, sizes: &[u64]) {
    let at = |sizes: Vec<u64>| (Figure::Bandwidth, link, sizes);
    for (name, label, program) in OPERATIONS {
        one(
            all,
            at(sizes.into()),
            (name, label, false),
            Bandwidth::of(program),
        );
    }
    for (name, label, algorithm) in [
        ("tcp_cubic", "iperf3 TCP CUBIC", "cubic"),
        ("tcp_bbr", "iperf3 TCP BBR", "bbr"),
    ] {
        let tcp = Iperf {
            algorithm,
            no_delay_max: NO_DELAY_MAX,
        };
        one(all, at(sizes.into()), (name, label, true), tcp);
    }
    let up_to = |max: u64| sizes.iter().copied().filter(|size| *size <= max).collect();
    let from = |min: u64| sizes.iter().copied().filter(|size| *size >= min).collect();
    one(
        all,
        at(up_to(NO_DELAY_MAX)),
        ("tcp_cubic_nagle", "iperf3 TCP CUBIC, Nagle on", true),
        Iperf {
            algorithm: "cubic",
            no_delay_max: 0,
        },
    );
    one(
        all,
        at(from(8192)),
        ("udp_gso", "bare UDP, GSO and GRO", true),
        Datagrams { offload: true },
    );
    one(
        all,
        at(from(65_536)),
        ("udp", "bare UDP, a call each", true),
        Datagrams { offload: false },
    );
    one(
        all,
        at(from(1024)),
        ("ucx_put", "ucx_perftest put over TCP", true),
        Ucx { latency: false },
    );
}

/// The same between hosts that agree on nothing: packets as a NIC sends and expects them.
fn plain_bandwidth(all: &mut Vec<Series>, link: Link, sizes: &[u64]) {
    for (name, label, program) in PLAIN_OPERATIONS {
        one(
            all,
            (Figure::Bandwidth, link, sizes.into()),
            (name, label, false),
            Plain(Bandwidth::of(program)),
        );
    }
}

/// The same between hosts that share a secret.
fn sealed_bandwidth(all: &mut Vec<Series>, link: Link) {
    let sizes = vec![65_536];
    for (name, label, program) in SEALED_OPERATIONS {
        let program = Sealed(Bandwidth::of(program));
        let at = (Figure::Bandwidth, link, sizes.clone());
        one(all, at, (name, label, false), program);
    }
}

const OPERATIONS: [(&str, &str, &str); 3] = [
    ("write_bw", "airdma WRITE", "ib_write_bw"),
    ("send_bw", "airdma SEND", "ib_send_bw"),
    ("read_bw", "airdma READ", "ib_read_bw"),
];

const PLAIN_OPERATIONS: [(&str, &str, &str); 3] = [
    ("write_bw_plain", "airdma WRITE, plain RoCE", "ib_write_bw"),
    ("send_bw_plain", "airdma SEND, plain RoCE", "ib_send_bw"),
    ("read_bw_plain", "airdma READ, plain RoCE", "ib_read_bw"),
];

const SEALED_OPERATIONS: [(&str, &str, &str); 3] = [
    ("write_bw_sealed", "airdma WRITE, sealed", "ib_write_bw"),
    ("send_bw_sealed", "airdma SEND, sealed", "ib_send_bw"),
    ("read_bw_sealed", "airdma READ, sealed", "ib_read_bw"),
];

fn cpu(all: &mut Vec<Series>, link: Link, sizes: &[u64]) {
    let at = || (Figure::Cpu, link, sizes.to_vec());
    let events = Bandwidth {
        events: true,
        ..Bandwidth::of("ib_send_bw")
    };
    let names = ("send_events", "airdma SEND, sleeping (-e)", false);
    one(all, at(), names, events);
    let label = "airdma SEND, sleeping (-e), plain RoCE";
    one(
        all,
        at(),
        ("send_events_plain", label, false),
        Plain(events),
    );
    for (name, label, program) in OPERATIONS {
        one(all, at(), (name, label, false), Bandwidth::of(program));
    }
    let (name, label, program) = PLAIN_OPERATIONS[0];
    one(
        all,
        at(),
        (name, label, false),
        Plain(Bandwidth::of(program)),
    );
    for (name, label, algorithm) in [
        ("tcp_cubic", "iperf3 TCP CUBIC", "cubic"),
        ("tcp_bbr", "iperf3 TCP BBR", "bbr"),
    ] {
        let tcp = Iperf {
            algorithm,
            no_delay_max: 0,
        };
        one(all, at(), (name, label, true), tcp);
    }
    one(
        all,
        at(),
        ("udp_gso", "bare UDP, GSO and GRO", true),
        Datagrams { offload: true },
    );
}

fn latency(all: &mut Vec<Series>, link: Link, sizes: &[u64]) {
    let at = || (Figure::Latency, link, sizes.to_vec());
    for (name, label, program) in [
        ("send_lat", "airdma SEND", "ib_send_lat"),
        ("write_lat", "airdma WRITE", "ib_write_lat"),
        ("read_lat", "airdma READ (whole round trip)", "ib_read_lat"),
    ] {
        one(all, at(), (name, label, false), Latency::of(program));
    }
    let label = "airdma WRITE, a core for the helper of each end";
    let write = Latency::of("ib_write_lat");
    let small = sizes.iter().copied().filter(|size| *size == 64).collect();
    one(
        all,
        (Figure::Latency, link, small),
        ("write_lat_two_cores", label, false),
        SecondCore(write),
    );
    for (name, label, tcp, polls) in [
        ("sockperf_tcp", "sockperf TCP", true, false),
        ("sockperf_udp", "sockperf UDP", false, false),
        ("sockperf_tcp_polls", "sockperf TCP, polling", true, true),
    ] {
        one(all, at(), (name, label, true), Sockperf { tcp, polls });
    }
    let names = ("ucx_tag", "ucx_perftest tag over TCP", true);
    one(all, at(), names, Ucx { latency: true });
    let names = ("fi_pingpong", "fi_pingpong over TCP (mean)", true);
    one(all, at(), names, PingPong);
}

fn message_rate(all: &mut Vec<Series>, link: Link) {
    for (name, label, batch) in [
        ("write_16", "airdma WRITE, batches of 16", 16),
        ("write_1", "airdma WRITE, one by one", 1),
    ] {
        let rate = Bandwidth {
            batch,
            rate: true,
            ..Bandwidth::of("ib_write_bw")
        };
        let at = (Figure::MessageRate, link, vec![64]);
        one(all, at, (name, label, false), rate);
    }
}

fn many_pairs(all: &mut Vec<Series>, link: Link, pairs: &[u64]) {
    let (bytes, outstanding) = (4096, 512);
    one(
        all,
        (Figure::QueuePairs, link, pairs.into()),
        ("write_pairs", "airdma WRITE of 4 KiB", false),
        ManyPairs { bytes, outstanding },
    );
    let few = pairs.iter().copied();
    one(
        all,
        (
            Figure::QueuePairs,
            link,
            few.filter(|pairs| *pairs <= PERFTEST_PAIRS_MAX).collect(),
        ),
        (
            "perftest_pairs",
            "airdma WRITE of 4 KiB, ib_write_bw",
            false,
        ),
        Pairs {
            bytes: bytes.into(),
            outstanding: outstanding.into(),
        },
    );
}

/// ib_write_bw searches its queue pairs for each completion: with more of them it measures that.
const PERFTEST_PAIRS_MAX: u64 = 256;

#[cfg(test)]
pub mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Checks that no two cases of a benchmark have one name, that `known` is one of them, and that
    /// each program has its package.
    pub fn check_cases(all: impl Fn(bool) -> Vec<Series>, known: &str) {
        for quick in [false, true] {
            let all = all(quick);
            let names = all
                .iter()
                .flat_map(|series| series.xs.iter().map(|x| series.case(*x)));
            let names: Vec<String> = names.collect();
            let different: HashSet<&String> = names.iter().collect();
            assert_eq!(different.len(), names.len());
            assert!(names.iter().any(|name| name == known));
            for program in all.iter().flat_map(Series::programs) {
                assert_ne!(crate::tools::package(program), "unknown", "{program}");
            }
        }
    }

    #[test]
    fn cases_have_names_and_packages() {
        check_cases(all, "bandwidth/veth-1500/write_bw/65536");
    }
}
