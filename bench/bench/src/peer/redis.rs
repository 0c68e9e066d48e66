//! redis-benchmark, and redis-server without a disk.

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, words};

const PORT: u16 = 6379;
/// Calls in a second of the measurement: about what a core of kernel TCP does.
const CALLS_A_SECOND: u32 = 50_000;

/// What the clients call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RedisCall {
    /// Reads of three bytes.
    Get,
    /// Writes of them.
    Set,
}

/// Thousands of calls a second by `x` clients; the 99th percentile in microseconds.
#[derive(Clone, Copy, Debug)]
pub struct Redis(pub RedisCall);

impl Redis {
    fn name(self) -> &'static str {
        match self.0 {
            RedisCall::Get => "get",
            RedisCall::Set => "set",
        }
    }
}

impl Peer for Redis {
    fn programs(&self) -> Vec<&'static str> {
        vec!["redis-server", "redis-benchmark"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let (port, clients) = (PORT.to_string(), x.to_string());
        let calls = (place.seconds * CALLS_A_SECOND).to_string();
        let mut server = words(["redis-server", "--port", &port, "--bind", &place.server]);
        server.extend(words(["--protected-mode", "no", "--save", ""]));
        let mut client = words(["redis-benchmark", "-h", &place.server, "-p", &port]);
        client.extend(words(["-c", &clients, "-n", &calls, "-t", self.name()]));
        client.push("--csv".into());
        Plan {
            server: Some(server),
            listening: Listening::Tcp(PORT),
            stays: true,
            client,
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        read(client, &self.name().to_uppercase())
    }
}

/// The row of a call: its name, then calls a second, and latencies in milliseconds: average, least,
/// median, 95th and 99th percentile, greatest.
fn read(client: &str, call: &str) -> Option<Reading> {
    let row = client.lines().find_map(|line| {
        let mut cells = line.split(',').map(|cell| cell.trim_matches('"'));
        (cells.next() == Some(call)).then(|| cells.collect::<Vec<_>>())
    })?;
    let number = |cell: usize| row.get(cell)?.parse::<f64>().ok();
    Some(Reading {
        value: number(0)? / 1e3,
        p99: Some(number(5)? * 1e3),
        ..Reading::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_a_second_and_the_99th_percentile() {
        let said = include_str!("samples/redis.csv");
        let reading = Redis(RedisCall::Get).read("", said, 50).unwrap();
        assert_eq!((reading.value, reading.p99), (34.60207, Some(4231.0)));
        assert_eq!(Redis(RedisCall::Set).read("", said, 50), None);
        assert_eq!(Redis(RedisCall::Get).read("", "refused", 50), None);
    }
}
