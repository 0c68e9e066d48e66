//! The network of a world, and conversions between its frames and the ports'.

use crate::one_host::PROCESSES;
use crate::plan::NetworkPlan;
use airdma_port::sim::Frame as PortFrame;
use airdma_sim::wifi::{Cell, Profile};
use airdma_sim::{Frame, GilbertElliott, Link, Network, Node, Topology, gbit};

pub(super) fn network(plan: &NetworkPlan, hosts: usize, seed: u64, one_host: bool) -> Network {
    let plan = *plan;
    let share = |of_10_000: u32| f64::from(of_10_000) / 10_000.0;
    let link = move || {
        let of = plan.link;
        let mut link = Link::new();
        if let Some(rate) = of.gbit {
            link = link.rate(gbit(rate));
        }
        if let (Some(bytes), Some(rate)) = (of.queue_bytes, of.gbit) {
            link = link.bottleneck(gbit(rate), bytes);
        }
        link = link.delay(of.delay);
        if !of.jitter.is_zero() {
            link = link.jitter(of.jitter);
        }
        if of.loss > 0 {
            link = if of.bursts {
                link.drop_in_bursts(GilbertElliott::bursts(share(of.loss), 4.0))
            } else {
                link.drop(share(of.loss))
            };
        }
        if of.duplicate > 0 {
            link = link.duplicate(share(of.duplicate));
        }
        if of.reorder > 0 {
            link = link.reorder_by(share(of.reorder), of.held);
        }
        if of.corrupt > 0 {
            link = link.corrupt_any(share(of.corrupt));
        }
        if of.truncate > 0 {
            link = link.truncate(share(of.truncate));
        }
        link
    };
    if let Some((profile, snr)) = plan.wifi {
        let profile = Profile::ALL[usize::from(profile) % Profile::ALL.len()].clone();
        let mut cell = Cell::new(seed, profile, hosts + 1).waits_above(64 << 10);
        for station in 1..=hosts {
            cell = cell.snr(station, f64::from(snr));
        }
        let nodes = std::iter::once(Node::Switch(0)).chain((0..hosts).map(Node::Host));
        let topology = Topology::new().hosts(hosts).switches(1);
        return topology
            .share(cell, &nodes.collect::<Vec<_>>())
            .network(seed);
    }
    if one_host {
        let is_inside = |from, to| from < PROCESSES && to < PROCESSES;
        let between = |from, to| match is_inside(from, to) {
            true => Link::new(),
            false => link(),
        };
        return Network::mesh(seed, hosts, between);
    }
    if plan.star {
        Network::star(seed, hosts, |_| link(), |_| link())
    } else {
        Network::mesh(seed, hosts, |_, _| link())
    }
}

pub(crate) fn to_network(frame: PortFrame) -> Frame {
    Frame {
        source: frame.source,
        destination: frame.destination,
        source_port: frame.source_port,
        tos: frame.tos,
        ttl: frame.ttl,
        flow_label: frame.flow_label,
        bytes: frame.bytes,
    }
}

pub(crate) fn to_port(frame: Frame) -> PortFrame {
    PortFrame {
        source: frame.source,
        destination: frame.destination,
        source_port: frame.source_port,
        tos: frame.tos,
        ttl: frame.ttl,
        flow_label: frame.flow_label,
        bytes: frame.bytes,
    }
}
