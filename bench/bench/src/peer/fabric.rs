//! libfabric's `fi_pingpong` over TCP.

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 47592;

/// Half round trips in microseconds; libfabric reports only their mean.
#[derive(Clone, Copy, Debug)]
pub struct PingPong;

impl Peer for PingPong {
    fn programs(&self) -> Vec<&'static str> {
        vec!["fi_pingpong"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let rounds = (10_000 * place.seconds).to_string();
        let options = words([
            "fi_pingpong",
            "-p",
            "tcp",
            "-e",
            "msg",
            "-S",
            &x.to_string(),
            "-I",
            &rounds,
        ]);
        let mut client = options.clone();
        client.push(place.server.clone());
        Plan {
            server: Some(options),
            listening: Listening::Tcp(PORT),
            stays: false,
            client,
        }
    }

    /// The column "usec/xfer" of the line below the titles.
    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        let mut lines = client.lines();
        let titles = lines.find(|line| line.starts_with("bytes"))?;
        // "total time" is wider than its column's word, so columns are counted from the right.
        let from_right = titles
            .split_ascii_whitespace()
            .rev()
            .position(|title| title == "usec/xfer")?;
        let row: Vec<&str> = lines.next()?.split_ascii_whitespace().collect();
        let cell = row.iter().rev().nth(from_right)?;
        Some(Reading {
            value: cell.parse().ok()?,
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_of_a_transfer() {
        let output = include_str!("samples/fi_pingpong.txt");
        assert_eq!(PingPong.read("", output, 64).unwrap().value, 238.55);
        assert_eq!(PingPong.read("", "fi_getinfo: -61", 64), None);
    }
}
