//! Paths under `/sys/class/infiniband*` and `/dev/infiniband` that programs open themselves, and
//! where they are led.
//!
//! Airdma's devices have no such files. Paths of theirs are led to a [`tree`] of plain files with
//! the same text that `ibv_read_sysfs_file` gives ([`crate::sysfs`]), and their device nodes to
//! `/dev/null`: UCX, for one, skips a device without a character device that it may read and write.
//! Names that are not ours stay as they are, so the RDMA hardware of a host remains visible.
//! Children of a program see the same, as they inherit the preload.
//!
//! The functions of the C library that lead here are in `entry/files.rs`.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::catch_unwind;

use airdma_engine::DeviceInfo;

use crate::errno::Errno;
use crate::trace;

pub mod tree;

/// A directory of the kernel's that we add to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Folder {
    /// `/sys/class/infiniband`: one directory for each device.
    Devices,
    /// `/sys/class/infiniband_verbs`: one directory for each device node.
    Verbs,
    /// `/dev/infiniband`: the device nodes.
    Nodes,
}

impl Folder {
    /// All of them.
    pub const ALL: [Folder; 3] = [Folder::Devices, Folder::Verbs, Folder::Nodes];

    /// Its path in the kernel's file systems.
    pub const fn path(self) -> &'static str {
        match self {
            Folder::Devices => "/sys/class/infiniband",
            Folder::Verbs => "/sys/class/infiniband_verbs",
            Folder::Nodes => "/dev/infiniband",
        }
    }
}

/// A path in or of one of the folders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The folder.
    pub folder: Folder,
    /// The entry of the folder, empty for the folder itself.
    pub name: &'a str,
    /// The rest of the path behind the entry: empty, or from a slash on.
    pub rest: &'a str,
}

impl<'a> Place<'a> {
    /// Takes an absolute path apart; `None` if it is in none of the folders.
    pub fn of(path: &'a CStr) -> Option<Place<'a>> {
        let path = path.to_str().ok()?;
        let (folder, inside) = Folder::ALL.into_iter().find_map(|folder| {
            let inside = path.strip_prefix(folder.path())?;
            (inside.is_empty() || inside.starts_with('/')).then_some((folder, inside))
        })?;
        let mut inside = inside.trim_start_matches('/');
        while let Some(same) = inside.strip_prefix("./") {
            inside = same.trim_start_matches('/');
        }
        let end = inside.find('/').unwrap_or(inside.len());
        let (name, rest) = inside.split_at(end);
        match name {
            "." => Some(Place {
                folder,
                name: "",
                rest: "",
            }),
            _ => Some(Place { folder, name, rest }),
        }
    }

    /// The components after the entry; `None` if they lead up again.
    pub fn components(&self) -> Option<Vec<&'a str>> {
        let parts = self
            .rest
            .split('/')
            .filter(|part| !matches!(*part, "" | "."));
        parts.map(|part| (part != "..").then_some(part)).collect()
    }

    /// The device that the entry belongs to.
    pub fn device<'d>(&self, devices: &'d [DeviceInfo]) -> Option<&'d DeviceInfo> {
        devices.iter().find(|info| match self.folder {
            Folder::Devices => info.name == self.name,
            Folder::Verbs | Folder::Nodes => node(info) == self.name,
        })
    }
}

/// The name of a device's node: the same in every process of the network namespace.
pub fn node(info: &DeviceInfo) -> String {
    format!("uverbs{}", info.interface_index)
}

/// Whether a path may be one of ours: a comparison of bytes, safe wherever a system call is.
///
/// # Safety
/// `path` is NULL or a string.
#[inline]
pub unsafe fn may_be_ours(path: *const c_char) -> bool {
    // SAFETY: the caller's promise.
    unsafe { begins_with(path, b"/sys/class/infiniband") || begins_with(path, b"/dev/infiniband") }
}

/// # Safety
/// `path` is NULL or a string.
#[inline]
unsafe fn begins_with(path: *const c_char, prefix: &[u8]) -> bool {
    !path.is_null()
        && prefix.iter().enumerate().all(|(index, byte)| {
            // SAFETY: `all` stops at the first difference, which the end of the string is at the
            // latest.
            unsafe { path.add(index).read() as u8 == *byte }
        })
}

/// The path that takes the place of another, if one does. `writes`: the caller wants to write or to
/// create. Leaves `errno` as it was.
pub fn lead(path: &CStr, writes: bool) -> Option<CString> {
    let errno = Errno::current();
    let led = catch_unwind(|| find(path, writes)).unwrap_or(None);
    if trace::enabled()
        && let Some(led) = &led
    {
        trace::warn(&format_args!("verbs: {path:?} is {led:?}"));
    }
    errno.set();
    led
}

fn find(path: &CStr, writes: bool) -> Option<CString> {
    let place = Place::of(path)?;
    let devices = airdma_engine::devices().ok()?;
    let device = place.device(&devices);
    if place.name == ".." && !devices.is_empty() {
        // The folder need not exist, so what is above it cannot be left to the kernel.
        let (above, _) = place.folder.path().rsplit_once('/')?;
        return CString::new(format!("{above}{}", place.rest)).ok();
    }
    if place.folder == Folder::Nodes && device.is_some() {
        return CString::new(format!("/dev/null{}", place.rest)).ok();
    }
    let is_version = place.folder == Folder::Verbs && place.name == "abi_version";
    let is_ours = device.is_some() || place.name.is_empty() || is_version;
    if writes || devices.is_empty() || !is_ours {
        return None;
    }
    let led = tree::bring(&place, &devices).ok()?;
    CString::new(OsStr::as_bytes(led.as_os_str())).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(path: &'static CStr) -> Option<(Folder, &'static str, &'static str)> {
        Place::of(path).map(|place| (place.folder, place.name, place.rest))
    }

    #[test]
    fn a_path_is_a_folder_an_entry_and_the_rest() {
        let device = Folder::Devices;
        assert_eq!(place(c"/sys/class/infiniband"), Some((device, "", "")));
        assert_eq!(place(c"/sys/class/infiniband//"), Some((device, "", "")));
        assert_eq!(place(c"/sys/class/infiniband/."), Some((device, "", "")));
        assert_eq!(
            place(c"/sys/class/infiniband/./airdma_a/ports/1/"),
            Some((device, "airdma_a", "/ports/1/"))
        );
        assert_eq!(
            place(c"/sys/class/infiniband_verbs/uverbs3/ibdev"),
            Some((Folder::Verbs, "uverbs3", "/ibdev"))
        );
        assert_eq!(
            place(c"/dev/infiniband/uverbs3"),
            Some((Folder::Nodes, "uverbs3", ""))
        );
    }

    #[test]
    fn other_paths_are_in_no_folder() {
        for path in [
            c"/sys/class/infiniband_mad",
            c"/sys/class/infiniband_mad/umad0",
            c"/dev/infinibandx/uverbs0",
            c"/sys/class/net",
            c"sys/class/infiniband",
            c"",
        ] {
            assert_eq!(Place::of(path), None, "{path:?}");
        }
    }

    #[test]
    fn components_lead_down_only() {
        let parts = |path: &'static CStr| Place::of(path).and_then(|place| place.components());
        assert_eq!(parts(c"/dev/infiniband/a"), Some(vec![]));
        assert_eq!(
            parts(c"/sys/class/infiniband/a//b/./c/"),
            Some(vec!["b", "c"])
        );
        assert_eq!(parts(c"/sys/class/infiniband/a/b/.."), None);
    }

    #[test]
    fn most_paths_are_told_by_their_first_bytes() {
        // SAFETY: NULL and strings.
        unsafe {
            assert!(!may_be_ours(std::ptr::null()));
            for path in [c"", c"/", c"/sys/class/net", c"/sys", c"relative"] {
                assert!(!may_be_ours(path.as_ptr()), "{path:?}");
            }
            for path in [c"/sys/class/infiniband", c"/dev/infiniband/uverbs0"] {
                assert!(may_be_ours(path.as_ptr()), "{path:?}");
            }
        }
    }

    #[test]
    fn names_that_are_not_ours_stay_as_they_are() {
        Errno(libc::EXDEV).set();
        for path in [
            c"/sys/class/infiniband/mlx5_0",
            c"/sys/class/infiniband/mlx5_0/ports/1/state",
            c"/sys/class/infiniband/airdma_nonesuch/ports",
            c"/dev/infiniband/rdma_cm",
            c"/dev/infiniband/uverbs4294967295",
            c"/sys/class/infiniband_mad",
        ] {
            assert_eq!(lead(path, false), None, "{path:?}");
        }
        assert_eq!(Errno::current(), Errno(libc::EXDEV));
    }
}
