//! The cases: each program with the library at both ends, at one, and at none.

use crate::measurement::Figure;
use crate::peer::{Iperf, Peer, Redis, RedisCall, Shimmed, Sipp, SippMemory, Sockperf, Web};
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

/// Clients of SIPp whose memory is measured.
pub const CALLERS: u64 = 10_000;
const CALLERS_QUICK: u64 = 1000;

/// Name of a series by the ends with the library.
pub const BOTH: &str = "both";
/// The server alone has it: no lane.
pub const SERVER: &str = "server";
/// The client alone has it: no lane.
pub const CLIENT: &str = "client";
/// Neither has it: kernel TCP.
pub const NONE: &str = "none";
/// Series of UDP, where those above are TCP's.
pub const UDP_BOTH: &str = "udp-both";
/// As above.
pub const UDP_NONE: &str = "udp-none";

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
    telephone(&mut all, Figure::Response, 1, |tcp| Sipp { tcp });
    let callers = if quick { CALLERS_QUICK } else { CALLERS };
    telephone(&mut all, Figure::ClientMemory, callers, |tcp| SippMemory {
        tcp,
    });
    add(&mut all, Figure::Bandwidth, LOSSY, &[STREAM], stream);
    all
}

/// SIPp over UDP and TCP, with the library at both ends and at none.
fn telephone<P: Peer + Copy + 'static>(
    all: &mut Vec<Series>,
    figure: Figure,
    x: u64,
    program: impl Fn(bool) -> P,
) {
    for (name, label, tcp, shimmed) in [
        (UDP_BOTH, "UDP, library at both ends", false, true),
        (UDP_NONE, "UDP without it", false, false),
        (BOTH, "TCP, library at both ends", true, true),
        (NONE, "TCP without it", true, false),
    ] {
        all.push(Series {
            figure,
            link: VETH_1500,
            name,
            label,
            peer: !shimmed,
            xs: vec![x],
            program: Box::new(Shimmed {
                program: program(tcp),
                server: shimmed,
                client: shimmed,
            }),
        });
    }
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
        // What one end costs is a matter of a link without loss, and SETs cost it what GETs do.
        let is_without = link == LOSSY || matches!(figure, Figure::Cpu | Figure::Set);
        if is_without && server != client {
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
