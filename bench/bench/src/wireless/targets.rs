//! Targets of air mode on such a link (from SMUFF, W-RDMA and BURST), and the measured values.

use super::shape::{self, Shaped};
use super::taken::{Case, Taken};
use super::transport::{LONGER, Transport};

/// Share of the practical line rate, and of what loss leaves of it.
const OF_LINE: f64 = 0.95;
const OF_LOSSY: [(&str, f64); 3] = [("loss-0.1", 0.95), ("loss-1", 0.90), ("loss-5", 0.80)];
/// Most times the duration that size and line rate predict.
const SLOWER: f64 = 1.2;
/// Share of the UDP payload that arrives on the same walk.
const OF_WALK: f64 = 0.9;
const PING_MS: f64 = 40.0;
/// Longest ping with short queues, if at least [`OF_LINE_SHORT`] of the line is used.
const PING_SHORT_MS: f64 = 10.0;
const OF_LINE_SHORT: f64 = 0.85;
/// CPU per byte, relative to CUBIC's: of the programs, and of the machine, where the kernel's TCP
/// works beside its programs.
const PROGRAMS_OF_CUBIC: f64 = 1.0;
const OF_CUBIC: f64 = 0.63;
const FILE_MB: [u64; 2] = [100, 1000];
const SMALL_MB: u64 = 10;

/// Rows: what, target, found, met.
#[derive(Default)]
struct Rows(Vec<Vec<String>>);

impl Rows {
    fn at_least(&mut self, what: String, least: f64, of: &str, found: f64) {
        let target = format!(">= {least:.2} of {of}");
        self.add(what, target, format!("{found:.2}"), found >= least);
    }

    fn at_most(&mut self, what: String, most: f64, of: &str, found: f64) {
        let target = format!("<= {most:.2} {of}");
        self.add(what, target, format!("{found:.2}"), found <= most);
    }

    fn add(&mut self, what: String, target: String, found: String, is_met: bool) {
        let met = if is_met { "yes" } else { "no" };
        self.0.push(vec![what, target, found, met.into()]);
    }
}

/// Rows of the targets that the samples can judge; titles first.
pub fn targets(taken: &Taken) -> Vec<Vec<String>> {
    let titles = ["what", "target", "found", "met"];
    let mut rows = Rows(vec![titles.map(String::from).to_vec()]);
    for signal in ["good", "fair"] {
        steady(&mut rows, taken, signal);
    }
    for (signal, least) in OF_LOSSY {
        for size in [SMALL_MB, FILE_MB[0]] {
            if let Some(share) = share(taken, signal, Transport::Air("buffers"), size) {
                let what = format!("{size} MB, {signal}");
                rows.at_least(what, least, "UDP with that loss", share);
            }
        }
    }
    for signal in ["away", "toward"] {
        let mean = |transport| find(taken, signal, transport, 0)?.median(arrived_mbit);
        if let (Some(air), Some(udp)) = (mean(Transport::Air("buffers")), mean(Transport::Udp)) {
            rows.at_least(format!("walking {signal}"), OF_WALK, "UDP", air / udp);
        }
    }
    cpu(&mut rows, taken);
    shapes(&mut rows, &taken.shapes);
    rows.0
}

fn steady(rows: &mut Rows, taken: &Taken, signal: &str) {
    let air = Transport::Air("buffers");
    for size in FILE_MB {
        if let Some(share) = share(taken, signal, air, size) {
            rows.at_least(format!("{size} MB, {signal}"), OF_LINE, "the line", share);
        }
        for longer in LONGER {
            if let Some(share) = self::share(taken, signal, longer, size) {
                let what = format!("{size} MB, {signal}, {}", longer.name());
                rows.at_least(what, OF_LINE, "the line", share);
            }
        }
        ahead(rows, taken, signal, size);
    }
    if let Some(share) = share(taken, signal, air, SMALL_MB) {
        let what = format!("{SMALL_MB} MB, {signal}");
        rows.at_most(what, SLOWER, "of size / line rate", 1.0 / share);
    }
    ahead(rows, taken, signal, SMALL_MB);
    let ping = |transport, size| find(taken, signal, transport, size)?.ping_ms(1);
    if let Some(found) = ping(air, FILE_MB[0]) {
        rows.at_most(format!("95 % of pings, {signal}"), PING_MS, "ms", found);
    }
    let short = Transport::Air("latency");
    if let (Some(found), Some(share)) = (
        ping(short, FILE_MB[0]),
        share(taken, signal, short, FILE_MB[0]),
    ) {
        let is_met = found <= PING_SHORT_MS && share >= OF_LINE_SHORT;
        rows.add(
            format!("the same with short queues, {signal}"),
            format!("<= {PING_SHORT_MS:.0} ms at {OF_LINE_SHORT:.2} of the line"),
            format!("{found:.1} ms at {share:.2}"),
            is_met,
        );
    }
}

/// Compares airdma with all other projects' transports.
fn ahead(rows: &mut Rows, taken: &Taken, signal: &str, size: u64) {
    let mbit = |case: &Case| case.median(|sample| sample.mbit);
    let is_peer = |case: &&&Case| {
        let transport = case.transport.as_str();
        case.megabytes == size && transport != "udp" && !transport.starts_with("airdma")
    };
    let cases = taken.of(signal);
    let peers = cases.iter().filter(is_peer);
    let best = peers.filter_map(|case| Some((mbit(case)?, &case.transport)));
    let best = best.max_by(|one, other| one.0.total_cmp(&other.0));
    let own = find(taken, signal, Transport::Air("buffers"), size).and_then(mbit);
    if let (Some((best, name)), Some(own)) = (best, own) {
        rows.add(
            format!("{size} MB, {signal}"),
            "ahead of every peer".into(),
            format!("{own:.0}, {name} {best:.0} Mb/s"),
            own > best,
        );
    }
}

fn cpu(rows: &mut Rows, taken: &Taken) {
    for signal in ["good", "fair"] {
        let cpu = |transport| {
            find(taken, signal, transport, FILE_MB[0])?.median(|sample| sample.cpu_s_per_gb)
        };
        if let (Some(own), Some(cubic)) = (cpu(Transport::Events), cpu(Transport::Tcp("cubic"))) {
            let what = format!("CPU of programs for a byte, {signal}");
            rows.at_most(what, PROGRAMS_OF_CUBIC, "of CUBIC's", own / cubic);
        }
        for size in FILE_MB {
            let busy = |transport| find(taken, signal, transport, size)?.busy_s_per_gb();
            let both = busy(Transport::Events).zip(busy(Transport::Tcp("cubic")));
            if let Some((own, cubic)) = both {
                let what = format!("CPU of the machine for a byte of {size} MB, {signal}");
                rows.at_most(what, OF_CUBIC, "of CUBIC's", own / cubic);
            }
        }
    }
}

fn shapes(rows: &mut Rows, all: &[Shaped]) {
    if let Some(kept) = shape::kept_with_size(all, "airdma_air") {
        rows.at_least("messages of 1 MiB".into(), 0.9, "the best size", kept);
    }
    if let Some(kept) = shape::kept_with_size(all, "airdma_write_wide") {
        rows.at_most(
            "the same without rate control".into(),
            0.9,
            "of the best size",
            kept,
        );
    }
    for (what, least, sum) in shape::fairness(all) {
        rows.at_least(
            format!("{what}: the least share"),
            0.9,
            "an equal one",
            least,
        );
        rows.at_least(format!("{what}: the sum"), 0.9, "one alone", sum);
    }
    for (mbit, share) in shape::foreground_shares(all, Transport::Air("buffers")) {
        let what = format!("TCP that has {mbit} Mb/s to send");
        rows.at_least(what, 0.9, "it", share);
    }
}

fn find<'a>(taken: &'a Taken, signal: &str, transport: Transport, size: u64) -> Option<&'a Case> {
    taken.cases.iter().find(|case| {
        let is_size = case.megabytes == size || transport == Transport::Udp;
        case.signal == signal && case.transport == transport.name() && is_size
    })
}

/// Share of the best second of UDP.
fn share(taken: &Taken, signal: &str, transport: Transport, size: u64) -> Option<f64> {
    let mbit = |transport| find(taken, signal, transport, size)?.median(|sample| sample.mbit);
    Some(mbit(transport)? / mbit(Transport::Udp)?)
}

/// Rate over the whole walk.
fn arrived_mbit(sample: &super::taken::Sample) -> f64 {
    let sum: f64 = sample.over_time.iter().map(|[arrived, _]| arrived).sum();
    sum / sample.over_time.len() as f64
}

#[cfg(test)]
mod tests {
    use super::super::taken::made_up::{case, taken};
    use super::*;

    #[test]
    fn targets_are_judged_by_what_was_measured() {
        let taken = taken(vec![
            case("good", "udp", 10, &[500.0]),
            case("good", "tcp_cubic", 100, &[300.0]),
            case("good", "airdma_air", 100, &[480.0]),
            case("good", "airdma_air", 10, &[400.0]),
            case("good", "airdma_air_datagrams", 100, &[470.0]),
            case("loss-1", "udp", 10, &[480.0]),
            case("loss-1", "airdma_air", 100, &[450.0]),
            case("fair", "quic_bbr", 100, &[410.0]),
            case("fair", "airdma_air", 100, &[400.0]),
        ]);
        let rows = targets(&taken);
        let found: Vec<[&str; 3]> = rows[1..]
            .iter()
            .filter(|row| !row[0].contains("ping") && !row[0].contains("CPU"))
            .map(|row| [&*row[0], &*row[2], &*row[3]])
            .collect();
        let expected = [
            ["100 MB, good", "0.96", "yes"],
            ["100 MB, good, airdma_air_datagrams", "0.94", "no"],
            ["100 MB, good", "480, tcp_cubic 300 Mb/s", "yes"],
            ["10 MB, good", "1.25", "no"],
            ["100 MB, fair", "400, quic_bbr 410 Mb/s", "no"],
            ["100 MB, loss-1", "0.94", "yes"],
        ];
        assert_eq!(found, expected);
    }
}
