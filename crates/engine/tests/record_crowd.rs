//! More sources with long messages than the table of their target has open entries for, in virtual
//! time.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::sim::{Carrier, Frame, carried};
use common::*;
use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

const QKEY: Qkey = Qkey(0x1234);
/// A message of 16 packets, and of one.
const LONG: usize = 16 * 1400;
const STEP: Duration = Duration::from_micros(5);
/// Messages of a source that are posted and not completed.
const AHEAD: u32 = 4;

struct Host {
    device: Simulated,
    carrier: Carrier,
    end: End,
    address: IpAddr,
    /// Packets that wait for the link, which the sources share packet by packet.
    queue: VecDeque<Frame>,
}

fn host(name: &str, address: [u8; 4], bytes: usize) -> Host {
    let address = IpAddr::from(address);
    let (port, carrier) = carried(&[address]).unwrap();
    let device = Simulated::open(info(name, address), Box::new(port), 7).unwrap();
    let end = End::new(device.device(), QpType::Ud, bytes);
    datagram_to_rts(&end.qp, QKEY);
    Host {
        device,
        carrier,
        end,
        address,
        queue: VecDeque::new(),
    }
}

/// Sources that write to a place each at one target, whose program frees each record at once.
struct Crowd {
    now: Duration,
    sources: Vec<Host>,
    target: Host,
    region: Arc<Mr>,
    length: usize,
    posted: Vec<u32>,
    completed: u32,
    ends: BTreeMap<String, u32>,
    valid_bytes: u64,
}

impl Crowd {
    fn new(sources: u8, config: RecordConfig, length: usize) -> Crowd {
        let target = host("t", RIGHT, LONG * usize::from(sources));
        target.end.qp.enable_records(config).unwrap();
        let (pd, memory) = (&target.end.pd, &target.end.memory);
        let region = pd.reg_record_mr(memory.address(), LONG * usize::from(sources), None);
        Crowd {
            now: Duration::ZERO,
            sources: (0..sources)
                .map(|at| host("s", [10, 9, 1, at], LONG))
                .collect(),
            region: region.unwrap(),
            target,
            length,
            posted: vec![0; sources.into()],
            completed: 0,
            ends: BTreeMap::new(),
            valid_bytes: 0,
        }
    }

    fn post(&mut self, at: usize) {
        let place = (at * LONG) as u64;
        let (to, from) = (&self.target.end, &self.sources[at].end);
        let (va, rkey) = (to.memory.address() + place, self.region.rkey());
        let mut wr = signalled(
            Operation::Record { va, rkey },
            from.memory.sge(0, self.length),
        );
        wr.datagram = Some(Datagram {
            path: to.path(),
            qpn: to.qp.number(),
            qkey: QKEY,
        });
        from.qp.post_send(&wr).unwrap();
        self.posted[at] += 1;
    }

    fn step(&mut self) {
        self.now += STEP;
        for at in 0..self.sources.len() {
            while self.posted[at] < AHEAD {
                self.post(at);
            }
            let source = &mut self.sources[at];
            source.device.run(self.now);
            source
                .queue
                .extend(std::iter::from_fn(|| source.carrier.take()));
            if let Some(frame) = source.queue.pop_front() {
                self.target.carrier.give(frame);
                self.target.device.run(self.now);
            }
            while let Some(completion) = source.end.try_complete() {
                assert_eq!(completion.status, Status::Success);
                self.posted[at] -= 1;
                self.completed += 1;
            }
        }
        self.target.device.run(self.now);
        while let Some(frame) = self.target.carrier.take() {
            let to = (self.sources.iter()).position(|source| source.address == frame.destination);
            self.sources[to.unwrap()].carrier.give(frame);
        }
        let end = &self.target.end;
        while let Some(completion) = end.try_complete() {
            let handle = RecordHandle(completion.wr_id);
            let ended = end
                .qp
                .record(handle, |record| record.ended.unwrap())
                .unwrap();
            *self.ends.entry(format!("{ended:?}")).or_default() += 1;
            self.valid_bytes += u64::from(completion.byte_len);
            assert!(end.qp.free_record(handle));
        }
    }

    fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }
}

/// A table for eight messages at once.
fn small() -> RecordConfig {
    RecordConfig {
        open_max: 8,
        closed_max: 120,
        ..RecordConfig::default()
    }
}

#[test]
fn sources_beyond_the_open_entries_wait_for_one() {
    let mut crowd = Crowd::new(12, small(), LONG);
    // Until the first answers a source begins what its window allows.
    crowd.run(Duration::from_millis(10));
    (crowd.completed, crowd.valid_bytes) = (0, 0);
    crowd.ends.clear();
    crowd.run(Duration::from_millis(10));
    let ended = |name: &str| crowd.ends.get(name).copied().unwrap_or(0);
    // 1,000 messages arrive in that time, eight at once. If none waited, another 500 would be cut.
    assert!(ended("Whole") > 800, "{:?}", crowd.ends);
    assert!(ended("Displaced") < 120, "{:?}", crowd.ends);
    let sent = u64::from(crowd.completed) * LONG as u64;
    assert!(crowd.valid_bytes * 100 > sent * 95, "of {sent} bytes");
}

/// Each of these messages arrives in one packet, and needs its entry for no time.
#[test]
fn short_messages_of_many_sources_wait_for_nothing() {
    let mut crowd = Crowd::new(12, small(), 1000);
    crowd.run(Duration::from_millis(2));
    assert_eq!(crowd.ends.keys().collect::<Vec<_>>(), ["Whole"]);
    assert!(crowd.ends["Whole"] > 4_000, "{:?}", crowd.ends);
}
