//! `airdma-callgrind SCENARIO`: something small, often, so that callgrind can count what it takes.
//!
//! `make instructions` runs it (`tools/instructions.py`). Nothing here depends on time, threads or
//! other programs: devices stand on a wire in memory and their clocks are moved by the step, so
//! that the same binary executes the same instructions.

mod c_abi;
mod counted;
mod ends;
mod messages;
mod port;

use std::io::{Write, stdout};
use std::process::ExitCode;

/// Work done while instructions were counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Done {
    /// Messages, or whatever the scenario repeats.
    pub times: u64,
    /// Packets that both ends sent.
    pub packets: u64,
}

/// Something to count.
pub struct Scenario {
    /// Name on the command line and in the table.
    pub name: &'static str,
    /// Unit of work, in the words of the table.
    pub what: &'static str,
    /// Prepares it, warms up, and does it while it counts.
    pub run: fn() -> Done,
}

fn main() -> ExitCode {
    let scenarios: Vec<Scenario> = [messages::scenarios(), port::scenarios(), c_abi::scenarios()]
        .into_iter()
        .flatten()
        .collect();
    let wanted = std::env::args().nth(1).unwrap_or_default();
    let mut out = stdout().lock();
    if wanted == "--list" {
        for scenario in &scenarios {
            let _ = writeln!(out, "{}\t{}", scenario.name, scenario.what);
        }
        return ExitCode::SUCCESS;
    }
    let Some(scenario) = scenarios.iter().find(|scenario| scenario.name == wanted) else {
        let _ = writeln!(out, "usage: airdma-callgrind --list | NAME");
        return ExitCode::from(2);
    };
    let Done { times, packets } = (scenario.run)();
    let _ = writeln!(out, "times {times}\npackets {packets}\ncpu {}", cpu());
    ExitCode::SUCCESS
}

/// The features by which the sum of the ICRC and the copies of the C library choose their way, as
/// far as they are there: under valgrind, those that it knows.
fn cpu() -> String {
    let mut features: Vec<&str> = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        macro_rules! look {
            ($($name:tt),*) => { $(if std::arch::is_x86_feature_detected!($name) { features.push($name); })* };
        }
        look!("pclmulqdq", "avx2", "vpclmulqdq", "avx512f", "ermsb");
    }
    features.insert(0, std::env::consts::ARCH);
    features.join(" ")
}
