//! A device that is opened with a configuration of the program's own.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use airdma_engine::{Air, Device, DeviceConfig, PathMtu, all_devices};

#[test]
fn a_device_works_as_its_first_configuration_says() {
    let devices = all_devices().unwrap();
    let Some(info) = devices.iter().find(|info| info.interface == "lo") else {
        // A host without a loopback interface, as a bare network namespace.
        return;
    };
    let config = DeviceConfig {
        air: Air::Ask,
        path_mtu: Some(PathMtu::M512),
        ..DeviceConfig::default()
    };
    let device = Device::open_with(info, &config).unwrap();
    assert!(device.asks_for_air());
    assert_eq!(
        [device.info(), &device.current()].map(|info| info.path_mtu),
        [PathMtu::M512; 2]
    );
    let again = Device::open_with(info, &DeviceConfig::default()).unwrap();
    assert!(again.is_same_device(&device) && again.asks_for_air());
    drop((device, again));
    let plain = Device::open_with(info, &DeviceConfig::default()).unwrap();
    assert!(!plain.asks_for_air());
    assert_eq!(plain.info().path_mtu, PathMtu::M4096);
}
