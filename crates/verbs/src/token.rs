//! The value of `context->cmd_fd`: a descriptor by which a context can be imported in the same
//! process.
//!
//! With rdma-core it is the way to the kernel, and works in any process that gets a copy. This one
//! holds a few bytes that say which process and which device; another process is refused, since the
//! device's worker lives in this one.

use std::ffi::c_int;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use airdma_engine as engine;

use crate::errno::Errno;
use crate::object::next_handle;
use crate::registry::Registry;

static DEVICES: Registry<engine::Device> = Registry::new();

/// The first bytes of a token.
const MAGIC: [u8; 8] = *b"airdma\0\x01";

/// Magic, process, number.
const LENGTH: usize = MAGIC.len() + 4 + 4;

/// A token for a device that was opened.
pub fn create(device: &Arc<engine::Device>) -> Result<OwnedFd, Errno> {
    let number = next_handle();
    let token = made(number)?;
    DEVICES.prune();
    DEVICES.enter(number, device);
    Ok(token)
}

/// A token with this number.
fn made(number: u32) -> Result<OwnedFd, Errno> {
    let mut file = File::from(engine::memory_file(c"airdma-context")?);
    let mut bytes = Vec::with_capacity(LENGTH);
    bytes.extend(MAGIC);
    bytes.extend(std::process::id().to_ne_bytes());
    bytes.extend(number.to_ne_bytes());
    file.write_all(&bytes)?;
    file.rewind()?;
    let seals = libc::F_SEAL_WRITE | libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
    // SAFETY: a memory file of ours, and plain integers.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } != 0 {
        return Err(Errno::current());
    }
    Ok(file.into())
}

/// The device whose token this is.
pub fn device_of(fd: c_int) -> Result<Arc<engine::Device>, Errno> {
    let mut bytes = [0; LENGTH];
    // SAFETY: the array has `LENGTH` bytes.
    let count = unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), LENGTH, 0) };
    if count < 0 {
        return Err(Errno::current());
    }
    let (magic, rest) = bytes.split_at(MAGIC.len());
    let (process, number) = rest.split_at(4);
    if count as usize != LENGTH || magic != MAGIC {
        return Err(Errno::INVALID);
    }
    if process != std::process::id().to_ne_bytes() {
        return Err(Errno::UNSUPPORTED);
    }
    let number = number.try_into().map(u32::from_ne_bytes);
    let number = number.map_err(|_| Errno::INVALID)?;
    DEVICES.find(number).ok_or(Errno(libc::ENODEV))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_stays_what_it_is() {
        let token = made(7).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&token);
        // SAFETY: a descriptor of ours, a constant byte, and plain integers.
        unsafe {
            assert_eq!(libc::ftruncate(fd, 0), -1);
            assert_eq!(libc::pwrite(fd, c"x".as_ptr().cast(), 1, 0), -1);
        }
        assert_eq!(device_of(fd).err(), Some(Errno(libc::ENODEV)));
    }

    #[test]
    fn what_is_no_token_is_refused() {
        assert_eq!(device_of(-1).err(), Some(Errno(libc::EBADF)));
        let file = File::open("/proc/self/exe").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        assert_eq!(device_of(fd).err(), Some(Errno::INVALID));
    }
}
