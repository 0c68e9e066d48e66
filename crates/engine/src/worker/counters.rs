//! What a worker counts, by name.
//!
//! Four sources in one list: the engine's own drops, the transport's events, those of the connection manager, the port's
//! totals. The worker counts in
//! plain memory; at the end of a round what changed is added to the file that all processes on this device share
//! ([`crate::sharing::counters_file`]).

use crate::DeviceInfo;
use crate::sharing::counters_file::CountersFile;
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
    /// Messages between airdma hosts from nobody we know, late, or malformed.
    DropAir,
    /// Peers that agreed on more than RoCEv2.
    AirAgreed,
    AirReportsSent,
    AirReportsReceived,
    /// Congestion notification packets sent.
    CnpsSent,
    /// Times that bundles to a peer were given up, for the losses.
    AirBundlesStopped,
    /// Packets to a connection that seals, not sealed, forged or replayed; offers of keys that do not count.
    DropUnsealed,
    /// Connections that agreed on keys.
    SealsAgreed,
    /// Packets of ours that had waited long enough for the keys of their connection, and sealed ones that came before them.
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
const TRANSPORT_START: usize = ENGINE_NAMES.len();
const CM_START: usize = TRANSPORT_START + Counter::ALL.len();
const PORT_START: usize = CM_START + cm::Counter::ALL.len();
/// The port's counters are a struct of nothing but `u64`.
const PORT_COUNT: usize = size_of::<PortCounters>() / size_of::<u64>();
/// How many counters there are.
pub(crate) const COUNT: usize = PORT_START + PORT_COUNT;
const _: () = assert!(COUNT <= u128::BITS as usize, "one bit for each");

/// Names of all counters, in the order of their values: packets and bytes first would be nicer to read, and that is
/// what a front end may sort by; the order here is the order of the file.
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
        other => other,
    }
}

/// The counters of one worker.
pub(crate) struct Counters {
    values: [u64; COUNT],
    flushed: [u64; COUNT],
    /// Which values changed since the last flush, one bit each.
    changed: u128,
    file: Option<CountersFile>,
}

impl Counters {
    /// Without a file the counters are known to this process only.
    pub(crate) fn new() -> Self {
        Counters {
            values: [0; COUNT],
            flushed: [0; COUNT],
            changed: 0,
            file: None,
        }
    }

    /// Shares the counters with other processes from now on.
    pub(crate) fn share(&mut self, info: &DeviceInfo) {
        self.file = CountersFile::open(info).ok();
    }

    pub(crate) fn count(&mut self, counter: EngineCounter) {
        self.add(counter as usize);
    }

    pub(crate) fn count_transport(&mut self, counter: Counter) {
        self.add(TRANSPORT_START + counter as usize);
    }

    fn add(&mut self, index: usize) {
        self.values[index] += 1;
        self.changed |= 1 << index;
    }

    /// Takes over what the connection manager has counted.
    pub(crate) fn take_cm(&mut self, manager: &cm::Manager) {
        let values = cm::Counter::ALL
            .iter()
            .map(|&counter| manager.counter(counter));
        self.take(CM_START, values);
    }

    /// Takes over the port's totals.
    pub(crate) fn take_port(&mut self, port: PortCounters) {
        self.take(PORT_START, port.named().map(|(_, now)| now));
    }

    fn take(&mut self, start: usize, values: impl Iterator<Item = u64>) {
        for (index, now) in (start..).zip(values) {
            if self.values[index] != now {
                self.values[index] = now;
                self.changed |= 1 << index;
            }
        }
    }

    /// Adds what changed to the file.
    pub(crate) fn flush(&mut self) {
        let mut changed = std::mem::take(&mut self.changed);
        while changed != 0 {
            let index = changed.trailing_zeros() as usize;
            changed &= changed - 1;
            let value = self.values[index];
            if let Some(file) = &self.file {
                file.add(index, value - self.flushed[index]);
            }
            self.flushed[index] = value;
        }
    }

    pub(crate) fn named(&self) -> Vec<(&'static str, u64)> {
        names().iter().copied().zip(self.values).collect()
    }
}

/// The counters of a device, summed over all processes of this user that used it, by name. All zero when there were
/// none. They survive the processes, as a kernel device's do, until the runtime directory is emptied.
pub fn counters_of(info: &DeviceInfo) -> Vec<(&'static str, u64)> {
    let values = CountersFile::open_existing(info).map_or([0; COUNT], |file| file.values());
    names().iter().copied().zip(values).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_counter_has_one_name() {
        assert_eq!(names().len(), COUNT);
        assert_eq!(names().iter().collect::<HashSet<_>>().len(), COUNT);
    }

    #[test]
    fn counts_appear_under_their_names() {
        let mut counters = Counters::new();
        counters.count(EngineCounter::PortFailures);
        counters.count_transport(Counter::Retransmits);
        counters.take_port(PortCounters {
            tx_packets: 5,
            ..PortCounters::default()
        });
        counters.flush();
        let named = counters.named();
        let value = |name| {
            named
                .iter()
                .find(|&&(other, _)| other == name)
                .map(|&(_, value)| value)
        };
        assert_eq!(value("port_failures"), Some(1));
        assert_eq!(value("retransmits"), Some(1));
        assert_eq!(value("tx_packets"), Some(5));
        assert_eq!(value("drop_bad_icrc"), Some(0));
    }
}
