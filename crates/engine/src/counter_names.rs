//! The names of all counters of a device, in the order of their values.

use airdma_cm as cm;
use airdma_port::PortCounters;
use airdma_transport::Counter;
use std::sync::OnceLock;

macro_rules! counters {
    ($($(#[$doc:meta])* $variant:ident = $name:literal,)*) => {
        /// Why the engine itself dropped a packet, or what else it counts.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum EngineCounter { $($(#[$doc])* $variant,)* }

        const ENGINE_NAMES: &[&str] = &[$($name,)*];
    };
}

counters! {
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
/// How many counters there are.
pub(crate) const COUNT: usize = PORT_START + PORT_COUNT;
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
