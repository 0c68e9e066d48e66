//! Messages between airdma hosts beyond RoCEv2, from a peer or another host, with any
//! content: a host in air mode that is connected to another, and datagrams between the two that are
//! dropped, changed, repeated, cut and made up.
//!
//! Nothing is secret to the attacker here, so it may end the connection. All the same the host
//! comes to rest after each datagram, sends to its peer alone and no more than a window of packets
//! at a time, writes to memory that is granted, and lets all be destroyed in the end.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use airdma_engine::{
    Access, Cq, Operation, Path, PathMtu, Pd, Psn, Qp, QpAttributes, QpCaps, QpInit, QpType,
    SendFlags, SendWr, Sge, simulated,
};
use airdma_port::sim::Frame;
use airdma_wire::air;
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, Headers, ICRC_LEN, IpPseudo, Opcode, Qpn, ROCE_PORT, icrc};
use airdma_worlds::host::{Air, Host, LANDINGS, REGIONS, SOURCES, TARGETS, region};

use crate::input::Input;

/// Datagrams to queue pair 1 that are kept to be changed and sent again.
const SEEN_MAX: usize = 16;
/// Most outstanding requests of a program.
const POSTED_MAX: u32 = 8;
const LENGTH_MAX: u32 = 4096;
/// Packets that a host may send on one datagram: all that it has outstanding, twice, and what it
/// says beside them.
const ANSWERS_MAX: usize = 2 * POSTED_MAX as usize * 17 + 16;
/// Times that what two hosts send each other is carried before they count as ones that never end.
const ROUNDS_MAX: usize = 10_000;
/// Bytes of a management datagram before what airdma says in it.
const CONTENT: usize = 40;

/// Two hosts, and what is between them.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let mut siege = Siege::new(&mut input);
    while !input.is_empty() {
        siege.step(&mut input);
    }
    siege.finish();
}

/// One end of the connection.
struct End {
    host: Host,
    qp: Arc<Qp>,
}

struct Siege {
    ends: [End; 2],
    now: Duration,
    seen: Vec<[u8; MAD_LEN]>,
    /// Bytes of each host that no peer may change.
    kept: [Vec<u8>; 2],
}

impl Siege {
    fn new(input: &mut Input<'_>) -> Self {
        let offers = [Air::Radio, Air::Wired];
        let ends = [0, 1].map(|index| {
            let host = Host::new(
                index,
                address(index),
                index as u64 + 1,
                offers[input.below(2)],
            );
            if input.one_in(3) {
                host.device.offer_bundles();
            }
            let qp = queue_pair(&host.pd, &host.cqs[0]);
            End { host, qp }
        });
        for index in [0, 1] {
            connect(
                &ends[index].qp,
                address(1 - index),
                ends[1 - index].qp.number(),
            );
        }
        let kept = [0, 1].map(|index| protected(&ends[index].host));
        let mut siege = Siege {
            ends,
            now: Duration::ZERO,
            seen: Vec::new(),
            kept,
        };
        siege.settle(0);
        siege.settle(1);
        siege
    }

    fn step(&mut self, input: &mut Input<'_>) {
        let end = input.below(2);
        match input.below(8) {
            0 | 1 => self.post(end, input),
            2 => self.carry(input),
            3 => self.now += Duration::from_micros(u64::from(input.u16()) * 8),
            4 => {
                let mad = input.take(MAD_LEN).to_vec();
                self.send(end, address(1 - end), &mad[..mad.len() & !3]);
            }
            _ => self.attack(end, input),
        }
        for end in [0, 1] {
            self.settle(end);
        }
    }

    /// A WRITE to the peer, or a READ from it.
    fn post(&self, end: usize, input: &mut Input<'_>) {
        let (of, peer) = (&self.ends[end].host, &self.ends[1 - end].host);
        let at = TARGETS.at;
        let (va, rkey) = (
            peer.va(region::TARGETS, at),
            airdma_engine::Rkey(peer.regions[region::TARGETS].key),
        );
        let (operation, local, area) = if input.one_in(3) {
            (Operation::Read { va, rkey }, region::LANDINGS, LANDINGS)
        } else {
            (Operation::Write { va, rkey }, region::SOURCES, SOURCES)
        };
        let sge = Sge {
            addr: of.va(local, area.at),
            length: 1 + u32::from(input.u16()) % LENGTH_MAX,
            lkey: of.regions[local].key,
        };
        let wr = SendWr {
            wr_id: 0,
            operation,
            sges: &[sge],
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        };
        // The queue may be full, or the connection over.
        drop(self.ends[end].qp.post_send(&wr));
    }

    /// Lets a host do what is due, and looks at what it did.
    fn settle(&mut self, end: usize) {
        self.ends[end].host.device.run(self.now);
        self.check(end);
    }

    fn check(&self, end: usize) {
        let host = &self.ends[end].host;
        assert!(
            protected(host) == self.kept[end],
            "a peer changed what it may not"
        );
        let polled = host.cqs[0].poll(2 * POSTED_MAX as usize, drop);
        assert!(polled.is_ok(), "{polled:?}");
    }

    /// Delivers the hosts' datagrams until they are silent, and damages or drops some.
    fn carry(&mut self, input: &mut Input<'_>) {
        let keeps = input.byte();
        for round in 0..ROUNDS_MAX {
            let mut carried = 0;
            for end in [0, 1] {
                while let Some(frame) = self.take(end) {
                    carried += 1;
                    if keeps & 7 == 7 && round % 8 == usize::from(keeps >> 5) {
                        continue;
                    }
                    self.ends[1 - end].host.carrier.give(frame);
                    self.settle(1 - end);
                }
            }
            if carried == 0 {
                return;
            }
        }
        panic!("two hosts talk without end at {:?}", self.now);
    }

    /// The next packet that a host sends.
    fn take(&mut self, end: usize) -> Option<Frame> {
        let host = &self.ends[end].host;
        let frame = host.carrier.take()?;
        assert_eq!(frame.destination, address(1 - end), "to a stranger");
        if frame.bytes.get(5..8) == Some(&[0, 0, 1])
            && let Some(mad) = frame.bytes.get(Bth::LEN + Deth::LEN..)
            && let Some(mad) = mad.first_chunk()
        {
            self.seen.insert(0, *mad);
            self.seen.truncate(SEEN_MAX);
        }
        // It may have waited for room.
        host.device.run(self.now);
        Some(frame)
    }

    /// A datagram like one that was seen, or not.
    fn attack(&mut self, end: usize, input: &mut Input<'_>) {
        let about = input.below(SEEN_MAX) % self.seen.len().max(1);
        let mut mad = self.seen.get(about).copied().unwrap_or([0; MAD_LEN]);
        let changes = input.byte();
        mad[..4].copy_from_slice(&[1, air::AIR_CLASS, 1, 3]);
        if changes & 1 != 0 {
            mad[16..18].copy_from_slice(&[0, 1 + input.byte() % 3]);
        }
        if changes & 2 != 0 {
            // Eight bytes of another one, where an instance may be.
            let other = input.below(SEEN_MAX) % self.seen.len().max(1);
            let other = self.seen.get(other).copied().unwrap_or(mad);
            let [from, to] =
                [input.byte(), input.byte()].map(|at| CONTENT + usize::from(at % 14) * 4);
            let part: [u8; 8] = other[from..from + 8].try_into().expect("eight bytes");
            mad[to..to + 8].copy_from_slice(&part);
        }
        if changes & 4 != 0 {
            mad[CONTENT..].rotate_left(8 * usize::from(changes >> 7));
        }
        for _ in 0..changes >> 4 & 7 {
            let at = input.below(MAD_LEN);
            mad[at] = input.byte();
        }
        // Odd lengths, too: whole words reach the parser.
        let length = match changes & 8 {
            0 => MAD_LEN,
            _ => 4 * input.below(MAD_LEN / 4 + 1),
        };
        let source = if input.one_in(6) {
            address(7)
        } else {
            address(1 - end)
        };
        self.send(end, source, &mad[..length]);
    }

    fn send(&mut self, end: usize, source: IpAddr, payload: &[u8]) {
        let mut headers = Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::GSI, Psn::new(0)));
        headers.deth = Some(Deth {
            qkey: GSI_QKEY,
            src_qpn: Qpn::GSI,
        });
        let mut bytes = vec![0; headers.len()];
        headers.emit(&mut bytes);
        bytes.extend_from_slice(payload);
        let destination = address(end);
        bytes.extend(sum(source, destination, &bytes));
        let waiting = self.drain(end);
        self.ends[end].host.carrier.give(Frame {
            source,
            destination,
            source_port: ROCE_PORT,
            tos: 0,
            ttl: 64,
            flow_label: 0,
            bytes,
        });
        self.settle(end);
        let answers = self.drain(end);
        assert!(
            answers.len() <= ANSWERS_MAX,
            "{} packets on one datagram",
            answers.len()
        );
        for frame in waiting.into_iter().chain(answers) {
            self.ends[1 - end].host.carrier.give(frame);
        }
    }

    fn drain(&mut self, end: usize) -> Vec<Frame> {
        std::iter::from_fn(|| self.take(end)).collect()
    }

    fn finish(mut self) {
        let mut nothing = Input::new(&[]);
        self.carry(&mut nothing);
        // Delayed packets are sent by then, or never.
        self.now += Duration::from_secs(1);
        for End { mut host, qp } in self.ends {
            qp.destroy().expect("nothing holds it");
            drop(qp);
            host.device.run(self.now);
            host.take_down().expect("nothing holds it");
            host.device.run(self.now);
            assert_eq!(host.device.inventory(), host.nothing);
        }
    }
}

fn address(index: usize) -> IpAddr {
    IpAddr::from([10, 0, 0, 1 + index as u8])
}

fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Qp> {
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        srq: None,
        caps: QpCaps {
            max_send_wr: POSTED_MAX,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        },
        signal_all: false,
    };
    pd.create_qp(init).expect("a queue pair")
}

fn connect(qp: &Qp, peer: IpAddr, number: Qpn) {
    let attributes = QpAttributes {
        path_mtu: PathMtu::M1024,
        dest_qpn: number,
        access: Access::REMOTE_WRITE | Access::REMOTE_READ,
        path: Path {
            gid: peer.into(),
            hop_limit: 64,
            ..Path::default()
        },
        port: 1,
        max_dest_rd_atomic: 16,
        max_rd_atomic: 16,
        min_rnr_timer: 1,
        timeout: 10,
        retry_count: 7,
        rnr_retry: 7,
        ..QpAttributes::default()
    };
    simulated::connect(qp, &attributes);
}

/// All bytes of a host but those that a peer may write, and that answers may be written to.
fn protected(host: &Host) -> Vec<u8> {
    let mut bytes = host.bytes().to_vec();
    for open in [region::TARGETS, region::LANDINGS] {
        bytes[REGIONS[open].area.range()].fill(0);
    }
    bytes
}

fn sum(source: IpAddr, destination: IpAddr, packet: &[u8]) -> [u8; ICRC_LEN] {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (source, destination) else {
        unreachable!("addresses of this target are of IPv4");
    };
    let ip = IpPseudo::V4 {
        src,
        dst,
        id: 0,
        dont_fragment: true,
    };
    icrc(&ip, ROCE_PORT, ROCE_PORT, packet).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::{Input, Siege};

    #[test]
    fn without_an_attacker_hosts_agree_and_data_comes() {
        let mut siege = Siege::new(&mut Input::new(&[]));
        let mut more = Input::new(&[]);
        siege.post(0, &mut more);
        // Repeated until there is an answer, and told of within a quarter of a round trip.
        for _ in 0..40 {
            siege.carry(&mut more);
            siege.now += std::time::Duration::from_millis(5);
            siege.settle(0);
            siege.settle(1);
        }
        for end in &siege.ends {
            let counters = end.host.device.device().counters();
            let count = |name: &str| {
                let mut own = counters.iter().filter(|(other, _)| *other == name);
                own.next().map_or(0, |(_, count)| *count)
            };
            assert_eq!(count("air_agreed"), 1, "{counters:?}");
        }
        assert!(!siege.seen.is_empty());
        siege.finish();
    }
}
