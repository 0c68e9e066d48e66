//! Files below `/sys/class/infiniband` that programs read through libibverbs. Our devices have no such
//! directory; the answers are made here. Other paths are read as they are.

use std::ffi::{CStr, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use airdma_engine::DeviceInfo;

use crate::device;
use crate::errno::Errno;

/// `ibv_get_sysfs_path`.
pub unsafe fn path() -> &'static CStr {
    c"/sys"
}

/// `ibv_read_sysfs_file`: the bytes of `directory/file` without the newline at the end, and how many;
/// NUL-terminated if there is room.
pub unsafe fn read_file(
    directory: *const c_char,
    file: *const c_char,
    buffer: *mut c_char,
    size: usize,
) -> Result<c_int, Errno> {
    if directory.is_null() || file.is_null() || buffer.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's strings.
    let (directory, file) = unsafe { (CStr::from_ptr(directory), CStr::from_ptr(file)) };
    let text = match device::name_of_directory(directory) {
        Some(name) => {
            let info = device::by_name(&name)?.ok_or(Errno(libc::ENODEV))?;
            let file = file.to_str().map_err(|_| Errno::INVALID)?;
            answer(&info, file).ok_or(Errno(libc::ENOENT))?.into_bytes()
        }
        None => std::fs::read(
            Path::new(OsStr::from_bytes(directory.to_bytes()))
                .join(OsStr::from_bytes(file.to_bytes())),
        )?,
    };
    let text = text.strip_suffix(b"\n").unwrap_or(&text);
    let count = text.len().min(size);
    // SAFETY: the caller's buffer has `size` bytes.
    unsafe {
        ptr::copy_nonoverlapping(text.as_ptr().cast(), buffer, count);
        if count < size {
            buffer.add(count).write(0);
        }
    }
    c_int::try_from(count).map_err(|_| Errno::INVALID)
}

/// What a file of the device's directory says.
fn answer(info: &DeviceInfo, file: &str) -> Option<String> {
    let guid = guid(info.guid);
    Some(match file {
        "board_id" => "airdma".to_owned(),
        "fw_ver" => env!("CARGO_PKG_VERSION").to_owned(),
        "hca_type" | "node_desc" => format!("airdma over {}", info.interface),
        "hw_rev" => "0".to_owned(),
        "node_guid" | "sys_image_guid" => guid,
        "node_type" => "1: CA".to_owned(),
        _ => return port_answer(info, file.strip_prefix("ports/1/")?),
    })
}

fn port_answer(info: &DeviceInfo, file: &str) -> Option<String> {
    if let Some((table, index)) = file.rsplit_once('/') {
        let index: usize = index.parse().ok()?;
        if table == "pkeys" {
            return (index == 0).then(|| "0xffff".to_owned());
        }
        let row = info.gids.get(index)?;
        return Some(match table {
            "gids" => row.gid.to_string(),
            "gid_attrs/types" => "RoCE v2".to_owned(),
            "gid_attrs/ndevs" => info.interface.clone(),
            _ => return None,
        });
    }
    Some(match (file, info.up) {
        ("link_layer", _) => "Ethernet".to_owned(),
        ("state", true) => "4: ACTIVE".to_owned(),
        ("state", false) => "1: DOWN".to_owned(),
        ("phys_state", true) => "5: LinkUp".to_owned(),
        ("phys_state", false) => "3: Disabled".to_owned(),
        ("lid" | "sm_lid", _) => "0x0".to_owned(),
        _ => return None,
    })
}

/// A GUID as sysfs writes it: four groups of four digits.
fn guid(guid: u64) -> String {
    let group = |shift: u32| (guid >> shift) & 0xffff;
    format!(
        "{:04x}:{:04x}:{:04x}:{:04x}",
        group(48),
        group(32),
        group(16),
        group(0)
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use airdma_engine::{Gid, GidEntry, PathMtu};
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
            speed_mbps: None,
        }
    }

    #[test]
    fn files_say_what_the_kernels_say() {
        let info = info();
        let says = |file| answer(&info, file).unwrap();
        assert_eq!(says("node_guid"), "0200:00ff:fe00:0001");
        assert_eq!(says("node_type"), "1: CA");
        assert_eq!(says("ports/1/state"), "4: ACTIVE");
        assert_eq!(
            says("ports/1/gids/0"),
            "0000:0000:0000:0000:0000:ffff:0a05:0001"
        );
        assert_eq!(says("ports/1/gid_attrs/types/0"), "RoCE v2");
        assert_eq!(says("ports/1/gid_attrs/ndevs/0"), "veth0");
        assert_eq!(says("ports/1/pkeys/0"), "0xffff");
    }

    #[test]
    fn files_that_do_not_exist_have_no_answer() {
        for file in ["nothing", "ports/2/state", "ports/1/gids/1", "ports/1/x/0"] {
            assert_eq!(answer(&info(), file), None, "{file}");
        }
    }

    #[test]
    fn other_directories_are_read_as_they_are() {
        let folder = std::env::temp_dir();
        let name = format!("airdma-sysfs-{}", std::process::id());
        std::fs::write(folder.join(&name), "4 bytes\n").unwrap();
        let directory = std::ffi::CString::new(folder.as_os_str().as_bytes()).unwrap();
        let file = std::ffi::CString::new(name.clone()).unwrap();
        let mut buffer = [1; 16];
        // SAFETY: live strings and buffer.
        let read = unsafe {
            read_file(
                directory.as_ptr(),
                file.as_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
            )
        };
        std::fs::remove_file(folder.join(name)).unwrap();
        assert_eq!(read, Ok(7));
        assert_eq!(buffer.map(|c| c as u8)[..8], *b"4 bytes\0");
    }
}
