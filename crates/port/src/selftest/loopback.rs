//! A loopback interface of one's own: namespace, up, segmentation offload off.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsRawFd;

/// Moves this process to a network namespace of its own. False when that is refused.
///
/// A privileged process gets one directly; any other gets it in a user namespace, where it is the
/// owner, if the system lets it have one.
pub(super) fn isolate() -> bool {
    [libc::CLONE_NEWNET, libc::CLONE_NEWUSER | libc::CLONE_NEWNET]
        .into_iter()
        // SAFETY: plain integers; the child that calls this has one thread and ends soon.
        .any(|flags| unsafe { libc::unshare(flags) } == 0)
}

/// Brings the loopback interface up.
pub(super) fn up() -> io::Result<()> {
    let mut request = Request::new();
    request.issue(libc::SIOCGIFFLAGS)?;
    // SAFETY: SIOCGIFFLAGS wrote the flags.
    let flags = unsafe { request.0.ifr_ifru.ifru_flags };
    request.0.ifr_ifru.ifru_flags = flags | libc::IFF_UP as libc::c_short;
    request.issue(libc::SIOCSIFFLAGS)
}

/// Makes the kernel cut segmented UDP sends before they reach loopback (`ethtool -K lo
/// tx-udp-segmentation off`).
pub(super) fn segmentation_off() -> io::Result<()> {
    let names = feature_names()?;
    let bit = names
        .chunks_exact(NAME_LEN)
        .position(|name| name.split(|&byte| byte == 0).next() == Some(FEATURE))
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    let words = (names.len() / NAME_LEN).div_ceil(32);
    let mut change = vec![0_u32; 2 + 2 * words];
    change[0] = ETHTOOL_SFEATURES;
    change[1] = words as u32;
    // Two words for each 32 features: which to change, and to what (zero: off).
    change[2 + bit / 32 * 2] = 1 << (bit % 32);
    ethtool(&mut change)
}

/// The names of all features, `NAME_LEN` bytes each, in the order of their bits.
fn feature_names() -> io::Result<Vec<u8>> {
    // struct ethtool_sset_info: command, reserved, a 64-bit mask of sets, then one count for each
    // set in it.
    let mut info = [ETHTOOL_GSSET_INFO, 0, 1 << ETH_SS_FEATURES, 0, 0];
    ethtool(&mut info)?;
    let count = info[4] as usize;
    if !(1..=FEATURES_MAX).contains(&count) {
        return Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP));
    }
    // struct ethtool_gstrings: command, set, count, then the names. Room for more than the count,
    // should it grow.
    let mut strings = vec![0_u32; 3 + FEATURES_MAX * NAME_LEN / 4];
    strings[..3].copy_from_slice(&[ETHTOOL_GSTRINGS, ETH_SS_FEATURES, count as u32]);
    ethtool(&mut strings)?;
    let names = strings[3..].iter().flat_map(|word| word.to_ne_bytes());
    Ok(names.take(count * NAME_LEN).collect())
}

/// Issues an ethtool command for loopback: a structure of 32-bit words that begins with its number.
fn ethtool(command: &mut [u32]) -> io::Result<()> {
    let mut request = Request::new();
    request.0.ifr_ifru.ifru_data = command.as_mut_ptr().cast();
    request.issue(libc::SIOCETHTOOL)
}

/// An interface request for loopback. A `struct ifreq` may point elsewhere: see `ethtool`.
struct Request(libc::ifreq);

impl Request {
    fn new() -> Self {
        // SAFETY: characters, integers and a pointer; all zero is a value of each.
        let mut request: libc::ifreq = unsafe { MaybeUninit::zeroed().assume_init() };
        for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
            *to = *from as libc::c_char;
        }
        Request(request)
    }

    fn issue(&mut self, number: libc::c_ulong) -> io::Result<()> {
        // Any socket will do; this one is of the namespace the process is in now.
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // SAFETY: the request is a `struct ifreq`; where it points to a command, that has the size
        // the command implies.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), number, &raw mut self.0) };
        match result {
            0 => Ok(()),
            -1 => Err(io::Error::last_os_error()),
            // ETHTOOL_SFEATURES: the change was understood, and not made.
            _ => Err(io::Error::from_raw_os_error(libc::EOPNOTSUPP)),
        }
    }
}

const FEATURE: &[u8] = b"tx-udp-segmentation";
const FEATURES_MAX: usize = 512;

// linux/ethtool.h
const ETHTOOL_GSTRINGS: u32 = 0x1b;
const ETHTOOL_GSSET_INFO: u32 = 0x37;
const ETHTOOL_SFEATURES: u32 = 0x3b;
const ETH_SS_FEATURES: u32 = 4;
const NAME_LEN: usize = 32;

const _: () = assert!(size_of::<libc::ifreq>() >= 16 + size_of::<usize>());
