//! Two ends of a connection in one process, and programs in a network namespace of their own.
#![allow(dead_code, clippy::unwrap_used)]

#[path = "../../../engine/tests/common/isolated.rs"]
mod isolated;

use airdma::{Device, Endpoint, Region};
use std::time::Duration;

#[allow(unused_imports)]
pub use isolated::isolated;

pub const PORT: u16 = 7471;

/// Limit of every step: far more than it takes, far less than a stuck test.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Two devices that stand for two programs, and a connection between them, in a network namespace
/// of the test.
pub struct Pair {
    pub here: Device,
    pub there: Device,
    pub left: Endpoint,
    pub right: Endpoint,
}

pub fn pair() -> Pair {
    let here = Device::open("127.0.0.1").unwrap();
    let there = Device::open("127.0.0.1").unwrap();
    let listener = there.listen(PORT).unwrap();
    let accepting = std::thread::spawn(move || listener.accept().wait().unwrap());
    let left = here.connect(("127.0.0.1", PORT)).wait().unwrap();
    let right = accepting.join().unwrap();
    Pair {
        here,
        there,
        left,
        right,
    }
}

/// A region with these bytes.
pub fn filled(device: &Device, bytes: &[u8]) -> Region {
    let mut region = device.allocate(bytes.len()).unwrap();
    region.copy_from_slice(bytes);
    region
}

pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u8).wrapping_mul(31) ^ (at >> 8) as u8 ^ seed)
        .collect()
}
