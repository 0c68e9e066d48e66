//! `airdma link calibrate`: what the link does, beside what it should.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;

use airdma_sim::wifi::traffic::Acks;

use crate::air::Side;
use crate::error::LinkError;
use crate::measure::{Link, PORT, TRAFFIC, settle, target};
use crate::options::Options;
use crate::profile::Profile;
use crate::traffic::{BIN, Found};
use crate::twin;

/// Sections of the report.
pub const SECTIONS: [&str; 7] = ["goodput", "tcp", "acks", "delay", "loss", "changes", "cpu"];

/// Above all fading, so that the best scheme never fails.
const STRONG_DB: f64 = 60.0;
/// A good signal.
const GOOD_DB: f64 = 35.0;
const VIRTUAL: Duration = Duration::from_secs(5);
/// The first second is TCP's start, and rate control's.
const SKIPPED_BINS: usize = 50;
const SECOND_BINS: usize = 50;

/// Measures.
#[derive(Clone, Debug)]
pub struct Calibration<'a> {
    /// This binary.
    pub airdma: &'a Path,
    /// Seconds of each flow.
    pub seconds: f64,
    /// Measurements of each value; medians are reported.
    pub runs: usize,
}

impl Calibration<'_> {
    /// The text of one section, in Markdown.
    ///
    /// # Errors
    ///
    /// If a link cannot be made, or a program on it fails.
    pub fn section(&self, name: &str) -> Result<String, LinkError> {
        match name {
            "goodput" => self.goodput(),
            "tcp" => self.tcp(),
            "acks" => self.acks(),
            "delay" => self.delay(),
            "loss" => self.loss(),
            "changes" => self.changes(),
            "cpu" => self.cpu(),
            _ => Err(LinkError::Asked(format!(
                "no section is called {name}: there are {}",
                SECTIONS.join(", ")
            ))),
        }
    }

    fn link(&self, options: &Options) -> Result<Link, LinkError> {
        Link::new(self.airdma, options)
    }

    fn flow(
        &self,
        link: &Link,
        words: &[&str],
        answer_each: &str,
    ) -> Result<[Found; 2], LinkError> {
        let (port, to, seconds) = (PORT.to_string(), target(), self.seconds.to_string());
        let is_tcp = words[0] == "tcp-send";
        let receive: &[&str] = if is_tcp {
            &["tcp-receive", "--port", &port]
        } else {
            &["udp-receive", "--port", &port, "--answer-each", answer_each]
        };
        let receive = [&TRAFFIC[..], receive].concat();
        let send = [&TRAFFIC[..], words, &["--to", &to, "--seconds", &seconds]].concat();
        link.flow(self.airdma, &receive, &send)
    }

    fn goodput(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## UDP in one direction\n\n\
             The best scheme, no fading, payload of 1,472 bytes in Mb/s: the analytic table (AIFS, mean backoff, PPDU, SIFS, block \
             ack), the model in virtual time, and the link in real time: the best second of each run, and the best run. Where \
             the queue ran empty, the programs could not fill it, and the emulation ends.\n\n\
             | profile | table | virtual time | deviation | real time | deviation | queue, packets | latest step, ms |\n|---|---|---|---|---|---|---|---|\n",
        );
        for name in Profile::names() {
            let mcs = Profile::find(name)?.mac.phy.mcs_max();
            let options = Options {
                profile: name.into(),
                snr: Some(STRONG_DB),
                mcs: Some(mcs),
                ..Options::default()
            };
            let plan = options.plan()?;
            let table = plan.profile.mac.ideal_goodput_mbit(mcs);
            let rows = twin::run(&plan, Acks::None, None, VIRTUAL, VIRTUAL);
            let virtual_mbit = rows[0].measured.goodput_mbit;
            let (mut real, mut queue, mut late) = (0.0f64, 0, 0.0f64);
            let link = self.link(&options)?;
            for _ in 0..self.runs {
                let status = self.during(&link, || self.flow(&link, &["udp-send"], "0"));
                let (found, status) = status?;
                let mbit = found[1].best_mbit(SECOND_BINS);
                if mbit > real {
                    (real, queue) = (mbit, status.directions[0].backlog_packets);
                }
                late = late.max(status.late_ms);
            }
            let deviation = |mbit: f64| 100.0 * (mbit / table - 1.0);
            let _ = writeln!(
                text,
                "| {name} | {table:.0} | {virtual_mbit:.0} | {:+.1} % | {real:.0} | {:+.1} % | {queue} | {late:.1} |",
                deviation(virtual_mbit),
                deviation(real)
            );
        }
        Ok(text)
    }

    /// Runs something, and asks the link how it is in the middle of it.
    fn during<T: Send>(
        &self,
        link: &Link,
        work: impl FnOnce() -> Result<T, LinkError> + Send,
    ) -> Result<(T, crate::Status), LinkError> {
        thread::scope(|scope| {
            let work = scope.spawn(work);
            thread::sleep(Duration::from_secs_f64(0.3 + self.seconds * 0.8));
            let status = link.status();
            let found = match work.join() {
                Ok(found) => found?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            Ok((found, status))
        })
    }

    fn tcp(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## The share of TCP\n\n\
             wifi5-80 at 35 dB, one flow of the kernel's TCP, without its first second. The practical line rate is the best second of \
             UDP, as SMUFF defines it; SMUFF measured 442 Mb/s of 655 (0.67) with CUBIC. Medians of the runs, each on a link of its own.\n\n\
             | flow | Mb/s | share of the line rate | air used by A | by B | in collisions | sent again | queue, packets |\n|---|---|---|---|---|---|---|---|\n",
        );
        let mut line = 0.0;
        for (name, words) in [
            ("UDP", vec!["udp-send"]),
            ("TCP CUBIC", vec!["tcp-send", "--congestion", "cubic"]),
            ("TCP BBR", vec!["tcp-send", "--congestion", "bbr"]),
        ] {
            let mut rows = Vec::new();
            for seed in 1..=self.runs as u64 {
                let options = Options {
                    snr: Some(GOOD_DB),
                    seed,
                    ..Options::default()
                };
                let link = self.link(&options)?;
                let Ok((found, status)) = self.during(&link, || self.flow(&link, &words, "0"))
                else {
                    // This kernel has no BBR.
                    continue;
                };
                let mbit = match name {
                    "UDP" => found[1].best_mbit(SECOND_BINS),
                    _ => steady_mbit(&found[1]),
                };
                let [a, b, _, collided] = status.airtime;
                let direction = &status.directions[0];
                rows.push([
                    mbit,
                    a,
                    b,
                    collided,
                    direction.retries,
                    direction.backlog_packets as f64,
                ]);
            }
            if rows.is_empty() {
                let _ = writeln!(text, "| {name} | this kernel has none | | | | | | |");
                continue;
            }
            let of = |index: usize| median(rows.iter().map(|row| row[index]).collect());
            let mbit = of(0);
            if name == "UDP" {
                line = mbit;
            }
            let percent = |index: usize| 100.0 * of(index);
            let _ = writeln!(
                text,
                "| {name} | {mbit:.0} | {:.2} | {:.0} % | {:.0} % | {:.0} % | {:.1} % | {:.0} |",
                mbit / line,
                percent(1),
                percent(2),
                percent(3),
                percent(4),
                of(5)
            );
        }
        Ok(text)
    }

    fn acks(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## Fewer acknowledgements\n\n\
             wifi5-80 at 35 dB. A keeps its queue full with UDP; B answers one of N packets with 52 bytes. Virtual time with the \
             driver's queue full, and with the 60 packets (1 ms) that TCP keeps there; real time with the sockets' buffers. Means over ten \
             seeds in virtual time.\n\n\
             | one answer for | virtual, full queue | virtual, 60 packets | accesses of B for one of A | collisions | real time |\n|---|---|---|---|---|---|\n",
        );
        for each in [0, 2, 4, 8, 16, 32, 64, 128, 256] {
            let acks = match each {
                0 => Acks::None,
                packets => Acks::Packets(packets),
            };
            let mut sums = [0.0; 4];
            const SEEDS: u64 = 10;
            for seed in 1..=SEEDS {
                let options = Options {
                    snr: Some(GOOD_DB),
                    seed,
                    ..Options::default()
                };
                let plan = options.plan()?;
                let full = &twin::run(&plan, acks, None, VIRTUAL, VIRTUAL)[0].measured;
                let short = &twin::run(&plan, acks, Some(60), VIRTUAL, VIRTUAL)[0].measured;
                for (sum, value) in sums.iter_mut().zip([
                    full.goodput_mbit,
                    short.goodput_mbit,
                    short.reverse_accesses,
                    100.0 * short.collisions,
                ]) {
                    *sum += value / SEEDS as f64;
                }
            }
            let mut real = Vec::new();
            for seed in 1..=self.runs as u64 {
                let link = self.link(&Options {
                    snr: Some(GOOD_DB),
                    seed,
                    ..Options::default()
                })?;
                let found = self.flow(&link, &["udp-send"], &each.to_string())?;
                real.push(steady_mbit(&found[1]));
            }
            let each = match each {
                0 => "none".into(),
                packets => format!("{packets} packets"),
            };
            let [full, short, reverse, collisions] = sums;
            let _ = writeln!(
                text,
                "| {each} | {full:.0} | {short:.0} | {reverse:.2} | {collisions:.0} % | {:.0} |",
                median(real)
            );
        }
        Ok(text)
    }

    fn delay(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## Round trips under load\n\n\
             wifi5-80 at 35 dB: 100 small datagrams a second from A to B and back, beside UDP from A to B at this load. The queue holds 25 ms at the \
             line rate (SMUFF, figure 8).\n\n\
             | load | median, ms | 95 %, ms | unanswered |\n|---|---|---|---|\n",
        );
        let line = Profile::find("wifi5-80")?.mac.ideal_goodput_mbit(9);
        for load in [
            Some(0.0),
            Some(0.25),
            Some(0.5),
            Some(0.75),
            Some(0.9),
            None,
        ] {
            let link = self.link(&Options {
                snr: Some(GOOD_DB),
                ..Options::default()
            })?;
            let echo_port = (PORT + 1).to_string();
            let echo = [&TRAFFIC[..], &["echo", "--port", &echo_port]].concat();
            let echo = link.own_ready(Side::B, &echo)?;
            let to = format!("{}:{echo_port}", crate::ipv4(Side::B));
            let seconds = self.seconds.to_string();
            let ping = ["ping", "--to", &to, "--seconds", &seconds];
            let ping = [&TRAFFIC[..], &ping, &["--apart", "0.01"]].concat();
            let mbit = load.map(|load| (load * line).to_string());
            let found = match &mbit {
                Some(mbit) if mbit == "0" => link.own(Side::A, &ping)?.found()?,
                _ => thread::scope(|scope| {
                    let mut words = vec!["udp-send"];
                    if let Some(mbit) = &mbit {
                        words.extend(["--mbit", mbit]);
                    }
                    let flow = scope.spawn({
                        let link = &link;
                        move || self.flow(link, &words, "0")
                    });
                    // The queue has to fill before it can be seen.
                    thread::sleep(Duration::from_millis(300));
                    let found = link.own(Side::A, &ping).and_then(|ping| ping.found());
                    match flow.join() {
                        Ok(flow) => flow.and(found),
                        Err(panic) => std::panic::resume_unwind(panic),
                    }
                })?,
            };
            drop(echo);
            let load = load.map_or("full speed".into(), |load| format!("{:.0} %", 100.0 * load));
            let asked = found.missing + found.packets;
            let mut times = found.round_trips_ms;
            times.sort_by(f64::total_cmp);
            let at = |share: f64| times.get((times.len() as f64 * share) as usize).copied();
            let _ = writeln!(
                text,
                "| {load} | {:.2} | {:.2} | {} of {asked} |",
                at(0.5).unwrap_or(f64::NAN),
                at(0.95).unwrap_or(f64::NAN),
                found.missing
            );
        }
        Ok(text)
    }

    fn loss(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## Loss behind the MAC by signal\n\n\
             wifi5-80. Share of packets lost after all retries: in virtual time (60 s, queue full) with the profile's fading (1.5 dB, 100 ms) and \
             with a restless one (6 dB, 20 ms); in real time with the profile's, at half of the rate: packets that did not arrive, without those that found the queue or the \
             receiver's socket full, which have their own column.\n\n\
             | signal, dBm | SNR, dB | Mb/s | lost, virtual | Mb/s, restless | lost, restless | lost, real time | found it full |\n|---|---|---|---|---|---|---|---|\n",
        );
        for snr_db in [28.0, 23.0, 18.0, 13.0, 8.0, 5.0, 3.0, 2.0, 1.0, 0.0, -1.0] {
            let options = Options {
                snr: Some(snr_db),
                ..Options::default()
            };
            let plan = options.plan()?;
            let minute = Duration::from_secs(60);
            let usual = twin::run(&plan, Acks::None, None, minute, minute)[0].measured;
            let mut restless = plan.clone();
            restless.profile.mac.fading.sigma_db = 6.0;
            restless.profile.mac.fading.coherence = Duration::from_millis(20);
            let restless = twin::run(&restless, Acks::None, None, minute, minute)[0].measured;
            let link = self.link(&options)?;
            let mbit = (usual.goodput_mbit / 2.0).max(1.0).to_string();
            let found = self.flow(&link, &["udp-send", "--mbit", &mbit], "0")?;
            settle();
            let full = link.status().directions[0].dropped + found[1].overflowed;
            let arrived = found[1].packets + full;
            let sent = found[0].packets.max(1) as f64;
            let lost = 1.0 - arrived as f64 / sent;
            let _ = writeln!(
                text,
                "| {:.0} | {snr_db:.0} | {:.0} | {:.3} % | {:.0} | {:.3} % | {:.3} % | {full} |",
                snr_db + plan.profile.mac.noise_dbm(),
                usual.goodput_mbit,
                100.0 * usual.lost,
                restless.goodput_mbit,
                100.0 * restless.lost,
                100.0 * lost
            );
        }
        Ok(text)
    }

    fn changes(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## How fast the throughput changes\n\n\
             wifi5-80, UDP with a full queue, windows of 40 ms: share of windows with 0.5 to 2 times the throughput of the window before (SMUFF, figure \
             10: more than 99 %).\n\n\
             | SNR, dB | virtual, Mb/s | virtual, within | real, Mb/s | real, within |\n|---|---|---|---|---|\n",
        );
        let window = 2 * BIN;
        for snr_db in [35.0, 25.0, 20.0, 15.0, 10.0] {
            let options = Options {
                snr: Some(snr_db),
                ..Options::default()
            };
            let minute = Duration::from_secs(60);
            let rows = twin::run(&options.plan()?, Acks::None, None, window, minute);
            let values: Vec<f64> = rows.iter().map(|row| row.measured.goodput_mbit).collect();
            let link = self.link(&options)?;
            let found = &self.flow(&link, &["udp-send"], "0")?[1];
            let bins = found.bins.get(SKIPPED_BINS..).unwrap_or_default();
            let real: Vec<f64> = bins
                .chunks_exact(2)
                .map(|pair| (pair[0] + pair[1]) as f64)
                .collect();
            let _ = writeln!(
                text,
                "| {snr_db:.0} | {:.0} | {:.2} % | {:.0} | {:.2} % |",
                values.iter().sum::<f64>() / values.len() as f64,
                100.0 * within(values.get(SKIPPED_BINS..).unwrap_or_default()),
                steady_mbit(found),
                100.0 * within(&real)
            );
        }
        Ok(text)
    }

    fn cpu(&self) -> Result<String, LinkError> {
        let mut text = String::from(
            "## The cost of the emulation\n\n\
             UDP at a steady rate over the link, and over the same veth pair without a radio (`--plain`), in turns; shares of one core, medians. The \
             controller by its own account, the programs by theirs, and the whole machine by /proc/stat, which includes all other \
             programs: only on an idle machine is the difference of the last two columns the cost of the link's timers.\n\n\
             | rate, Mb/s | profile | arrived | controller | programs, plain | programs, link | machine, plain | machine, link |\n|---|---|---|---|---|---|---|---|\n",
        );
        for (mbit, profile) in [(650, "wifi5-80"), (1000, "wifi5-160")] {
            let mut rows = Vec::new();
            for _ in 0..self.runs {
                let mut row = [0.0; 6];
                for (offset, plain) in [(0, true), (1, false)] {
                    let link = self.link(&Options {
                        profile: profile.into(),
                        snr: Some(STRONG_DB),
                        plain,
                        ..Options::default()
                    })?;
                    settle();
                    let before = machine_s();
                    let words = ["udp-send", "--mbit", &mbit.to_string()];
                    let (found, status) = self.during(&link, || self.flow(&link, &words, "0"))?;
                    // The receiver waits a second for more.
                    let took = self.seconds + 1.0;
                    row[offset] = (found[0].cpu_s + found[1].cpu_s) / self.seconds;
                    row[2 + offset] = (machine_s() - before) / took;
                    if !plain {
                        row[4] = status.cpu;
                        row[5] = found[1].mbit();
                    }
                }
                rows.push(row);
            }
            let of = |index: usize| median(rows.iter().map(|row| row[index]).collect());
            let percent = |index: usize| 100.0 * of(index);
            let _ = writeln!(
                text,
                "| {mbit} | {profile} | {:.0} | {:.1} % | {:.0} % | {:.0} % | {:.0} % | {:.0} % |",
                of(5),
                percent(4),
                percent(0),
                percent(1),
                percent(2),
                percent(3)
            );
        }
        Ok(text)
    }
}

/// Without the first second, and the last bin, which is not full.
fn steady_mbit(found: &Found) -> f64 {
    let until = found.bins.len().saturating_sub(1);
    let bins = found
        .bins
        .get(SKIPPED_BINS.min(until)..until)
        .unwrap_or_default();
    let seconds = BIN.as_secs_f64() * bins.len() as f64;
    bins.iter().sum::<u64>() as f64 * 8.0 / 1e6 / seconds.max(1e-9)
}

/// The share of values that are 0.5 to 2 times the one before.
fn within(values: &[f64]) -> f64 {
    let pairs = values.windows(2);
    let count = pairs.len().max(1) as f64;
    let good = pairs.filter(|pair| pair[1] <= 2.0 * pair[0] && 2.0 * pair[1] >= pair[0]);
    good.count() as f64 / count
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => f64::NAN,
        length if length % 2 == 1 => values[length / 2],
        length => (values[length / 2 - 1] + values[length / 2]) / 2.0,
    }
}

/// Seconds that all cores worked since the machine started.
fn machine_s() -> f64 {
    const TICKS_PER_S: f64 = 100.0;
    let text = fs::read_to_string("/proc/stat").unwrap_or_default();
    let numbers = text
        .lines()
        .next()
        .unwrap_or_default()
        .split_ascii_whitespace();
    let numbers: Vec<f64> = numbers
        .skip(1)
        .filter_map(|word| word.parse().ok())
        .collect();
    // user nice system idle iowait irq softirq
    let busy = [0, 1, 2, 5, 6].map(|index| numbers.get(index).copied().unwrap_or(0.0));
    busy.iter().sum::<f64>() / TICKS_PER_S
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_changes() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0]) - 2.5).abs() < 1e-9);
        assert!(median(Vec::new()).is_nan());
        assert!((within(&[1.0, 2.0, 0.9, 1.8]) - 2.0 / 3.0).abs() < 1e-9);
    }

    #[test]
    fn the_first_second_does_not_count() {
        let mut bins = vec![0; SKIPPED_BINS];
        bins.extend([250_000; 10]);
        bins.push(3);
        let found = Found {
            bins,
            ..Found::default()
        };
        assert!((steady_mbit(&found) - 100.0).abs() < 1e-9);
        assert!(steady_mbit(&Found::default()).abs() < 1e-9);
    }
}
