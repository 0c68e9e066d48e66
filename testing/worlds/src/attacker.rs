//! A third host that forges datagrams with an off-path host's knowledge, and a little more.
//!
//! It sends with any source address, sees only packets addressed to it, and each host accepts it as
//! a peer. It has a connection of its own to each host, and so knows that connection's numbers and
//! keys, and what the host sends to its peers. About other connections it knows all that is not a
//! secret: addresses, UDP port, services, queue pair numbers, even the keys of memory.
//!
//! | guessed value | how the guess is kept exact |
//! |---|---|
//! | sequence numbers of a reliable connection | never one that the connection has used or will use next: with those it is the peer, to RoCEv2 |
//! | queue pair numbers of unreliable connections, the key of datagrams | never the right one, with the right service |
//! | the tag of a connection in air mode | never the one that its packets have |
//! | the instance that a host has shown to a peer | at random: 64 bits |
//! | Q_Key and key of records | never both the right ones; a SEND never has the right Q_Key |
//! | token of a reliable datagram, token and nonce of a read | at random: 64 bits |
//!
//! So no datagram of the attacker may change a byte, a completion or a connection, and the judge
//! does not know of it. The exception is what RoCEv2 itself does on a packet from the future: see
//! [`Attacker::disturbances`].

mod forge;
mod managers;
mod meeting;
mod own;
mod records;

use crate::host::{End, Host};
use crate::plan::{AttackerPlan, Plan};
use crate::world::World;
use airdma_engine::QpEvent;
use airdma_engine::cm_protocol::Manager;
use airdma_port::sim::Frame;
use airdma_sim::Random;
use airdma_wire::air::{self, Message};
use airdma_wire::{Bth, NakCode, Opcode, Packet, Psn, Qpn, Syndrome};
use core::time::Duration;
pub(crate) use forge::{emit, management, with_icrc};
use meeting::{Meeting, TIME_MAX};
use own::Own;
use std::net::IpAddr;

/// Most datagrams sent at a moment.
const BURST_MAX: u64 = 3;
/// Most PSNs that a READ takes in advance: more than one message of a world takes.
const READ_PACKETS_MAX: u32 = 16;
/// Most bytes sent to an unproven address, as a multiple of the bytes from there: an answer and
/// three repetitions.
const ANSWERS_MAX: u64 = 4;
/// Bits of a tag.
const TAG_BITS: u32 = 13;
/// Farthest PSN that a responder in air mode buffers, from the one that it expects.
const AHEAD_MAX: u32 = 8191;

/// The attacker of a world.
pub struct Attacker {
    plan: AttackerPlan,
    random: Random,
    /// Its address, and addresses without a host, as sources of forged datagrams.
    address: IpAddr,
    bystander: IpAddr,
    /// Datagrams that it may still send.
    left: u32,
    next_at: Duration,
    /// Its connection to each host.
    own: Vec<Own>,
    /// Writes its connection requests.
    manager: Manager,
    /// Connections by RDMA CM that it tries to end.
    meeting: Option<Meeting>,
    /// The PSNs that each end has used: the first, and the one behind the last.
    used: Vec<(Psn, Psn)>,
    /// The tag of each end's last packet.
    tags: Vec<u16>,
    /// Requests from the future, NAKs that responders send for them (and others), and
    /// notifications.
    disturbances: u64,
    /// Congestion notifications.
    notifications: u64,
    /// Datagrams sent, and those of them that are about records.
    pub sent: u64,
    pub sent_records: u64,
    /// Bytes that hosts sent to the bystander, and bytes that were forged in its name.
    reflected: (u64, u64),
}

impl Attacker {
    /// Adds an attacker to a world whose hosts are connected.
    pub fn new(plan: &Plan, of: AttackerPlan, hosts: &[Host], ends: &[End]) -> Attacker {
        let mut random = Random::new(plan.seed ^ 0x0a77_ac4e);
        let (address, bystander) = if plan.v6 {
            (
                "fd05::66".parse().expect("an address"),
                "fd05::77".parse().expect("an address"),
            )
        } else {
            (IpAddr::from([10, 5, 0, 66]), IpAddr::from([10, 5, 0, 77]))
        };
        let own = hosts
            .iter()
            .map(|host| Own::new(host, address, &mut random));
        let mut attacker = Attacker {
            plan: of,
            own: own.collect(),
            manager: managers::manager(random.next_u64()),
            meeting: Some(Meeting::new(hosts, &mut random)),
            random,
            address,
            bystander,
            left: of.datagrams,
            next_at: Duration::ZERO,
            used: vec![Default::default(); ends.len()],
            tags: vec![0; ends.len()],
            disturbances: 0,
            notifications: 0,
            sent: 0,
            sent_records: 0,
            reflected: (0, 0),
        };
        attacker.next_at = attacker.pause();
        attacker
    }

    fn pause(&mut self) -> Duration {
        let mean = self.plan.pause.as_nanos() as u64;
        Duration::from_nanos(self.random.below(2 * mean + 1))
    }

    /// Time of its next datagram.
    pub fn deadline(&self) -> Option<Duration> {
        (self.left > 0).then_some(self.next_at)
    }

    /// Number of its datagrams that make a responder report a gap or a requester slow down, as
    /// RoCEv2 requires.
    ///
    /// The judge takes each for a packet that the network held back.
    pub fn disturbances(&self) -> u64 {
        self.disturbances
    }

    /// Records the first PSN of an end.
    pub fn note_start(&mut self, end: usize, psn: u32) {
        let psn = Psn::new(psn);
        self.used[end] = (psn, psn);
    }

    /// Records a packet that leaves an end; must see all packets that hosts send.
    pub fn note_packet(&mut self, frame: &Frame, ends: &[End], hosts: &[Host]) {
        if frame.destination == self.bystander {
            self.reflected.0 += frame.bytes.len() as u64;
            return;
        }
        if frame.destination == self.address {
            return self.learn(frame, hosts);
        }
        let Some(bth) = frame.bytes.first_chunk().map(Bth::from_bytes) else {
            return;
        };
        let Ok(bth) = bth else { return };
        let is_it =
            |end: &End| end.number == bth.dest_qpn && hosts[end.host].address == frame.destination;
        let Some(receiver) = ends.iter().position(is_it) else {
            return;
        };
        self.tags[receiver ^ 1] = bth.tag;
        if !bth.opcode.is_request() {
            return;
        }
        let packets = if bth.opcode == Opcode::RcReadRequest {
            READ_PACKETS_MAX
        } else {
            1
        };
        let next = &mut self.used[receiver ^ 1].1;
        let end = bth.psn.add(packets);
        if end.distance_from(*next) > 0 {
            *next = end;
        }
    }

    /// Records a packet that arrives; must see all.
    pub fn note_arrival(&mut self, frame: &Frame) {
        let header = frame.bytes.first_chunk().map(Bth::from_bytes);
        if let Some(Ok(bth)) = header
            && bth.opcode == Opcode::RcAcknowledge
            && frame.bytes.get(Bth::LEN)
                == Some(&u8::from(Syndrome::Nak(NakCode::PsnSequenceError)))
        {
            self.disturbances += 1;
        }
    }

    /// Learns from a packet that a host sent to it.
    fn learn(&mut self, frame: &Frame, hosts: &[Host]) {
        let from = hosts.iter().position(|host| host.address == frame.source);
        let body = frame.bytes.len().saturating_sub(airdma_wire::ICRC_LEN);
        let Ok(packet) = Packet::parse(&frame.bytes[..body]) else {
            return;
        };
        if packet.headers.bth.dest_qpn != Qpn::GSI {
            return;
        }
        let Some(from) = from else { return };
        if let Ok(Message::Hello(hello, _)) = air::parse(packet.payload) {
            self.own[from].instance = Some(hello.instance);
            self.own[from].nonce = hello.nonce;
        }
        self.learn_id(from, packet.payload);
    }

    /// Picks a PSN that the sender at this end has never used and does not use next: near ahead, or
    /// any.
    fn unused_psn(&mut self, end: usize, behind: bool) -> Psn {
        let (first, next) = self.used[end];
        let used = next.distance_from(first).max(0) as u32;
        if behind {
            // A responder counts from its expected PSN, so all of these are behind it.
            let back = 1 + self.random.below(1 << 22) as u32;
            return first.add((1 << 24) - back);
        }
        if self.random.chance(0.3) {
            return next.add(1 + self.random.below(u64::from(AHEAD_MAX)) as u32);
        }
        let free = (1 << 24) - used - 1;
        next.add(1 + self.random.below(u64::from(free)) as u32)
    }

    /// Whether a queue pair is a host's end of its own connection.
    pub fn owns(&self, host: usize, number: Qpn) -> bool {
        self.own[host].number == number
    }

    /// Handles an event of that queue pair.
    ///
    /// # Errors
    /// No datagram of the attacker explains the event.
    pub fn take_event(&mut self, host: usize, event: QpEvent) -> Result<(), String> {
        let own = &mut self.own[host];
        own.refused |= event == QpEvent::AccessError;
        if own.is_over && own.refused {
            return Ok(());
        }
        Err(format!(
            "the attacker's queue pair at host {host} has the event {event:?}"
        ))
    }

    /// Tag field of a forged packet: mostly zero, and never the end's tag.
    fn tag(&mut self, end: usize) -> u16 {
        let any = self.random.below(1 << TAG_BITS) as u16;
        let tag = self.random.pick(&[0, any]);
        if tag == self.tags[end] && tag != 0 {
            tag ^ 1
        } else {
            tag
        }
    }

    /// Ends its connections.
    ///
    /// # Errors
    /// A host let it reach memory granted to others, or an object cannot be destroyed.
    pub fn leave(&mut self, hosts: &[Host]) -> Result<(), String> {
        if let Some(meeting) = &mut self.meeting {
            meeting.end(hosts);
        }
        for (host, own) in self.own.iter_mut().enumerate() {
            if hosts[host].alive && own.is_over && !own.refused {
                return Err(format!(
                    "the attacker reached for what host {host} grants to others, and was not refused"
                ));
            }
            own.leave()?;
        }
        Ok(())
    }

    /// Checks that hosts sent at most the answers to forged requests, and three repetitions, to the
    /// bystander.
    ///
    /// # Errors
    /// They sent more.
    pub fn check_reflection(&self) -> Result<(), String> {
        let (sent, came) = self.reflected;
        if sent > ANSWERS_MAX * came {
            return Err(format!(
                "hosts sent {sent} bytes to an address from which {came} forged ones came"
            ));
        }
        Ok(())
    }
}

impl World {
    /// Sends the attacker's datagrams of this moment.
    pub(crate) fn attack(&mut self) {
        let Some(mut attacker) = self.attacker.take() else {
            return;
        };
        while attacker.deadline().is_some_and(|at| at <= self.now) {
            for _ in 0..=attacker.random.below(BURST_MAX) {
                attacker.send(self);
            }
            let pause = attacker.pause();
            attacker.next_at = self.now + pause.max(Duration::from_nanos(1));
        }
        self.attacker = Some(attacker);
    }

    /// The connections by RDMA CM, if there are any.
    fn meeting(&self) -> Option<&Meeting> {
        self.attacker.as_ref()?.meeting.as_ref()
    }

    fn meeting_mut(&mut self) -> Option<(&mut Meeting, &[Host])> {
        let meeting = self.attacker.as_mut()?.meeting.as_mut()?;
        Some((meeting, &self.hosts))
    }

    /// Packets lost between the two hosts of the RDMA CM connections.
    fn lost_between_them(&self) -> u64 {
        let (withheld, delayed) = self.held_up([0, 1]);
        self.network.path(0, 1).lost + self.network.path(1, 0).lost + withheld + delayed
    }

    /// Establishes the first RDMA CM connection before any other action, unless packets are lost.
    ///
    /// # Errors
    /// A violation that the judge finds.
    pub(crate) fn meet(&mut self) -> Result<(), String> {
        if self.meeting().is_none() {
            return Ok(());
        }
        self.run(1)?;
        let until = self.now + MEETING_MAX;
        self.pass_until(until, |world| {
            world.meeting().is_none_or(Meeting::is_established)
        })
    }

    /// Lets programs fetch the events of their managers.
    ///
    /// # Errors
    /// A connection has ended, or the judge finds a violation.
    pub(crate) fn attend(&mut self) -> Result<(), String> {
        let has_news = self.meeting().is_some_and(Meeting::has_news);
        let Some((meeting, hosts)) = self.meeting_mut().filter(|_| has_news) else {
            return Ok(());
        };
        meeting.fetch(hosts)?;
        for host in 0..2 {
            if self.hosts[host].alive {
                self.run(host)?;
            }
        }
        Ok(())
    }

    /// Establishes a second connection between the two hosts, whatever the attacker requested.
    ///
    /// # Errors
    /// It is not established, or the judge finds a violation.
    pub(crate) fn meet_again(&mut self) -> Result<(), String> {
        let (now, lost) = (self.now, self.lost_between_them());
        let alive = self.hosts[..2].iter().all(|host| host.alive);
        let Some((meeting, hosts)) = self.meeting_mut().filter(|_| alive) else {
            return Ok(());
        };
        meeting.ask_again(hosts, now, lost);
        self.run(1)?;
        self.attend()?;
        self.pass_until(now + TIME_MAX, |world| {
            let lost = world.lost_between_them();
            !world.meeting().is_some_and(|meeting| meeting.waits(lost))
        })?;
        let (now, lost) = (self.now, self.lost_between_them());
        self.meeting()
            .map_or(Ok(()), |meeting| meeting.check(now, lost))
    }
}

/// Longest time until the first connection is established.
const MEETING_MAX: Duration = Duration::from_millis(5);
