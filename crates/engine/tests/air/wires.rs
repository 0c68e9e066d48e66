//! Two hosts with wires between them, in virtual time.

use crate::common::*;
use airdma_engine::simulated::Simulated;
use airdma_engine::*;
use airdma_port::impair::Impaired;
use airdma_port::sim::{Carrier, Frame, carried};
use airdma_port::{Port, QueueFill};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

pub const TICK: Duration = Duration::from_micros(100);
/// Congestion experienced (RFC 3168).
const CE: u8 = 3;
/// One way: 500 us.
pub const TICKS_AWAY: usize = 5;

pub struct Host {
    pub device: Simulated,
    pub carrier: Carrier,
}

/// The second address of the right host, of another subnet.
const RIGHT_TOO: [u8; 4] = [198, 51, 100, 99];

fn host(name: &str, addresses: &[[u8; 4]], mtu: u32, seed: u64, impairment: Option<&str>) -> Host {
    let addresses: Vec<_> = addresses.iter().copied().map(IpAddr::from).collect();
    let (port, carrier) = carried(&addresses).unwrap();
    let port: Box<dyn Port> = match impairment {
        Some(impairment) => Box::new(Impaired::new(port, impairment.parse().unwrap())),
        None => Box::new(port),
    };
    let info = DeviceInfo {
        gids: addresses.iter().copied().map(GidEntry::from).collect(),
        speed_mbps: Some(100),
        mtu,
        ..info(name, addresses[0])
    };
    let device = Simulated::open(info, port, seed).unwrap();
    Host { device, carrier }
}

impl Host {
    pub fn count(&self, name: &str) -> u64 {
        counter(self.device.device(), name)
    }
}

/// Takes the queue pair of this end back to RESET.
pub fn reset(end: &End) {
    let reset = QpAttributes {
        state: QpState::Reset,
        ..QpAttributes::default()
    };
    end.qp.modify(&reset, AttrMask::STATE).unwrap();
}

/// A line with a queue in front of it, from the left to the right.
pub struct Line {
    pub bytes_per_tick: usize,
    /// Bytes that the queue holds.
    pub capacity: usize,
    /// Whether the left host can read the queue's length.
    pub seen: bool,
    queue: VecDeque<Frame>,
    bytes: usize,
    credit: usize,
    /// Bytes that left.
    pub carried: usize,
    pub dropped: usize,
    /// Most bytes that were in the queue.
    pub longest: usize,
}

/// Bytes that a queue counts per packet in addition to a frame's.
const HEADERS: usize = 42;

impl Line {
    pub fn new(bytes_per_tick: usize, capacity: usize, seen: bool) -> Self {
        Line {
            bytes_per_tick,
            capacity,
            seen,
            queue: VecDeque::new(),
            bytes: 0,
            credit: 0,
            carried: 0,
            dropped: 0,
            longest: 0,
        }
    }

    fn push(&mut self, frame: Frame) {
        let bytes = frame.bytes.len() + HEADERS;
        if self.bytes + bytes > self.capacity {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        self.longest = self.longest.max(self.bytes);
        self.queue.push_back(frame);
    }

    /// Frames that leave in a tick.
    fn drain(&mut self) -> Vec<Frame> {
        self.credit += self.bytes_per_tick;
        let mut left = Vec::new();
        while let Some(frame) = self.queue.front()
            && frame.bytes.len() + HEADERS <= self.credit
        {
            let bytes = frame.bytes.len() + HEADERS;
            self.credit -= bytes;
            self.bytes -= bytes;
            self.carried += bytes;
            left.extend(self.queue.pop_front());
        }
        if self.queue.is_empty() {
            self.credit = 0;
        }
        left
    }

    /// Bytes in the queue.
    pub fn waiting(&self) -> usize {
        self.bytes
    }

    fn fill(&self) -> Option<QueueFill> {
        let fill = QueueFill {
            bytes: self.bytes as u64,
            capacity: Some(self.capacity as u64),
            left_bytes: Some(self.carried as u64),
        };
        self.seen.then_some(fill)
    }
}

/// Two hosts and the wires between them.
pub struct Wires {
    pub hosts: [Host; 2],
    pub ends: [End; 2],
    pub tick: usize,
    /// Ticks that a packet is in flight.
    pub away: usize,
    /// Line that the left one's packets pass first.
    pub line: Option<Line>,
    /// Packets in flight, with the tick of their arrival.
    pub under_way: [VecDeque<(usize, Frame)>; 2],
    /// Bytes of each sent packet, with its sender.
    pub sent: Vec<(usize, Vec<u8>)>,
    /// Traffic class of each one's last packet that was not a management datagram.
    pub traffic_class: [u8; 2],
    /// Whether packets of the left one arrive with congestion marks.
    pub marks: bool,
}

impl Wires {
    /// Connected hosts; those of `offers` offer more than RoCEv2.
    pub fn new(offers: [bool; 2], bytes: usize) -> Self {
        let offers = offers.map(|offers| offers.then_some(RateControl::Buffers));
        Self::with(offers, bytes)
    }

    /// Connected hosts; those that offer more than RoCEv2 have this rate control.
    pub fn with(offers: [Option<RateControl>; 2], bytes: usize) -> Self {
        Self::on(offers, [1500; 2], bytes)
    }

    /// Connected hosts, between interfaces with these MTUs.
    pub fn on(offers: [Option<RateControl>; 2], mtus: [u32; 2], bytes: usize) -> Self {
        let hosts = [
            host("a", &[LEFT], mtus[0], 7, None),
            host("b", &[RIGHT, RIGHT_TOO], mtus[1], 8, None),
        ];
        Self::of_hosts(hosts, offers, bytes)
    }

    /// Connected hosts without offers, which damage what they send.
    pub fn impaired(impairments: [&str; 2], bytes: usize) -> Self {
        let [left, right] = impairments;
        let hosts = [
            host("a", &[LEFT], 1500, 7, Some(left)),
            host("b", &[RIGHT, RIGHT_TOO], 1500, 8, Some(right)),
        ];
        Self::of_hosts(hosts, [None; 2], bytes)
    }

    fn of_hosts(hosts: [Host; 2], offers: [Option<RateControl>; 2], bytes: usize) -> Self {
        for (host, offer) in hosts.iter().zip(offers) {
            if let Some(rate_control) = offer {
                host.device.offer_air(rate_control);
            }
        }
        let ends = hosts
            .each_ref()
            .map(|host| End::new(host.device.device(), QpType::Rc, bytes));
        ends[0].connect(&ends[1]);
        ends[1].connect(&ends[0]);
        Wires {
            hosts,
            ends,
            tick: 0,
            away: TICKS_AWAY,
            line: None,
            under_way: [VecDeque::new(), VecDeque::new()],
            sent: Vec::new(),
            traffic_class: [0; 2],
            marks: false,
        }
    }

    /// Another pair of queue pairs, at the second address of the right host: another peer to the
    /// left one.
    pub fn pair_at_second_address(&self, bytes: usize) -> (End, End) {
        let [left, right] =
            (self.hosts.each_ref()).map(|host| End::new(host.device.device(), QpType::Rc, bytes));
        let path = |address: [u8; 4], row: u8| Path {
            gid: GidEntry::from(IpAddr::from(address)).gid,
            sgid_index: row,
            hop_limit: 64,
            ..Path::default()
        };
        connect(&left.qp, right.qp.number(), path(RIGHT_TOO, 0));
        connect(&right.qp, left.qp.number(), path(LEFT, 1));
        (left, right)
    }

    /// Connects again, and lets the time of an agreement pass.
    pub fn connect_again(&mut self) {
        let [left, right] = &self.ends;
        for end in [left, right] {
            reset(end);
        }
        left.connect(right);
        right.connect(left);
        self.quietly(Duration::from_millis(5));
    }

    pub fn now(&self) -> Duration {
        TICK * self.tick as u32
    }

    /// Lets time pass; `loses` selects the lost packets by sender and content.
    pub fn pass(&mut self, time: Duration, loses: &mut dyn FnMut(usize, &[u8]) -> bool) {
        for _ in 0..(time.as_nanos() / TICK.as_nanos()) {
            self.tick += 1;
            for from in [0, 1] {
                let to = &self.hosts[1 - from];
                while let Some((at, _)) = self.under_way[from].front()
                    && *at <= self.tick
                {
                    to.carrier.give(self.under_way[from].pop_front().unwrap().1);
                }
            }
            let arrival = self.tick + self.away;
            for from in [0, 1] {
                self.run(from);
                while let Some(mut frame) = self.hosts[from].carrier.take() {
                    self.sent.push((from, frame.bytes.to_vec()));
                    if frame.bytes[5..8] != [0, 0, 1] {
                        self.traffic_class[from] = frame.tos;
                    }
                    if self.marks && from == 0 {
                        frame.tos |= CE;
                    }
                    if loses(from, &frame.bytes) {
                        continue;
                    }
                    match self.line.as_mut().filter(|_| from == 0) {
                        Some(line) => line.push(frame),
                        None => self.under_way[from].push_back((arrival, frame)),
                    }
                    // There is room for more now.
                    self.run(from);
                }
            }
            for frame in self.line.as_mut().map(Line::drain).unwrap_or_default() {
                self.under_way[0].push_back((arrival, frame));
            }
        }
    }

    fn run(&self, from: usize) {
        if let Some(line) = self.line.as_ref().filter(|_| from == 0) {
            self.hosts[from].carrier.set_send_queue(line.fill());
        }
        self.hosts[from].device.run(self.now());
    }

    pub fn quietly(&mut self, time: Duration) {
        self.pass(time, &mut |_, _| false);
    }

    /// Packets to queue pair 1 that `from` has sent.
    pub fn messages(&self, from: usize) -> usize {
        let to_gsi =
            |(sender, bytes): &&(usize, Vec<u8>)| *sender == from && bytes[5..8] == [0, 0, 1];
        self.sent.iter().filter(to_gsi).count()
    }

    /// Congestion notification packets that the right one has sent.
    pub fn cnps(&self) -> Vec<&[u8]> {
        let is_cnp = |(from, bytes): &&(usize, Vec<u8>)| *from == 1 && bytes[0] == 0x81;
        let cnps = self.sent.iter().filter(is_cnp);
        cnps.map(|(_, bytes)| bytes.as_slice()).collect()
    }
}
