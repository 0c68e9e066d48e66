//! Connections: listen, connect, accept, reject, disconnect.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::Once;

use airdma_engine::cm_protocol::{
    Accept, Connect, IpAddressing, PortSpace, RejReason, Rep, Resolve, Route, ServiceId,
    SidrAnswer, SidrStatus,
};
use airdma_engine::{self as engine, CmChannel, Gid, LIMITS, Qkey, Qpn};

use super::abi::*;
use super::endpoint::complete;
use super::id::{Id, Listening, Options, Peer, Phase, State};
use super::queue_pair;
use super::{arrivals, devices};
use crate::abi::ibv_ece;
use crate::errno::Errno;
use crate::live;
use crate::object::Object;
use crate::trace;

/// Hop limit of the packets of connections.
pub const HOP_LIMIT: u8 = 64;

/// Most requests that wait for a listener, and their number if the program sets none. (The kernel:
/// 1024. A request beyond is repeated after four seconds only.)
const BACKLOG_DEFAULT: usize = 4096;

/// Local ACK timeout, 4.096 us * 2^16 = 268 ms: a dead peer is noticed after two to three seconds,
/// with 7 repetitions, and a slow Wi-Fi link is not mistaken for one. The kernel's is eight times
/// as long.
const ACK_TIMEOUT_DEFAULT: u8 = 16;

/// The local ACK timeout of an identifier's connection.
pub fn ack_timeout(options: &Options) -> u8 {
    options.ack_timeout.unwrap_or(ACK_TIMEOUT_DEFAULT)
}

fn service(id: &Id, address: &SocketAddr) -> ServiceId {
    // The port space of C names the byte twice: 0x0106 stands for 0x06.
    ServiceId::of_port(PortSpace(id.space() as u8), address.port())
}

/// `rdma_listen(3)`.
pub unsafe fn listen(raw: *mut rdma_cm_id, backlog: c_int) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw) }?;
    let mut state = id.state();
    if state.phase == Phase::Idle {
        let any = SocketAddr::from(([0, 0, 0, 0], 0));
        super::resolve::bind_to(id, &mut state, any)?;
    }
    let (Phase::Bound, Some(source)) = (state.phase, state.source) else {
        return Err(Errno::INVALID);
    };
    let backlog = match usize::try_from(backlog) {
        Ok(wanted @ 1..=BACKLOG_DEFAULT) => wanted,
        _ => BACKLOG_DEFAULT,
    };
    let service = service(id, &source);
    state.backlog = backlog;
    let listened = match state.place.clone() {
        Some(place) => {
            let local = Some(Gid::from(source.ip()));
            listen_at(id, &mut state, place.device, service, local)
        }
        None => {
            // First, so that none is missed that comes meanwhile.
            arrivals::watch(id.cookie());
            listen_at_all(id, &mut state, service)
        }
    };
    if let Err(errno) = listened {
        arrivals::forget(id.cookie());
        let channel = Arc::clone(&state.channel);
        for listening in state.listeners.drain(..) {
            stop_listening(&channel, &listening);
        }
        return Err(errno);
    }
    state.phase = Phase::Listening;
    Ok(0)
}

fn listen_at_all(id: &Id, state: &mut State, service: ServiceId) -> Result<(), Errno> {
    let devices = devices::all()?;
    if devices.is_empty() {
        return Err(Errno(libc::ENODEV));
    }
    let local = wildcard(state);
    for (_, device) in devices {
        listen_at(id, state, device, service, local)?;
    }
    Ok(())
}

/// Requests that the program has not fetched are refused, and forgotten.
pub fn stop_listening(channel: &CmChannel, listening: &Listening) {
    live::leave(listening.cookie);
    listening.device.cm_close(listening.listener);
    drop(channel.take(listening.cookie));
}

/// The addresses that a wildcard stands for: those of its family, or (`None`) all.
fn wildcard(state: &State) -> Option<Gid> {
    let source = state.source.filter(|_| state.options.own_family)?;
    Some(Gid::from(source.ip()))
}

fn listen_at(
    id: &Id,
    state: &mut State,
    device: Arc<engine::Device>,
    service: ServiceId,
    local: Option<Gid>,
) -> Result<(), Errno> {
    let cookie = live::number();
    live::alias(cookie, id.cookie());
    let (takes, channel) = (id.takes(), &state.channel);
    let listened = device.cm_listen(service, takes, local, state.backlog, channel, cookie);
    match listened {
        Ok(listener) => state.listeners.push(Listening {
            cookie,
            device,
            listener,
        }),
        Err(error) => {
            live::leave(cookie);
            return Err(error.into());
        }
    }
    Ok(())
}

/// An identifier that listens at all addresses listens at these devices too.
pub fn listen_also(id: &Id, devices: &[Arc<engine::Device>]) {
    let mut state = id.state();
    let (Phase::Listening, None, Some(source)) = (state.phase, &state.place, state.source) else {
        return;
    };
    let (service, local) = (service(id, &source), wildcard(&state));
    for device in devices {
        let listens = |one: &Listening| Arc::ptr_eq(&one.device, device);
        if state.listeners.iter().any(listens) {
            continue;
        }
        let name = &device.info().name;
        if let Err(errno) = listen_at(id, &mut state, Arc::clone(device), service, local) {
            trace::warn(&format_args!(
                "port {} is not listened to at {name}, which has come later: {}",
                source.port(),
                std::io::Error::from_raw_os_error(errno.0)
            ));
        }
    }
}

/// The parameters of C, with what is left open filled in.
struct Parameters<'a> {
    private_data: &'a [u8],
    responder_resources: u8,
    initiator_depth: u8,
    retry_count: u8,
    rnr_retry_count: u8,
    srq: bool,
    qp_num: u32,
}

impl<'a> Parameters<'a> {
    /// Without parameters, and for 0xff (`RDMA_MAX_RESP_RES`), as much as there is.
    unsafe fn read(
        raw: *const rdma_conn_param,
        is_datagram: bool,
        responder_max: u8,
        initiator_max: u8,
    ) -> Result<Self, Errno> {
        // SAFETY: the caller's struct and data.
        unsafe {
            let Some(given) = raw.as_ref() else {
                return Ok(Parameters {
                    private_data: &[],
                    responder_resources: responder_max,
                    initiator_depth: initiator_max,
                    retry_count: 7,
                    rnr_retry_count: 7,
                    srq: false,
                    qp_num: 0,
                });
            };
            // Datagrams have no depths: what stands there means nothing.
            let bounded = |wanted: u8, max: u8| match wanted {
                _ if is_datagram => Ok(0),
                u8::MAX => Ok(max),
                wanted if wanted > LIMITS.max_rd_atomic => Err(Errno::INVALID),
                wanted => Ok(wanted),
            };
            Ok(Parameters {
                private_data: bytes(given.private_data, given.private_data_len),
                responder_resources: bounded(given.responder_resources, responder_max)?,
                initiator_depth: bounded(given.initiator_depth, initiator_max)?,
                retry_count: given.retry_count.min(7),
                rnr_retry_count: given.rnr_retry_count.min(7),
                srq: given.srq != 0,
                qp_num: given.qp_num,
            })
        }
    }

    /// The queue pair of the identifier, or else the one that the program names.
    unsafe fn queue_pair(&self, id: &Id) -> (Qpn, bool) {
        // SAFETY: the program's identifier and queue pair.
        unsafe {
            match (*id.c()).qp.as_ref() {
                Some(qp) => (Qpn::new(qp.qp_num), !qp.srq.is_null()),
                None => (Qpn::new(self.qp_num), self.srq),
            }
        }
    }
}

/// A connection needs a queue pair: the identifier's, or one that the parameters name.
unsafe fn has_queue_pair_or_parameters(
    id: &Id,
    given: *const rdma_conn_param,
) -> Result<(), Errno> {
    // SAFETY: the caller's identifier.
    if given.is_null() && id.space() == RDMA_PS_TCP && unsafe { (*id.c()).qp.is_null() } {
        return Err(Errno::INVALID);
    }
    Ok(())
}

unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() {
        return &[];
    }
    // SAFETY: the caller's data.
    unsafe { std::slice::from_raw_parts(data.cast(), usize::from(length)) }
}

/// Between which addresses an identifier's messages go.
fn route(state: &State) -> Result<(Route, Option<IpAddressing>), Errno> {
    let (Some(source), Some(destination)) = (state.source, state.destination) else {
        return Err(Errno::INVALID);
    };
    let route = Route {
        local: Gid::from(source.ip()),
        remote: Gid::from(destination.ip()),
        traffic_class: state.options.tos,
    };
    let addressing = IpAddressing::new(source.ip(), source.port(), destination.ip());
    Ok((route, addressing))
}

/// `rdma_connect(3)`.
pub unsafe fn connect(raw: *mut rdma_cm_id, given: *mut rdma_conn_param) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and parameters.
    let (id, parameters) = unsafe {
        let most = LIMITS.max_rd_atomic;
        let id = Id::ours(raw)?;
        has_queue_pair_or_parameters(id, given)?;
        (id, Parameters::read(given, id.is_datagram(), most, most)?)
    };
    let mut state = id.state();
    if state.phase != Phase::RouteResolved {
        return Err(Errno::INVALID);
    }
    let (Some(place), Some(destination)) = (state.place.clone(), state.destination) else {
        return Err(Errno::INVALID);
    };
    let (route, addressing) = route(&state)?;
    let service_id = service(id, &destination);
    if id.is_datagram() {
        let wanted = Resolve {
            route,
            service_id,
            addressing,
            private_data: parameters.private_data,
        };
        let resolution = place
            .device
            .cm_resolve(&wanted, &state.channel, id.cookie())?;
        state.resolution = Some(resolution);
    } else {
        // SAFETY: the caller's queue pair.
        let (qpn, srq) = unsafe { parameters.queue_pair(id) };
        let path_mtu = place
            .device
            .path_mtu_to(route.local.to_ip(), route.remote.to_ip());
        let wanted = Connect {
            route,
            service_id,
            transport: id.transport(),
            qpn,
            psn: state.psn,
            path_mtu,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            srq,
            ack_timeout: ack_timeout(&state.options),
            flow_label: 0,
            addressing,
            private_data: parameters.private_data,
        };
        let connection = place
            .device
            .cm_connect(&wanted, &state.channel, id.cookie())?;
        state.connection = Some(connection);
        state.peer = Some(Peer {
            qpn: Qpn::new(0),
            psn: state.psn,
            path_mtu,
            responder_resources: parameters.responder_resources,
            initiator_depth: parameters.initiator_depth,
            retry_count: parameters.retry_count,
            rnr_retry_count: parameters.rnr_retry_count,
            ack_timeout: wanted.ack_timeout,
            flow_label: 0,
        });
    }
    state.phase = Phase::Connecting;
    drop(state);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// `rdma_accept(3)`.
pub unsafe fn accept(raw: *mut rdma_cm_id, given: *mut rdma_conn_param) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    let mut state = id.state();
    if state.phase != Phase::Requested {
        return Err(Errno::INVALID);
    }
    let place = state.place.clone().ok_or(Errno::INVALID)?;
    let offered = state.peer;
    let most = |offered: Option<u8>| offered.map_or(0, |offered| offered.min(LIMITS.max_rd_atomic));
    // SAFETY: the caller's parameters and queue pair.
    let (parameters, (qpn, srq)) = unsafe {
        has_queue_pair_or_parameters(id, given)?;
        let parameters = Parameters::read(
            given,
            id.is_datagram(),
            most(offered.map(|peer| peer.responder_resources)),
            most(offered.map(|peer| peer.initiator_depth)),
        )?;
        let queue_pair = parameters.queue_pair(id);
        (parameters, queue_pair)
    };
    if let Some(question) = state.question {
        let answer = SidrAnswer {
            status: SidrStatus::VALID,
            qpn,
            qkey: Qkey(RDMA_UDP_QKEY),
            private_data: parameters.private_data,
        };
        place.device.cm_answer(question, &answer)?;
        state.question = None;
        state.phase = Phase::Connected;
        drop(state);
        // SAFETY: the caller's identifier. There is no event to wait for.
        unsafe { super::endpoint::acknowledge(raw)? };
        return Ok(0);
    }
    let connection = state.connection.ok_or(Errno::INVALID)?;
    if parameters.private_data.len() > Rep::PRIVATE_DATA_LEN {
        // Before the queue pair moves: the program may try again.
        return Err(Errno::INVALID);
    }
    if let Some(peer) = &mut state.peer {
        peer.responder_resources = parameters.responder_resources;
        peer.initiator_depth = parameters.initiator_depth;
    }
    // SAFETY: the caller's queue pair.
    unsafe { queue_pair::ready(id, &state)? };
    let with = Accept {
        qpn,
        psn: state.psn,
        responder_resources: parameters.responder_resources,
        initiator_depth: parameters.initiator_depth,
        rnr_retry_count: parameters.rnr_retry_count,
        srq,
        private_data: parameters.private_data,
    };
    if let Err(error) = place.device.cm_accept(connection, &with) {
        // SAFETY: the caller's queue pair.
        unsafe { queue_pair::fail(id) };
        return Err(error.into());
    }
    state.phase = Phase::Accepted;
    drop(state);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// `rdma_reject(3)`.
pub unsafe fn reject(
    raw: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and data.
    let (id, data) = unsafe { (Id::ours(raw)?, bytes(data, length)) };
    refuse(id, RejReason::CONSUMER, data)
}

/// `rdma_reject_ece(3)`: the options that the peer wants for its queue pair are not known here.
pub unsafe fn reject_ece(
    raw: *mut rdma_cm_id,
    data: *const c_void,
    length: u8,
) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and data.
    let (id, data) = unsafe { (Id::ours(raw)?, bytes(data, length)) };
    refuse(id, VENDOR_OPTION_NOT_SUPPORTED, data)
}

/// Reason 35 (IBTA 12.6.7.2 of release 1.4, as the kernel names it).
const VENDOR_OPTION_NOT_SUPPORTED: RejReason = RejReason(35);

fn refuse(id: &Id, reason: RejReason, data: &[u8]) -> Result<c_int, Errno> {
    let mut state = id.state();
    let place = state.place.clone().ok_or(Errno::INVALID)?;
    if let Some(question) = state.question {
        let answer = SidrAnswer {
            status: SidrStatus::REJECTED,
            qpn: Qpn::new(0),
            qkey: Qkey(0),
            private_data: data,
        };
        place.device.cm_answer(question, &answer)?;
        state.question = None;
    } else {
        let connection = state.connection.ok_or(Errno::INVALID)?;
        place.device.cm_reject(connection, reason, data)?;
    }
    state.phase = Phase::Ended;
    Ok(0)
}

/// `rdma_disconnect(3)`: what was posted leaves; then the queue pair goes to ERROR, and the peer is
/// told. The event comes when it has answered; where it has disconnected already, there is nothing
/// more to do.
pub unsafe fn disconnect(raw: *mut rdma_cm_id) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    let state = id.state();
    let (phase, place, connection) = (state.phase, state.place.clone(), state.connection);
    drop(state);
    let begun = match phase {
        // The connection failed, or has ended: the kernel reports no error either.
        Phase::Ended => false,
        Phase::Connected | Phase::Accepted | Phase::Responded => true,
        Phase::Idle
        | Phase::Bound
        | Phase::Resolving
        | Phase::AddressResolved
        | Phase::RouteResolved
        | Phase::Listening
        | Phase::Connecting
        | Phase::Requested => return Err(Errno::INVALID),
    };
    // SAFETY: the caller's queue pair.
    unsafe {
        if begun {
            queue_pair::finish(id);
        }
        queue_pair::fail(id);
    }
    let (true, Some(place), Some(connection)) = (begun, place, connection) else {
        return Ok(0);
    };
    let told = place.device.cm_disconnect(connection, &[]);
    if told.is_err() && phase == Phase::Responded {
        // No event reported the connection, so none reports its end: the kernel does the same.
        return Ok(0);
    }
    // The peer may have been faster: its event is on the way.
    drop(told);
    // SAFETY: the caller's identifier.
    unsafe { complete(raw) }
}

/// `rdma_establish(3)`: the program has moved its queue pair itself, and tells the peer that
/// accepted.
pub unsafe fn establish(raw: *mut rdma_cm_id) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    unsafe {
        let id = Id::ours(raw)?;
        if !(*raw).qp.is_null() {
            return Err(Errno::INVALID);
        }
        let mut state = id.state();
        let (Phase::Responded, Some(place), Some(connection)) =
            (state.phase, state.place.clone(), state.connection)
        else {
            return Err(Errno::INVALID);
        };
        place.device.cm_ready(connection, &[])?;
        state.phase = Phase::Connected;
    }
    Ok(0)
}

/// `rdma_notify(3)`: data has come before the peer's last message, so there is a connection.
pub unsafe fn notify(raw: *mut rdma_cm_id, event: u32) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    let id = unsafe { Id::ours(raw)? };
    let state = id.state();
    if event != crate::abi::IBV_EVENT_COMM_EST {
        return Err(Errno::INVALID);
    }
    let (Some(place), Some(connection)) = (state.place.clone(), state.connection) else {
        return Err(Errno::INVALID);
    };
    place.device.cm_data_arrived(connection)?;
    Ok(0)
}

/// `rdma_set_local_ece(3)`: enhanced connection establishment is about vendors' hardware; there is
/// nothing to offer.
pub unsafe fn set_local_ece(raw: *mut rdma_cm_id, ece: *mut ibv_ece) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier.
    unsafe { Id::of(raw)? };
    if ece.is_null() {
        return Err(Errno::INVALID);
    }
    Ok(0)
}

/// `rdma_get_remote_ece(3)`: all zero, which is none.
pub unsafe fn get_remote_ece(raw: *mut rdma_cm_id, ece: *mut ibv_ece) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and struct; all zeros is a valid one.
    unsafe {
        Id::of(raw)?;
        if ece.is_null() {
            return Err(Errno::INVALID);
        }
        ece.write_bytes(0, 1);
    }
    Ok(0)
}

/// Peers are told when the program ends, as the kernel would.
pub fn end_connections_at_exit() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a plain function of this library, which is never unloaded: it is preloaded or
        // linked. Without room for one more handler peers find out by themselves.
        unsafe { libc::atexit(at_exit) };
    });
}

extern "C" fn at_exit() {
    let told = std::panic::catch_unwind(|| {
        for device in devices::opened() {
            device.cm_exit();
        }
    });
    // No channel is left for its events.
    drop(told);
}
