//! Many queue pairs that share one load: a program of this crate against libibverbs' ABI, on
//! airdma.

use airdma_lab::Listening;
use serde::{Deserialize, Serialize};

use super::{Peer, Place, Plan, Reading, on_airdma};

const PORT: u16 = 20078;

/// Gb/s of WRITEs over `x` RC queue pairs.
#[derive(Clone, Copy, Debug)]
pub struct ManyPairs {
    /// Bytes of each message.
    pub bytes: u32,
    /// Messages in flight, all queue pairs together.
    pub outstanding: u32,
}

impl ManyPairs {
    /// Messages that each of `pairs` queue pairs may have in flight.
    pub fn depth(self, pairs: u32) -> u32 {
        self.outstanding.div_ceil(pairs)
    }
}

/// Result that the writer prints.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct Written {
    /// Acknowledged payload.
    pub bytes: u64,
    /// Duration of the run.
    pub seconds: f64,
}

impl Peer for ManyPairs {
    fn programs(&self) -> Vec<&'static str> {
        Vec::new()
    }

    fn plan(&self, place: &Place, x: u64) -> Plan {
        let end = |of: &[String]| {
            let mut command = vec![place.airdma.clone(), "bench-end".into()];
            command.extend_from_slice(of);
            command.push(format!("--pairs={x}"));
            command.push(format!("--bytes={}", self.bytes));
            command.push(format!("--outstanding={}", self.outstanding));
            on_airdma(place, command)
        };
        Plan {
            server: Some(end(&["pairs-serve".into(), format!("--port={PORT}")])),
            listening: Listening::Tcp(PORT),
            stays: false,
            client: end(&[
                "pairs-write".into(),
                format!("--to={}:{PORT}", place.server),
                format!("--seconds={}", place.seconds),
            ]),
        }
    }

    fn read(&self, _: &str, client: &str, _: u64) -> Option<Reading> {
        let written: Written = serde_json::from_str(client).ok()?;
        (written.seconds > 0.0).then(|| Reading {
            value: written.bytes as f64 * 8.0 / written.seconds / 1e9,
            moved_bytes: Some(written.bytes),
            ..Reading::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOAD: ManyPairs = ManyPairs {
        bytes: 4096,
        outstanding: 512,
    };

    #[test]
    fn queue_pairs_share_one_load() {
        let depths = [(1, 512), (16, 32), (256, 2), (300, 2), (16_384, 1)];
        for (pairs, depth) in depths {
            assert_eq!(LOAD.depth(pairs), depth, "{pairs}");
        }
    }

    #[test]
    fn what_was_acknowledged_counts() {
        let said = "{\"bytes\":1000000000,\"seconds\":0.5}\n";
        let reading = LOAD.read("", said, 16).unwrap();
        assert_eq!(
            (reading.value, reading.moved_bytes),
            (16.0, Some(1_000_000_000))
        );
        assert_eq!(LOAD.read("", "", 16), None);
    }
}
