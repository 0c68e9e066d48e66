//! A third host that forges datagrams with what an off-path host can know, and a little more.
//!
//! It sends with any source address, sees no packet that is not for it, and is let in at each host as a peer: it has a connection of
//! its own to each, and so knows that connection's numbers, its keys, and what the host says to its peers. Of the connections of
//! others it is told all that is not a secret of theirs: addresses, UDP port, services, queue pair numbers, even the keys of memory.
//!
//! | what it has to guess | how that is kept exact |
//! |---|---|
//! | sequence numbers of a reliable connection | never one that the connection has used or will use next: with those it is the peer, to RoCEv2 |
//! | queue pair numbers of unreliable connections, the key of datagrams | never the right one, with the right service |
//! | the tag of a connection in air mode | never the one that its packets have |
//! | the instance that a host has shown to a peer | at random: 64 bits |
//!
//! So nothing that it sends may change a byte, a completion or a connection, and the judge needs to know nothing of it, but for what RoCEv2
//! itself does on a packet from the future: see [`Attacker::disturbances`].

mod forge;
mod managers;
mod meeting;
mod own;

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

/// Datagrams that it sends at a moment, at most.
const BURST_MAX: u64 = 3;
/// More packets than one message of a world takes, so many PSNs may a READ take in advance.
const READ_PACKETS_MAX: u32 = 16;
/// What is sent to an address that has not shown to be there, as a multiple of what came from there: an answer, and three repetitions.
const ANSWERS_MAX: u64 = 4;
/// Bits of a tag.
const TAG_BITS: u32 = 13;
/// As far ahead of what it expects a responder in air mode keeps packets.
const AHEAD_MAX: u32 = 8191;

/// The attacker of a world.
pub struct Attacker {
    plan: AttackerPlan,
    random: Random,
    /// Its address, and addresses without a host that it makes hosts send to.
    address: IpAddr,
    bystander: IpAddr,
    /// Datagrams that it may still send.
    left: u32,
    next_at: Duration,
    /// Its connection to each host.
    own: Vec<Own>,
    /// What writes its requests for connections.
    manager: Manager,
    /// What it would like to end.
    meeting: Option<Meeting>,
    /// The sequence numbers that each end has sent with: the first, and the one behind the last.
    used: Vec<(Psn, Psn)>,
    /// The tag of what each end sent last.
    tags: Vec<u16>,
    /// Requests from the future, the NAKs with which responders answer them (and others), and notifications.
    disturbances: u64,
    /// Congestion notifications.
    notifications: u64,
    /// What it sent.
    pub sent: u64,
    /// Bytes that hosts were made to send to the bystander, and those that seemed to come from there.
    reflected: (u64, u64),
}

impl Attacker {
    /// Lets one into a world whose hosts are connected.
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
            reflected: (0, 0),
        };
        attacker.next_at = attacker.pause();
        attacker
    }

    fn pause(&mut self) -> Duration {
        let mean = self.plan.pause.as_nanos() as u64;
        Duration::from_nanos(self.random.below(2 * mean + 1))
    }

    /// When it sends next.
    pub fn deadline(&self) -> Option<Duration> {
        (self.left > 0).then_some(self.next_at)
    }

    /// What made a responder say that something is missing, or a requester slower, as RoCEv2 wants it: the judge takes each for a packet that the
    /// network held back.
    pub fn disturbances(&self) -> u64 {
        self.disturbances
    }

    /// An end begins to send with this number.
    pub fn note_start(&mut self, end: usize, psn: u32) {
        let psn = Psn::new(psn);
        self.used[end] = (psn, psn);
    }

    /// A packet leaves an end. To be told of all that hosts send.
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

    /// A packet arrives. To be told of all.
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

    /// A host has said something to it.
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

    /// A number of those that the sender at this end has never used, and does not use next: near ahead of them, or anywhere.
    fn unused_psn(&mut self, end: usize, behind: bool) -> Psn {
        let (first, next) = self.used[end];
        let used = next.distance_from(first).max(0) as u32;
        if behind {
            // As a responder counts from where it is, all are behind it.
            let back = 1 + self.random.below(1 << 22) as u32;
            return first.add((1 << 24) - back);
        }
        if self.random.chance(0.3) {
            return next.add(1 + self.random.below(u64::from(AHEAD_MAX)) as u32);
        }
        let free = (1 << 24) - used - 1;
        next.add(1 + self.random.below(u64::from(free)) as u32)
    }

    /// Whether a queue pair is the one that a host has for it.
    pub fn owns(&self, host: usize, number: Qpn) -> bool {
        self.own[host].number == number
    }

    /// That queue pair has an event.
    ///
    /// # Errors
    /// It did nothing that explains it.
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

    /// What stands where the tag of a packet from this end would be: mostly nothing, and never its tag.
    fn tag(&mut self, end: usize) -> u16 {
        let any = self.random.below(1 << TAG_BITS) as u16;
        let tag = self.random.pick(&[0, any]);
        if tag == self.tags[end] && tag != 0 {
            tag ^ 1
        } else {
            tag
        }
    }

    /// Its connections end.
    ///
    /// # Errors
    /// A host let it reach what it grants to others, or something does not let itself be destroyed.
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

    /// Hosts have sent to the bystander what was asked for in its name, and repeated it three times at most.
    ///
    /// # Errors
    /// They have.
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
    /// The attacker sends what it sends at this moment.
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

    /// What the connections by RDMA CM are, if there are any.
    fn meeting(&self) -> Option<&Meeting> {
        self.attacker.as_ref()?.meeting.as_ref()
    }

    fn meeting_mut(&mut self) -> Option<(&mut Meeting, &[Host])> {
        let meeting = self.attacker.as_mut()?.meeting.as_mut()?;
        Some((meeting, &self.hosts))
    }

    /// What the network has lost between the hosts that are connected by RDMA CM.
    fn lost_between_them(&self) -> u64 {
        let (withheld, delayed) = self.held_up([0, 1]);
        self.network.path(0, 1).lost + self.network.path(1, 0).lost + withheld + delayed
    }

    /// The hosts that are to be connected by RDMA CM are, before anything else happens, unless something is lost.
    ///
    /// # Errors
    /// What the judge says.
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

    /// Programs fetch what managers have to say.
    ///
    /// # Errors
    /// A connection has ended, or what the judge says.
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

    /// Whatever the attacker asked for, two hosts that are connected get another connection.
    ///
    /// # Errors
    /// They do not, or what the judge says.
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

/// How long the first connection may take.
const MEETING_MAX: Duration = Duration::from_millis(5);
