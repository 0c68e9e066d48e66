//! Prints what the Wi-Fi model is calibrated against, and what acknowledgements cost on it.

use std::io::Write;

use airdma_sim::wifi::report;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}", report::calibration())?;
    write!(out, "{}", report::ack_cost())
}
