#![allow(clippy::unwrap_used)]

use super::*;
use airdma_engine::{Gid, GidEntry, LIMITS};
use std::net::IpAddr;

fn info() -> DeviceInfo {
    let address: IpAddr = "10.5.0.1".parse().unwrap();
    DeviceInfo {
        name: "airdma_veth0".into(),
        interface: "veth0".into(),
        interface_index: 7,
        mtu: 1500,
        mac: [2, 0, 0, 0, 0, 1],
        guid: 0x0200_00ff_fe00_0001,
        gids: vec![GidEntry {
            gid: Gid::from(address),
            address,
        }],
        path_mtu: PathMtu::M1024,
        up: true,
        speed_mbps: Some(10_000),
    }
}

#[test]
fn an_interface_that_is_up_is_an_active_ethernet_port() {
    let attr = port_attr(&info(), &LIMITS);
    assert_eq!(attr.state, abi::IBV_PORT_ACTIVE);
    assert_eq!(attr.active_mtu, abi::IBV_MTU_1024);
    assert_eq!(attr.max_mtu, abi::IBV_MTU_4096);
    assert_eq!(u32::from(attr.link_layer), abi::IBV_LINK_LAYER_ETHERNET);
    assert_eq!(attr.gid_tbl_len, 16, "with room for addresses to come");
    assert_eq!(attr.pkey_tbl_len, 1);
    assert_eq!(attr.max_msg_sz, (1 << 31) - 1);
    let down = DeviceInfo {
        up: false,
        ..info()
    };
    assert_eq!(port_attr(&down, &LIMITS).state, abi::IBV_PORT_DOWN);
}

#[test]
fn the_guid_is_in_network_order_and_the_limits_are_the_engines() {
    let attr = device_attr(&info(), &LIMITS);
    assert_eq!(attr.node_guid.to_ne_bytes(), [2, 0, 0, 0xff, 0xfe, 0, 0, 1]);
    assert_eq!(attr.max_qp_wr, c_int::try_from(LIMITS.max_qp_wr).unwrap());
    assert_eq!(attr.phys_port_cnt, 1);
}

#[test]
fn gid_entries_say_roce_v2_and_the_interface() {
    let rows: Vec<_> = gid_entries(&info()).collect();
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0].gid_type, abi::IBV_GID_TYPE_ROCE_V2);
    assert_eq!(rows[0].ndev_ifindex, 7);
    // SAFETY: every bit pattern is a GID.
    let raw = unsafe { rows[0].gid.raw };
    assert_eq!(raw[10..], [0xff, 0xff, 10, 5, 0, 1]);
}

#[test]
fn a_short_struct_is_not_overrun_and_a_long_one_is_zeroed() {
    let value = [0x11u8; 8];
    let mut short = [0xeeu8; 8];
    // SAFETY: four of the eight bytes.
    unsafe { copy_sized(&value, &raw mut short, 4) };
    assert_eq!(short, [0x11, 0x11, 0x11, 0x11, 0xee, 0xee, 0xee, 0xee]);
    let mut long = [0xeeu8; 12];
    // SAFETY: the buffer has twelve bytes.
    unsafe { copy_sized(&value, long.as_mut_ptr().cast::<[u8; 8]>(), 12) };
    assert_eq!(long[..8], value);
    assert_eq!(long[8..], [0; 4]);
}

#[test]
fn there_is_one_port() {
    assert_eq!(check_port(1u8), Ok(()));
    assert_eq!(check_port(0u8), Err(Errno::INVALID));
    assert_eq!(check_port(2u32), Err(Errno::INVALID));
}
