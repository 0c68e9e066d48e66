//! The cases: each program with the library at both ends, at one, and at none.

use crate::measurement::Figure;
use crate::peer::{Iperf, Peer, Redis, RedisCall, Shimmed, Sockperf, Web};
use crate::suite::{LOSSY, Link, Series, VETH_1500};

/// Seconds of each sample: a lane opens within the first one.
pub const SECONDS: u32 = 3;

/// Bytes of a write of iperf3: its default.
pub const STREAM: u64 = 128 * 1024;
/// Bytes of a message of sockperf.
pub const MESSAGES: [u64; 2] = [64, 1024];
/// Bytes of objects that nginx serves.
pub const OBJECTS: [u64; 2] = [1024, 1 << 20];
/// Clients of redis-benchmark.
pub const CLIENTS: u64 = 50;

/// Name of a series by the ends with the library.
pub const BOTH: &str = "both";
/// The server alone has it: no lane.
pub const SERVER: &str = "server";
/// The client alone has it: no lane.
pub const CLIENT: &str = "client";
/// Neither has it: kernel TCP.
pub const NONE: &str = "none";

/// All series, or those that take a minute.
pub fn all(quick: bool) -> Vec<Series> {
    let mut all = Vec::new();
    let stream = Iperf {
        algorithm: "cubic",
        no_delay_max: 0,
    };
    let sockperf = Sockperf {
        tcp: true,
        polls: false,
    };
    let few = |xs: &[u64]| if quick { xs[..1].to_vec() } else { xs.to_vec() };
    add(&mut all, Figure::Bandwidth, VETH_1500, &[STREAM], stream);
    if !quick {
        add(&mut all, Figure::Cpu, VETH_1500, &[STREAM], stream);
    }
    add(
        &mut all,
        Figure::Latency,
        VETH_1500,
        &few(&MESSAGES),
        sockperf,
    );
    add(&mut all, Figure::Web, VETH_1500, &few(&OBJECTS), Web);
    for (figure, call) in [(Figure::Get, RedisCall::Get), (Figure::Set, RedisCall::Set)] {
        if !quick || call == RedisCall::Get {
            add(&mut all, figure, VETH_1500, &[CLIENTS], Redis(call));
        }
    }
    add(&mut all, Figure::Bandwidth, LOSSY, &[STREAM], stream);
    all
}

fn add(
    all: &mut Vec<Series>,
    figure: Figure,
    link: Link,
    xs: &[u64],
    program: impl Peer + Copy + 'static,
) {
    for (name, label, server, client) in [
        (BOTH, "library at both ends", true, true),
        (SERVER, "at the server alone", true, false),
        (CLIENT, "at the client alone", false, true),
        (NONE, "without it", false, false),
    ] {
        // What one end costs is a matter of a link without loss.
        if link == LOSSY && server != client {
            continue;
        }
        all.push(Series {
            figure,
            link,
            name,
            label,
            peer: name == NONE,
            xs: xs.to_vec(),
            program: Box::new(Shimmed {
                program,
                server,
                client,
            }),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_have_names_and_packages() {
        crate::suite::tests::check_cases(all, "web/veth-1500/both/1024");
    }
}
