//! Memory of idle queue pairs: a program of this crate against libibverbs' ABI, on airdma.

use airdma_lab::Listening;
use serde::{Deserialize, Serialize};

use super::{Peer, Place, Plan, Reading, on_airdma};

/// Bytes of each of `x` connected RC queue pairs whose rings have one entry each.
#[derive(Clone, Copy, Debug)]
pub struct IdlePairs;

/// Result that the program prints.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Grown {
    /// Queue pairs.
    pub pairs: u64,
    /// Growth of the process while they were made.
    pub bytes: u64,
}

impl Peer for IdlePairs {
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let command = vec![
            place.airdma.clone(),
            "bench-end".into(),
            "idle-pairs".into(),
            format!("--pairs={x}"),
        ];
        Plan {
            server: None,
            listening: Listening::Idle,
            stays: false,
            client: on_airdma(place, command),
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        let grown: Grown = serde_json::from_str(client).ok()?;
        (grown.pairs > 0).then(|| Reading {
            value: grown.bytes as f64 / grown.pairs as f64,
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_one() {
        let said = "{\"pairs\":1024,\"bytes\":2097152}\n";
        assert_eq!(IdlePairs.read("", said, 1024).unwrap().value, 2048.0);
        assert_eq!(IdlePairs.read("", "", 1024), None);
    }
}
