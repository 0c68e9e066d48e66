//! The devices of this machine, those that this process has open included.

use crate::config::loopback_asked_for;
use crate::host::devices::{DeviceInfo, describe_all};
use crate::objects::device::Device;
use std::io;

/// The devices of this machine (of the network namespace of the calling thread), sorted by interface index: one per
/// interface that is up and has an address. A device that this process has open is described as its users see it. The
/// loopback interface counts only when `AIRDMA_LOOPBACK=1` is set.
///
/// IPv6 addresses that the kernel still checks for duplicates are left out: nothing can be bound to them yet.
///
/// # Errors
/// Whatever `getifaddrs(3)` fails with.
pub fn devices() -> io::Result<Vec<DeviceInfo>> {
    describe_all(loopback_asked_for(), Device::current_of)
}

/// As [`devices`], and the loopback interface counts in any case: for programs that name the device that they want.
///
/// # Errors
/// As [`devices`].
pub fn all_devices() -> io::Result<Vec<DeviceInfo>> {
    describe_all(true, Device::current_of)
}
