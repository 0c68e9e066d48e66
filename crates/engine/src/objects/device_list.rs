//! The devices of this machine and their counters.

use crate::config::loopback_asked_for;
use crate::counter_names::{COUNT, names};
use crate::host::devices::{DeviceInfo, describe_all};
use crate::objects::device::Device;
use crate::sharing::counters_file::CountersFile;
use std::io;

/// The devices of this machine (of the network namespace of the calling thread), sorted by
/// interface index: one per interface that is up and has an address. A device that this process has
/// open is described as its users see it. The loopback interface counts only when
/// `AIRDMA_LOOPBACK=1` is set.
///
/// IPv6 addresses that the kernel still checks for duplicates are left out: nothing can be bound to
/// them yet.
///
/// # Errors
/// Whatever `getifaddrs(3)` fails with.
pub fn devices() -> io::Result<Vec<DeviceInfo>> {
    describe_all(loopback_asked_for(), Device::current_of)
}

/// As [`devices`], and the loopback interface counts in any case: for programs that name the device
/// that they want.
///
/// # Errors
/// As [`devices`].
pub fn all_devices() -> io::Result<Vec<DeviceInfo>> {
    describe_all(true, Device::current_of)
}

/// The counters of a device, summed over all processes of this user that used it, by name. All zero
/// when there were none. They survive the processes, as a kernel device's do, until the runtime
/// directory is emptied.
pub fn counters_of(info: &DeviceInfo) -> Vec<(&'static str, u64)> {
    let values =
        CountersFile::open_existing(&info.interface).map_or([0; COUNT], |file| file.values());
    names().iter().copied().zip(values).collect()
}
