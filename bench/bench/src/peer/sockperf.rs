//! sockperf ping-pong over TCP or UDP: the peer that latency is compared with.

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 11111;

/// sockperf's own header: it sends no shorter message.
pub const BYTES_MIN: u64 = 14;
/// The largest payload of UDP, which sockperf keeps to for TCP as well.
const BYTES_MAX: u64 = 65507;

/// Half round trips in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Sockperf {
    /// TCP; UDP otherwise.
    pub tcp: bool,
    /// Polls its socket, as RDMA programs poll their completion queue; sockperf's default blocks.
    pub polls: bool,
}

impl Sockperf {
    fn options(self) -> Vec<String> {
        let options = [("--tcp", self.tcp), ("--nonblocked", self.polls)];
        let wanted = options.iter().filter(|(_, wanted)| *wanted);
        wanted.map(|(option, _)| (*option).to_owned()).collect()
    }
}

impl Peer for Sockperf {
    fn programs(&self) -> Vec<&'static str> {
        vec!["sockperf"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let (port, bytes, seconds) = (
            PORT.to_string(),
            x.clamp(BYTES_MIN, BYTES_MAX).to_string(),
            place.seconds.to_string(),
        );
        let mut server = words(["sockperf", "server", "-i", "0.0.0.0", "-p", &port]);
        let mut client = words([
            "sockperf",
            "ping-pong",
            "-i",
            &place.server,
            "-p",
            &port,
            "-m",
            &bytes,
            "-t",
            &seconds,
        ]);
        server.extend(self.options());
        client.extend(self.options());
        Plan {
            server: Some(server),
            listening: if self.tcp {
                Listening::Tcp(PORT)
            } else {
                Listening::Udp(PORT)
            },
            stays: true,
            client,
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        read(client)
    }
}

/// Median and 99th percentile of half a round trip, in microseconds.
pub fn read(client: &str) -> Option<Reading> {
    Some(Reading {
        value: percentile(client, 50.0)?,
        p99: percentile(client, 99.0),
        ..Reading::default()
    })
}

/// From "sockperf: ---> percentile 99.000 =   13.309".
fn percentile(output: &str, wanted: f64) -> Option<f64> {
    output.lines().find_map(|line| {
        let (_, after) = line.split_once("percentile ")?;
        let (percent, value) = after.split_once('=')?;
        (percent.trim().parse() == Ok(wanted))
            .then(|| value.trim().parse().ok())
            .flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_99th_percentile() {
        let tcp = Sockperf {
            tcp: true,
            polls: false,
        };
        let reading = tcp.read("", include_str!("samples/sockperf.txt"), 64);
        let reading = reading.unwrap();
        assert_eq!((reading.value, reading.p99), (2.109, Some(4.614)));
        assert_eq!(tcp.read("", "sockperf: ERROR: no route", 64), None);
    }
}
