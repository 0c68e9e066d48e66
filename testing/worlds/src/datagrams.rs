//! What simulations of single datagram queue pairs share: their hosts, queue pairs that are up,
//! requests, and a link that loses, repeats and reorders packets.

use airdma_sim::Random;
use airdma_transport::{
    Arrival, AttrMask, Completion, Counter, Datagram, Host, LocalFault, Operation, Path,
    QpAttributes, QpConfig, QpState, QpType, QueuePair, SendRequest, Slot, Time,
};
use airdma_wire::{Neighbour, PathMtu, Psn, Qkey, Qpn};
use core::time::Duration;
use std::collections::BTreeMap;

/// Q_Key of all queue pairs.
pub const QKEY: Qkey = Qkey(0x77);

/// One per cent, as [`Link`] has it.
pub const PERCENT: u64 = 10_000;

/// The part of an `impl Host` that packets of records, of reads and of answers never reach: nothing
/// is there to be received or accessed by a connection.
#[macro_export]
#[rustfmt::skip]
macro_rules! only_datagrams {
    () => {
        fn scatter(&mut self, _: ::airdma_transport::Slot, _: u32, _: &[u8]) -> Result<(), ::airdma_transport::LocalFault> { Err(::airdma_transport::LocalFault) }
        fn share_memory(&mut self, _: ::airdma_transport::Slot, _: ::airdma_transport::Slot) -> bool { false }
        fn take_receive(&mut self) -> Option<::airdma_transport::Receive> { None }
        fn take_shared_receive(&mut self, _: u32) -> Result<Option<::airdma_transport::Receive>, ::airdma_transport::RemoteFault> { Ok(None) }
        fn scatter_receive(&mut self, _: ::airdma_transport::Slot, _: u32, _: &[u8]) -> Result<(), ::airdma_transport::LocalFault> { Err(::airdma_transport::LocalFault) }
        fn check_remote(&mut self, _: ::airdma_wire::Rkey, _: u64, _: u32, _: ::airdma_transport::RemoteAccess) -> Result<(), ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn read_remote(&mut self, _: ::airdma_wire::Rkey, _: u64, _: &mut [u8]) -> Result<(), ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn write_remote(&mut self, _: ::airdma_wire::Rkey, _: u64, _: &[u8]) -> Result<(), ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn atomic(&mut self, _: ::airdma_wire::Rkey, _: u64, _: ::airdma_transport::AtomicOperation) -> Result<u64, ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn write_atomic(&mut self, _: ::airdma_wire::Rkey, _: u64, _: [u8; 8]) -> Result<(), ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn invalidate(&mut self, _: ::airdma_wire::Rkey) -> Result<(), ::airdma_transport::RemoteFault> { Err(::airdma_transport::RemoteFault::Access) }
        fn invalidate_local(&mut self, _: ::airdma_wire::Rkey) -> Result<(), ::airdma_transport::LocalFault> { Err(::airdma_transport::LocalFault) }
        fn bind(&mut self, _: &::airdma_transport::Bind) -> Result<(), ::airdma_transport::LocalFault> { Err(::airdma_transport::LocalFault) }
        fn complete_receive(&mut self, _: ::airdma_transport::Slot, _: ::airdma_transport::Completion) {}
        fn event(&mut self, _: ::airdma_transport::QpEvent) {}
    };
}

/// A host without memory: messages are what the buffer of a packet holds.
#[derive(Clone, Copy, Debug)]
pub struct NoMemory;

#[rustfmt::skip]
impl Host for NoMemory {
    only_datagrams!();
    fn gather(&mut self, _: Slot, _: u32, _: &mut [u8]) -> Result<(), LocalFault> { Ok(()) }
    fn complete_send(&mut self, _: Slot, _: Option<Completion>) {}
    fn count(&mut self, _: Counter) {}
}

/// A datagram queue pair in RTS, whose records fill the MTU of an interface.
///
/// # Panics
/// If it does not come up.
pub fn queue_pair(qpn: Qpn, port_mtu: PathMtu, interface_mtu: u32) -> QueuePair {
    let mut qp = QueuePair::new(QpConfig {
        qp_type: QpType::Ud,
        qpn,
        port_mtu,
        shared_receives: false,
    });
    let steps = [
        (
            QpState::Init,
            AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
        ),
        (QpState::ReadyToReceive, AttrMask::empty()),
        (QpState::ReadyToSend, AttrMask::SQ_PSN),
    ];
    for (state, mask) in steps {
        let attributes = QpAttributes {
            state,
            qkey: QKEY,
            port: 1,
            ..QpAttributes::default()
        };
        let moved = qp.modify(&attributes, AttrMask::STATE | mask, &mut NoMemory);
        moved.expect("a datagram queue pair comes up");
    }
    qp.set_record_requester(Psn::new(qpn.get()), interface_mtu);
    qp
}

/// A signalled request to a queue pair at an address; `wr_id` is also its slot.
pub fn request(
    wr_id: u32,
    operation: Operation,
    length: u32,
    address: Neighbour,
    qpn: Qpn,
) -> SendRequest {
    SendRequest {
        slot: Slot(wr_id),
        wr_id: wr_id.into(),
        operation,
        length,
        signalled: true,
        solicited: false,
        fence: false,
        datagram: Some(Datagram {
            path: Path {
                gid: address.into(),
                ..Path::default()
            },
            qpn,
            qkey: QKEY,
        }),
        reliable: false,
        srqn: 0,
    }
}

/// How a packet between two addresses arrives.
pub fn arrival(source: Neighbour, destination: Neighbour) -> Arrival {
    Arrival {
        source,
        destination,
        tos: 0,
        ttl: 64,
        flow_label: 0,
    }
}

/// What happens to packets.
#[derive(Clone, Copy, Debug, Default)]
pub struct Link {
    /// How many of a million copies are lost.
    pub loss_ppm: u64,
    /// How many of a million packets have two copies.
    pub repeat_ppm: u64,
    /// Shortest delay.
    pub delay_us: u64,
    /// Longest further delay, which differs for each copy.
    pub jitter_us: u64,
}

/// Packets in flight, by the time of their arrival.
#[derive(Debug)]
pub struct Flight<P> {
    link: Link,
    packets: BTreeMap<(Time, u64), P>,
    sequence: u64,
}

impl<P: Clone> Flight<P> {
    /// Nothing is in flight.
    pub fn new(link: Link) -> Self {
        Flight {
            link,
            packets: BTreeMap::new(),
            sequence: 0,
        }
    }

    /// A packet is sent at a time, with the losses and copies of the link.
    pub fn send(&mut self, random: &mut Random, at: Time, packet: &P) {
        let copies = 1 + u64::from(random.below(100 * PERCENT) < self.link.repeat_ppm);
        for _ in 0..copies {
            if random.below(100 * PERCENT) >= self.link.loss_ppm {
                self.keep(random, at, packet.clone());
            }
        }
    }

    /// A packet is sent that arrives once.
    pub fn keep(&mut self, random: &mut Random, at: Time, packet: P) {
        let takes = self.link.delay_us + random.below(self.link.jitter_us + 1);
        self.sequence += 1;
        let key = (at + Duration::from_micros(takes), self.sequence);
        self.packets.insert(key, packet);
    }

    /// When the next packet arrives.
    pub fn next(&self) -> Option<Time> {
        self.packets.first_key_value().map(|(&(at, _), _)| at)
    }

    /// Takes the next packet.
    pub fn take(&mut self) -> Option<P> {
        self.packets.pop_first().map(|(_, packet)| packet)
    }
}
