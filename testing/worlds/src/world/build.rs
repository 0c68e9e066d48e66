//! Building a world: hosts, queue pairs and their connections, and what the judge is told of them.

use super::{ECT_0, QKEY, World};
use crate::host::End;
use crate::plan::{Connection, Service};
use airdma_engine::{
    Access, AttrMask, Path, PathMtu, Psn, QpAttributes, QpCaps, QpInit, QpState, QpType,
};
use airdma_model::{Memory, Owner, QueuePair, Region, Rights, Span};
use core::time::Duration;
use std::sync::Arc;

impl World {
    pub(super) fn introduce_hosts(&mut self) {
        for index in 0..self.hosts.len() {
            self.judge.addresses.push(self.hosts[index].address);
            self.judge
                .memories
                .push(Memory::new(self.hosts[index].bytes()));
            for region in 0..crate::host::REGIONS.len() {
                self.introduce_region(index, region);
            }
            // Shared receive queues have the first numbers, those of the hosts.
            self.judge.add_queue(true);
        }
    }

    /// Tells the judge of a registered region.
    pub fn introduce_region(&mut self, host: usize, number: usize) {
        let layout = crate::host::REGIONS[number];
        let registered = &self.hosts[host].regions[number];
        self.judge.grants.add(Region {
            host,
            domain: usize::from(layout.foreign),
            key: registered.key,
            va: registered.va,
            length: layout.area.range().len() as u64,
            at: layout.area.at,
            rights: Rights(layout.access.bits()),
            owner: Owner::Domain,
            span: Span::since(self.judge.now),
            closers: 0,
        });
    }

    pub(super) fn connect(&mut self, connection: Connection) {
        let first = self.ends.len();
        for side in 0..2 {
            let end = self.create(connection, side);
            self.ends.push(end);
            let host = connection.hosts[side];
            let service = match connection.service {
                Service::Rc => airdma_model::Service::Rc,
                Service::Uc => airdma_model::Service::Uc,
                Service::Ud => airdma_model::Service::Ud,
            };
            let shared = connection.shared[side];
            let queue = if shared {
                host
            } else {
                self.judge.add_queue(false)
            };
            let mut qp = QueuePair::new(host, 0, service, queue);
            qp.peer = (connection.service != Service::Ud).then_some(first + 1 - side);
            // Four timers for each retry: IBTA's longest, as none of these takes long.
            qp.timeout = 4 * timeout(&connection);
            qp.retry_count = connection.retry_count;
            qp.rnr_retry = connection.rnr_retry;
            qp.answers_max = connection.answers_max;
            qp.mtu = 1024;
            self.judge.queue_pairs.push(qp);
        }
        for side in 0..2 {
            self.bring_up(connection, first + side, first + 1 - side);
        }
    }

    fn create(&mut self, connection: Connection, side: usize) -> End {
        let index = connection.hosts[side];
        let host = &self.hosts[index];
        let caps = QpCaps {
            max_send_wr: connection.depth,
            max_recv_wr: connection.depth,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
        };
        let qp = host.pd.create_qp(QpInit {
            qp_type: match connection.service {
                Service::Rc => QpType::Rc,
                Service::Uc => QpType::Uc,
                Service::Ud => QpType::Ud,
            },
            send_cq: Arc::clone(&host.cqs[usize::from(connection.cqs[0])]),
            recv_cq: Arc::clone(&host.cqs[usize::from(connection.cqs[1])]),
            srq: host
                .srq
                .as_ref()
                .filter(|_| connection.shared[side])
                .map(Arc::clone),
            caps,
            signal_all: connection.signal_all,
        });
        let qp = qp.expect("a queue pair");
        if self.plan.sealed && connection.service != Service::Ud {
            qp.seal().expect("it is not connected");
        }
        let granted = qp.caps();
        End {
            number: qp.number(),
            granted: (granted.max_send_wr, granted.max_recv_wr),
            qp: Some(qp),
            host: index,
            window: None,
            drained: false,
            draining: false,
            haunted: None,
            events: Vec::new(),
            owed: Vec::new(),
        }
    }

    /// Moves a queue pair from RESET to ready-to-send.
    pub fn bring_up(&mut self, connection: Connection, own: usize, peer: usize) {
        let side = own % 2;
        let reliable = connection.service == Service::Rc;
        let datagrams = connection.service == Service::Ud;
        let path = Path {
            gid: self.hosts[self.ends[peer].host].address.into(),
            hop_limit: 64,
            traffic_class: self.traffic_class(),
            ..Path::default()
        };
        let attributes = QpAttributes {
            path_mtu: mtu(connection.mtu),
            sq_psn: Psn::new(connection.psns[side]),
            rq_psn: Psn::new(connection.psns[1 - side]),
            dest_qpn: self.ends[peer].number,
            access: granted(connection.rights[side]),
            path,
            port: 1,
            qkey: QKEY,
            max_rd_atomic: connection.answers_max,
            max_dest_rd_atomic: 16,
            min_rnr_timer: connection.min_rnr_timer,
            timeout: connection.timeout,
            retry_count: connection.retry_count,
            rnr_retry: connection.rnr_retry,
            rate_limit_kbps: connection.rates_kbps[side],
            ..QpAttributes::default()
        };
        let mut masks = [
            AttrMask::PKEY_INDEX | AttrMask::PORT,
            AttrMask::empty(),
            AttrMask::SQ_PSN,
        ];
        if datagrams {
            masks[0] |= AttrMask::QKEY;
        } else {
            masks[0] |= AttrMask::ACCESS_FLAGS;
            masks[1] |= AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        }
        if reliable {
            masks[1] |= AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
            masks[2] |= AttrMask::MAX_QP_RD_ATOMIC
                | AttrMask::RETRY_CNT
                | AttrMask::RNR_RETRY
                | AttrMask::TIMEOUT;
        }
        if attributes.rate_limit_kbps != 0 && !datagrams {
            masks[2] |= AttrMask::RATE_LIMIT;
        }
        if let Some(attacker) = &mut self.attacker {
            attacker.note_start(own, connection.psns[side]);
        }
        let states = [QpState::Init, QpState::ReadyToReceive, QpState::ReadyToSend];
        let of = &mut self.judge.queue_pairs[own];
        of.rights = Rights(attributes.access.bits());
        of.rights_surely = of.rights;
        of.rnr_timer = rnr_timer(connection.min_rnr_timer);
        let qp = self.ends[own].qp.as_ref().expect("just created");
        for (state, mask) in states.into_iter().zip(masks) {
            let attributes = QpAttributes {
                state,
                ..attributes
            };
            qp.modify(&attributes, mask | AttrMask::STATE)
                .expect("a connection comes up");
        }
    }

    /// The traffic class of connections: in some worlds the network may mark their packets.
    fn traffic_class(&self) -> u8 {
        if self.plan.seed % 4 == 1 { ECT_0 } else { 0 }
    }
}

/// Least time for which a queue pair waits for an acknowledgement.
pub fn timeout(connection: &Connection) -> Duration {
    Duration::from_nanos(4096 << connection.timeout)
}

/// RNR NAK timer of a queue pair without a receive (IBTA table 45), for the values of plans.
pub fn rnr_timer(number: u8) -> Duration {
    Duration::from_micros(match number {
        1 => 10,
        5 => 60,
        12 => 640,
        _ => 1280,
    })
}

/// Access rights from the bits of a plan.
pub fn granted(bits: u8) -> Access {
    let rights = [
        Access::REMOTE_READ | Access::FLUSH_GLOBAL,
        Access::REMOTE_WRITE,
        Access::REMOTE_ATOMIC,
    ];
    let chosen = rights
        .into_iter()
        .enumerate()
        .filter(|(bit, _)| bits >> bit & 1 == 1);
    chosen.map(|(_, right)| right).collect()
}

fn mtu(number: u8) -> PathMtu {
    match number {
        1 => PathMtu::M256,
        2 => PathMtu::M512,
        _ => PathMtu::M1024,
    }
}
