//! Travel of packets from node to node.

use crate::frame::Frame;
use crate::ip;
use crate::link::{Carried, Exit, Goal, Trip};
use crate::medium::Passed;
use crate::network::event::{Event, Place};
use crate::network::tap::Tap;
use crate::network::{Delivery, Network, PathCounters};
use crate::topology::Way;
use crate::trace::{Fate, Passage};

impl Network {
    pub(super) fn happen(&mut self, event: Event, each: &mut dyn FnMut(Delivery)) {
        match event.place {
            Place::Stage { wire, stage } => self.pass(wire, Some(stage), event.carried),
            Place::End { wire } => {
                let node = self.wires[wire].to_index;
                if node < self.hosts {
                    self.receive(node, event.carried, each);
                } else {
                    self.forward(node, event.carried);
                }
            }
            Place::Host(host) => self.receive(host, event.carried, each),
        }
    }

    /// Forwards a packet from a node.
    pub(super) fn forward(&mut self, node: usize, carried: Carried) {
        match carried.trip.goal {
            Goal::Host(to) => match self.routes[to][node] {
                Some(wire) => self.pass(wire, None, carried),
                None => {
                    self.unroutable += 1;
                    self.drop(None, Fate::NoRoute, &carried);
                }
            },
            Goal::Everyone => {
                let from = carried.trip.from;
                if !self.floods.contains_key(&from) {
                    let flood = self.flood(from);
                    self.floods.insert(from, flood);
                }
                for wire in self.floods[&from][node].clone() {
                    self.pass(wire, None, carried.clone());
                }
            }
        }
    }

    /// The tree by which frames from a host to all reach each other host once: the wires that each
    /// node copies them to.
    fn flood(&self, from: usize) -> Vec<Vec<usize>> {
        let nodes = self.hosts + self.switches;
        let mut tree = vec![Vec::new(); nodes];
        let mut reached = vec![false; nodes];
        reached[from] = true;
        let mut last = vec![from];
        while !last.is_empty() {
            let mut next = Vec::new();
            for node in last {
                for &wire in &self.leaving[node] {
                    let to = self.wires[wire].to_index;
                    if reached[to] {
                        continue;
                    }
                    reached[to] = true;
                    tree[node].push(wire);
                    // Hosts do not forward.
                    if to >= self.hosts {
                        next.push(to);
                    }
                }
            }
            last = next;
        }
        tree
    }

    /// Passes a packet to a wire, or continues with it at a stage.
    fn pass(&mut self, index: usize, stage: Option<usize>, carried: Carried) {
        if stage.is_none() {
            self.listen(Tap::Wire(index), &carried);
        }
        let trip = carried.trip;
        // A copy from before the wire's changes.
        let noted = self.trace.is_some();
        let noted = noted.then(|| self.passage(Some(index), Fate::Sent, &carried));
        let kept = self.everywhere.is_some().then(|| carried.clone());
        let wire = &mut self.wires[index];
        let link = match &mut wire.way {
            Way::Link(link) => link,
            Way::Shared { .. } => return self.share(index, carried),
        };
        let mut exits = core::mem::take(&mut self.exits);
        match stage {
            None => link.enter(carried, &mut wire.random, &mut exits),
            Some(stage) => link.resume(stage, carried, &mut wire.random, &mut exits),
        }
        let mut fates = core::mem::take(&mut self.fates);
        fates.clear();
        fates.extend_from_slice(link.fates());
        for &fate in &fates {
            if fate.is_drop() || fate == Fate::Damaged {
                self.each_path(&trip, |path| path.lost += 1);
            }
            if matches!(fate, Fate::HeldBack | Fate::Duplicated) {
                self.each_path(&trip, |path| path.astray += 1);
            }
            if let Some(noted) = noted {
                self.note(Passage { fate, ..noted });
            }
            if let Some(kept) = kept.as_ref().filter(|_| fate.is_drop()) {
                self.listen_to_drop(Some(index), fate, kept);
            }
        }
        self.fates = fates;
        for exit in exits.drain(..) {
            match exit {
                Exit::Leaves(carried) => self.push(Place::End { wire: index }, carried),
                Exit::WaitsAt(stage, carried) => {
                    self.push(Place::Stage { wire: index, stage }, carried);
                }
            }
        }
        self.exits = exits;
    }

    fn share(&mut self, index: usize, carried: Carried) {
        let Way::Shared {
            medium,
            from,
            to,
            counters,
        } = &mut self.wires[index].way
        else {
            return;
        };
        let bytes = carried.packet.len();
        counters.entered += 1;
        counters.entered_bytes += bytes as u64;
        let token = self.order;
        self.order += 1;
        self.media[*medium].enqueue(self.now, *from, *to, bytes, token);
        self.on_media.insert(token, (index, carried));
    }

    pub(super) fn advance_media(&mut self, now: airdma_transport::Time) {
        let mut done: Vec<Passed> = Vec::new();
        for medium in &mut self.media {
            if medium.poll_at().is_some_and(|at| at <= now) {
                medium.advance(now, &mut |passed| done.push(passed));
            }
        }
        for passed in done {
            let on_media = self.on_media.remove(&passed.token);
            let (wire, mut carried) = on_media.expect("a medium speaks once of each packet");
            carried.at = passed.at.max(now);
            if let Way::Shared { counters, .. } = &mut self.wires[wire].way {
                match passed.dropped {
                    Some(fate) => counters.add(fate),
                    None => {
                        counters.left += 1;
                        counters.left_bytes += carried.packet.len() as u64;
                    }
                }
            }
            match passed.dropped {
                None => self.push(Place::End { wire }, carried),
                Some(fate) => self.drop(Some(wire), fate, &carried),
            }
        }
    }

    /// Handles a packet that arrives at a host.
    fn receive(&mut self, host: usize, carried: Carried, each: &mut dyn FnMut(Delivery)) {
        let Trip { from, sent, v6, .. } = carried.trip;
        let Carried { at, late, .. } = carried;
        if carried.trip.goal == Goal::Everyone && self.severed[from * self.hosts + host] {
            self.path_mut(from, host).lost += 1;
            return self.record(None, Fate::Cut, &carried);
        }
        let group = carried.trip.goal == Goal::Everyone;
        let received = ip::receive(&carried.packet, v6, group, self.addresses[host]);
        let fate = match &received {
            Ok(_) => Fate::Delivered,
            Err(reason) => Fate::Refused(*reason),
        };
        self.listen_at_host(host, &carried, Some(fate));
        self.record(None, fate, &carried);
        let damaged = carried.original.is_some();
        let path = self.path_mut(from, host);
        path.longest = path.longest.max(at.duration_since(sent));
        path.astray += u64::from(late);
        path.delivered += u64::from(!damaged && received.is_ok());
        path.lost += u64::from(!damaged && received.is_err());
        match received {
            Ok(frame) => each(Delivery {
                at,
                to: host,
                from,
                sent,
                damaged,
                harmed: is_harmed(&carried, &frame),
                frame,
            }),
            Err(reason) => *self.refused.entry((host, reason)).or_default() += 1,
        }
    }

    /// Records that a packet is dropped.
    pub(super) fn drop(&mut self, wire: Option<usize>, fate: Fate, carried: &Carried) {
        self.each_path(&carried.trip, |path| path.lost += 1);
        self.record(wire, fate, carried);
        self.listen_to_drop(wire, fate, carried);
    }

    pub(super) fn push(&mut self, place: Place, carried: Carried) {
        self.events.push(Event {
            at: carried.at,
            order: self.order,
            place,
            carried,
        });
        self.order += 1;
    }

    pub(super) fn path_mut(&mut self, from: usize, to: usize) -> &mut PathCounters {
        &mut self.paths[from * self.hosts + to]
    }

    /// The paths that a frame is on.
    pub(super) fn each_path(&mut self, trip: &Trip, change: impl Fn(&mut PathCounters)) {
        match trip.goal {
            Goal::Host(to) => change(self.path_mut(trip.from, to)),
            Goal::Everyone => {
                for to in (0..self.hosts).filter(|&to| to != trip.from) {
                    change(self.path_mut(trip.from, to));
                }
            }
        }
    }
}

/// Whether damage changed a part that the ICRC covers, as far as the host sees it.
fn is_harmed(carried: &Carried, frame: &Frame) -> bool {
    let Some(original) = &carried.original else {
        return false;
    };
    let Trip { v6, goal, .. } = carried.trip;
    let group = goal == Goal::Everyone;
    let Ok(sent) = ip::receive(original, v6, group, frame.destination) else {
        return true;
    };
    let covered = |frame: &Frame| {
        let mut bytes = frame.bytes.clone();
        if let Some(byte) = bytes.get_mut(CONGESTION_AT) {
            *byte = 0xff;
        }
        (frame.source, frame.destination, frame.source_port, bytes)
    };
    covered(&sent) != covered(frame)
}

/// Offset in the BTH of the byte that the ICRC does not cover (FECN, BECN and reserved bits).
const CONGESTION_AT: usize = 4;
