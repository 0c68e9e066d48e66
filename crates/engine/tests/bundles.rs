//! Bundles of packets through sockets, in IP fragments on an interface of 1,500 bytes.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::time::{Duration, Instant};

const SETUP: &str = "ip link set lo mtu 1500\n\
                     ip address add fd00::1/128 dev lo nodad\n\
                     ip address add fd00::2/128 dev lo nodad\n\
                     export AIRDMA_AIR=1 AIRDMA_AGGREGATE=datagrams";
const LEN: usize = 4 << 20;

fn data_is_whole(left: &str, right: &str) {
    let (left, right) = sockets(left, right);
    let (left, right) = (
        End::new(&left, QpType::Rc, LEN),
        End::new(&right, QpType::Rc, LEN),
    );
    left.connect(&right);
    right.connect(&left);
    let deadline = Instant::now() + Duration::from_secs(60);
    while counter(&left.device, "air_agreed") == 0 {
        assert!(Instant::now() < deadline, "no agreement");
        std::thread::sleep(Duration::from_millis(1));
    }
    let data = pattern(LEN, 3);
    left.memory.fill(0, &data);
    left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
    left.ok();
    assert_eq!(right.memory.bytes(0, LEN), data);
    let seen = |name| counter(&left.device, name);
    assert!(seen("tx_bundles") > 30, "{}", seen("tx_bundles"));
    assert_eq!(seen("tx_errors"), 0);
    for refused in ["drop_bad_icrc", "drop_bad_bundle", "drop_oversized"] {
        assert_eq!(counter(&right.device, refused), 0, "{refused}");
    }
    // The check is exact, fragments or not.
    assert_eq!(counter(&right.device, "rx_id_recovered"), 0);
}

#[test]
fn bundles_carry_data_over_ipv4() {
    isolated("bundles_carry_data_over_ipv4", SETUP, || {
        data_is_whole("127.0.0.1", "127.0.0.2");
    });
}

#[test]
fn bundles_carry_data_over_ipv6() {
    isolated("bundles_carry_data_over_ipv6", SETUP, || {
        data_is_whole("fd00::1", "fd00::2");
    });
}
