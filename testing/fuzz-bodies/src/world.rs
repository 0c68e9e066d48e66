//! A whole world out of bytes: the decoder that random seeds use too, so that coverage can guide
//! it.

use airdma_worlds::{Plan, run as run_world};

/// Decodes a world, runs it, and panics when the reference model is not content.
pub fn run(data: &[u8]) {
    let outcome = run_world(Plan::decode(data), false);
    assert_eq!(outcome.failure, None);
}
