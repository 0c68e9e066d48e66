//! Tables of the model: simulated and computed goodput, and the cost of acknowledgements.

use core::fmt::Write;
use core::time::Duration;

use super::medium::Medium;
use super::profile::Profile;
use super::traffic::{Acks, Measured, OneWay};

/// A row of the reference table: one-way UDP of 1,472 bytes, CCMP, no collisions, no errors, mean
/// backoff. Its model is cycle = AIFS 43 us + mean backoff 67.5 us + PPDU + SIFS 16 us + block ack,
/// and goodput = MPDUs x 1,472 bytes / cycle.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The cell.
    pub profile: Profile,
    /// The scheme.
    pub mcs: u8,
    /// Computed goodput in Mb/s.
    pub goodput_mbit: f64,
}

/// The reference table.
pub fn reference() -> [Row; 10] {
    let window = |profile, window| Profile { window, ..profile };
    let row = |profile, mcs, goodput_mbit| Row {
        profile,
        mcs,
        goodput_mbit,
    };
    [
        row(Profile::AC_80, 9, 668.0),
        row(Profile::AC_160, 9, 1130.0),
        row(window(Profile::AX_80, 64), 11, 859.0),
        row(Profile::AX_80, 11, 1045.0),
        row(Profile::AX_160, 11, 1943.0),
        row(Profile::BE_160, 13, 2563.0),
        row(window(Profile::BE_320, 256), 13, 3845.0),
        row(Profile::BE_320, 13, 4845.0),
        row(Profile::AX_80, 7, 646.0),
        row(Profile::AX_80, 4, 391.0),
    ]
}

/// Virtual duration of each measurement.
const DURATION: Duration = Duration::from_secs(3);

/// The seed of all tables.
const SEED: u64 = 1;

/// Simulates a row of the reference table.
pub fn calibrate(row: &Row) -> Measured {
    let profile = row.profile.clone().steady();
    one_way(profile, Some(row.mcs), Acks::None, DURATION)
}

/// Simulated goodput and that of the reference table, in markdown.
pub fn calibration() -> String {
    let mut table = String::from(
        "| profile | window | MCS | PHY Mb/s | MPDUs per PPDU | table Mb/s | simulated Mb/s | deviation |\n\
         |---|---|---|---|---|---|---|---|\n",
    );
    for row in reference() {
        let measured = calibrate(&row);
        let deviation = 100.0 * (measured.goodput_mbit / row.goodput_mbit - 1.0);
        let phy_mbit = row.profile.phy.bits_per_s(row.mcs) as f64 / 1e6;
        line(
            &mut table,
            format_args!(
                "| {} | {} | {} | {phy_mbit:.1} | {:.0} | {:.0} | {:.0} | {deviation:+.1} % |",
                row.profile.name,
                row.profile.window,
                row.mcs,
                measured.mpdus_per_ppdu,
                row.goodput_mbit,
                measured.goodput_mbit,
            ),
        );
    }
    table
}

/// A policy of acknowledging, and its name.
const POLICIES: [(&str, Acks); 6] = [
    ("none", Acks::None),
    ("2 packets", Acks::Packets(2)),
    ("4 packets", Acks::Packets(4)),
    ("16 packets", Acks::Packets(16)),
    ("64 packets", Acks::Packets(64)),
    ("RTT/4", Acks::Period(RTT_QUARTER)),
];

/// A quarter of a round trip of 10 ms, as a loaded cell has.
const RTT_QUARTER: Duration = Duration::from_micros(2_500);

/// Time that the receiving host spends on a packet: some hundred thousand packets per second, as
/// phones and laptops without offloads.
const HOST: Duration = Duration::from_micros(2);

/// Cost of acknowledgements over the same medium. The sender is saturated with packets of 1,500
/// bytes, the receiver answers with 52 bytes.
pub fn acknowledged(profile: &Profile, acks: Acks) -> Measured {
    let mcs = profile.phy.mcs_max();
    one_way(profile.clone().steady(), Some(mcs), acks, DURATION)
}

/// A saturated sender and an acknowledgement for each 16 packets, which measures the model's speed.
pub fn saturated(profile: &Profile, duration: Duration) -> Measured {
    one_way(profile.clone(), None, Acks::Packets(16), duration)
}

/// Goodput by the number of acknowledgements, in markdown.
pub fn ack_cost() -> String {
    let mut table = String::from(
        "| profile | one ACK per | goodput Mb/s | cost | ACK accesses per data access | data accesses that collide |\n\
         |---|---|---|---|---|---|\n",
    );
    for profile in [
        Profile::AC_80,
        Profile::AX_80,
        Profile::AX_160,
        Profile::BE_320,
    ] {
        let mut free = None;
        for (name, acks) in POLICIES {
            let measured = acknowledged(&profile, acks);
            let free = *free.get_or_insert(measured.goodput_mbit);
            line(
                &mut table,
                format_args!(
                    "| {} | {name} | {:.0} | {:.0} % | {:.2} | {:.0} % |",
                    profile.name,
                    measured.goodput_mbit,
                    100.0 * (1.0 - measured.goodput_mbit / free),
                    measured.reverse_accesses,
                    100.0 * measured.collisions,
                ),
            );
        }
    }
    table
}

/// SNRs of [`by_snr`], in dB.
const SNRS_DB: [f64; 12] = [
    -2.0, 0.0, 1.0, 3.0, 6.0, 9.0, 12.0, 15.0, 18.0, 22.0, 26.0, 30.0,
];

/// Goodput and residual loss by SNR, with fading and rate control, in markdown. The signal column
/// is what a receiver would report for it.
pub fn by_snr(profile: &Profile) -> String {
    let mut table = String::from(
        "| profile | SNR dB | signal dBm | goodput Mb/s | lost above the MAC |\n\
         |---|---|---|---|---|\n",
    );
    for snr_db in SNRS_DB {
        let mut medium = Medium::new(profile.clone());
        let (from, to) = (medium.add_station(), medium.add_station());
        medium.set_snr(from, to, snr_db);
        let mut flow = OneWay::new(medium, from, to, SEED);
        flow.run_for(DURATION);
        let measured = flow.run_for(DURATION * 10);
        line(
            &mut table,
            format_args!(
                "| {} | {snr_db:.0} | {:.0} | {:.0} | {:.3} % |",
                profile.name,
                snr_db + profile.noise_dbm(),
                measured.goodput_mbit,
                100.0 * measured.lost,
            ),
        );
    }
    table
}

fn one_way(profile: Profile, mcs: Option<u8>, acks: Acks, duration: Duration) -> Measured {
    let mut medium = Medium::new(profile);
    let (from, to) = (medium.add_station(), medium.add_station());
    medium.set_snr(from, to, 100.0);
    medium.fix_mcs(from, mcs);
    medium.fix_mcs(to, mcs);
    let mut flow = OneWay::new(medium, from, to, SEED);
    flow.acks = acks;
    flow.host = HOST;
    flow.run_for(duration / 20);
    flow.run_for(duration)
}

fn line(table: &mut String, line: core::fmt::Arguments<'_>) {
    writeln!(table, "{line}").expect("a string takes everything");
}
