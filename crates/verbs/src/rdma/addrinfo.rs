//! `rdma_getaddrinfo(3)`: the C library's resolver in the shape of RDMA CM.

use std::ffi::{c_char, c_int};
use std::net::SocketAddr;
use std::ptr;

use libc::sockaddr;

use super::abi::*;
use super::address;
use crate::abi::{IBV_QPT_RC, IBV_QPT_UD};
use crate::errno::Errno;

/// The caller's hints, with defaults for those that it left open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wanted {
    flags: c_int,
    family: c_int,
    qp_type: c_int,
    port_space: c_int,
}

/// A negative number is an error of the system, whose `errno` is set; a positive one is of
/// `getaddrinfo(3)`.
pub unsafe fn get(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    out: *mut *mut rdma_addrinfo,
) -> c_int {
    // SAFETY: the caller's struct.
    let hints = unsafe { hints.as_ref() };
    if out.is_null() || (node.is_null() && service.is_null() && hints.is_none()) {
        Errno::INVALID.set();
        return -1;
    }
    let wanted = match wanted(hints) {
        Ok(wanted) => wanted,
        Err(code) => return code,
    };
    // SAFETY: the caller's strings and the addresses of the hints.
    unsafe {
        let resolved = if node.is_null() && service.is_null() {
            Ok(None)
        } else {
            resolve(node, service, &wanted).map(Some)
        };
        let resolved = match resolved {
            Ok(resolved) => resolved,
            Err(code) => return code,
        };
        let hinted = |pick: fn(&rdma_addrinfo) -> *mut sockaddr| {
            hints.and_then(|hints| address::read(pick(hints)).ok().flatten())
        };
        let (mut source, mut destination) = (
            hinted(|hints| hints.ai_src_addr),
            hinted(|hints| hints.ai_dst_addr),
        );
        if wanted.flags & RAI_PASSIVE != 0 {
            source = resolved.or(source);
        } else {
            destination = resolved.or(destination);
        }
        let family = source.or(destination).map_or(wanted.family, family_of);
        out.write(Box::into_raw(Box::new(rdma_addrinfo {
            ai_flags: wanted.flags,
            ai_family: family,
            ai_qp_type: wanted.qp_type,
            ai_port_space: wanted.port_space,
            ai_src_len: source.as_ref().map_or(0, address::length),
            ai_dst_len: destination.as_ref().map_or(0, address::length),
            ai_src_addr: keep(source.as_ref()),
            ai_dst_addr: keep(destination.as_ref()),
            ai_src_canonname: ptr::null_mut(),
            ai_dst_canonname: ptr::null_mut(),
            ai_route_len: 0,
            ai_route: ptr::null_mut(),
            ai_connect_len: 0,
            ai_connect: ptr::null_mut(),
            ai_next: ptr::null_mut(),
        })));
    }
    0
}

/// Queue pair type and port space belong together: datagrams and UDP, everything else and TCP (or
/// IB).
fn wanted(hints: Option<&rdma_addrinfo>) -> Result<Wanted, c_int> {
    let mut wanted = Wanted {
        flags: 0,
        family: 0,
        qp_type: 0,
        port_space: 0,
    };
    if let Some(hints) = hints {
        wanted = Wanted {
            flags: hints.ai_flags,
            family: hints.ai_family,
            qp_type: hints.ai_qp_type,
            port_space: hints.ai_port_space,
        };
    }
    if wanted.flags & !(RAI_PASSIVE | RAI_NUMERICHOST | RAI_NOROUTE | RAI_FAMILY | RAI_DNS) != 0 {
        return Err(libc::EAI_BADFLAGS);
    }
    let (rc, ud) = (IBV_QPT_RC as c_int, IBV_QPT_UD as c_int);
    let (tcp, udp) = (RDMA_PS_TCP as c_int, RDMA_PS_UDP as c_int);
    if wanted.qp_type == 0 {
        wanted.qp_type = if wanted.port_space == udp { ud } else { rc };
    }
    if wanted.port_space == 0 {
        wanted.port_space = if wanted.qp_type == ud { udp } else { tcp };
    }
    if (wanted.qp_type == ud) != (wanted.port_space == udp)
        && wanted.port_space != RDMA_PS_IB as c_int
    {
        return Err(libc::EAI_SOCKTYPE);
    }
    Ok(wanted)
}

/// The first address that the C library's resolver gives.
unsafe fn resolve(
    node: *const c_char,
    service: *const c_char,
    wanted: &Wanted,
) -> Result<SocketAddr, c_int> {
    // SAFETY: all zeros is no hints; the rest is the caller's strings, and a list that is freed
    // once.
    unsafe {
        let mut hints: libc::addrinfo = std::mem::zeroed();
        hints.ai_socktype = if wanted.qp_type == IBV_QPT_UD as c_int {
            libc::SOCK_DGRAM
        } else {
            libc::SOCK_STREAM
        };
        if wanted.flags & RAI_PASSIVE != 0 {
            hints.ai_flags |= libc::AI_PASSIVE;
        }
        if wanted.flags & RAI_NUMERICHOST != 0 {
            hints.ai_flags |= libc::AI_NUMERICHOST;
        }
        if wanted.flags & RAI_FAMILY != 0 || node.is_null() {
            hints.ai_family = wanted.family;
        }
        let mut list = ptr::null_mut();
        let code = libc::getaddrinfo(node, service, &raw const hints, &raw mut list);
        if code != 0 {
            return Err(code);
        }
        let first = list.as_ref().map(|first| address::read(first.ai_addr));
        libc::freeaddrinfo(list);
        match first {
            Some(Ok(Some(address))) => Ok(address),
            _ => Err(libc::EAI_FAMILY),
        }
    }
}

fn family_of(address: SocketAddr) -> c_int {
    match address {
        SocketAddr::V4(_) => libc::AF_INET,
        SocketAddr::V6(_) => libc::AF_INET6,
    }
}

/// An address of its own for C, NULL for none.
fn keep(address: Option<&SocketAddr>) -> *mut sockaddr {
    address.map_or(ptr::null_mut(), |address| {
        Box::into_raw(Box::new(address::to_c(address))).cast()
    })
}

/// `rdma_freeaddrinfo(3)`.
pub unsafe fn free(mut list: *mut rdma_addrinfo) {
    while !list.is_null() {
        // SAFETY: entries and addresses that `get` made, each freed once.
        unsafe {
            let entry = Box::from_raw(list);
            list = entry.ai_next;
            for address in [entry.ai_src_addr, entry.ai_dst_addr] {
                if !address.is_null() {
                    drop(Box::from_raw(address.cast::<rdma_sockaddr>()));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_is_left_open_follows_from_what_is_given() {
        let hints = |qp_type: u32, port_space: u32| rdma_addrinfo {
            ai_qp_type: qp_type as c_int,
            ai_port_space: port_space as c_int,
            // SAFETY: integers and NULL pointers.
            ..unsafe { std::mem::zeroed() }
        };
        let open = wanted(None).unwrap();
        assert_eq!(open.qp_type, IBV_QPT_RC as c_int);
        assert_eq!(open.port_space, RDMA_PS_TCP as c_int);
        let datagrams = wanted(Some(&hints(0, RDMA_PS_UDP))).unwrap();
        assert_eq!(datagrams.qp_type, IBV_QPT_UD as c_int);
        let datagrams = wanted(Some(&hints(IBV_QPT_UD, 0))).unwrap();
        assert_eq!(datagrams.port_space, RDMA_PS_UDP as c_int);
        let torn = wanted(Some(&hints(IBV_QPT_UD, RDMA_PS_TCP)));
        assert_eq!(torn, Err(libc::EAI_SOCKTYPE));
    }

    #[test]
    fn a_number_is_resolved_to_itself() {
        let mut list = ptr::null_mut();
        // SAFETY: live strings and pointers; the list is freed once.
        unsafe {
            let code = get(
                c"127.0.0.1".as_ptr(),
                c"7471".as_ptr(),
                ptr::null(),
                &raw mut list,
            );
            assert_eq!(code, 0);
            let entry = &*list;
            assert_eq!(entry.ai_family, libc::AF_INET);
            assert!(entry.ai_src_addr.is_null());
            let address = address::read(entry.ai_dst_addr).unwrap().unwrap();
            assert_eq!(address, "127.0.0.1:7471".parse().unwrap());
            free(list);
            assert_eq!(
                get(ptr::null(), ptr::null(), ptr::null(), &raw mut list),
                -1
            );
        }
    }
}
