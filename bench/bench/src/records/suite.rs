//! The cases: the figures of the datagram-iWARP paper, and what it leaves out.

use airdma_lab::Cable;

use crate::measurement::Figure;
use crate::peer::{
    Bandwidth, IdlePairs, Iperf, Latency, ManyPairs, Peer, Place, Plain, Plan, Reading,
    RecordsMode, Unconnected, WriteRecords,
};
use crate::suite::{Link, Series, VETH_1500};

/// A link that loses packets, each alone, in both directions; and its loss in per cent.
const fn lossy(name: &'static str, label: &'static str, lost_one_in: u32) -> Link {
    let cable = Cable {
        mtu: 1500,
        segmented: false,
        lost_one_in,
    };
    Link { name, label, cable }
}

/// Links with loss, and its per cent.
pub const LOSSY: [(Link, f64); 4] = [
    (lossy("loss-0.1", "veth, 0.1 % of packets lost", 1000), 0.1),
    (lossy("loss-0.5", "veth, 0.5 % of packets lost", 200), 0.5),
    (lossy("loss-1", "veth, 1 % of packets lost", 100), 1.0),
    (lossy("loss-5", "veth, 5 % of packets lost", 20), 5.0),
];

/// A link like these without loss.
pub const WHOLE: Link = lossy("loss-0", "veth, no loss, packets one by one", 0);
/// Link with loss of reads, and its per cent.
pub const READ_LOSS: (Link, f64) = LOSSY[2];

/// Sizes of the paper's figure 5.
pub const LATENCIES: [u64; 9] = [1, 64, 512, 1024, 2048, 4096, 16_384, 65_536, 1 << 20];
/// Sizes of the paper's figure 6.
pub const BANDWIDTHS: [u64; 9] = [
    64,
    1024,
    2048,
    4096,
    16_384,
    65_536,
    262_144,
    524_288,
    1 << 20,
];
/// Sizes of the paper's figures 7 and 8.
pub const LOSSES: [u64; 6] = [1024, 16_384, 64_512, 262_144, 1 << 20, 4 << 20];
/// Sizes of which RC's goodput is measured, and that of reads.
pub const CONNECTED: [u64; 4] = [1024, 16_384, 262_144, 1 << 20];
/// Longest SEND of a datagram at MTU 1500.
pub const UD_MAX: u64 = 1024;
/// Bytes of a message of many sources.
const SOURCES_BYTES: u32 = 1024;
/// Messages of all of them in flight.
const SOURCES_AHEAD: u32 = 256;
/// Bytes of a message to one of many destinations.
const DESTINATIONS_BYTES: u32 = 4096;
/// Destinations, one of which dies.
pub const DESTINATIONS: u64 = 64;
/// Most sources.
pub const SOURCES: u64 = 1000;

/// All series, or those that take a minute.
pub fn all(quick: bool) -> Vec<Series> {
    let pick = |sizes: &[u64], few: &[u64]| if quick { few.to_vec() } else { sizes.to_vec() };
    let mut all = Vec::new();
    latency(&mut all, &pick(&LATENCIES, &[64, 1024]));
    bandwidth(&mut all, &pick(&BANDWIDTHS, &[1024, 65_536]));
    for (link, percent) in LOSSY {
        if !quick || percent == 5.0 {
            let sizes = pick(&LOSSES, &[262_144]);
            loss(&mut all, link, &sizes, &pick(&CONNECTED, &[262_144]));
        }
    }
    let sizes = pick(&CONNECTED, &[262_144]);
    for link in [WHOLE, READ_LOSS.0] {
        let at = (Figure::Bandwidth, link, &sizes[..]);
        add(&mut all, at, UD_READ, records(RecordsMode::Read));
        let connected = ("rc_read", "RC READ");
        add(&mut all, at, connected, Bandwidth::of("ib_read_bw"));
    }
    many(&mut all, &pick(&[1, 10, 100, SOURCES], &[100]));
    all
}

fn add(
    all: &mut Vec<Series>,
    (figure, link, xs): (Figure, Link, &[u64]),
    (name, label): (&'static str, &'static str),
    program: impl Peer + 'static,
) {
    all.push(Series {
        figure,
        link,
        name,
        label,
        peer: !name.starts_with("write_record") && name != UD_READ.0,
        xs: xs.to_vec(),
        program: Box::new(program),
    });
}

fn records(mode: RecordsMode) -> WriteRecords {
    WriteRecords { mode, bytes: 0 }
}

fn up_to(sizes: &[u64], max: u64) -> Vec<u64> {
    sizes.iter().copied().filter(|size| *size <= max).collect()
}

const WRITE_RECORD: (&str, &str) = ("write_record", "Write-Record");
const UD_SEND: (&str, &str) = ("ud_send", "UD SEND");
const UD_READ: (&str, &str) = ("ud_read", "UD READ");
const RC_SEND: (&str, &str) = ("rc_send", "RC SEND");
const RC_WRITE: (&str, &str) = ("rc_write", "RC WRITE");

fn latency(all: &mut Vec<Series>, sizes: &[u64]) {
    let at = (Figure::Latency, VETH_1500, sizes);
    let few = up_to(sizes, UD_MAX);
    add(all, at, WRITE_RECORD, records(RecordsMode::Latency));
    let of = Latency::of;
    let ud = (Figure::Latency, VETH_1500, &few[..]);
    add(all, ud, UD_SEND, Unconnected(of("ib_send_lat")));
    add(all, at, RC_SEND, of("ib_send_lat"));
    add(all, at, RC_WRITE, of("ib_write_lat"));
    let watches = ("rc_write_polls", "RC WRITE, target polls too");
    add(all, at, watches, records(RecordsMode::WriteLatency));
}

fn bandwidth(all: &mut Vec<Series>, sizes: &[u64]) {
    let at = (Figure::Bandwidth, VETH_1500, sizes);
    let few = up_to(sizes, UD_MAX);
    add(all, at, WRITE_RECORD, records(RecordsMode::Flow));
    let of = Bandwidth::of;
    let ud = (Figure::Bandwidth, VETH_1500, &few[..]);
    add(all, ud, UD_SEND, Unconnected(of("ib_send_bw")));
    add(all, at, RC_SEND, of("ib_send_bw"));
    add(all, at, RC_WRITE, of("ib_write_bw"));
}

fn loss(all: &mut Vec<Series>, link: Link, sizes: &[u64], connected: &[u64]) {
    let at = (Figure::Bandwidth, link, sizes);
    add(all, at, WRITE_RECORD, records(RecordsMode::Flow));
    let strict = ("write_record_strict", "Write-Record, strict_last");
    add(all, at, strict, records(RecordsMode::Strict));
    let at = (Figure::Bandwidth, link, connected);
    add(all, at, RC_WRITE, Bandwidth::of("ib_write_bw"));
    let large: Vec<u64> = connected.iter().copied().max().into_iter().collect();
    let at = (Figure::Bandwidth, link, &large[..]);
    let plain = ("rc_write_plain", "RC WRITE, plain RoCE");
    add(all, at, plain, Plain(Bandwidth::of("ib_write_bw")));
    let cubic = Iperf {
        algorithm: "cubic",
        no_delay_max: 0,
    };
    add(all, at, ("tcp_cubic", "iperf3 TCP CUBIC"), cubic);
}

fn many(all: &mut Vec<Series>, sources: &[u64]) {
    let records = |mode, bytes| WriteRecords { mode, bytes };
    let at = (Figure::Sources, VETH_1500, sources);
    let of_sources = records(RecordsMode::Sources, SOURCES_BYTES);
    add(
        all,
        at,
        ("write_record", "Write-Record, one queue pair"),
        of_sources,
    );
    let pairs = ManyPairs {
        bytes: SOURCES_BYTES,
        outstanding: SOURCES_AHEAD,
    };
    add(
        all,
        at,
        ("rc_write", "RC WRITE, a queue pair each"),
        Messages(pairs),
    );
    let most: Vec<u64> = sources.iter().copied().max().into_iter().collect();
    let at = (Figure::SourceMemory, VETH_1500, &most[..]);
    let memory = records(RecordsMode::SourceMemory, SOURCES_BYTES);
    add(
        all,
        at,
        ("write_record", "Write-Record, one queue pair"),
        memory,
    );
    add(all, at, ("rc_pairs", "RC, a queue pair each"), IdlePairs);
    let at = (Figure::Survivors, VETH_1500, &[DESTINATIONS][..]);
    let others = records(RecordsMode::Destinations, DESTINATIONS_BYTES);
    add(
        all,
        at,
        ("write_record_reliable", "reliable Write-Record"),
        others,
    );
}

/// Millions of messages a second in place of Gb/s.
#[derive(Clone, Copy, Debug)]
struct Messages(ManyPairs);

impl Peer for Messages {
    fn programs(&self) -> Vec<&'static str> {
        self.0.programs()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        self.0.plan(place, x)
    }

    fn read(&self, server: &str, client: &str, x: u64) -> Option<Reading> {
        let reading = self.0.read(server, client, x)?;
        Some(Reading {
            value: reading.value * 1e3 / 8.0 / f64::from(self.0.bytes),
            ..reading
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_and_packages() {
        crate::suite::tests::check_cases(all, "bandwidth/loss-5/write_record/262144");
    }

    #[test]
    fn messages_are_counted_in_millions() {
        let said = "{\"bytes\":1024000000,\"seconds\":0.5}\n";
        let peer = Messages(ManyPairs {
            bytes: 1024,
            outstanding: 256,
        });
        let reading = peer.read("", said, 1000).unwrap();
        assert!((reading.value - 2.0).abs() < 1e-9, "{reading:?}");
    }
}
