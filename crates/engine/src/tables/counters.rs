//! What a worker counts, by name.
//!
//! Four sources in one list: the engine's own drops, the transport's events, those of the
//! connection manager, the port's totals. The worker counts in plain memory; at the end of a round
//! what changed is added to the file that all processes on this device share
//! ([`crate::sharing::counters_file`]).

use crate::counter_names::{CM_START, COUNT, EngineCounter, PORT_START, TRANSPORT_START, names};
use crate::sharing::counters_file::CountersFile;
use airdma_cm as cm;
use airdma_port::PortCounters;
use airdma_transport::Counter;

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
    pub(crate) fn share(&mut self, interface: &str) {
        self.file = CountersFile::open(interface).ok();
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
        // Once a message where one follows the other: most have not changed.
        let values = port.values();
        let (fours, rest) = values.as_chunks::<4>();
        for (start, now) in (PORT_START..).step_by(4).zip(fours) {
            if self.values[start..].first_chunk() != Some(now) {
                self.take(start, now.iter().copied());
            }
        }
        self.take(PORT_START + 4 * fours.len(), rest.iter().copied());
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
    fn each_counter_of_a_port_is_taken_where_it_changed() {
        let mut counters = Counters::new();
        let mut port = PortCounters {
            rx_packets: 1,
            ..PortCounters::default()
        };
        counters.take_port(port);
        assert_eq!(counters.changed, 1 << PORT_START);
        counters.flush();
        counters.take_port(port);
        assert_eq!(counters.changed, 0);
        port.rx_buffers = 2;
        port.tx_segmentation_refused = 3;
        counters.take_port(port);
        assert_eq!(counters.changed.count_ones(), 2);
        let values = PORT_START..PORT_START + port.values().len();
        assert_eq!(counters.values[values], port.values());
        let named = port.named().map(|(_, value)| value);
        assert!(named.eq(port.values()));
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
