//! Senders that share one marking queue: a switch, one receiver, and a rate controller for each
//! sender.

use std::time::Duration;

use airdma_sim::{Delivery, Frame, Link, Marking, Network, Time, gbit};
use airdma_transport::rate::{
    Acknowledged, BURST_BYTES_MAX, NotificationPoint, Pacer, Permit, Rate, RateController,
};

pub const PAYLOAD: u64 = 4096;
/// Bytes on the line: with UDP, IPv4 and Ethernet.
const LINE_BYTES: u64 = PAYLOAD + 66;
const LINE_BITS_PER_S: u64 = gbit(10);
pub const LINE: Rate = Rate::from_bits_per_s(LINE_BITS_PER_S);

/// ECN-capable transport, and congestion experienced.
const ECT: u8 = 2;
const CE: u8 = 3;

/// Kinds of frames from the receiver.
const ACKNOWLEDGEMENT: u8 = 0;
const CNP: u8 = 1;

struct Sender {
    controller: Box<dyn RateController>,
    pacer: Pacer,
    starts: Time,
    wakes: Time,
    under_way: u64,
    /// Delivered since the count began.
    delivered: u64,
    point: NotificationPoint,
}

pub struct Flows {
    network: Network,
    senders: Vec<Sender>,
    now: Time,
    /// Time of a packet without any queue.
    unhindered: Duration,
    /// Bytes queued in front of each packet that arrived.
    queue_bytes: Vec<u64>,
}

/// Observations since the last call.
#[derive(Debug)]
pub struct Shares {
    pub delivered: Vec<u64>,
    pub utilisation: f64,
    pub queue_mean: f64,
    pub queue_p99: u64,
    pub queue_longest: u64,
    pub dropped: u64,
}

impl Shares {
    /// Jain's index: 1 if all have the same, 1/n if one has everything.
    pub fn fairness(&self) -> f64 {
        let sum: f64 = self.delivered.iter().map(|&bytes| bytes as f64).sum();
        let squares: f64 = self
            .delivered
            .iter()
            .map(|&bytes| (bytes as f64).powi(2))
            .sum();
        sum * sum / (self.delivered.len() as f64 * squares)
    }
}

impl Flows {
    /// A flow for each controller; each starts `apart` after the one before. The last host
    /// receives.
    pub fn new(
        controllers: Vec<Box<dyn RateController>>,
        marking: Marking,
        queue_bytes: u64,
        delay: Duration,
        apart: Duration,
    ) -> Self {
        let network = Network::star(
            7,
            controllers.len() + 1,
            |_| Link::new().rate(LINE_BITS_PER_S).delay(delay),
            |_| {
                Link::new()
                    .marking_bottleneck(LINE_BITS_PER_S, queue_bytes, marking)
                    .delay(delay)
            },
        );
        let mut starts = Time::ZERO;
        let senders = controllers.into_iter().map(|controller| {
            let sender = Sender {
                controller,
                pacer: Pacer::new(starts),
                starts,
                wakes: starts,
                under_way: 0,
                delivered: 0,
                point: NotificationPoint::new(),
            };
            starts = starts + apart;
            sender
        });
        Flows {
            network,
            senders: senders.collect(),
            now: Time::ZERO,
            unhindered: 2 * (delay + LINE.time_for(LINE_BYTES).expect("a line has a rate")),
            queue_bytes: Vec::new(),
        }
    }

    pub fn run(&mut self, time: Duration) -> Shares {
        let until = self.now + time;
        let mut deliveries = Vec::new();
        while self.now < until {
            self.network
                .deliver(self.now, &mut |delivery| deliveries.push(delivery));
            for delivery in deliveries.drain(..) {
                self.arrive(&delivery);
            }
            for index in 0..self.senders.len() {
                self.serve(index);
            }
            let wakes = self.senders.iter().map(|sender| {
                let timer = sender.controller.poll_timeout();
                timer.map_or(sender.wakes, |at| at.min(sender.wakes))
            });
            let next = wakes.chain(self.network.next_event()).min();
            self.now = next
                .unwrap_or(until)
                .max(self.now + Duration::from_nanos(1));
        }
        self.shares(time)
    }

    fn shares(&mut self, time: Duration) -> Shares {
        let delivered: Vec<u64> = self
            .senders
            .iter_mut()
            .map(|sender| std::mem::take(&mut sender.delivered))
            .collect();
        let packets = delivered.iter().sum::<u64>() / PAYLOAD;
        let mut queue = std::mem::take(&mut self.queue_bytes);
        queue.sort_unstable();
        let receiver = self.senders.len();
        let counters = self
            .network
            .link(
                airdma_sim::Node::Switch(0),
                airdma_sim::Node::Host(receiver),
            )
            .counters();
        Shares {
            utilisation: (packets * LINE_BYTES * 8) as f64
                / (LINE_BITS_PER_S as f64 * time.as_secs_f64()),
            queue_mean: queue.iter().sum::<u64>() as f64 / queue.len() as f64,
            queue_p99: queue[queue.len() * 99 / 100],
            queue_longest: queue[queue.len() - 1],
            dropped: counters.dropped,
            delivered,
        }
    }

    fn serve(&mut self, index: usize) {
        let now = self.now;
        let receiver = self.senders.len();
        let sender = &mut self.senders[index];
        if sender.starts > now {
            return;
        }
        if sender.controller.poll_timeout().is_some_and(|at| at <= now) {
            sender.controller.handle_timeout(now, None);
        }
        loop {
            let room = sender.controller.window().saturating_sub(sender.under_way);
            if room < PAYLOAD {
                sender.wakes = Time::from_nanos(u64::MAX);
                return;
            }
            let ready = self.network.ready_at(index);
            if ready > now {
                sender.wakes = ready;
                return;
            }
            match sender.pacer.poll(now, sender.controller.rate(), PAYLOAD) {
                Permit::Now(_) => {}
                Permit::At(at) => {
                    sender.wakes = at;
                    return;
                }
                Permit::Never => panic!("neither of them stops"),
            }
            sender.pacer.spend(PAYLOAD);
            sender.under_way += PAYLOAD;
            sender.controller.handle_sent(now, PAYLOAD);
            let bytes = vec![0; PAYLOAD as usize];
            let frame = frame(&self.network, index, receiver, bytes);
            self.network.send(now, index, frame);
        }
    }

    fn arrive(&mut self, delivery: &Delivery) {
        let receiver = self.senders.len();
        if delivery.to == receiver {
            self.receive(delivery);
            return;
        }
        let sender = &mut self.senders[delivery.to];
        if delivery.frame.bytes[0] == CNP {
            sender.controller.handle_cnp(self.now);
            return;
        }
        sender.under_way -= PAYLOAD;
        sender.wakes = self.now;
        let marked = u64::from(delivery.frame.bytes[1]);
        let sent = u64::from_le_bytes(delivery.frame.bytes[2..10].try_into().expect("8 bytes"));
        let rtt = self.now.duration_since(Time::from_nanos(sent));
        sender.controller.handle_rtt(self.now, rtt);
        let acknowledged = Acknowledged {
            bytes: PAYLOAD,
            marked_bytes: marked * PAYLOAD,
        };
        sender
            .controller
            .handle_acknowledged(self.now, acknowledged);
    }

    fn receive(&mut self, delivery: &Delivery) {
        let receiver = self.senders.len();
        let from = delivery.from;
        let is_marked = delivery.frame.tos & 3 == CE;
        let sender = &mut self.senders[from];
        sender.delivered += PAYLOAD;
        let mut answer = vec![ACKNOWLEDGEMENT, u8::from(is_marked)];
        answer.extend_from_slice(&delivery.sent.as_nanos().to_le_bytes());
        let acknowledgement = frame(&self.network, receiver, from, answer);
        self.network.send(self.now, receiver, acknowledgement);
        if is_marked && sender.point.handle_marked(self.now) {
            let cnp = frame(&self.network, receiver, from, vec![CNP]);
            self.network.send(self.now, receiver, cnp);
        }
        let took = delivery.at.duration_since(delivery.sent);
        let waited = took.saturating_sub(self.unhindered);
        self.queue_bytes.push(LINE.bytes_in(waited));
    }
}

fn frame(network: &Network, from: usize, to: usize, bytes: Vec<u8>) -> Frame {
    Frame {
        source: network.address(from),
        destination: network.address(to),
        source_port: Frame::SOURCE_PORT,
        tos: ECT,
        ttl: 64,
        flow_label: 0,
        bytes,
    }
}

/// A burst of the pacer is larger than a packet, so no flow waits for more than it sends.
const _: () = assert!(PAYLOAD < BURST_BYTES_MAX);
