//! Addresses: binding, and the way to a peer. The kernel's routes and neighbours decide.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

use libc::sockaddr;

use super::abi::*;
use super::devices::{self, Place};
use super::endpoint::complete;
use super::id::{Id, Phase, Resolved, State};
use super::resolver::{self, Search};
use super::{address, ports};
use crate::errno::Errno;
use crate::object::Object;

/// `rdma_bind_addr(3)`.
pub unsafe fn bind(raw: *mut rdma_cm_id, to: *mut sockaddr) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and address.
    let (id, wanted) = unsafe { (Id::ours(raw)?, address::read(to)?.ok_or(Errno::INVALID)?) };
    let mut state = id.state();
    bind_to(id, &mut state, wanted)?;
    // Programs tell their port to others, and listen afterwards: from here on that takes no time.
    // Why a device cannot be used is said when it is.
    let devices = match &state.place {
        Some(place) => vec![Arc::clone(&place.device)],
        None => devices::all()?
            .into_iter()
            .map(|(_, device)| device)
            .collect(),
    };
    for device in devices {
        drop(device.cm_open());
    }
    Ok(0)
}

/// Gives an identifier a local address, with a free port if it names none.
pub fn bind_to(id: &Id, state: &mut State, wanted: SocketAddr) -> Result<(), Errno> {
    if state.phase != Phase::Idle {
        return Err(Errno::INVALID);
    }
    check_scope(&wanted)?;
    let (wanted, place) = if wanted.ip().is_unspecified() {
        (wanted, None)
    } else {
        match place_of(&wanted) {
            Ok(place) => (wanted, Some(place)),
            // As in the kernel: the loopback interface is no device, and its addresses stand for
            // all of this host.
            Err(Errno(libc::ENODEV)) if wanted.ip().is_loopback() => (
                SocketAddr::new(unspecified(&wanted).ip(), wanted.port()),
                None,
            ),
            Err(errno) => {
                if errno == Errno(libc::ENODEV) {
                    devices::warn_of_no_device(wanted.ip());
                }
                return Err(errno);
            }
        }
    };
    let port = ports::take(id.space(), &wanted, &state.options, id.cookie())?;
    let mut source = wanted;
    source.set_port(port);
    state.source = Some(source);
    state.holds_port = true;
    state.phase = Phase::Bound;
    if let Some(place) = place {
        id.settle(state, place)?;
    }
    id.show_route(state);
    Ok(())
}

/// The device that has a local address.
///
/// # Errors
/// `ENODEV` for an address of this host that no device has, `EADDRNOTAVAIL` for one of another
/// host.
fn place_of(address: &SocketAddr) -> Result<Place, Errno> {
    devices::of_address(address.ip(), scope_of(address)).map_err(|errno| {
        let mut probe = *address;
        probe.set_port(0);
        if errno == Errno(libc::ENODEV) && UdpSocket::bind(probe).is_err() {
            return Errno(libc::EADDRNOTAVAIL);
        }
        errno
    })
}

/// As in the kernel: a link-local address has a meaning with its interface only.
fn check_scope(address: &SocketAddr) -> Result<(), Errno> {
    match address {
        SocketAddr::V6(v6) if v6.ip().is_unicast_link_local() && v6.scope_id() == 0 => {
            Err(Errno::INVALID)
        }
        SocketAddr::V4(_) | SocketAddr::V6(_) => Ok(()),
    }
}

fn scope_of(address: &SocketAddr) -> u32 {
    match address {
        SocketAddr::V4(_) => 0,
        SocketAddr::V6(v6) => v6.scope_id(),
    }
}

/// `rdma_resolve_addr(3)`. What the kernel says of the route is answered at once, and the event
/// follows at once where the neighbour is known or there is none to ask for; else it comes when the
/// neighbour has answered, or as `RDMA_CM_EVENT_ADDR_ERROR` when `timeout_ms` is over.
pub unsafe fn resolve_address(
    raw: *mut rdma_cm_id,
    source: *mut sockaddr,
    destination: *mut sockaddr,
    timeout_ms: c_int,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and addresses.
    let (id, source, destination) = unsafe {
        (
            Id::ours(raw)?,
            address::read_if_any(source)?,
            address::read(destination)?.ok_or(Errno::INVALID)?,
        )
    };
    let mut state = id.state();
    if !matches!(state.phase, Phase::Idle | Phase::Bound) {
        return Err(Errno::INVALID);
    }
    let same_family = |source: &SocketAddr| source.is_ipv4() == destination.is_ipv4();
    if source
        .as_ref()
        .or(state.source.as_ref())
        .is_some_and(|source| !same_family(source))
    {
        return Err(Errno::INVALID);
    }
    if let (Phase::Idle, Some(source)) = (state.phase, source) {
        bind_to(id, &mut state, source)?;
    }
    let destination = known_destination(destination)?;
    check_scope(&destination)?;
    let resolved = match (&state.place, state.source) {
        (Some(place), Some(source)) => Resolved {
            place: place.clone(),
            source,
            destination,
        },
        _ => {
            let scope = scope_of(&destination);
            let ip = address::source_for(&destination)?;
            let place =
                devices::of_address(ip, scope).inspect_err(|_| devices::warn_of_no_device(ip))?;
            Resolved {
                place,
                source: with_scope(ip, scope),
                destination,
            }
        }
    };
    let (from, to) = (resolved.source.ip(), destination.ip());
    let is_known = match resolved.place.device.knows_neighbour(from, to) {
        Ok(is_known) => is_known,
        Err(error) if NO_ROUTE.contains(&error.errno()) => return Err(Errno(error.errno())),
        // A process that may not ask the kernel finds out when a request has no answer.
        Err(_) => true,
    };
    if state.phase == Phase::Idle {
        bind_to(id, &mut state, unspecified(&destination))?;
    }
    if is_known {
        settle(id, &mut state, resolved)?;
        state.channel.post(id.cookie(), RDMA_CM_EVENT_ADDR_RESOLVED);
    } else {
        let wait = Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        resolver::begin(Search {
            cookie: id.cookie(),
            channel: Arc::clone(&state.channel),
            device: Arc::clone(&resolved.place.device),
            source: from,
            destination: to,
            deadline: Instant::now() + wait,
        })?;
        state.resolving = Some(resolved);
        state.phase = Phase::Resolving;
    }
    drop(state);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// Errors of the kernel where no route leads to a destination.
const NO_ROUTE: [c_int; 3] = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES];

/// A neighbour was found, and the program fetches the event.
///
/// # Errors
/// `ENOMEM`.
pub fn address_resolved(id: &Id) -> Result<(), Errno> {
    let mut state = id.state();
    match state.resolving.take() {
        Some(resolved) => settle(id, &mut state, resolved),
        None => Ok(()),
    }
}

/// No neighbour was found, and the program fetches the event: it may try again, there or elsewhere.
pub fn address_unresolved(id: &Id) {
    let mut state = id.state();
    state.resolving = None;
    state.phase = Phase::Bound;
}

fn settle(id: &Id, state: &mut State, resolved: Resolved) -> Result<(), Errno> {
    if state.place.is_none() {
        let mut source = resolved.source;
        source.set_port(state.source.map_or(0, |source| source.port()));
        state.source = Some(source);
        id.settle(state, resolved.place)?;
    }
    state.destination = Some(resolved.destination);
    state.phase = Phase::AddressResolved;
    id.show_route(state);
    Ok(())
}

fn with_scope(ip: IpAddr, scope: u32) -> SocketAddr {
    match ip {
        IpAddr::V4(v4) => SocketAddr::from((v4, 0)),
        IpAddr::V6(v6) => SocketAddrV6::new(v6, 0, 0, scope).into(),
    }
}

/// The destination: the unspecified address means this host, as for sockets, and so does a loopback
/// address that no device has.
fn known_destination(destination: SocketAddr) -> Result<SocketAddr, Errno> {
    let ip = destination.ip();
    let means_this_host =
        ip.is_unspecified() || (ip.is_loopback() && devices::of_address(ip, 0).is_err());
    if !means_this_host {
        return Ok(destination);
    }
    let first = devices::all()?
        .into_iter()
        .flat_map(|(_, device)| device.current().gids)
        .find(|row| !row.is_empty() && row.address.is_ipv4() == destination.is_ipv4())
        .ok_or(Errno(libc::ENODEV))?;
    Ok(SocketAddr::new(first.address, destination.port()))
}

/// The wildcard address of the same family, without port.
pub fn unspecified(like: &SocketAddr) -> SocketAddr {
    let ip: IpAddr = match like {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    SocketAddr::new(ip, 0)
}

/// `rdma_resolve_route(3)`.
pub unsafe fn resolve_route(raw: *mut rdma_cm_id, _timeout_ms: c_int) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    let mut state = id.state();
    if state.phase != Phase::AddressResolved {
        return Err(Errno::INVALID);
    }
    state.phase = Phase::RouteResolved;
    id.show_path(&mut state);
    state
        .channel
        .post(id.cookie(), RDMA_CM_EVENT_ROUTE_RESOLVED);
    drop(state);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// `rdma_get_src_port(3)`: in network byte order, 0 if there is none.
pub unsafe fn source_port(raw: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::of(raw) };
    let source = id.ok().and_then(|id| id.state().source);
    source.map_or(0, |source| source.port().to_be())
}

/// `rdma_get_dst_port(3)`: as [`source_port`].
pub unsafe fn destination_port(raw: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::of(raw) };
    let destination = id.ok().and_then(|id| id.state().destination);
    destination.map_or(0, |destination| destination.port().to_be())
}
