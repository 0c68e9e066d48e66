//! `ucx_perftest` over TCP.

use airdma_lab::{INTERFACE, Listening};

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 13337;

/// UCX's put in Gb/s, or its tagged messages in microseconds (half a round trip).
#[derive(Clone, Copy, Debug)]
pub struct Ucx {
    /// Latency; bandwidth otherwise.
    pub latency: bool,
}

impl Peer for Ucx {
    fn programs(&self) -> Vec<&'static str> {
        vec!["ucx_perftest"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let device = format!("UCX_NET_DEVICES={INTERFACE}");
        let server = words(["env", "UCX_TLS=tcp", &device, "ucx_perftest"]);
        // ucx_perftest counts messages, not time: a bandwidth run takes about as long as the others
        // at 8 Gb/s.
        let seconds = u64::from(place.seconds);
        let (test, rounds) = if self.latency {
            ("tag_lat", 20_000 * seconds)
        } else {
            let bytes = 1_000_000_000 * seconds;
            ("ucp_put_bw", (bytes / x).clamp(200, 300_000 * seconds))
        };
        let mut client = server.clone();
        let (bytes, rounds) = (x.to_string(), rounds.to_string());
        client.extend(words([
            &place.server,
            "-t",
            test,
            "-s",
            &bytes,
            "-n",
            &rounds,
            "-w",
            "100",
        ]));
        Plan {
            server: Some(server),
            listening: Listening::Tcp(PORT),
            stays: false,
            client,
        }
    }

    /// Parses "Final:  ITERATIONS  50%ILE  AVERAGE  OVERALL  MB/S  MB/S-OVERALL  ...", where a MB
    /// is 2^20 bytes.
    fn read(&self, _: &str, client: &str, x: u64) -> Option<Reading> {
        let line = client
            .lines()
            .find_map(|line| line.strip_prefix("Final:"))?;
        let number = |word: &str| word.parse::<f64>().ok();
        let values: Option<Vec<f64>> = line.split_ascii_whitespace().map(number).collect();
        let values = values?;
        let moved_bytes = Some(*values.first()? as u64 * x).filter(|_| !self.latency);
        Some(Reading {
            value: if self.latency {
                *values.get(1)?
            } else {
                values.get(5)? * f64::from(1 << 20) * 8.0 / 1e9
            },
            moved_bytes,
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_holds_the_result() {
        let put = Ucx { latency: false };
        let output = include_str!("samples/ucx_put_bw.txt");
        let reading = put.read("", output, 65536).unwrap();
        assert!((reading.value - 190.53 * 1.048576 * 8.0 / 1e3).abs() < 1e-9);
        assert_eq!(reading.moved_bytes, Some(20000 * 65536));
        let tag = Ucx { latency: true };
        let output = include_str!("samples/ucx_tag_lat.txt");
        assert_eq!(tag.read("", output, 64).unwrap().value, 4.426);
        assert_eq!(put.read("", "UCX  ERROR no such device", 64), None);
    }
}
