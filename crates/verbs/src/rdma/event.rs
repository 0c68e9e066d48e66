//! The engine's events of connections as events of C: `rdma_get_cm_event(3)`.

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::ptr;

use airdma_engine::cm_protocol::{
    ConnectRequest, ConnectResponse, Event as Said, IpAddressing, RejReason, SidrRequest,
    SidrResponse, SidrStatus,
};
use airdma_engine::{CmNews, CmWait, Gid, LIMITS, Path};

use super::abi::*;
use super::channel::{Channel, Event, NO_PARAMETERS};
use super::id::{self, Id, Peer, Phase};
use super::{connect, devices, multicast, queue_pair, resolve};
use crate::address as handles;
use crate::blocking::{self, Attempt, Wait};
use crate::errno::Errno;
use crate::live;
use crate::object::Object;

/// One attempt of `rdma_get_cm_event(3)`, which blocks unless the channel's descriptor has
/// `O_NONBLOCK`. `slept` is what `ppoll(2)` said since the last attempt.
pub unsafe fn get(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_event,
    slept: Option<c_int>,
) -> Attempt {
    let new = || {
        // SAFETY: the caller's channel.
        let channel = unsafe { Channel::of(channel) }?;
        if out.is_null() {
            return Err(Errno::INVALID);
        }
        Ok(Wait::Connection(CmWait::new(channel.engine())))
    };
    blocking::attempt(slept, new, Wait::connection, |(cookie, news)| {
        // SAFETY: the program's identifiers and queue pairs.
        let Some(event) = (unsafe { translate(cookie, news) }) else {
            return false;
        };
        // SAFETY: the caller's place.
        unsafe { out.write(event) };
        true
    })
}

/// The C event, counted for its identifier; `None` if that is gone, or if there is nothing to tell.
pub unsafe fn translate(cookie: u64, news: CmNews) -> Option<*mut rdma_cm_event> {
    let raw = live::deliver::<rdma_cm_id>(cookie, |events| events.completion.deliver())?;
    // SAFETY: it waits for the acknowledgement from now on.
    unsafe {
        let id = Id::of(raw.as_ptr()).ok()?;
        let event = match news {
            CmNews::Own(number) => own(id, number),
            CmNews::Event(said) => told(id, cookie, said),
        };
        if event.is_none() {
            id.events().completion.acknowledge(1);
        }
        event
    }
}

unsafe fn own(id: &Id, number: u32) -> Option<*mut rdma_cm_event> {
    if let Some(group) = multicast::group_of(number) {
        // SAFETY: the program's queue pair.
        return unsafe { multicast::joined(id, group) };
    }
    if number == RDMA_CM_EVENT_USER {
        let (status, arg) = id.state().written.next_user_event();
        let mut event = Event::plain(id.c(), number, status);
        event.param.arg = arg;
        return Some(Event::hand_out(event, Vec::new()));
    }
    let (number, status) = match number {
        RDMA_CM_EVENT_ADDR_RESOLVED => match resolve::address_resolved(id) {
            Ok(()) => (number, 0),
            Err(errno) => {
                resolve::address_unresolved(id);
                (RDMA_CM_EVENT_ADDR_ERROR, -errno.0)
            }
        },
        RDMA_CM_EVENT_ADDR_ERROR => {
            resolve::address_unresolved(id);
            (number, -libc::ETIMEDOUT)
        }
        RDMA_CM_EVENT_DEVICE_REMOVAL => {
            over(id);
            (number, 0)
        }
        _ => (number, 0),
    };
    Some(Event::hand_out(
        Event::plain(id.c(), number, status),
        Vec::new(),
    ))
}

unsafe fn told(id: &Id, cookie: u64, said: Said) -> Option<*mut rdma_cm_event> {
    let plain = |event, status| {
        Some(Event::hand_out(
            Event::plain(id.c(), event, status),
            Vec::new(),
        ))
    };
    let is_request = matches!(said, Said::ConnectRequest(_) | Said::SidrRequest(_));
    if cookie != id.cookie() && !is_request {
        // A listener has no events but requests.
        return None;
    }
    // SAFETY: the program's identifiers and queue pairs.
    unsafe {
        match said {
            Said::ConnectRequest(request) => requested(id, cookie, *request),
            Said::SidrRequest(request) => asked(id, cookie, *request),
            Said::ConnectResponse(response) => responded(id, *response),
            Said::Established { .. } => {
                id.state().phase = Phase::Connected;
                plain(RDMA_CM_EVENT_ESTABLISHED, 0)
            }
            Said::Rejected {
                reason,
                private_data,
                ..
            } => {
                over(id);
                queue_pair::fail(id);
                id.note_connect_error(libc::ECONNREFUSED);
                let event = Event::plain(id.c(), RDMA_CM_EVENT_REJECTED, c_int::from(reason.0));
                Some(Event::hand_out(event, private_data))
            }
            Said::Unreachable { .. } | Said::SidrUnreachable { .. } => {
                id.state().resolution = None;
                over(id);
                queue_pair::fail(id);
                id.note_connect_error(libc::ETIMEDOUT);
                plain(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT)
            }
            Said::Disconnected { .. } => {
                id.state().phase = Phase::Ended;
                plain(RDMA_CM_EVENT_DISCONNECTED, 0)
            }
            Said::TimewaitExit { .. } => {
                over(id);
                plain(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0)
            }
            Said::SidrResponse(response) => answered(id, *response),
            // The program has not seen the question.
            Said::SidrWithdrawn { .. } => None,
        }
    }
}

/// The engine's connection is gone.
fn over(id: &Id) {
    let mut state = id.state();
    state.phase = Phase::Ended;
    state.connection = None;
}

/// A new identifier for a request that `listener` took.
unsafe fn new_id(
    listener: &Id,
    cookie: u64,
    local: Gid,
    ends: (SocketAddr, SocketAddr),
) -> Result<*mut rdma_cm_id, Errno> {
    let interface = interface_of(listener, cookie).ok_or(Errno::INVALID)?;
    let place = devices::of_address(local.to_ip(), interface)?;
    // SAFETY: the listener's fields.
    unsafe {
        let of = &*listener.c();
        let raw = id::make(of.channel, of.context, of.ps, of.qp_type)?;
        let id = Id::of(raw)?;
        let mut state = id.state();
        let (source, destination) = ends;
        state.source = Some(source);
        state.destination = Some(destination);
        state.phase = Phase::Requested;
        let settled = id.settle(&mut state, place);
        id.show_route(&mut state);
        id.show_path(&mut state);
        drop(state);
        if let Err(errno) = settled {
            let _ = id::destroy(raw);
            return Err(errno);
        }
        Ok(raw)
    }
}

/// Takes back what a request has made so far, and refuses it.
fn drop_request(listener: &Id, cookie: u64, news: CmNews) {
    let state = listener.state();
    if let Some(listening) = state.listeners.iter().find(|one| one.cookie == cookie) {
        id::refuse_unseen(&listening.device, news);
    }
}

unsafe fn requested(
    listener: &Id,
    cookie: u64,
    request: ConnectRequest,
) -> Option<*mut rdma_cm_event> {
    let refuse = |request: ConnectRequest| {
        drop_request(
            listener,
            cookie,
            CmNews::Event(Said::ConnectRequest(Box::new(request))),
        );
        None
    };
    let ends = ends_of(listener, cookie, request.route.local, request.addressing);
    let Some(ends) = ends else {
        return refuse(request);
    };
    // SAFETY: the program's listener.
    unsafe {
        let Ok(raw) = new_id(listener, cookie, request.route.local, ends) else {
            return refuse(request);
        };
        let id = Id::of(raw).ok()?;
        let mut state = id.state();
        state.connection = Some(request.id);
        state.options.tos = request.route.traffic_class;
        let peer = offered(&request);
        state.peer = Some(peer);
        let device = state.place.as_ref().map(|place| place.device.clone());
        let (channel, own_cookie) = (state.channel.clone(), id.cookie());
        drop(state);
        if let Some(device) = device
            && device
                .cm_hand_over(request.id, &channel, own_cookie)
                .is_err()
        {
            // The peer gave up meanwhile. As with the kernel, the event that was announced comes,
            // and accepting fails.
            id.state().connection = None;
        }
        let mut event = Event::plain(raw, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        event.listen_id = listener.c();
        event.param.conn = rdma_conn_param {
            responder_resources: peer.responder_resources,
            initiator_depth: peer.initiator_depth,
            retry_count: peer.retry_count,
            rnr_retry_count: peer.rnr_retry_count,
            srq: u8::from(request.srq),
            qp_num: peer.qpn.get(),
            ..NO_PARAMETERS
        };
        Some(Event::hand_out(event, request.private_data))
    }
}

/// The offer of a request. A program may pass all of it to `rdma_accept(3)`, so it is limited to
/// what that call takes, whatever the peer wrote.
fn offered(request: &ConnectRequest) -> Peer {
    let most = LIMITS.max_rd_atomic;
    Peer {
        qpn: request.qpn,
        psn: request.psn,
        path_mtu: request.path_mtu,
        // What the peer starts we answer, and the other way round.
        responder_resources: request.initiator_depth.min(most),
        initiator_depth: request.responder_resources.min(most),
        retry_count: request.retry_count,
        rnr_retry_count: request.rnr_retry_count,
        ack_timeout: request.ack_timeout,
        flow_label: request.flow_label,
    }
}

/// Local and remote address of a request; `None` if it names another address than it came to.
fn ends_of(
    listener: &Id,
    cookie: u64,
    local: Gid,
    addressing: Option<IpAddressing>,
) -> Option<(SocketAddr, SocketAddr)> {
    let (own, addressing) = (listener.state().source?, addressing?);
    let interface = interface_of(listener, cookie)?;
    let ends = (
        with_port(addressing.dst(), own.port(), interface),
        with_port(addressing.src(), addressing.src_port(), interface),
    );
    let is_route = Gid::from(ends.0.ip()) == local;
    is_route.then_some(ends)
}

/// A link-local address means something together with its interface only.
fn with_port(ip: IpAddr, port: u16, interface: u32) -> SocketAddr {
    match ip {
        IpAddr::V6(v6) if v6.is_unicast_link_local() => {
            SocketAddrV6::new(v6, port, 0, interface).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => SocketAddr::new(ip, port),
    }
}

/// The interface at which a listener took something.
fn interface_of(listener: &Id, cookie: u64) -> Option<u32> {
    let state = listener.state();
    let listening = state.listeners.iter().find(|one| one.cookie == cookie)?;
    Some(listening.device.info().interface_index)
}

unsafe fn asked(listener: &Id, cookie: u64, request: SidrRequest) -> Option<*mut rdma_cm_event> {
    let refuse = |request: SidrRequest| {
        drop_request(
            listener,
            cookie,
            CmNews::Event(Said::SidrRequest(Box::new(request))),
        );
        None
    };
    let Some(ends) = ends_of(listener, cookie, request.route.local, request.addressing) else {
        return refuse(request);
    };
    // SAFETY: the program's listener.
    unsafe {
        let Ok(raw) = new_id(listener, cookie, request.route.local, ends) else {
            return refuse(request);
        };
        let id = Id::of(raw).ok()?;
        let mut state = id.state();
        let place = state.place.as_ref();
        // A question that gave way meanwhile cannot be answered. The event that was announced comes
        // all the same.
        if place.is_some_and(|place| place.device.cm_fetched(request.id).is_ok()) {
            state.question = Some(request.id);
        }
        drop(state);
        let mut event = Event::plain(raw, RDMA_CM_EVENT_CONNECT_REQUEST, 0);
        event.listen_id = listener.c();
        Some(Event::hand_out(event, request.private_data))
    }
}

/// The peer has accepted: the queue pair moves, and the peer is told; or the program does both.
unsafe fn responded(id: &Id, response: ConnectResponse) -> Option<*mut rdma_cm_event> {
    let mut state = id.state();
    let (Some(place), Some(connection)) = (state.place.clone(), state.connection) else {
        return None;
    };
    let (responder_resources, initiator_depth) =
        (response.initiator_depth, response.responder_resources);
    if let Some(peer) = &mut state.peer {
        peer.qpn = response.qpn;
        peer.psn = response.psn;
        // Not more than was asked for.
        peer.responder_resources = responder_resources.min(peer.responder_resources);
        peer.initiator_depth = initiator_depth.min(peer.initiator_depth);
        peer.rnr_retry_count = response.rnr_retry_count;
    }
    // SAFETY: the program's identifier and queue pair.
    unsafe {
        let has_queue_pair = !(*id.c()).qp.is_null();
        let (event, status) = if has_queue_pair {
            let moved = queue_pair::ready(id, &state);
            match moved.and_then(|()| Ok(place.device.cm_ready(connection, &[])?)) {
                Ok(()) => (RDMA_CM_EVENT_ESTABLISHED, 0),
                Err(errno) => {
                    // The peer thinks that there is a connection.
                    drop(place.device.cm_reject(connection, RejReason::CONSUMER, &[]));
                    queue_pair::fail(id);
                    id.note_connect_error(errno.0);
                    (RDMA_CM_EVENT_CONNECT_ERROR, -errno.0)
                }
            }
        } else {
            (RDMA_CM_EVENT_CONNECT_RESPONSE, 0)
        };
        state.phase = match event {
            RDMA_CM_EVENT_ESTABLISHED => Phase::Connected,
            RDMA_CM_EVENT_CONNECT_RESPONSE => Phase::Responded,
            _ => Phase::Ended,
        };
        let mut event = Event::plain(id.c(), event, status);
        event.param.conn = rdma_conn_param {
            responder_resources,
            initiator_depth,
            rnr_retry_count: response.rnr_retry_count,
            srq: u8::from(response.srq),
            qp_num: response.qpn.get(),
            ..NO_PARAMETERS
        };
        Some(Event::hand_out(event, response.private_data))
    }
}

/// The event for the answer of a datagram service.
unsafe fn answered(id: &Id, response: SidrResponse) -> Option<*mut rdma_cm_event> {
    let mut state = id.state();
    state.resolution = None;
    if response.status != SidrStatus::VALID {
        state.phase = Phase::Ended;
        let status = c_int::from(response.status.0);
        let event = Event::plain(id.c(), RDMA_CM_EVENT_UNREACHABLE, status);
        return Some(Event::hand_out(event, response.private_data));
    }
    let (place, destination) = (state.place.clone()?, state.destination?);
    state.phase = Phase::Connected;
    let mut event = Event::plain(id.c(), RDMA_CM_EVENT_ESTABLISHED, 0);
    event.param.ud = rdma_ud_param {
        private_data: ptr::null(),
        private_data_len: 0,
        ah_attr: handles::attr_of(&Path {
            gid: Gid::from(destination.ip()),
            sgid_index: place.sgid_index,
            traffic_class: state.options.tos,
            hop_limit: connect::HOP_LIMIT,
            flow_label: 0,
        }),
        qp_num: response.qpn.get(),
        qkey: response.qkey.0,
    };
    Some(Event::hand_out(event, response.private_data))
}

#[cfg(test)]
mod tests {
    use super::*;
    use airdma_engine::cm_protocol::{
        ConnectionId, ListenerId, Route, ServiceId, TransportService,
    };
    use airdma_engine::{PathMtu, Psn, Qpn};

    #[test]
    fn a_request_offers_no_more_than_can_be_accepted() {
        let gid = Gid([0; 16]);
        let greedy = ConnectRequest {
            responder_resources: 255,
            initiator_depth: 200,
            id: ConnectionId(1),
            listener: ListenerId(1),
            route: Route {
                local: gid,
                remote: gid,
                traffic_class: 0,
            },
            service_id: ServiceId(0),
            transport: TransportService::Rc,
            qpn: Qpn::new(2),
            psn: Psn::new(0),
            path_mtu: PathMtu::M1024,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 0,
            flow_label: 0,
            addressing: None,
            private_data: Vec::new(),
        };
        let peer = offered(&greedy);
        assert_eq!(peer.responder_resources, LIMITS.max_rd_atomic);
        assert_eq!(peer.initiator_depth, LIMITS.max_rd_atomic);
    }
}
