//! Memory of a process by its number of queue pairs.

use std::fs;

use airdma_lab::INTERFACE;
use anyhow::Context;

use super::verbs::Verbs;
use crate::peer::Grown;

/// Queue pairs made before the first one is counted: they grow tables and load code.
const WARM_UP: u64 = 64;

/// Makes `pairs` queue pairs; reports the growth of the resident memory.
pub fn grow(pairs: u64) -> anyhow::Result<Grown> {
    let verbs = Verbs::open(INTERFACE, 1)?;
    for _ in 0..WARM_UP {
        pair_with_itself(&verbs)?;
    }
    let before = resident_bytes()?;
    for number in 0..pairs {
        let nth = || format!("queue pair {number}");
        pair_with_itself(&verbs).with_context(nth)?;
    }
    let bytes = resident_bytes()?.saturating_sub(before);
    Ok(Grown { pairs, bytes })
}

fn pair_with_itself(verbs: &Verbs) -> anyhow::Result<()> {
    let pair = verbs.pair(1)?;
    verbs.connect(&pair, verbs.gid(), pair.number)
}

/// Resident memory of this process.
pub fn resident_bytes() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let kib = status.lines().find_map(|line| {
        let size = line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB")?;
        size.parse::<u64>().ok()
    });
    Ok(kib.context("no VmRSS in /proc/self/status")? * 1024)
}
