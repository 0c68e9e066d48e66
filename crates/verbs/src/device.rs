//! The list of devices, as C sees it.
//!
//! A listed device lives as long as the process: programs keep the pointer after they freed the
//! list, and each listing returns the same pointer for the same interface.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

use airdma_engine::DeviceInfo;

use crate::abi;
use crate::errno::Errno;
use crate::object::zeroed;
use crate::redirect::{self, Folder};

/// Bytes that each `ibv_device` is padded to with zeros: hardware providers that a program links
/// look for their own fields behind the public struct.
const PAGE: usize = 4096;

#[repr(C, align(4096))]
struct Page {
    device: UnsafeCell<abi::ibv_device>,
    zeros: [u8; PAGE - size_of::<abi::ibv_device>()],
}

// SAFETY: the struct is filled before it is shared; afterwards only C programs touch it, and they
// read.
unsafe impl Sync for Page {}

/// A device that was listed at least once.
struct Listed {
    page: &'static Page,
    name: String,
    /// Node GUID in host order, of the latest listing.
    guid: u64,
    interface_index: u32,
}

static LISTED: Mutex<Vec<Listed>> = Mutex::new(Vec::new());

fn listed() -> MutexGuard<'static, Vec<Listed>> {
    LISTED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// `ibv_get_device_list(3)`: a NULL-terminated array.
pub unsafe fn list(count: *mut c_int) -> Result<*mut *mut abi::ibv_device, Errno> {
    let infos = airdma_engine::devices()?;
    let mut table = listed();
    let devices: Vec<*mut abi::ibv_device> =
        infos.iter().map(|info| intern(&mut table, info)).collect();
    // SAFETY: plain allocation; zeroed, so the array ends in NULL.
    let array: *mut *mut abi::ibv_device =
        unsafe { libc::calloc(devices.len() + 1, size_of::<*mut abi::ibv_device>()) }.cast();
    if array.is_null() {
        return Err(Errno::NO_MEMORY);
    }
    // SAFETY: the array has room for every device and the terminator.
    unsafe { ptr::copy_nonoverlapping(devices.as_ptr(), array, devices.len()) };
    if !count.is_null() {
        // SAFETY: the caller passes a valid pointer or NULL.
        unsafe { *count = c_int::try_from(devices.len()).unwrap_or(c_int::MAX) };
    }
    Ok(array)
}

/// `ibv_free_device_list(3)`: the array goes, the devices stay.
pub unsafe fn free_list(list: *mut *mut abi::ibv_device) {
    // SAFETY: `list` came from `calloc` in `list`, or is NULL.
    unsafe { libc::free(list.cast()) }
}

/// `ibv_get_device_name(3)`.
pub unsafe fn name(device: *mut abi::ibv_device) -> *const c_char {
    if device.is_null() {
        return ptr::null();
    }
    // SAFETY: a device of ours; its name is NUL-terminated.
    unsafe { ptr::addr_of!((*device).name).cast() }
}

/// `ibv_get_device_guid(3)`, in network byte order.
pub unsafe fn guid(device: *mut abi::ibv_device) -> u64 {
    find(device, |entry| entry.guid).unwrap_or(0).to_be()
}

/// `ibv_get_device_index(3)`: the index of the interface, -1 if the device is not ours.
pub unsafe fn index(device: *mut abi::ibv_device) -> c_int {
    find(device, |entry| entry.interface_index)
        .and_then(|index| c_int::try_from(index).ok())
        .unwrap_or(-1)
}

/// The present state of a listed device.
pub fn info(device: *mut abi::ibv_device) -> Result<DeviceInfo, Errno> {
    let name = find(device, |entry| entry.name.clone()).ok_or(Errno::INVALID)?;
    by_name(&name)?.ok_or(Errno(libc::ENODEV))
}

/// The device of that name, if it was listed.
pub fn pointer(name: &str) -> Option<*mut abi::ibv_device> {
    let table = listed();
    let entry = table.iter().find(|entry| entry.name == name)?;
    Some(entry.page.device.get())
}

/// The pointer of a device that C may not have listed yet.
pub fn pointer_of(info: &DeviceInfo) -> *mut abi::ibv_device {
    intern(&mut listed(), info)
}

/// The present state of the device of that name.
pub fn by_name(name: &str) -> Result<Option<DeviceInfo>, Errno> {
    Ok(airdma_engine::devices()?
        .into_iter()
        .find(|info| info.name == name))
}

fn find<T>(device: *mut abi::ibv_device, pick: impl FnOnce(&Listed) -> T) -> Option<T> {
    listed()
        .iter()
        .find(|entry| entry.page.device.get() == device)
        .map(pick)
}

fn intern(table: &mut Vec<Listed>, info: &DeviceInfo) -> *mut abi::ibv_device {
    // An interface that was made anew under its old name is another device, with a node of its own.
    let is_same = |entry: &&mut Listed| {
        entry.name == info.name && entry.interface_index == info.interface_index
    };
    if let Some(entry) = table.iter_mut().find(is_same) {
        entry.guid = info.guid;
        return entry.page.device.get();
    }
    let page: &'static Page = Box::leak(Box::new(Page {
        device: UnsafeCell::new(describe(&info.name, &redirect::node(info))),
        zeros: [0; _],
    }));
    debug_assert!(page.zeros.iter().all(|byte| *byte == 0));
    table.push(Listed {
        page,
        name: info.name.clone(),
        guid: info.guid,
        interface_index: info.interface_index,
    });
    page.device.get()
}

fn describe(name: &str, node: &str) -> abi::ibv_device {
    // SAFETY: integers, arrays and optional functions.
    let mut device: abi::ibv_device = unsafe { zeroed() };
    device.node_type = abi::IBV_NODE_CA;
    device.transport_type = abi::IBV_TRANSPORT_IB;
    write_text(&mut device.name, name);
    write_text(&mut device.dev_name, node);
    write_text(
        &mut device.dev_path,
        &format!("{}/{node}", Folder::Verbs.path()),
    );
    write_text(
        &mut device.ibdev_path,
        &format!("{}/{name}", Folder::Devices.path()),
    );
    device
}

/// Copies as much of `text` as fits in front of the terminating NUL of a zeroed field.
pub fn write_text(field: &mut [c_char], text: &str) {
    let room = field.len() - 1;
    for (to, from) in field[..room].iter_mut().zip(text.bytes()) {
        *to = c_char::from_ne_bytes([from]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::CStr;

    #[test]
    fn a_device_carries_the_names_programs_open() {
        let device = describe("airdma_eth0", "uverbs3");
        let text = |field: &[c_char]| {
            // SAFETY: the field is NUL-terminated.
            unsafe { CStr::from_ptr(field.as_ptr()) }
                .to_str()
                .unwrap()
                .to_owned()
        };
        assert_eq!(text(&device.name), "airdma_eth0");
        assert_eq!(text(&device.dev_name), "uverbs3");
        assert_eq!(
            text(&device.dev_path),
            "/sys/class/infiniband_verbs/uverbs3"
        );
        assert_eq!(
            text(&device.ibdev_path),
            "/sys/class/infiniband/airdma_eth0"
        );
    }

    #[test]
    fn a_long_text_is_cut_and_terminated() {
        let mut field = [1; 4];
        field.fill(0);
        write_text(&mut field, "abcdef");
        assert_eq!(field.map(|c| c as u8), *b"abc\0");
    }

    #[test]
    fn a_device_is_a_page() {
        assert_eq!(size_of::<Page>(), PAGE);
    }

    #[test]
    fn a_foreign_pointer_has_no_guid_and_no_index() {
        let mut foreign = describe("mlx5_0", "uverbs0");
        // SAFETY: any pointer may be asked about; it is only compared.
        unsafe {
            assert_eq!(guid(&raw mut foreign), 0);
            assert_eq!(index(&raw mut foreign), -1);
        }
        assert_eq!(info(&raw mut foreign), Err(Errno::INVALID));
    }
}
