//! Loss probability of an MPDU by SNR.
//!
//! AWGN channel, LDPC, MPDUs of 1,458 bytes: the points at which 50 %, 10 % and 1 % are lost come
//! from the link simulations of the University of Washington (2020) that ns-3 ships as its table.
//! Between and beyond them the logit of the loss is linear in dB: a logistic curve whose steepness
//! changes at the middle point. Schemes 12 and 13 are not in that table; theirs are those of 10
//! and 11 shifted by what 8 and 9 are from those, as each has two bits more per subcarrier.

/// SNR in dB at which 50 %, 10 % and 1 % are lost, by scheme.
const POINTS: [[f64; 3]; 14] = [
    [-0.9, -0.6, -0.3],
    [2.1, 2.4, 2.7],
    [4.6, 4.9, 5.2],
    [7.6, 7.9, 8.3],
    [10.6, 10.9, 11.2],
    [14.8, 15.1, 15.5],
    [16.2, 16.5, 16.9],
    [17.7, 18.0, 18.4],
    [21.3, 21.7, 22.1],
    [23.1, 23.5, 23.9],
    [26.4, 26.8, 27.2],
    [28.4, 28.9, 29.3],
    [31.5, 31.9, 32.3],
    [33.7, 34.3, 34.7],
];

/// Length for which the points hold, in bytes.
const POINTS_BYTES: f64 = 1458.0;

/// The fastest scheme with data.
pub const MCS_MAX: u8 = 13;

/// ln 9: the distance of 10 % from 50 % in logits.
const LOGIT_10: f64 = 2.197_224_577_336_219_6;

/// ln 99: the distance of 1 % from 50 % in logits.
const LOGIT_1: f64 = 4.595_119_850_134_59;

/// The probability that an MPDU of 1,458 bytes is lost.
///
/// # Panics
///
/// If `mcs` is above [`MCS_MAX`].
pub fn loss_of_1458(snr_db: f64, mcs: u8) -> f64 {
    let [half, tenth, hundredth] = POINTS[usize::from(mcs)];
    let logit = if snr_db <= tenth {
        LOGIT_10 * (snr_db - half) / (tenth - half)
    } else {
        LOGIT_10 + (LOGIT_1 - LOGIT_10) * (snr_db - tenth) / (hundredth - tenth)
    };
    1.0 / (1.0 + logit.exp())
}

/// The probability that an MPDU of `bytes` is lost if `loss` is that of 1,458 bytes.
pub fn loss_of_length(loss: f64, bytes: u32) -> f64 {
    1.0 - (1.0 - loss).powf(f64::from(bytes) / POINTS_BYTES)
}

/// The probability that an MPDU is lost.
pub fn loss(snr_db: f64, mcs: u8, bytes: u32) -> f64 {
    loss_of_length(loss_of_1458(snr_db, mcs), bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn close(a: f64, b: f64) -> bool {
        (a - b).abs() < 1e-9
    }

    #[test]
    fn the_curves_pass_through_the_points() {
        for (mcs, points) in POINTS.iter().enumerate() {
            for (snr_db, expected) in points.iter().zip([0.5, 0.1, 0.01]) {
                assert!(close(loss(*snr_db, mcs as u8, 1458), expected), "mcs {mcs}");
            }
        }
    }

    #[test]
    fn more_snr_loses_less_and_more_speed_loses_more() {
        for mcs in 0..=MCS_MAX {
            let mut last = 1.0;
            for tenths in -100..=450 {
                let now = loss(f64::from(tenths) / 10.0, mcs, 1500);
                assert!(now <= last);
                last = now;
                if mcs > 0 {
                    // Far out in the tails the curves of different steepness cross.
                    assert!(loss(f64::from(tenths) / 10.0, mcs - 1, 1500) <= now + 1e-4);
                }
            }
            assert!(loss(-20.0, mcs, 1500) > 0.999);
            assert!(last < 1e-9);
        }
    }

    #[test]
    fn length_counts() {
        assert!(close(loss(17.7, 7, 2916), 0.75));
        assert!(loss(18.0, 7, 100) < 0.01);
        assert!(loss(18.0, 7, 4200) > 0.25);
    }
}
