//! Memory of lanes.

use airdma::{Device, Region, Result};

/// Regions of one length, of one allocation.
pub fn pieces(device: &Device, count: usize, bytes: usize) -> Result<Vec<Region>> {
    let mut whole = device.allocate_private(count * bytes)?;
    let mut pieces = Vec::with_capacity(count);
    while whole.len() > bytes {
        let (piece, rest) = whole.split_at(bytes)?;
        pieces.push(piece);
        whole = rest;
    }
    pieces.push(whole);
    Ok(pieces)
}
