//! One host: memory, queue pairs with their rings, and the port that checks arriving packets.

use std::net::IpAddr;

use airdma_transport::{
    Access, AttrMask, Bind, InvalidAttribute, QpAttributes, QpConfig, QpState, QpType, QueuePair,
    Time, Transmit,
};
use airdma_wire::{Packet, PathMtu, Qpn, Rkey};

use crate::frame::Frame;
use crate::host::SimHost;
use crate::memory::{Memory, Region, Sge};
use crate::random::Random;
use crate::rings::{Rings, SendWr};
use crate::trace::Fate;

/// Counters of a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets handed to the link.
    pub sent: u64,
    /// Packets given to a queue pair.
    pub delivered: u64,
    /// Packets whose ICRC was wrong.
    pub bad_icrc: u64,
    /// Packets with a right ICRC that cannot be parsed.
    pub malformed: u64,
    /// Packets for a queue pair that does not exist.
    pub no_queue_pair: u64,
}

#[derive(Debug)]
struct Member {
    queue_pair: QueuePair,
    rings: Rings,
}

/// One host.
#[derive(Debug)]
pub struct Endpoint {
    address: IpAddr,
    first_qpn: u32,
    memory: Memory,
    members: Vec<Member>,
    /// Index of the queue pair that sends next.
    turn: usize,
    random: Random,
    pub(crate) counters: PortCounters,
    /// Bytes that all queue pairs together may have in flight: the window of the path.
    pub window_bytes: u32,
    /// Losses reported by queue pairs, on which a real window would back off.
    pub losses_signalled: u64,
}

impl Endpoint {
    pub(crate) fn new(address: IpAddr, first_qpn: u32, random: Random) -> Self {
        Endpoint {
            address,
            first_qpn,
            memory: Memory::default(),
            members: Vec::new(),
            turn: 0,
            random,
            counters: PortCounters::default(),
            window_bytes: u32::MAX,
            losses_signalled: 0,
        }
    }

    /// The host's address.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Counters of its port.
    pub fn port_counters(&self) -> PortCounters {
        self.counters
    }

    /// Registers memory that begins with `bytes`.
    pub fn register(&mut self, bytes: &[u8], access: Access) -> Region {
        let noise = self.random.next_u64();
        self.memory.register(bytes, access, noise)
    }

    /// Ends a registration, while packets may be in flight.
    pub fn deregister(&mut self, region: &Region) {
        assert!(self.memory.invalidate(region.key), "registered once");
    }

    /// Current bytes of a region.
    pub fn bytes(&self, region: &Region) -> &[u8] {
        self.memory.bytes(region)
    }

    /// Bytes of a region, for changes as by the application.
    pub fn bytes_mut(&mut self, region: &Region) -> &mut [u8] {
        self.memory.bytes_mut(region)
    }

    /// Whether a key is valid.
    pub fn is_valid(&self, key: u32) -> bool {
        self.memory.is_valid(key)
    }

    /// Creates a memory window that opens nothing yet, and returns its key.
    pub fn create_window(&mut self) -> Rkey {
        let noise = self.random.next_u64();
        self.memory.create_window(noise)
    }

    /// Memory that the window with this key opens; `None` if there is none or it is not bound.
    pub fn window(&self, key: Rkey) -> Option<Bind> {
        self.memory.window(key)
    }

    /// Creates a queue pair and returns its index here.
    pub fn create(&mut self, qp_type: QpType, port_mtu: PathMtu) -> usize {
        let qpn = Qpn::new(self.first_qpn + self.members.len() as u32);
        self.members.push(Member {
            queue_pair: QueuePair::new(QpConfig {
                shared_receives: false,
                qp_type,
                qpn,
                port_mtu,
            }),
            rings: Rings::new(qpn),
        });
        self.members.len() - 1
    }

    /// A queue pair.
    pub fn queue_pair(&self, qp: usize) -> &QueuePair {
        &self.members[qp].queue_pair
    }

    /// The rings and outcomes of a queue pair.
    pub fn rings(&self, qp: usize) -> &Rings {
        &self.members[qp].rings
    }

    /// The rings, to take completions.
    pub fn rings_mut(&mut self, qp: usize) -> &mut Rings {
        &mut self.members[qp].rings
    }

    fn with<T>(
        &mut self,
        qp: usize,
        call: impl FnOnce(&mut QueuePair, &mut SimHost<'_>) -> T,
    ) -> T {
        let Member { queue_pair, rings } = &mut self.members[qp];
        let memory = &mut self.memory;
        call(queue_pair, &mut SimHost { memory, rings })
    }

    /// Changes attributes of a queue pair. On the way to reset its rings are emptied.
    ///
    /// # Errors
    /// As [`QueuePair::modify`].
    pub fn modify(
        &mut self,
        qp: usize,
        attributes: &QpAttributes,
        mask: AttrMask,
    ) -> Result<(), InvalidAttribute> {
        self.with(qp, |queue_pair, host| {
            queue_pair.modify(attributes, mask, host)
        })?;
        let member = &mut self.members[qp];
        if member.queue_pair.state() == QpState::Reset {
            member.rings = Rings::new(member.queue_pair.qpn());
        }
        Ok(())
    }

    /// Repeats the last acknowledgement, as before a queue pair is destroyed: the peer may have
    /// missed it.
    pub fn repeat_last_ack(&mut self, qp: usize) {
        self.members[qp].queue_pair.repeat_last_ack();
    }

    /// Posts a send request. The caller pumps the pair to see it leave.
    pub fn post_send(&mut self, qp: usize, wr: SendWr) {
        let state = self.members[qp].queue_pair.state();
        let takes_sends = match state {
            QpState::ReadyToSend
            | QpState::SendQueueDrain
            | QpState::SendQueueError
            | QpState::Error => true,
            QpState::Reset | QpState::Init | QpState::ReadyToReceive => false,
        };
        assert!(takes_sends, "no sends may be posted in {state:?}");
        let request = self.members[qp].rings.post_send(wr);
        self.with(qp, |queue_pair, host| queue_pair.post_send(request, host));
    }

    /// Posts a receive.
    pub fn post_receive(&mut self, qp: usize, wr_id: u64, sges: Vec<Sge>) {
        let state = self.members[qp].queue_pair.state();
        assert_ne!(state, QpState::Reset, "no receives may be posted");
        self.members[qp].rings.post_receive(wr_id, sges);
        self.with(qp, |queue_pair, host| queue_pair.flush_receives(host));
    }

    /// Whether all posted sends have ended, and no timer is left.
    pub fn is_quiet(&self) -> bool {
        self.members.iter().all(|member| {
            let queue_pair = &member.queue_pair;
            !queue_pair.wants_transmit()
                && queue_pair.in_flight_bytes() == 0
                && queue_pair.poll_timeout().is_none()
                && member.rings.sends_outstanding() == 0
        })
    }

    pub(crate) fn wants_transmit(&self) -> bool {
        let mut members = self.members.iter();
        members.any(|member| member.queue_pair.wants_transmit())
    }

    /// Bytes that the window still permits; one packet may always be in flight.
    fn credit(&self) -> u32 {
        let in_flight: u64 = self
            .members
            .iter()
            .map(|member| u64::from(member.queue_pair.in_flight_bytes()))
            .sum();
        let left = u64::from(self.window_bytes).saturating_sub(in_flight);
        let least = u64::from(in_flight == 0);
        u32::try_from(left.max(least)).unwrap_or(u32::MAX)
    }

    /// Lets the queue pairs send in turn, one packet each.
    pub(crate) fn poll_transmit(&mut self, now: Time, out: &mut [u8]) -> Option<Transmit> {
        for _ in 0..self.members.len() {
            let qp = self.turn % self.members.len();
            self.turn = qp + 1;
            let credit = self.credit();
            let wanted = self.members[qp].queue_pair.wants_transmit();
            let transmit = self.with(qp, |queue_pair, host| {
                queue_pair.poll_transmit(now, credit, host, out)
            });
            if let Some(transmit) = transmit {
                assert!(wanted, "wants_transmit was false, yet there was a packet");
                self.counters.sent += 1;
                return Some(transmit);
            }
        }
        None
    }

    pub(crate) fn poll_timeout(&self) -> Option<Time> {
        let members = self.members.iter();
        members
            .filter_map(|member| member.queue_pair.poll_timeout())
            .min()
    }

    pub(crate) fn handle_timeout(&mut self, now: Time) {
        for qp in 0..self.members.len() {
            let due = self.members[qp].queue_pair.poll_timeout();
            if due.is_none_or(|at| at > now) {
                continue;
            }
            self.with(qp, |queue_pair, host| queue_pair.handle_timeout(now, host));
            let next = self.members[qp].queue_pair.poll_timeout();
            assert!(
                next.is_none_or(|at| at > now),
                "a timer that is due stays due"
            );
        }
        self.take_loss_signals();
    }

    fn take_loss_signals(&mut self) {
        for member in &mut self.members {
            self.losses_signalled += u64::from(member.queue_pair.take_loss().is_some());
        }
    }

    /// Handles a delivered frame; returns its fate.
    pub(crate) fn receive(&mut self, now: Time, frame: &Frame) -> Fate {
        let Some(transport) = frame.open() else {
            self.counters.bad_icrc += 1;
            return Fate::BadIcrc;
        };
        let Ok(packet) = Packet::parse(transport) else {
            self.counters.malformed += 1;
            return Fate::Malformed;
        };
        let qpn = packet.headers.bth.dest_qpn;
        let qp = self
            .members
            .iter()
            .position(|member| member.queue_pair.qpn() == qpn);
        let Some(qp) = qp else {
            self.counters.no_queue_pair += 1;
            return Fate::NoQueuePair;
        };
        self.counters.delivered += 1;
        self.with(qp, |queue_pair, host| {
            queue_pair.handle_packet(now, &frame.arrival(), &packet, host);
        });
        self.take_loss_signals();
        Fate::Delivered
    }
}
