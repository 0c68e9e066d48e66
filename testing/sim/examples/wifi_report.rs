//! Prints the calibration of the Wi-Fi model, the cost of acknowledgements, the goodput by SNR, and
//! the speed of the model.

use core::time::Duration;
use std::io::Write;

use airdma_sim::wifi::{Profile, report};

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", report::calibration())?;
    writeln!(out, "{}", report::ack_cost())?;
    writeln!(out, "{}", report::by_snr(&Profile::AC_80))?;

    let length = Duration::from_secs(20);
    #[allow(clippy::disallowed_methods, reason = "to measure the simulator itself")]
    let start = std::time::Instant::now();
    let measured = report::saturated(&Profile::BE_320, length);
    let took = start.elapsed().as_secs_f64();
    writeln!(
        out,
        "be-320, saturated, one ACK per 16 packets, {:.0} Mb/s: {:.0} virtual seconds per second",
        measured.goodput_mbit,
        length.as_secs_f64() / took,
    )
}
