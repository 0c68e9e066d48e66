//! The text of the files that the kernel has for a device under `/sys/class/infiniband` and
//! `/sys/class/infiniband_verbs`. `ibv_read_sysfs_file` answers from here, and so does the tree of
//! files that [`crate::redirect`] leads programs to which open the paths themselves.

use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::ptr;

use airdma_engine::{DeviceInfo, counters_of};

use crate::errno::Errno;
use crate::port::{DEFAULT_PKEY, PORT_CAP_FLAGS, VENDOR_SOFTWARE};
use crate::rate;
use crate::redirect::{Folder, Place};

/// A file's path, relative to the device's directory, and its text without the newline at the end.
pub type Entry = (String, String);

/// `/sys/class/infiniband_verbs/abi_version`: that of the kernels in use.
pub const VERBS_ABI_VERSION: &str = "6";

/// `ibv_get_sysfs_path`.
pub unsafe fn path() -> &'static CStr {
    c"/sys"
}

/// `ibv_read_sysfs_file`: the bytes of `directory/file` without the newline at the end, and how
/// many; NUL-terminated if there is room.
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
    let path = [directory.to_bytes(), b"/", file.to_bytes()].concat();
    let path = CString::new(path).map_err(|_| Errno::INVALID)?;
    let text = match answer(&path) {
        Some(text) => text.into_bytes(),
        None => std::fs::read(OsStr::from_bytes(path.to_bytes()))?,
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

/// The text of a file of one of airdma's devices.
fn answer(path: &CStr) -> Option<String> {
    let place = Place::of(path)?;
    let file = place.components()?.join("/");
    let devices = airdma_engine::devices().ok()?;
    let info = place.device(&devices)?;
    let entries = match place.folder {
        Folder::Devices => device_files(info),
        Folder::Verbs => verbs_files(info),
        Folder::Nodes => return None,
    };
    entries
        .into_iter()
        .find_map(|(name, text)| (name == file).then_some(text))
}

/// The files of a device in `/sys/class/infiniband`, without those in `device`.
pub fn device_files(info: &DeviceInfo) -> Vec<Entry> {
    let entry = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let over = format!("airdma over {}", info.interface);
    let mut entries = vec![
        entry("board_id", "airdma"),
        entry("fw_ver", env!("CARGO_PKG_VERSION")),
        entry("hca_type", &over),
        entry("hw_rev", "0"),
        entry("node_desc", &over),
        entry("node_guid", &guid(info.guid)),
        entry("node_type", "1: CA"),
        entry("sys_image_guid", &guid(info.guid)),
    ];
    let port = port_files(info)
        .into_iter()
        .chain(counters(&counters_of(info)));
    entries.extend(port.map(|(name, text)| (format!("ports/1/{name}"), text)));
    entries
}

/// The files of a device in `/sys/class/infiniband_verbs`.
pub fn verbs_files(info: &DeviceInfo) -> Vec<Entry> {
    // Numbers of the character devices for user-space verbs.
    const MAJOR: u32 = 231;
    const FIRST_MINOR: u32 = 192;
    let entry = |name: &str, text: String| (name.to_owned(), text);
    vec![
        entry("abi_version", "1".to_owned()),
        entry(
            "dev",
            format!(
                "{MAJOR}:{}",
                FIRST_MINOR.saturating_add(info.interface_index)
            ),
        ),
        entry("ibdev", info.name.clone()),
    ]
}

/// The files in `device` of a device whose interface has no such directory itself: it has no
/// vendor, and is no nearer to one processor than to another unless `numa_node` says so.
pub fn parent_files(info: &DeviceInfo, numa_node: Option<i32>) -> Vec<Entry> {
    let entry = |name: &str, text: String| (name.to_owned(), text);
    let interface = |name: &str, text: String| (format!("net/{}/{name}", info.interface), text);
    let mac: Vec<_> = info.mac.iter().map(|byte| format!("{byte:02x}")).collect();
    vec![
        entry("device", "0x0000".to_owned()),
        interface("address", mac.join(":")),
        interface("ifindex", info.interface_index.to_string()),
        interface("mtu", info.mtu.to_string()),
        entry("numa_node", numa_node.unwrap_or(-1).to_string()),
        entry("vendor", format!("{VENDOR_SOFTWARE:#06x}")),
    ]
}

fn port_files(info: &DeviceInfo) -> Vec<Entry> {
    let entry = |name: &str, text: &str| (name.to_owned(), text.to_owned());
    let (state, phys_state) = if info.up {
        ("4: ACTIVE", "5: LinkUp")
    } else {
        ("1: DOWN", "3: Disabled")
    };
    let mut entries = vec![
        entry("cap_mask", &format!("{PORT_CAP_FLAGS:#010x}")),
        entry("lid", "0x0"),
        entry("lid_mask_count", "0"),
        entry("link_layer", "Ethernet"),
        entry("phys_state", phys_state),
        entry("pkeys/0", &format!("{DEFAULT_PKEY:#06x}")),
        entry("rate", &rate::link_text(info.speed_mbps)),
        entry("sm_lid", "0x0"),
        entry("sm_sl", "0"),
        entry("state", state),
    ];
    for (index, row) in info.gids.iter().enumerate() {
        entries.push((format!("gids/{index}"), row.gid.to_string()));
        if row.is_empty() {
            // The kernel has files here, of which nothing can be read.
            continue;
        }
        entries.push((format!("gid_attrs/types/{index}"), "RoCE v2".to_owned()));
        entries.push((format!("gid_attrs/ndevs/{index}"), info.interface.clone()));
    }
    entries
}

/// `counters`, those of the PortCounters attribute (IBTA 16.1.3.5) that mean something here, and
/// zero where programs expect a file; `hw_counters`: [`hw_counters`].
fn counters(ours: &[(&'static str, u64)]) -> Vec<Entry> {
    // Data are counted in words of four bytes.
    const WORD: u64 = 4;
    let sum = |names: &[&str]| -> u64 {
        let chosen = ours.iter().filter(|(name, _)| names.contains(name));
        chosen.map(|(_, value)| value).sum()
    };
    let standard = [
        ("VL15_dropped", 0),
        ("excessive_buffer_overrun_errors", sum(&["drop_overflow"])),
        ("link_downed", 0),
        ("link_error_recovery", 0),
        ("local_link_integrity_errors", 0),
        ("port_rcv_constraint_errors", 0),
        ("port_rcv_data", sum(&["rx_bytes"]) / WORD),
        (
            "port_rcv_errors",
            sum(&["drop_bad_icrc", "drop_short", "drop_oversized"]),
        ),
        ("port_rcv_packets", sum(&["rx_packets"])),
        ("port_rcv_remote_physical_errors", 0),
        ("port_rcv_switch_relay_errors", 0),
        ("port_xmit_constraint_errors", 0),
        ("port_xmit_data", sum(&["tx_bytes"]) / WORD),
        ("port_xmit_discards", sum(&["tx_errors"])),
        ("port_xmit_packets", sum(&["tx_packets"])),
        ("port_xmit_wait", 0),
        ("symbol_error", 0),
    ];
    let standard = standard.map(|(name, value)| (format!("counters/{name}"), value.to_string()));
    let hardware = hw_counters(ours);
    let hardware = hardware
        .iter()
        .map(|(name, value)| (format!("hw_counters/{name}"), value.to_string()));
    standard.into_iter().chain(hardware).collect()
}

/// The names under which other drivers count the same, for what reads those (node_exporter, `rdma
/// statistic`): mlx5's first, then rxe's.
const KNOWN: [(&str, &[&str]); 21] = [
    ("duplicate_request", &["duplicates"]),
    ("implied_nak_seq_err", &["implied_naks"]),
    ("local_ack_timeout_err", &["timeouts"]),
    ("np_cnp_sent", &["cnps_sent"]),
    ("out_of_buffer", &["rnr_naks_sent", "drop_no_receive"]),
    ("out_of_sequence", &["out_of_order"]),
    ("packet_seq_err", &["naks_received"]),
    ("resp_remote_access_errors", &["remote_access_errors"]),
    ("rnr_nak_retry_err", &["rnr_naks_received"]),
    ("rp_cnp_handled", &["cnps_received"]),
    ("rx_icrc_encapsulated", &["drop_bad_icrc"]),
    ("completer_retry_err", &["retransmits"]),
    ("out_of_seq_request", &["out_of_order"]),
    ("rcvd_pkts", &["rx_packets"]),
    ("rcvd_rnr_err", &["rnr_naks_received"]),
    ("rcvd_seq_err", &["naks_received"]),
    ("rdma_recvs", &["messages_received"]),
    ("rdma_sends", &["messages_sent"]),
    ("send_err", &["tx_errors"]),
    ("send_rnr_err", &["rnr_naks_sent"]),
    ("sent_pkts", &["tx_packets"]),
];

/// `hw_counters`: under the names of other drivers what they mean there, and ours under their own.
pub fn hw_counters(ours: &[(&'static str, u64)]) -> Vec<(&'static str, u64)> {
    let value = |wanted: &str| ours.iter().find(|(name, _)| *name == wanted);
    let known = KNOWN.iter().map(|(name, sum)| {
        let parts = sum.iter().filter_map(|part| value(part));
        (*name, parts.map(|(_, value)| value).sum())
    });
    known.chain(ours.iter().copied()).collect()
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
    use std::collections::BTreeSet;
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
        let entries = device_files(&info());
        let says = |file| &entries.iter().find(|(name, _)| name == file).unwrap().1;
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
        for path in [
            c"/sys/class/infiniband/airdma_nonesuch/node_guid",
            c"/sys/class/infiniband/mlx5_0/node_guid",
            c"/sys/class/net/lo/mtu",
        ] {
            assert_eq!(answer(path), None, "{path:?}");
        }
    }

    #[test]
    fn a_row_without_an_address_has_a_zero_gid_and_no_attributes() {
        let mut info = info();
        info.gids.insert(0, GidEntry::EMPTY);
        let entries = device_files(&info);
        let says = |file| entries.iter().find(|(name, _)| name == file);
        let (_, gid) = says("ports/1/gids/0").unwrap();
        assert!(gid.chars().all(|digit| matches!(digit, '0' | ':')), "{gid}");
        assert_eq!(says("ports/1/gid_attrs/types/0"), None);
        assert_eq!(says("ports/1/gid_attrs/types/1").unwrap().1, "RoCE v2");
    }

    #[test]
    fn counters_have_the_names_of_other_drivers_too() {
        let ours = counters_of(&info());
        for (name, parts) in KNOWN {
            for part in parts {
                assert!(
                    ours.iter().any(|(known, _)| known == part),
                    "{name}: {part}"
                );
            }
        }
        let counted = hw_counters(&[
            ("timeouts", 3),
            ("rnr_naks_sent", 4),
            ("drop_no_receive", 5),
        ]);
        assert!(counted.contains(&("local_ack_timeout_err", 3)));
        assert!(counted.contains(&("out_of_buffer", 9)));
        assert!(counted.contains(&("timeouts", 3)));
    }

    #[test]
    fn every_file_has_one_text() {
        let entries = device_files(&info());
        let names: BTreeSet<_> = entries.iter().map(|(name, _)| name).collect();
        assert_eq!(names.len(), entries.len());
        assert!(entries.iter().all(|(_, text)| !text.contains('\n')));
    }

    #[test]
    fn counters_have_their_standard_names() {
        let entries = counters(&[("tx_bytes", 400), ("drop_short", 1), ("drop_bad_icrc", 2)]);
        for wanted in [
            ("counters/port_xmit_data", "100"),
            ("counters/port_rcv_errors", "3"),
            ("hw_counters/tx_bytes", "400"),
        ] {
            let found = entries
                .iter()
                .any(|(name, text)| (&name[..], &text[..]) == wanted);
            assert!(found, "{wanted:?}");
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
