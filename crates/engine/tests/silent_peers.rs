//! Peers that are silent since their queue pair is gone, while their process runs. Those of a
//! stopped process are in `make starve`.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::time::{Duration, Instant};

#[test]
fn a_queue_pair_that_is_gone_is_noticed_though_its_process_runs() {
    let name = "a_queue_pair_that_is_gone_is_noticed_though_its_process_runs";
    isolated(name, "", || {
        let all = all_devices().unwrap();
        let info = all.iter().find(|info| info.interface == "lo").unwrap();
        let device = Device::open_with(info, &DeviceConfig::default()).unwrap();
        let (left, right) = pair_on(&device, &device, 64);
        let write = left.write(&right, 0, 64);
        left.qp.post_send(&write).unwrap();
        left.ok();
        let End { qp, memory, .. } = right;
        drop(qp);
        let start = Instant::now();
        left.qp.post_send(&write).unwrap();
        assert_eq!(left.complete().status, Status::RetryExceeded);
        // A minute, if the process were stopped.
        assert!(start.elapsed() < Duration::from_secs(9));
        drop(memory);
    });
}
