//! A host of a cell: its device, queue pairs to others, and the memory of all their messages.

use super::{Load, Sender};
use crate::writer::{MESSAGES, connect, queue_pair};
use airdma_engine::simulated::{Simulated, interface};
use airdma_engine::{Access, Cq, DeviceInfo, Mr, PathMtu, Pd, Qp, Rkey, SendFlags, SendWr, Sge};
use airdma_port::sim::{Carrier, carried};
use airdma_sim::wifi::StationId;
use airdma_transport::{Operation, Status};
use core::time::Duration;
use std::net::IpAddr;
use std::sync::Arc;

/// Address of host `index` of a cell.
pub(super) fn address(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, index as u8 + 1])
}

/// Index of the host with this address.
pub(super) fn index_of(address: IpAddr) -> usize {
    match address {
        IpAddr::V4(address) => usize::from(address.octets()[3]) - 1,
        IpAddr::V6(_) => unreachable!("hosts have IPv4 addresses"),
    }
}

/// A queue pair and its posted requests.
pub(super) struct Pair {
    qp: Arc<Qp>,
    posted: u64,
    pub(super) done: u64,
}

pub(super) struct Host {
    pub(super) device: Simulated,
    pub(super) carrier: Carrier,
    pub(super) station: StationId,
    pub(super) pairs: Vec<Pair>,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    memory: Box<[u64]>,
    mr: Arc<Mr>,
    message_bytes: u32,
    reads: bool,
    path_mtu: PathMtu,
}

impl Host {
    pub(super) fn new(
        index: usize,
        sender: Sender,
        station: StationId,
        load: Load,
        pairs: usize,
    ) -> Host {
        let address = address(index);
        let info = DeviceInfo {
            path_mtu: sender.path_mtu,
            ..interface(&format!("cell{index}"), index as u32 + 1, address)
        };
        let (port, carrier) = carried(&[address]).expect("a descriptor");
        let seed = index as u64 + 1;
        let device = Simulated::open(info, Box::new(port), seed).expect("a device in memory");
        if let Some(rate_control) = sender.air {
            device.offer_air(rate_control);
        }
        if sender.bundles {
            device.offer_bundles();
        }
        if !sender.has_window {
            device.lift_window();
        }
        let pd = device.device().alloc_pd().expect("a domain");
        let entries = MESSAGES as u32 * pairs as u32;
        let cq = device.device().create_cq(entries, None).expect("a queue");
        let words = load.message_bytes.div_ceil(8) as usize;
        let mut memory = vec![0_u64; words].into_boxed_slice();
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.reg_mr(at, words * 8, at, access).expect("a region");
        let mut host = Host {
            device,
            carrier,
            station,
            pairs: Vec::new(),
            pd,
            cq,
            memory,
            mr,
            message_bytes: load.message_bytes,
            reads: load.reads,
            path_mtu: sender.path_mtu,
        };
        let pair = |_| Pair {
            qp: queue_pair(&host.pd, &host.cq),
            posted: 0,
            done: 0,
        };
        host.pairs = (0..pairs).map(pair).collect();
        host
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Connects this end of a connection to the peer's queue pair.
    pub(super) fn join(&self, pair: usize, peer: &Host, theirs: usize) {
        self.connect(pair, peer, theirs);
        peer.connect(theirs, self, pair);
    }

    fn connect(&self, pair: usize, peer: &Host, theirs: usize) {
        let gid = peer.device.device().info().gids[0].gid;
        let number = peer.pairs[theirs].qp.number();
        connect(&self.pairs[pair].qp, gid, self.path_mtu, number);
    }

    /// Posts messages to or from a host's memory, until each queue pair has its share in flight or
    /// `messages` were posted.
    pub(super) fn post(&mut self, now: Duration, to: (u64, Rkey), messages: u64) {
        self.device.move_clock(now);
        for number in 0..self.pairs.len() {
            while self.pairs[number].posted < messages
                && self.pairs[number].posted - self.pairs[number].done < MESSAGES
            {
                self.post_one(number, to);
                self.pairs[number].posted += 1;
            }
        }
    }

    fn post_one(&self, pair: usize, (va, rkey): (u64, Rkey)) {
        let sge = Sge {
            addr: self.address(),
            length: self.message_bytes,
            lkey: self.mr.lkey().0,
        };
        let operation = if self.reads {
            Operation::Read { va, rkey }
        } else {
            Operation::Write { va, rkey }
        };
        let request = SendWr {
            wr_id: pair as u64,
            operation,
            sges: &[sge],
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        };
        self.pairs[pair]
            .qp
            .post_send(&request)
            .expect("room for it");
    }

    /// Address and key of the memory that others write to or read from.
    pub(super) fn target(&self) -> (u64, Rkey) {
        (self.address(), self.mr.rkey())
    }

    /// Polls completions; returns whether there were any.
    pub(super) fn poll(&mut self) -> bool {
        let pairs = &mut self.pairs;
        let polled = self.cq.poll(usize::MAX, |completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            pairs[completion.wr_id as usize].done += 1;
        });
        polled.expect("a queue that does not overflow") > 0
    }
}
