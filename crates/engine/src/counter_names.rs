//! The names of all counters of a device, in the order of their values.

use airdma_cm as cm;
use airdma_port::PortCounters;
use airdma_transport::Counter;
use std::sync::OnceLock;

/// Why the engine itself dropped a packet, or what else it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EngineCounter {
    DropTruncated,
    DropUnknownOpcode,
    DropUnknownQp,
    DropBadSource,
    RxMisrouted,
    CqOverruns,
    WindowDecreases,
    PortFailures,
    /// Messages between airdma hosts from unknown senders, late, or malformed.
    DropAir,
    /// Peers that agreed on more than RoCEv2.
    AirAgreed,
    AirReportsSent,
    AirReportsReceived,
    /// Congestion notification packets sent.
    CnpsSent,
    /// Times that bundles to a peer were abandoned because of losses.
    AirBundlesStopped,
    /// Packets to a connection that seals, not sealed, forged or replayed; offers of keys that do
    /// not count.
    DropUnsealed,
    /// Connections that agreed on keys.
    SealsAgreed,
    /// Packets to send that waited too long for the keys of their connection, and sealed packets
    /// that arrived before the keys.
    DropUnkeyed,
}

const ENGINE_NAMES: [&str; 17] = [
    "drop_truncated",
    "drop_unknown_opcode",
    "drop_unknown_qp",
    "drop_bad_source",
    "rx_misrouted",
    "cq_overruns",
    "window_decreases",
    "port_failures",
    "drop_air",
    "air_agreed",
    "air_reports_sent",
    "air_reports_received",
    "cnps_sent",
    "air_bundles_stopped",
    "drop_unsealed",
    "seals_agreed",
    "drop_unkeyed",
];
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
            .into_iter()
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
