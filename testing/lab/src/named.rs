//! Names of network namespaces, which `ip netns` and every program of the machine can use.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;

use crate::error::checked;
use crate::namespace::Namespace;

/// The folder of the names, as `ip netns` has it.
pub const NAMED: &str = "/run/netns";

const LAB_PREFIX: &str = "airdma-lab-";

/// A name of a namespace; removed when this is dropped.
#[derive(Debug)]
pub struct Named(String);

impl Named {
    /// Names a namespace, as `ip netns add` does. Needs root of the mount namespace.
    ///
    /// # Errors
    ///
    /// If the name is taken, or mounting is refused.
    pub fn new(name: String, namespace: &Namespace) -> io::Result<Named> {
        share_folder()?;
        let path = path_of(&name);
        File::create_new(&path)?;
        let named = Named(name);
        let from = PathBuf::from(format!("/proc/self/fd/{}", namespace.raw()));
        mount(&from, &path, libc::MS_BIND)?;
        Ok(named)
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        unname(&self.0);
    }
}

/// Removes a name that [`Named`] gave in a process that has ended.
pub fn unname(name: &str) {
    let path = path_of(name);
    if let Ok(text) = c_string(&path) {
        // SAFETY: a C string that lives through the call.
        unsafe { libc::umount2(text.as_ptr(), libc::MNT_DETACH) };
        let _ = fs::remove_file(path);
    }
}

/// The name of a host of the lab that belongs to process `owner`.
pub fn lab_name(owner: u32, host: char) -> String {
    format!("{LAB_PREFIX}{owner}-{host}")
}

/// Removes names of labs whose owner has ended: only SIGKILL leaves them.
pub fn remove_abandoned() {
    let Ok(entries) = fs::read_dir(NAMED) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if owner_of(&name).is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            unname(&name);
        }
    }
}

fn owner_of(name: &str) -> Option<u32> {
    let (owner, _) = name.strip_prefix(LAB_PREFIX)?.split_once('-')?;
    owner.parse().ok()
}

/// Makes names appear in every mount namespace that receives what is mounted in this folder.
fn share_folder() -> io::Result<()> {
    fs::create_dir_all(NAMED)?;
    let folder = Path::new(NAMED);
    let shared = libc::MS_SHARED | libc::MS_REC;
    if mount(Path::new("none"), folder, shared).is_ok() {
        return Ok(());
    }
    mount(folder, folder, libc::MS_BIND | libc::MS_REC)?;
    mount(Path::new("none"), folder, shared)
}

fn mount(from: &Path, to: &Path, flags: libc::c_ulong) -> io::Result<()> {
    let (from, to) = (c_string(from)?, c_string(to)?);
    // SAFETY: C strings that live through the call.
    checked(unsafe {
        libc::mount(
            from.as_ptr(),
            to.as_ptr(),
            c"none".as_ptr(),
            flags,
            ptr::null(),
        )
    })
    .map(drop)
}

fn path_of(name: &str) -> PathBuf {
    Path::new(NAMED).join(name)
}

fn c_string(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_encoded_bytes())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_a_labs_host_tells_its_owner() {
        assert_eq!(owner_of(&lab_name(4711, 'a')), Some(4711));
        assert_eq!(owner_of("airdma-4711-a"), None);
        assert_eq!(owner_of("airdma-lab-x-a"), None);
    }
}
