//! The same link in virtual time: as exact as the model, faster than the clock, and the same again
//! from the same seed.

use std::time::Duration;

use airdma_sim::wifi::traffic::{Acks, Measured, OneWay};
use airdma_sim::wifi::{Load, Medium, Rival, StationId};

use crate::controller::Plan;
use crate::profile::{Others, Profile};

/// Interval at which the SNR follows the signal, and shortest span of a row.
const STEP: Duration = Duration::from_millis(10);

/// A stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// End of the span.
    pub at: Duration,
    /// At the end, without fading, in dB.
    pub snr_db: f64,
    /// Measured values.
    pub measured: Measured,
    /// The sender's scheme at the end.
    pub mcs: Option<u8>,
    /// Share of time in which the air was used, and in which frames collided.
    pub airtime: [f64; 2],
}

/// The cell of a profile with two hosts and other stations, and queues of a given number of
/// packets.
pub(crate) fn cell(
    profile: &Profile,
    stations: usize,
    queue_packets_max: usize,
) -> (Medium, [StationId; 2]) {
    let mut mac = profile.mac.clone();
    mac.queue_packets_max = queue_packets_max;
    let mut medium = Medium::new(mac);
    let hosts = [medium.add_station(), medium.add_station()];
    let Others { ppdu, on, off } = profile.others;
    for _ in 0..stations {
        let rival = Rival {
            ppdu,
            load: Load::OnOff { on, off },
        };
        let access = medium.profile().access;
        medium.add_rival(rival, access);
    }
    (medium, hosts)
}

/// A sends packets of 1,500 bytes and keeps its queue filled; B answers with 52 bytes.
///
/// Prints a row each `every`, for `duration`.
pub fn run(
    plan: &Plan,
    acks: Acks,
    queue: Option<usize>,
    every: Duration,
    duration: Duration,
) -> Vec<Row> {
    let mut profile = plan.profile.clone();
    if plan.signal.has_fading {
        profile.mac = profile.mac.steady();
    }
    let queue = queue.unwrap_or(profile.mac.queue_packets_max);
    let (mut medium, [a, b]) = cell(&profile, plan.stations, queue);
    for host in [a, b] {
        medium.fix_mcs(host, plan.mcs);
    }
    let mut flow = OneWay::new(medium, a, b, plan.seed);
    flow.acks = acks;
    flow.host = Duration::from_micros(2);
    let every = every.max(STEP);
    let mut rows = Vec::new();
    let mut at = Duration::ZERO;
    while at < duration {
        let ends = (at + every).min(duration);
        let before = flow.medium.airtime();
        let mut parts = Vec::new();
        let began = at;
        while at < ends {
            flow.medium.set_snr(a, b, plan.signal.snr_db(at));
            let step = STEP.min(ends - at);
            parts.push((step.as_secs_f64(), flow.run_for(step)));
            at += step;
        }
        let after = flow.medium.airtime();
        let share = |ns: u64| ns as f64 / (ends - began).as_nanos() as f64;
        let mut measured = mean(&parts);
        measured.goodput_mbit *= 1.0 - plan.loss;
        measured.lost = 1.0 - (1.0 - measured.lost) * (1.0 - plan.loss);
        rows.push(Row {
            at: ends,
            snr_db: plan.signal.snr_db(ends),
            measured,
            mcs: flow.medium.mcs(a, b),
            airtime: [
                share(after.busy_ns() - before.busy_ns()),
                share(after.collided_ns - before.collided_ns),
            ],
        });
    }
    rows
}

/// The mean over parts of these lengths; loss by packets, not by time.
fn mean(parts: &[(f64, Measured)]) -> Measured {
    let seconds: f64 = parts.iter().map(|(seconds, _)| seconds).sum();
    let over = |value: fn(&Measured) -> f64| {
        let weighed = parts.iter().map(|(seconds, part)| {
            let value = value(part);
            // A part without an access has no mean.
            if value.is_finite() {
                seconds * value
            } else {
                0.0
            }
        });
        weighed.sum::<f64>() / seconds
    };
    let arrived = over(|part| part.goodput_mbit);
    let offered = over(|part| part.goodput_mbit / (1.0 - part.lost).max(1e-9));
    Measured {
        goodput_mbit: arrived,
        mpdus_per_ppdu: over(|part| part.mpdus_per_ppdu),
        reverse_accesses: over(|part| part.reverse_accesses),
        collisions: over(|part| part.collisions),
        lost: if offered > 0.0 {
            1.0 - arrived / offered
        } else {
            over(|part| part.lost)
        },
    }
}

/// Rows of a table, with its head.
pub fn csv(rows: &[Row]) -> String {
    let mut text = String::from(
        "time_s,snr_db,mcs,goodput_mbit,mpdus_per_ppdu,reverse_accesses,collisions,lost,air_busy,air_collided\n",
    );
    for row in rows {
        let Measured {
            goodput_mbit,
            mpdus_per_ppdu,
            reverse_accesses,
            collisions,
            lost,
        } = row.measured;
        let mcs = row.mcs.map_or("-".into(), |mcs| mcs.to_string());
        let [busy, collided] = row.airtime;
        text.push_str(&format!(
            "{:.3},{:.2},{mcs},{goodput_mbit:.2},{mpdus_per_ppdu:.1},{reverse_accesses:.3},{collisions:.4},{lost:.6},{busy:.4},{collided:.4}\n",
            row.at.as_secs_f64(),
            row.snr_db,
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Options;
    use crate::signal::Walk;

    const SECOND: Duration = Duration::from_secs(1);

    fn plan(profile: &str, snr: f64, mcs: Option<u8>) -> Plan {
        let options = Options {
            profile: profile.into(),
            snr: Some(snr),
            mcs,
            ..Options::default()
        };
        options.plan().unwrap()
    }

    #[test]
    fn goodput_is_that_of_the_table() {
        for name in Profile::names() {
            let best = Profile::find(name).unwrap().mac.phy.mcs_max();
            let plan = plan(name, 60.0, Some(best));
            let rows = run(&plan, Acks::None, None, SECOND, SECOND);
            let found = rows[0].measured.goodput_mbit;
            let expected = plan.profile.mac.ideal_goodput_mbit(best);
            assert!(
                (found / expected - 1.0).abs() < 0.03,
                "{name}: {found} {expected}"
            );
        }
    }

    #[test]
    fn short_queues_make_short_aggregates() {
        let plan = plan("wifi5-80", 60.0, None);
        let with = |queue| {
            let rows = run(&plan, Acks::Packets(2), queue, SECOND, SECOND);
            rows[0].measured
        };
        let (long, short) = (with(None), with(Some(30)));
        assert!(short.mpdus_per_ppdu < long.mpdus_per_ppdu - 10.0);
        assert!(short.goodput_mbit < 0.9 * long.goodput_mbit);
    }

    #[test]
    fn a_walk_is_the_same_again() {
        let options = Options {
            walk: Some(Walk::Away),
            stations: 2,
            ..Options::default()
        };
        let plan = options.plan().unwrap();
        let rows = run(&plan, Acks::Packets(2), None, SECOND, 40 * SECOND);
        let again = run(&plan, Acks::Packets(2), None, SECOND, 5 * SECOND);
        assert_eq!(rows[..5], again);
        assert_eq!(rows.len(), 40);
        assert!(rows[1].measured.goodput_mbit > 2.0 * rows[39].measured.goodput_mbit);
        assert_eq!(csv(&rows).lines().count(), 41);
    }
}
