//! The cases: perftest in a process and at a daemon.

use crate::measurement::Figure;
use crate::peer::{AtDaemon, Bandwidth, Latency, Peer, SecondCore, Stopped};
use crate::suite::{Series, VETH_1500};

/// Bytes of a message for bandwidth.
pub const LARGE: u64 = 65_536;
/// Bytes of a message for latency.
pub const SMALL: u64 = 64;
/// Seconds for which a program is stopped.
pub const STOPPED_S: u64 = 10;
const STOPPED_QUICK_S: u64 = 2;
/// Most rounds of a latency.
const ROUNDS_MAX: u64 = 50_000;
const ROUNDS_QUICK: u64 = 1000;

/// Names of the series: the program in a process, and at a daemon.
pub const SEND: [&str; 2] = ["send_process", "send_daemon"];
/// As above.
pub const WRITE: [&str; 2] = ["write_process", "write_daemon"];
/// As above, on two cores a side.
pub const SEND_ON_TWO: [&str; 2] = ["send_process_two", "send_daemon_two"];
/// As above.
pub const WRITE_ON_TWO: [&str; 2] = ["write_process_two", "write_daemon_two"];
/// Targets that run on, and targets that are stopped.
pub const STOPPED: [&str; 2] = ["running", "stopped"];

/// All series, or those that take a minute.
pub fn all(quick: bool) -> Vec<Series> {
    let mut all = Vec::new();
    let stopped_s = if quick { STOPPED_QUICK_S } else { STOPPED_S };
    both(
        &mut all,
        (Figure::Bandwidth, LARGE),
        SEND,
        ["ib_send_bw in a process", "ib_send_bw at a daemon"],
        Bandwidth::of("ib_send_bw"),
    );
    both(
        &mut all,
        (Figure::Bandwidth, LARGE),
        WRITE,
        ["ib_write_bw in a process", "ib_write_bw at a daemon"],
        Bandwidth::of("ib_write_bw"),
    );
    let latency = |program| Latency {
        // Enough to see that all works, however slow the build is.
        rounds_max: if quick { ROUNDS_QUICK } else { ROUNDS_MAX },
        ..Latency::of(program)
    };
    let (send, write) = (latency("ib_send_lat"), latency("ib_write_lat"));
    both(
        &mut all,
        (Figure::Latency, SMALL),
        SEND,
        ["ib_send_lat in a process", "ib_send_lat at a daemon"],
        send,
    );
    both(
        &mut all,
        (Figure::Latency, SMALL),
        WRITE,
        ["ib_write_lat in a process", "ib_write_lat at a daemon"],
        write,
    );
    both(
        &mut all,
        (Figure::Latency, SMALL),
        SEND_ON_TWO,
        [
            "ib_send_lat in a process, on two cores",
            "ib_send_lat at a daemon, on two cores",
        ],
        SecondCore(send),
    );
    both(
        &mut all,
        (Figure::Latency, SMALL),
        WRITE_ON_TWO,
        [
            "ib_write_lat in a process, on two cores",
            "ib_write_lat at a daemon, on two cores",
        ],
        SecondCore(write),
    );
    for (name, label, stops) in [
        (STOPPED[0], "the target runs on", false),
        (STOPPED[1], "the target is stopped", true),
    ] {
        let bytes = LARGE;
        all.push(Series {
            figure: Figure::Stopped,
            link: VETH_1500,
            name,
            label,
            peer: !stops,
            xs: vec![stopped_s],
            program: Box::new(Stopped { bytes, stops }),
        });
    }
    all
}

fn both(
    all: &mut Vec<Series>,
    (figure, x): (Figure, u64),
    names: [&'static str; 2],
    labels: [&'static str; 2],
    program: impl Peer + Copy + 'static,
) {
    let programs: [Box<dyn Peer>; 2] = [Box::new(program), Box::new(AtDaemon(program))];
    let series = names.into_iter().zip(labels).zip(programs).enumerate();
    for (at, ((name, label), program)) in series {
        all.push(Series {
            figure,
            link: VETH_1500,
            name,
            label,
            peer: at == 0,
            xs: vec![x],
            program,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_and_packages() {
        crate::suite::tests::check_cases(all, "bandwidth/veth-1500/write_daemon/65536");
    }
}
