//! One capture with the manager at one end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use airdma_cm::*;
use airdma_wire::cm::*;

use crate::conversation::{Datagram, End, datagrams};

pub struct Replay {
    manager: Manager,
    /// Datagrams that the manager sent and the kernel has not sent yet, oldest first.
    ours: VecDeque<(Route, CmMad)>,
    /// The manager's ids and transactions by those that the kernel chose; on the passive side also
    /// by the peer's id.
    our_id: BTreeMap<u32, u32>,
    our_transaction: BTreeMap<u64, u64>,
    asked_by: BTreeMap<u32, u32>,
    asked_by_sidr: BTreeMap<u32, SidrId>,
    events: VecDeque<Event>,
    differences: Vec<String>,
}

impl Replay {
    /// The differences between the manager and the kernel at that end of the capture, a line each.
    pub fn run(name: &str, end: End) -> Vec<String> {
        let datagrams = datagrams(name);
        let mut replay = Replay {
            manager: Manager::new(Config::new(1, guid_of(&datagrams, end))),
            ours: VecDeque::new(),
            our_id: BTreeMap::new(),
            our_transaction: BTreeMap::new(),
            asked_by: BTreeMap::new(),
            asked_by_sidr: BTreeMap::new(),
            events: VecDeque::new(),
            differences: Vec::new(),
        };
        if end == End::B {
            replay.listen(&datagrams);
        }
        for datagram in &datagrams {
            while let Some(due) = replay
                .manager
                .poll_timeout()
                .filter(|due| *due <= datagram.at)
            {
                replay.manager.handle_timeout(due);
                replay.collect();
            }
            if datagram.from == end {
                replay.kernel_sends(datagram);
            } else {
                replay.peer_sends(datagram);
            }
        }
        replay.pass_over(replay.ours.len());
        replay.differences
    }

    /// Listens on the services that the kernel answered for.
    fn listen(&mut self, datagrams: &[Datagram]) {
        let answered: BTreeSet<_> = datagrams
            .iter()
            .filter(|datagram| matches!(datagram.mad.message, CmMessage::Rep(_)))
            .map(|datagram| datagram.mad.transaction)
            .collect();
        for datagram in datagrams {
            if let CmMessage::Req(req) = datagram.mad.message
                && answered.contains(&datagram.mad.transaction)
            {
                self.listen_on(req.service_id, Takes::Connections(req.transport));
            }
            if let CmMessage::SidrRep(response) = datagram.mad.message {
                self.listen_on(response.service_id, Takes::Datagrams);
            }
        }
    }

    fn listen_on(&mut self, service_id: ServiceId, takes: Takes) {
        let listened = self.manager.listen(service_id, takes, None, 8);
        assert!(matches!(listened, Ok(_) | Err(CmError::ServiceInUse)));
    }

    fn collect(&mut self) {
        while let Some((route, bytes)) = self.manager.poll_transmit() {
            self.ours.push_back((route, CmMad::parse(&bytes).unwrap()));
        }
        while let Some(event) = self.manager.poll_event() {
            // The end of timewait does not show on the wire.
            if !matches!(event, Event::TimewaitExit { .. }) {
                self.events.push_back(event);
            }
        }
    }

    /// Skips the first `count` datagrams of the manager, which have no counterpart.
    fn pass_over(&mut self, count: usize) {
        for (_, mad) in self.ours.drain(..count) {
            self.differences
                .push(format!("{}: only ours", mad.message.name()));
        }
    }

    /// Delivers a datagram of the other end, with the manager's ids in place of the kernel's.
    fn peer_sends(&mut self, datagram: &Datagram) {
        let mut mad = datagram.mad;
        if let Some(ours) = self.our_transaction.get(&mad.transaction) {
            mad.transaction = *ours;
        }
        if let Some(id) = id_of_receiver(&mut mad.message)
            && let Some(ours) = self.our_id.get(id)
        {
            *id = *ours;
        }
        let route = datagram.route_back();
        self.manager
            .handle_mad(datagram.at, route, 49_152, &mad.emit());
        self.collect();
        let told = self.events.pop_front();
        self.compare_event(&datagram.mad.message, told);
        let more = std::mem::take(&mut self.events);
        self.differences
            .extend(more.iter().map(|event| format!("one more {event:?}")));
    }

    /// Compares an event of the program with the datagram that caused it.
    fn compare_event(&mut self, message: &CmMessage, event: Option<Event>) {
        let name = message.name();
        let told = match (message, event) {
            (CmMessage::Req(req), Some(Event::ConnectRequest(told))) => {
                self.asked_by.insert(req.local_id, told.id.0);
                let addressing = told
                    .addressing
                    .map_or(Vec::new(), |a| a.to_bytes().to_vec());
                (
                    told.service_id,
                    told.transport,
                    told.qpn,
                    told.psn,
                    told.path_mtu,
                ) == (
                    req.service_id,
                    req.transport,
                    req.qpn,
                    req.psn,
                    req.path_mtu,
                ) && (told.responder_resources, told.initiator_depth, told.srq)
                    == (req.responder_resources, req.initiator_depth, req.srq)
                    && (told.retry_count, told.rnr_retry_count)
                        == (req.retry_count, req.rnr_retry_count)
                    && (told.ack_timeout, told.flow_label)
                        == (req.primary.ack_timeout, req.primary.flow_label)
                    && [addressing, told.private_data].concat() == req.private_data
            }
            (CmMessage::Rep(rep), Some(Event::ConnectResponse(told))) => {
                (told.qpn, told.psn, told.srq) == (rep.qpn, rep.psn, rep.srq)
                    && (told.responder_resources, told.initiator_depth)
                        == (rep.responder_resources, rep.initiator_depth)
                    && (told.rnr_retry_count, told.target_ack_delay)
                        == (rep.rnr_retry_count, rep.target_ack_delay)
                    && told.private_data == rep.private_data
            }
            (CmMessage::Rtu(rtu), Some(Event::Established { private_data, .. })) => {
                private_data == rtu.private_data
            }
            (
                CmMessage::Rej(rej),
                Some(Event::Rejected {
                    reason,
                    private_data,
                    ..
                }),
            ) => (reason, private_data.as_slice()) == (rej.reason, &rej.private_data),
            (CmMessage::Dreq(dreq), Some(Event::Disconnected { private_data, .. })) => {
                private_data == dreq.private_data
            }
            (CmMessage::Drep(drep), Some(Event::Disconnected { private_data, .. })) => {
                private_data == drep.private_data
            }
            (CmMessage::SidrReq(request), Some(Event::SidrRequest(told))) => {
                self.asked_by_sidr.insert(request.request_id, told.id);
                let addressing = told
                    .addressing
                    .map_or(Vec::new(), |a| a.to_bytes().to_vec());
                told.service_id == request.service_id
                    && [addressing, told.private_data].concat() == request.private_data
            }
            (CmMessage::SidrRep(response), Some(Event::SidrResponse(told))) => {
                (told.status, told.qpn, told.qkey) == (response.status, response.qpn, response.qkey)
                    && told.private_data == response.private_data
            }
            // The service has no listener, so the program gets no event.
            (CmMessage::Req(_), None) => true,
            _ => false,
        };
        if !told {
            self.differences
                .push(format!("{name}: the program hears something else"));
        }
    }

    /// Handles a datagram of the kernel at the manager's end: the manager must have sent the same.
    fn kernel_sends(&mut self, datagram: &Datagram) {
        self.call(datagram);
        self.collect();
        let name = datagram.mad.message.name();
        let same = |(_, mad): &(Route, CmMad)| mad.message.name() == name;
        let Some(at) = self.ours.iter().position(same) else {
            return self.differences.push(format!("{name}: only the kernel's"));
        };
        self.pass_over(at);
        let (route, ours) = self.ours.pop_front().unwrap();
        let ours = self.as_the_kernel_numbers(ours, &datagram.mad);
        let of_ours = fields(&ours, &route);
        let of_theirs = fields(&datagram.mad, &datagram.route);
        let mut within = "";
        for (ours, theirs) in of_ours.lines().zip(of_theirs.lines()) {
            let (ours, theirs) = (ours.trim(), theirs.trim());
            if ours.ends_with(['(', '[']) {
                within = ours;
            }
            if ours != theirs {
                let line = format!("{name}: {within} {ours} the kernel's {theirs}");
                self.differences.push(line);
            }
        }
        if of_ours == of_theirs && ours.emit()[..] != datagram.bytes {
            self.differences.push(format!("{name}: bytes"));
        }
    }

    /// Makes the program's call that led to this datagram of the kernel. The kernel sends the
    /// others on its own.
    fn call(&mut self, datagram: &Datagram) {
        let now = datagram.at;
        match datagram.mad.message {
            CmMessage::Req(req) if !self.our_id.contains_key(&req.local_id) => {
                let id = self
                    .manager
                    .connect(now, &wanted(&req, datagram.route))
                    .unwrap();
                self.our_id.insert(req.local_id, id.0);
            }
            CmMessage::Rep(rep) if !self.our_id.contains_key(&rep.local_id) => {
                let id = ConnectionId(self.asked_by[&rep.remote_id]);
                self.our_id.insert(rep.local_id, id.0);
                self.manager.accept(now, id, &accepted(&rep)).unwrap();
            }
            CmMessage::Rtu(rtu) => {
                let id = ConnectionId(self.our_id[&rtu.local_id]);
                self.manager.ready(id, &rtu.private_data).unwrap();
            }
            CmMessage::Dreq(dreq) => {
                let id = ConnectionId(self.our_id[&dreq.local_id]);
                self.manager
                    .disconnect(now, id, &dreq.private_data)
                    .unwrap();
            }
            // The program exits before an answer came.
            CmMessage::Rej(rej) if rej.reason == RejReason::TIMEOUT => {
                let id = ConnectionId(self.our_id[&rej.local_id]);
                self.manager.destroy(now, id);
            }
            CmMessage::SidrReq(request) => {
                let (addressing, private_data) = split(&request.private_data);
                let wanted = Resolve {
                    route: datagram.route,
                    service_id: request.service_id,
                    addressing,
                    private_data,
                };
                let id = self.manager.resolve(now, &wanted).unwrap();
                self.our_id.insert(request.request_id, id.0);
            }
            CmMessage::SidrRep(response) => {
                let answer = SidrAnswer {
                    status: response.status,
                    qpn: response.qpn,
                    qkey: response.qkey,
                    private_data: &response.private_data,
                };
                let id = self.asked_by_sidr[&response.request_id];
                self.manager.answer(now, id, &answer).unwrap();
            }
            CmMessage::Req(_)
            | CmMessage::Rep(_)
            | CmMessage::Rej(_)
            | CmMessage::Drep(_)
            | CmMessage::Mra(_) => {}
        }
    }

    /// The manager's datagram with the kernel's numbers in place of its own.
    ///
    /// A number of the manager's stands for the same number of the kernel's wherever it occurs.
    fn as_the_kernel_numbers(&mut self, mut ours: CmMad, theirs: &CmMad) -> CmMad {
        let begins = matches!(
            ours.message,
            CmMessage::Req(_) | CmMessage::SidrReq(_) | CmMessage::Dreq(_)
        );
        let known = self
            .our_transaction
            .values()
            .any(|number| *number == ours.transaction);
        if begins && !known {
            self.our_transaction
                .entry(theirs.transaction)
                .or_insert(ours.transaction);
        }
        let mut numbers = self.our_transaction.iter();
        if let Some((kernels, _)) = numbers.find(|(_, number)| **number == ours.transaction) {
            ours.transaction = *kernels;
        }
        if let Some(id) = id_of_sender(&mut ours.message)
            && let Some((kernels, _)) = self.our_id.iter().find(|(_, number)| *number == id)
        {
            *id = *kernels;
        }
        ours
    }
}

/// The GUID of an end's device.
fn guid_of(datagrams: &[Datagram], end: End) -> u64 {
    let told = datagrams.iter().filter(|datagram| datagram.from == end);
    let guid = |datagram: &Datagram| {
        if let CmMessage::Req(req) = datagram.mad.message {
            return Some(req.ca_guid);
        }
        if let CmMessage::Rep(rep) = datagram.mad.message {
            return Some(rep.ca_guid);
        }
        None
    };
    told.filter_map(guid).next().unwrap_or(0)
}

fn split(private_data: &[u8]) -> (Option<IpAddressing>, &[u8]) {
    let (header, rest) = private_data.split_first_chunk().unwrap();
    (Some(IpAddressing::from_bytes(header).unwrap()), rest)
}

fn wanted(req: &Req, route: Route) -> Connect<'_> {
    let (addressing, private_data) = split(&req.private_data);
    Connect {
        route,
        service_id: req.service_id,
        transport: req.transport,
        qpn: req.qpn,
        psn: req.psn,
        path_mtu: req.path_mtu,
        responder_resources: req.responder_resources,
        initiator_depth: req.initiator_depth,
        retry_count: req.retry_count,
        rnr_retry_count: req.rnr_retry_count,
        srq: req.srq,
        ack_timeout: req.primary.ack_timeout,
        flow_label: req.primary.flow_label,
        addressing,
        private_data,
    }
}

fn accepted(rep: &Rep) -> Accept<'_> {
    Accept {
        qpn: rep.qpn,
        psn: rep.psn,
        responder_resources: rep.responder_resources,
        initiator_depth: rep.initiator_depth,
        rnr_retry_count: rep.rnr_retry_count,
        srq: rep.srq,
        private_data: &rep.private_data,
    }
}

/// Each field on a line of its own.
fn fields(mad: &CmMad, route: &Route) -> String {
    format!(
        "{mad:#?}\nlocal {:?}\nremote {:?}",
        route.local, route.remote
    )
}

fn id_of_sender(message: &mut CmMessage) -> Option<&mut u32> {
    match message {
        CmMessage::Req(m) => Some(&mut m.local_id),
        CmMessage::Mra(m) => Some(&mut m.local_id),
        CmMessage::Rej(m) => Some(&mut m.local_id),
        CmMessage::Rep(m) => Some(&mut m.local_id),
        CmMessage::Rtu(m) => Some(&mut m.local_id),
        CmMessage::Dreq(m) => Some(&mut m.local_id),
        CmMessage::Drep(m) => Some(&mut m.local_id),
        CmMessage::SidrReq(m) => Some(&mut m.request_id),
        CmMessage::SidrRep(_) => None,
    }
}

fn id_of_receiver(message: &mut CmMessage) -> Option<&mut u32> {
    match message {
        CmMessage::Req(_) | CmMessage::SidrReq(_) => None,
        CmMessage::Mra(m) => Some(&mut m.remote_id),
        CmMessage::Rej(m) => Some(&mut m.remote_id),
        CmMessage::Rep(m) => Some(&mut m.remote_id),
        CmMessage::Rtu(m) => Some(&mut m.remote_id),
        CmMessage::Dreq(m) => Some(&mut m.remote_id),
        CmMessage::Drep(m) => Some(&mut m.remote_id),
        CmMessage::SidrRep(m) => Some(&mut m.request_id),
    }
}
