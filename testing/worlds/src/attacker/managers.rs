//! The attacker's datagrams to connection managers.

use super::Attacker;
use super::forge::management;
use super::meeting::SERVICE;
use crate::world::World;
use airdma_engine::cm_protocol::{
    Config, Connect, IpAddressing, Manager, Resolve, Route, TransportService,
};
use airdma_engine::{PathMtu, Psn, Qpn};
use airdma_transport::Time;
use airdma_wire::cm::{About, CmMad, CmMessage, Drep, Dreq, Mra, Rej, RejReason, Rep, Rtu};
use airdma_wire::mad::MAD_LEN;
use std::net::IpAddr;

/// Number of hosts with connections by RDMA CM.
const MEET: u64 = 2;

/// A manager that requests connections in the name of others; the attacker reads the answers
/// itself.
pub(super) fn manager(seed: u64) -> Manager {
    let mut config = Config::new(seed, 0x66);
    // Hosts repeat their messages as early and as often as a request can make them.
    config.response_timeout = 12;
    Manager::new(config)
}

impl Attacker {
    /// A datagram to the connection manager of a host, with that host and the source address.
    pub(super) fn at_manager(&mut self, world: &World) -> (usize, IpAddr, Vec<u8>) {
        let host = self.random.below(MEET) as usize;
        let peer = world.hosts[1 - host].address;
        let to = world.hosts[host].address;
        let nobody = self.somebody(to);
        let (from, mad) = match self.random.below(10) {
            0 => (self.address, self.req(self.address, to, None)),
            1 => (self.bystander, self.req(self.bystander, to, None)),
            2..=4 => (nobody, self.req(nobody, to, None)),
            // The peer seems to have lost its connection and to request another.
            5 => {
                let number = self
                    .meeting
                    .as_ref()
                    .map(|meeting| meeting.numbers[0][1 - host]);
                (peer, self.req(peer, to, number))
            }
            6 => (peer, self.sidr_req(peer, to)),
            _ => (peer, self.about_theirs(host)),
        };
        (host, from, management(&mad))
    }

    /// An address that no host has seen.
    fn somebody(&mut self, like: IpAddr) -> IpAddr {
        let last = 100 + self.random.below(100) as u8;
        match like {
            IpAddr::V4(_) => IpAddr::from([10, 5, 9, last]),
            IpAddr::V6(address) => {
                let mut octets = address.octets();
                octets[13] = 9;
                octets[15] = last;
                IpAddr::from(octets)
            }
        }
    }

    fn req(&mut self, from: IpAddr, to: IpAddr, number: Option<Qpn>) -> [u8; MAD_LEN] {
        let any = Qpn::new(2 + self.random.below((1 << 24) - 3) as u32);
        let wanted = Connect {
            route: Route {
                local: from.into(),
                remote: to.into(),
                traffic_class: 0,
            },
            service_id: SERVICE,
            transport: TransportService::Rc,
            qpn: number.unwrap_or(any),
            psn: Psn::new(1),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 12,
            flow_label: 0,
            addressing: IpAddressing::new(from, 4711, to),
            private_data: &[],
        };
        let asked = self.manager.connect(Time::ZERO, &wanted);
        asked.expect("fewer connections than there is room for");
        self.said()
    }

    fn sidr_req(&mut self, from: IpAddr, to: IpAddr) -> [u8; MAD_LEN] {
        let wanted = Resolve {
            route: Route {
                local: from.into(),
                remote: to.into(),
                traffic_class: 0,
            },
            service_id: SERVICE,
            addressing: IpAddressing::new(from, 4711, to),
            private_data: &[],
        };
        let asked = self.manager.resolve(Time::ZERO, &wanted);
        asked.expect("fewer resolutions than there is room for");
        self.said()
    }

    fn said(&mut self) -> [u8; MAD_LEN] {
        let (_, mad) = self.manager.poll_transmit().expect("what was asked for");
        mad
    }

    /// An id near that of the attacker's own connection to a host, or any.
    fn id(&mut self, host: usize) -> u32 {
        let near = 1 + self.random.below(15) as u32;
        match self.own[host].id.filter(|_| self.random.chance(0.8)) {
            Some(id) => id ^ near,
            None => self.random.next_u64() as u32,
        }
    }

    /// A message that ends, rejects or accepts the connection of the two, with ids near those of
    /// its own connections.
    fn about_theirs(&mut self, host: usize) -> [u8; MAD_LEN] {
        let local_id = self.id(1 - host);
        let remote_id = self.id(host);
        let message = match self.random.below(6) {
            0 | 1 => CmMessage::Dreq(Dreq {
                local_id,
                remote_id,
                remote_qpn: self
                    .meeting
                    .as_ref()
                    .map_or(Qpn::new(2), |meeting| meeting.numbers[0][host]),
                private_data: [0; Dreq::PRIVATE_DATA_LEN],
            }),
            2 => CmMessage::Rej(Rej {
                local_id,
                remote_id,
                about: About::Rep,
                reason: RejReason::STALE_CONNECTION,
                info_len: 0,
                info: [0; Rej::INFO_LEN],
                private_data: [0; Rej::PRIVATE_DATA_LEN],
            }),
            3 => CmMessage::Rtu(Rtu {
                local_id,
                remote_id,
                private_data: [0; Rtu::PRIVATE_DATA_LEN],
            }),
            4 => CmMessage::Drep(Drep {
                local_id,
                remote_id,
                private_data: [0; Drep::PRIVATE_DATA_LEN],
            }),
            _ => CmMessage::Mra(Mra {
                local_id,
                remote_id,
                about: About::Rep,
                service_timeout: 24,
                private_data: [0; Mra::PRIVATE_DATA_LEN],
            }),
        };
        let transaction = self.random.next_u64();
        CmMad {
            transaction,
            message,
        }
        .emit()
    }

    /// Learns the id of a host's end of the attacker's own connection.
    pub(super) fn learn_id(&mut self, host: usize, mad: &[u8]) {
        if let Ok(CmMad {
            message: CmMessage::Rep(Rep { local_id, .. }),
            ..
        }) = CmMad::parse(mad)
        {
            self.own[host].id = Some(local_id);
        }
    }
}
