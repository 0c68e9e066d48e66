//! The names of all counters of a device, in the order of their values.

use airdma_cm as cm;
use airdma_port::PortCounters;
use airdma_transport::Counter;
use std::sync::OnceLock;

macro_rules! counters {
    (
        $(#[$about:meta])* $visibility:vis enum $counter:ident, $names:ident;
        $($(#[$doc:meta])* $variant:ident = $name:literal,)*
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $visibility enum $counter { $($(#[$doc])* $variant,)* }

        const $names: &[&str] = &[$($name,)*];
    };
}

counters! {
    /// What the library for socket programs counts.
    pub enum SocketCounter, SOCKET_NAMES;
    /// Connections that got a lane.
    Lanes = "socket_lanes",
    /// Peers that failed to prove that they hold the connection.
    Forged = "socket_peers_unproved",
    /// Bytes sent by lanes.
    Sent = "socket_tx_bytes",
    /// Bytes received by lanes.
    Received = "socket_rx_bytes",
    /// Lanes that ended because the peer or the path was gone.
    Lost = "socket_lanes_lost",
    /// Connections that were handed back to the kernel because the peer needed it.
    BackForPeer = "socket_back_for_peer",
    /// The same for a fork.
    BackForFork = "socket_back_for_fork",
    /// The same before a descriptor was closed.
    BackForClose = "socket_back_for_close",
    /// The same before one direction was shut.
    BackForShutdown = "socket_back_for_shutdown",
    /// The same at the end of a process, or before it executed another program.
    BackForExit = "socket_back_for_exit",
    /// The same for a call or an option that a lane does not have.
    BackForKernel = "socket_back_for_kernel",
    /// Lanes of datagrams, at each end.
    DatagramLanes = "socket_datagram_lanes",
    /// Datagrams sent by lanes.
    DatagramsSent = "socket_tx_datagrams",
    /// Datagrams received by lanes.
    DatagramsReceived = "socket_rx_datagrams",
    /// Notes whose datagrams did not come.
    DatagramsLost = "socket_datagrams_lost",
}

counters! {
    /// Why the engine itself dropped a packet, or what else it counts.
    pub(crate) enum EngineCounter, ENGINE_NAMES;
    /// Packets that end within a header.
    DropTruncated = "drop_truncated",
    /// Packets with an opcode of no supported service.
    DropUnknownOpcode = "drop_unknown_opcode",
    /// Packets for a queue pair number that no process here has.
    DropUnknownQp = "drop_unknown_qp",
    /// Packets that do not come from the address and port of the connection's peer.
    DropBadSource = "drop_bad_source",
    /// Packets for another process that the kernel's filter gave to this one.
    RxMisrouted = "rx_misrouted",
    /// Completion queues that overflowed.
    CqOverruns = "cq_overruns",
    /// Times that loss halved the window to a peer.
    WindowDecreases = "window_decreases",
    /// Times that a socket failed for good.
    PortFailures = "port_failures",
    /// Messages between airdma hosts from unknown senders, late, or malformed.
    DropAir = "drop_air",
    /// Peers that agreed on more than RoCEv2.
    AirAgreed = "air_agreed",
    /// Reports of air mode sent.
    AirReportsSent = "air_reports_sent",
    /// Reports of air mode received.
    AirReportsReceived = "air_reports_received",
    /// Congestion notification packets sent.
    CnpsSent = "cnps_sent",
    /// Times that bundles to a peer were abandoned because of losses.
    AirBundlesStopped = "air_bundles_stopped",
    /// Paths on which packets longer than the path MTU vanished.
    AirNarrowPaths = "air_narrow_paths",
    /// Packets to a connection that seals, not sealed, forged or replayed; offers of keys that do
    /// not count.
    DropUnsealed = "drop_unsealed",
    /// Connections that agreed on keys.
    SealsAgreed = "seals_agreed",
    /// Packets to send that waited too long for the keys of their connection, and sealed packets
    /// that arrived before the keys.
    DropUnkeyed = "drop_unkeyed",
    /// Times that a peer stopped answering while the kernel knew that packets of the path MTU do
    /// not reach it.
    NarrowPaths = "narrow_paths",
}

pub(crate) const TRANSPORT_START: usize = ENGINE_NAMES.len();
pub(crate) const CM_START: usize = TRANSPORT_START + Counter::ALL.len();
pub(crate) const PORT_START: usize = CM_START + cm::Counter::ALL.len();
/// The port's counters are a struct of nothing but `u64`.
const PORT_COUNT: usize = size_of::<PortCounters>() / size_of::<u64>();
pub(crate) const SOCKET_START: usize = PORT_START + PORT_COUNT;
/// How many counters there are.
pub(crate) const COUNT: usize = SOCKET_START + SOCKET_NAMES.len();
const _: () = assert!(COUNT <= u128::BITS as usize, "one bit for each");

/// Names of all counters, in the order of their values, which is also that of the counters file. A
/// front end may sort them for its readers.
pub(crate) fn names() -> &'static [&'static str] {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMES.get_or_init(|| {
        let transport = Counter::ALL.iter().map(|counter| counter.name());
        let port = PortCounters::default()
            .named()
            .map(|(name, _)| user_name(name));
        ENGINE_NAMES
            .iter()
            .copied()
            .chain(transport)
            .chain(cm::Counter::ALL.iter().map(|counter| counter.name()))
            .chain(port)
            .chain(SOCKET_NAMES.iter().copied())
            .collect()
    })
}

/// What a port counter is called where all drops stand together.
fn user_name(name: &'static str) -> &'static str {
    match name {
        "rx_bad_icrc" => "drop_bad_icrc",
        "rx_unasked_probes" => "drop_probe",
        "rx_short" => "drop_short",
        "rx_truncated" => "drop_oversized",
        "rx_bad_bundle" => "drop_bad_bundle",
        "rx_overflow" => "drop_overflow",
        "rx_bad_frames" => "drop_bad_frame",
        "rx_fragments" => "drop_fragment",
        "rx_stray_frames" => "drop_stray_frame",
        other => other,
    }
}
