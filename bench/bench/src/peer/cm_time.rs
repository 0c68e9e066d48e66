//! Connections by `rdma_cm`: rdma-core's `cmtime`.

use airdma_lab::Listening;

use super::{Peer, Place, Plan, Reading, on_airdma};

/// Connections a second, `x` of them begun together: each step is done for all before the next.
#[derive(Clone, Copy, Debug)]
pub struct CmTime;

impl Peer for CmTime {
    fn programs(&self) -> Vec<&'static str> {
        vec!["cmtime"]
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let count = x.to_string();
        let server = super::words(["cmtime", "-c", &count]);
        let client = super::words(["cmtime", "-c", &count, "-s", &place.server]);
        Plan {
            server: Some(on_airdma(place, server)),
            listening: Listening::Idle,
            stays: true,
            client: on_airdma(place, client),
        }
    }

    /// Parses cmtime's output: a line for each step, with the time that all connections took for
    /// it.
    ///
    /// The steps up to `connect` make a connection.
    fn read(&self, _: &str, client: &str, x: u64) -> Option<Reading> {
        let total_ms: Option<f64> = STEPS.iter().map(|step| milliseconds(client, step)).sum();
        Some(Reading {
            value: x as f64 / (total_ms? / 1e3),
            ..Reading::default()
        })
    }
}

const STEPS: [&str; 5] = [
    "create id",
    "resolve addr",
    "resolve route",
    "create qp",
    "connect",
];

/// From "connect      :       69.78      45.76   31683.00      34.89".
fn milliseconds(output: &str, step: &str) -> Option<f64> {
    output.lines().find_map(|line| {
        let (name, values) = line.split_once(':')?;
        let first = values.split_ascii_whitespace().next()?;
        (name.trim() == step).then(|| first.parse().ok()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_steps_up_to_connect_count() {
        let output = include_str!("samples/cmtime.txt");
        let reading = CmTime.read("", output, 2000).unwrap();
        let total_s = (3.77 + 72.98 + 5.11 + 15.82 + 69.78) / 1e3;
        assert!((reading.value - 2000.0 / total_s).abs() < 1e-6);
        assert_eq!(
            CmTime.read("", "creating id\nresolving address\n", 2000),
            None
        );
    }
}
