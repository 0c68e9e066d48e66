//! A device that is opened with a configuration of the program's own.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used)]

use airdma_engine::{Air, Device, DeviceConfig, PathMtu, Secret, all_devices};
use std::io::ErrorKind;

#[test]
fn another_configuration_of_an_open_device_is_refused() {
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
    let again = Device::open_with(info, &config).unwrap();
    assert!(again.is_same_device(&device) && again.asks_for_air());
    // A program's configuration takes precedence over the environment's.
    let joined = Device::open(info).unwrap();
    assert!(joined.is_same_device(&device));

    let other = DeviceConfig {
        secret: Some(Secret::from_bytes(b"sixteen bytes or more").unwrap()),
        ..config.clone()
    };
    for (different, fields) in [
        (&DeviceConfig::default(), "(air, path_mtu)"),
        (&other, "(secret)"),
    ] {
        let Err(error) = Device::open_with(info, different) else {
            panic!("{different:?} was ignored");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        let text = error.to_string();
        assert!(text.contains("lo") && text.contains(fields), "{text}");
    }
    drop((device, again, joined));
    let plain = Device::open_with(info, &DeviceConfig::default()).unwrap();
    assert!(!plain.asks_for_air());
    assert_eq!(plain.info().path_mtu, PathMtu::M4096);
}
