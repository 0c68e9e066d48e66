//! Identifiers (`rdma_cm_id`): the socket of RDMA CM.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::offset_of;
use std::net::SocketAddr;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use airdma_engine as engine;
use airdma_engine::cm_protocol::{
    ConnectionId, Event, ListenerId, SidrId, Takes, TransportService,
};
use airdma_engine::{CmChannel, CmNews, PathMtu, Psn, Qpn};
use airdma_preload::Process;

use super::abi::*;
use super::addrinfo_event::Written;
use super::channel::{self, Channel};
use super::devices::{self, CmaDevice, Place};
use super::multicast::Membership;
use super::{address, arrivals, connect, ports, removal, resolver};
use crate::abi::{
    IBV_QPT_RC, IBV_QPT_UC, IBV_QPT_UD, IBV_QPT_XRC_RECV, IBV_QPT_XRC_SEND, ibv_pd,
    ibv_qp_init_attr, ibv_qp_type, ibv_sa_path_rec,
};
use crate::errno::Errno;
use crate::live::{self, Affiliated};
use crate::object::{Object, zeroed};

/// What lies behind the public struct in librdmacm, whose rsockets look at it (their `struct
/// cma_id_private` has begun like this from rdma-core 34 on). The rest of it, a condition variable,
/// a mutex, pointers and numbers, is all zero here, with room for more: functions of a newer
/// librdmacm that this library has not find what a new identifier has.
#[repr(C)]
pub struct Tail {
    cma_dev: *const CmaDevice,
    connect: *mut c_void,
    connect_len: usize,
    events_completed: u32,
    connect_error: c_int,
    sync: c_int,
    rest: [u64; REST_WORDS],
}

/// rdma-core 65 has about 24.
const REST_WORDS: usize = 64;

/// An identifier.
#[repr(C)]
pub struct Id {
    c: UnsafeCell<rdma_cm_id>,
    tail: UnsafeCell<Tail>,
    cookie: u64,
    events: Arc<Affiliated>,
    process: Process,
    state: Mutex<State>,
}

const _: () = assert!(offset_of!(Id, tail) == size_of::<rdma_cm_id>());
const _: () = assert!(offset_of!(Tail, sync) == 32);

// SAFETY: `c` is the first field.
unsafe impl Object for Id {
    type C = rdma_cm_id;
}

/// The phase of an identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Without an address.
    Idle,
    /// With a local address.
    Bound,
    /// Waiting for the neighbour of its remote address.
    Resolving,
    /// With a local and a remote address.
    AddressResolved,
    /// Ready to connect.
    RouteResolved,
    /// Taking requests.
    Listening,
    /// A connection was requested from the peer.
    Connecting,
    /// The peer has requested a connection.
    Requested,
    /// The peer has accepted; the program moves its queue pair itself.
    Responded,
    /// The request of the peer was accepted.
    Accepted,
    /// Connected.
    Connected,
    /// The connection has ended, or was refused.
    Ended,
}

/// A listener at one device.
pub struct Listening {
    /// The number that its requests carry.
    pub cookie: u64,
    /// The device.
    pub device: Arc<engine::Device>,
    /// The listener of that device.
    pub listener: ListenerId,
}

/// The options of an identifier (`rdma_set_option(3)`).
#[derive(Clone, Copy, Default)]
pub struct Options {
    /// Type of service.
    pub tos: u8,
    /// Other identifiers may have the same port.
    pub reuse: bool,
    /// A wildcard address stands for those of its own family only, as with `IPV6_V6ONLY`.
    pub own_family: bool,
    /// Local ACK timeout, 4.096 us * 2^code.
    pub ack_timeout: Option<u8>,
}

/// The parameters of the other end, as they apply to this one.
#[derive(Clone, Copy)]
pub struct Peer {
    /// Its queue pair.
    pub qpn: Qpn,
    /// First PSN that this end sends.
    pub psn: Psn,
    /// Largest packet.
    pub path_mtu: PathMtu,
    /// READ and atomic requests that this end answers at a time.
    pub responder_resources: u8,
    /// READ and atomic requests that this end has in flight at most.
    pub initiator_depth: u8,
    /// Repetitions without acknowledgement.
    pub retry_count: u8,
    /// Repetitions after an RNR NAK.
    pub rnr_retry_count: u8,
    /// Local ACK timeout.
    pub ack_timeout: u8,
    /// Flow label of the path.
    pub flow_label: u32,
}

/// The outcome of address resolution.
pub struct Resolved {
    /// The device.
    pub place: Place,
    /// Local address, without port.
    pub source: SocketAddr,
    /// Remote address and port.
    pub destination: SocketAddr,
}

/// The domain and queue pair of an endpoint's new connections: `rdma_create_ep(3)`.
#[derive(Clone, Copy)]
pub struct Template {
    /// The protection domain.
    pub pd: *mut ibv_pd,
    /// The attributes of the queue pair.
    pub init: ibv_qp_init_attr,
}

/// The mutable state of an identifier.
pub struct State {
    /// Its phase.
    pub phase: Phase,
    /// The channel of its events.
    pub channel: Arc<CmChannel>,
    /// Its device.
    pub place: Option<Place>,
    /// The result of an address resolution in progress.
    pub resolving: Option<Resolved>,
    /// Local address and port.
    pub source: Option<SocketAddr>,
    /// Remote address and port.
    pub destination: Option<SocketAddr>,
    /// The local port is held in [`ports`].
    pub holds_port: bool,
    /// Its options.
    pub options: Options,
    /// Its connection.
    pub connection: Option<ConnectionId>,
    /// The request by which it asks for a datagram service.
    pub resolution: Option<SidrId>,
    /// A peer asks for a datagram service, and waits for the answer.
    pub question: Option<SidrId>,
    /// Its listeners.
    pub listeners: Vec<Listening>,
    /// Most requests that wait at each listener.
    pub backlog: usize,
    /// The parameters of the other end, once they are known.
    pub peer: Option<Peer>,
    /// First PSN that the peer sends.
    pub psn: Psn,
    /// Groups that it has joined.
    pub groups: Vec<Membership>,
    /// Number of joins.
    pub joins: u32,
    /// The template of an endpoint's new connections.
    pub template: Option<Template>,
    /// Resolved address information, and the program's own events.
    pub written: Written,
    path: Option<Box<ibv_sa_path_rec>>,
}

// SAFETY: the pointers go to C, which says which thread uses what.
unsafe impl Send for State {}

impl Id {
    /// The identifier behind a C pointer, for calls that use it.
    ///
    /// # Errors
    /// `EINVAL` for NULL; `ENODEV` in a child after fork.
    ///
    /// # Safety
    /// As for [`Object::of`].
    pub unsafe fn ours<'a>(raw: *mut rdma_cm_id) -> Result<&'a Id, Errno> {
        // SAFETY: the caller's promise.
        let id = unsafe { Id::of(raw)? };
        if !id.process.is_current() {
            return Err(engine::Error::Forked.into());
        }
        Ok(id)
    }

    /// The number that its events carry.
    pub fn cookie(&self) -> u64 {
        self.cookie
    }

    /// Events that the program has fetched.
    pub fn events(&self) -> &Arc<Affiliated> {
        &self.events
    }

    /// Its mutable state, locked.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The struct that C sees. Programs read and write it as they like.
    pub fn c(&self) -> *mut rdma_cm_id {
        self.c.get()
    }

    /// Whether calls wait for their events: there is no channel of the program's.
    pub fn is_synchronous(&self) -> bool {
        // SAFETY: only `migrate` writes it, whom the program does not call beside other calls.
        unsafe { (*self.tail.get()).sync != 0 }
    }

    /// Port space.
    pub fn space(&self) -> rdma_port_space {
        // SAFETY: set at the creation.
        unsafe { (*self.c()).ps }
    }

    /// The kind of its connections.
    pub fn transport(&self) -> TransportService {
        // SAFETY: as below.
        match unsafe { (*self.c()).qp_type } {
            IBV_QPT_XRC_SEND | IBV_QPT_XRC_RECV => TransportService::Extended,
            IBV_QPT_UC => TransportService::Uc,
            _ => TransportService::Rc,
        }
    }

    /// What it takes as a listener.
    pub fn takes(&self) -> Takes {
        if self.is_datagram() {
            Takes::Datagrams
        } else {
            Takes::Connections(self.transport())
        }
    }

    /// Whether it is about datagrams.
    pub fn is_datagram(&self) -> bool {
        // SAFETY: as above; `rdma_create_ep` sets it once.
        unsafe { (*self.c()).qp_type == IBV_QPT_UD }
    }

    /// The identifier belongs to a device from now on, and to the device's default domain, which
    /// the inline functions of `rdma_verbs.h` use.
    ///
    /// # Errors
    /// `ENOMEM`.
    pub fn settle(&self, state: &mut State, place: Place) -> Result<(), Errno> {
        let pd = devices::default_domain(place.verbs)?;
        // SAFETY: fields of ours to write.
        unsafe {
            (*self.c()).verbs = place.verbs;
            (*self.c()).pd = pd;
            (*self.c()).port_num = 1;
            (*self.tail.get()).cma_dev = place.cma;
        }
        state.place = Some(place);
        Ok(())
    }

    /// Shows C what the addresses and the path are.
    pub fn show_route(&self, state: &mut State) {
        // SAFETY: fields of ours to write; the record lives until it is replaced or the identifier
        // goes.
        unsafe {
            let route = &mut (*self.c()).route;
            if let Some(source) = &state.source {
                route.addr.src = address::to_c(source);
                route.addr.ibaddr.sgid.raw = gid_of(source);
            }
            if let Some(destination) = &state.destination {
                route.addr.dst = address::to_c(destination);
                route.addr.ibaddr.dgid.raw = gid_of(destination);
            }
            route.addr.ibaddr.pkey = PKEY.to_be();
        }
    }

    /// Shows C the path.
    pub fn show_path(&self, state: &mut State) {
        // SAFETY: integers and unions of bytes.
        let mut path: Box<ibv_sa_path_rec> = Box::new(unsafe { zeroed() });
        if let (Some(source), Some(destination)) = (&state.source, &state.destination) {
            path.sgid.raw = gid_of(source);
            path.dgid.raw = gid_of(destination);
        }
        path.hop_limit = connect::HOP_LIMIT;
        path.traffic_class = state.options.tos;
        path.reversible = 1;
        path.numb_path = 1;
        path.pkey = PKEY.to_be();
        path.mtu_selector = EXACTLY;
        let place = state.place.as_ref();
        let mtu = place.map(|place| match (&state.source, &state.destination) {
            (Some(source), Some(destination)) => {
                place.device.path_mtu_to(source.ip(), destination.ip())
            }
            (Some(_), None) | (None, _) => place.device.current().path_mtu,
        });
        path.mtu = mtu.map_or(0, |mtu| mtu as u8);
        path.rate_selector = EXACTLY;
        path.rate = RATE_10_GBPS;
        path.packet_life_time_selector = EXACTLY;
        path.packet_life_time = connect::ack_timeout(&state.options) - 1;
        // SAFETY: as in `show_route`.
        unsafe {
            let route = &mut (*self.c()).route;
            route.path_rec = &raw mut *path;
            route.num_paths = 1;
        }
        state.path = Some(path);
    }

    /// Notes why a connection failed, where rsockets look for it.
    pub fn note_connect_error(&self, status: c_int) {
        // SAFETY: a field of ours to write.
        unsafe { (*self.tail.get()).connect_error = status }
    }
}

const PKEY: u16 = 0xffff;
const EXACTLY: u8 = 2;
const RATE_10_GBPS: u8 = 3;

fn gid_of(address: &SocketAddr) -> [u8; 16] {
    engine::Gid::from(address.ip()).0
}

/// `rdma_create_id(3)`.
pub unsafe fn create(
    raw_channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    space: rdma_port_space,
) -> Result<c_int, Errno> {
    let qp_type = type_of(space)?;
    if out.is_null() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's channel and place.
    unsafe { out.write(make(raw_channel, context, space, qp_type)?) };
    Ok(0)
}

/// The kind of queue pairs that a port space has.
///
/// # Errors
/// `EINVAL` for a port space that there is not.
pub fn type_of(space: rdma_port_space) -> Result<ibv_qp_type, Errno> {
    match space {
        RDMA_PS_TCP | RDMA_PS_IB => Ok(IBV_QPT_RC),
        RDMA_PS_UDP | RDMA_PS_IPOIB => Ok(IBV_QPT_UD),
        _ => Err(Errno::INVALID),
    }
}

/// A new identifier; without channel it gets one of its own, and its calls wait.
pub unsafe fn make(
    raw_channel: *mut rdma_event_channel,
    context: *mut c_void,
    space: rdma_port_space,
    qp_type: ibv_qp_type,
) -> Result<*mut rdma_cm_id, Errno> {
    connect::end_connections_at_exit();
    let is_synchronous = raw_channel.is_null();
    // SAFETY: the caller's channel, or one of ours.
    let (raw_channel, channel) = unsafe {
        let raw = if is_synchronous {
            channel::create()?
        } else {
            raw_channel
        };
        (raw, Arc::clone(Channel::ours(raw)?))
    };
    // SAFETY: integers, raw pointers, unions of integers.
    let mut c: rdma_cm_id = unsafe { zeroed() };
    c.channel = raw_channel;
    c.context = context;
    c.ps = space;
    c.qp_type = qp_type;
    let cookie = live::number();
    let events = Arc::new(Affiliated::default());
    let raw = Box::new(Id {
        c: UnsafeCell::new(c),
        tail: UnsafeCell::new(Tail {
            cma_dev: ptr::null(),
            connect: ptr::null_mut(),
            connect_len: 0,
            events_completed: 0,
            connect_error: 0,
            sync: c_int::from(is_synchronous),
            rest: [0; REST_WORDS],
        }),
        cookie,
        events: Arc::clone(&events),
        process: Process::current(),
        state: Mutex::new(State {
            phase: Phase::Idle,
            channel,
            place: None,
            resolving: None,
            source: None,
            destination: None,
            holds_port: false,
            options: Options::default(),
            connection: None,
            resolution: None,
            question: None,
            listeners: Vec::new(),
            backlog: 0,
            peer: None,
            psn: Psn::new(engine::random_u32()),
            groups: Vec::new(),
            joins: 0,
            template: None,
            written: Written::default(),
            path: None,
        }),
    })
    .into_raw();
    if let Some(object) = NonNull::new(raw) {
        live::enter(cookie, object, &events);
        removal::enter(cookie);
    }
    Ok(raw)
}

/// `rdma_destroy_id(3)`: ends what there is, and waits for outstanding acknowledgements. The queue
/// pair stays: it is the program's to destroy first.
pub unsafe fn destroy(raw: *mut rdma_cm_id) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier, given back here.
    unsafe {
        let id = Id::of(raw)?;
        // A child has nothing to end, and must not wait for threads that it has not got.
        if id.process.is_current() {
            live::leave(id.cookie);
            removal::leave(id.cookie);
            if !(*raw).event.is_null() {
                channel::ack((*raw).event)?;
                (*raw).event = ptr::null_mut();
            }
            end(id);
            id.events.wait_acknowledged();
        }
        let id = Id::take(raw);
        if id.is_synchronous() {
            channel::destroy((*id.c()).channel);
        }
        drop(id);
    }
    Ok(0)
}

/// Ends what an identifier is part of.
fn end(id: &Id) {
    let mut state = id.state();
    let channel = Arc::clone(&state.channel);
    if state.resolving.take().is_some() {
        resolver::cancel(id.cookie);
    }
    if state.phase == Phase::Listening {
        arrivals::forget(id.cookie);
    }
    state.phase = Phase::Ended;
    for listening in state.listeners.drain(..) {
        connect::stop_listening(&channel, &listening);
    }
    if let Some(place) = &state.place {
        if let Some(connection) = state.connection {
            place.device.cm_destroy(connection);
        }
        if let Some(question) = state.resolution.or(state.question) {
            place.device.cm_forget(question);
        }
    }
    state.connection = None;
    state.resolution = None;
    state.question = None;
    state.groups.clear();
    // Events that wait for the identifier have no object any more.
    drop(channel.take(id.cookie));
    if let Some(source) = state.source.filter(|_| state.holds_port) {
        ports::give_back(id.space(), source.port(), id.cookie);
    }
}

/// A request that the program will not see.
pub fn refuse_unseen(device: &engine::Device, news: CmNews) {
    match news {
        CmNews::Event(Event::ConnectRequest(request)) => device.cm_destroy(request.id),
        CmNews::Event(Event::SidrRequest(request)) => device.cm_forget(request.id),
        CmNews::Event(_) | CmNews::Own(_) => {}
    }
}

/// `rdma_migrate_id(3)`: events go to another channel from now on; without one, calls wait.
pub unsafe fn migrate(raw: *mut rdma_cm_id, to: *mut rdma_event_channel) -> Result<c_int, Errno> {
    // SAFETY: the caller's identifier and channel; its own if it had none.
    unsafe {
        let id = Id::ours(raw)?;
        if id.is_synchronous() && !(*raw).event.is_null() {
            channel::ack((*raw).event)?;
            (*raw).event = ptr::null_mut();
        }
        let becomes_synchronous = to.is_null();
        let to = if becomes_synchronous {
            channel::create()?
        } else {
            to
        };
        let channel = Arc::clone(Channel::ours(to)?);
        redirect(id, channel);
        let was_synchronous = id.is_synchronous();
        let former = std::mem::replace(&mut (*raw).channel, to);
        (*id.tail.get()).sync = c_int::from(becomes_synchronous);
        if was_synchronous {
            channel::destroy(former);
        }
        // As in rdma-core's library: what was fetched through the old channel is acknowledged when
        // this returns.
        id.events.wait_acknowledged();
    }
    Ok(0)
}

/// Whatever will come for an identifier, and what waits for it, comes through another channel. What
/// is over has no more events.
fn redirect(id: &Id, channel: Arc<CmChannel>) {
    let mut state = id.state();
    for listening in &state.listeners {
        let device = &listening.device;
        drop(device.cm_move_listener(listening.listener, &channel));
        state.channel.move_to(&channel, listening.cookie);
    }
    if let Some(place) = &state.place {
        if let Some(connection) = state.connection {
            drop(place.device.cm_hand_over(connection, &channel, id.cookie));
        }
        if let Some(resolution) = state.resolution {
            drop(place.device.cm_move_resolution(resolution, &channel));
        }
    }
    if state.resolving.is_some() {
        resolver::move_to(id.cookie, &channel);
    }
    state.channel.move_to(&channel, id.cookie);
    state.channel = channel;
}
