//! A manager on a bench. The peer's communication id is 7 and its queue pair 0x22.

use std::net::Ipv4Addr;
use std::time::Duration;

use airdma_cm::*;
use airdma_transport::Time;
use airdma_wire::cm::*;
use airdma_wire::{Gid, PathMtu, Psn, Qkey, Qpn, ROCE_PORT};

pub const SERVICE: ServiceId = ServiceId::of_port(PortSpace::TCP, 7174);
pub const PEER: u32 = 7;
pub const QPN: Qpn = Qpn::new(0x11);
pub const PEER_QPN: Qpn = Qpn::new(0x22);
/// 4.096 us * 2^20, to the millisecond.
pub const RESPONSE_MS: u128 = 4_294;
/// 4.096 us * (2^24 + 2^20), to the millisecond.
pub const SERVICE_AND_RESPONSE_MS: u128 = 73_014;
/// 4.096 us * 2^19, to the millisecond.
pub const TIMEWAIT_MS: u128 = 2_147;

const LOCAL: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const REMOTE: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);

pub struct Bench {
    pub manager: Manager,
    pub now: Time,
    pub id: ConnectionId,
    pub route: Route,
    /// UDP source port of datagrams that arrive.
    pub port: u16,
    /// Transaction of datagrams that arrive: 77, or that of the manager's last request.
    pub transaction: u64,
}

pub fn accept<'a>() -> Accept<'a> {
    Accept {
        qpn: QPN,
        psn: Psn::new(5),
        responder_resources: 1,
        initiator_depth: 2,
        rnr_retry_count: 7,
        srq: false,
        private_data: b"welcome",
    }
}

impl Bench {
    pub fn new() -> Self {
        Self::with(|_| {})
    }

    pub fn with(change: impl FnOnce(&mut Config)) -> Self {
        let mut config = Config::new(1, 0x1234);
        change(&mut config);
        Bench {
            manager: Manager::new(config),
            now: Time::ZERO,
            id: ConnectionId(0),
            route: Route {
                local: LOCAL.into(),
                remote: REMOTE.into(),
                traffic_class: 0,
            },
            port: ROCE_PORT,
            transaction: 77,
        }
    }

    pub fn listening() -> Self {
        let mut b = Self::new();
        b.manager.listen(SERVICE, Takes::RC, None, 8).unwrap();
        b
    }

    /// A bench where a request has arrived and the program has seen it.
    pub fn requested() -> Self {
        let mut b = Self::listening();
        b.arrives(b.req());
        assert_eq!(b.events(), ["ConnectRequest"]);
        b
    }

    pub fn accepted() -> Self {
        let mut b = Self::requested();
        b.manager.accept(b.now, b.id, &accept()).unwrap();
        assert_eq!(b.sends(), ["REP us 7"]);
        b
    }

    pub fn established() -> Self {
        let mut b = Self::accepted();
        b.arrives(b.rtu());
        assert_eq!(b.events(), ["Established 224"]);
        b
    }

    pub fn connecting() -> Self {
        let mut b = Self::new();
        b.connect();
        assert_eq!(b.sends(), ["REQ us"]);
        b
    }

    pub fn answered() -> Self {
        let mut b = Self::connecting();
        b.arrives(b.rep());
        assert_eq!(b.events(), ["ConnectResponse 0x22 196"]);
        b
    }

    pub fn connected() -> Self {
        let mut b = Self::answered();
        b.manager.ready(b.id, b"").unwrap();
        assert_eq!(b.sends(), ["RTU us 7"]);
        b
    }

    pub fn wanted<'a>(&self) -> Connect<'a> {
        Connect {
            route: self.route,
            service_id: SERVICE,
            transport: TransportService::Rc,
            qpn: QPN,
            psn: Psn::new(5),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 2,
            retry_count: 7,
            rnr_retry_count: 6,
            srq: true,
            ack_timeout: 19,
            flow_label: 0x12345,
            addressing: IpAddressing::new(LOCAL.into(), 99, REMOTE.into()),
            private_data: b"hello",
        }
    }

    pub fn connect(&mut self) {
        self.id = self.manager.connect(self.now, &self.wanted()).unwrap();
    }

    pub fn req(&self) -> Req {
        let mut private_data = [0; Req::PRIVATE_DATA_LEN];
        let addressing = IpAddressing::new(REMOTE.into(), 99, LOCAL.into()).unwrap();
        private_data[..IpAddressing::LEN].copy_from_slice(&addressing.to_bytes());
        private_data[IpAddressing::LEN..][..5].copy_from_slice(b"hello");
        Req {
            local_id: PEER,
            service_id: SERVICE,
            ca_guid: 1,
            qkey: Qkey(0),
            qpn: PEER_QPN,
            responder_resources: 3,
            ee_context: 0,
            initiator_depth: 4,
            remote_ee_context: 0,
            remote_response_timeout: 20,
            transport: TransportService::Rc,
            flow_control: false,
            psn: Psn::new(9),
            local_response_timeout: 20,
            retry_count: 7,
            pkey: 0xffff,
            path_mtu: PathMtu::M2048,
            rdc_exists: false,
            rnr_retry_count: 6,
            cm_retries_max: 15,
            srq: false,
            extended_transport: 0,
            primary: PathRecord {
                local_gid: self.route.remote,
                remote_gid: self.route.local,
                ack_timeout: 19,
                ..PathRecord::NONE
            },
            alternate: PathRecord::NONE,
            private_data,
        }
    }

    pub fn rep(&self) -> Rep {
        Rep {
            local_id: PEER,
            remote_id: self.id.0,
            qkey: Qkey(0),
            qpn: PEER_QPN,
            ee_context: 0,
            psn: Psn::new(9),
            responder_resources: 3,
            initiator_depth: 4,
            target_ack_delay: 15,
            failover_accepted: 0,
            flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ca_guid: 1,
            private_data: [1; Rep::PRIVATE_DATA_LEN],
        }
    }

    pub fn rtu(&self) -> Rtu {
        Rtu {
            local_id: PEER,
            remote_id: self.id.0,
            private_data: [0; Rtu::PRIVATE_DATA_LEN],
        }
    }

    pub fn rej(&self, reason: RejReason) -> Rej {
        Rej {
            local_id: PEER,
            remote_id: self.id.0,
            about: About::Req,
            reason,
            info_len: 0,
            info: [0; Rej::INFO_LEN],
            private_data: [0; Rej::PRIVATE_DATA_LEN],
        }
    }

    pub fn mra(&self, about: About) -> Mra {
        Mra {
            local_id: PEER,
            remote_id: self.id.0,
            about,
            service_timeout: 24,
            private_data: [0; Mra::PRIVATE_DATA_LEN],
        }
    }

    pub fn dreq(&self) -> Dreq {
        Dreq {
            local_id: PEER,
            remote_id: self.id.0,
            remote_qpn: QPN,
            private_data: [0; Dreq::PRIVATE_DATA_LEN],
        }
    }

    pub fn drep(&self) -> Drep {
        Drep {
            local_id: PEER,
            remote_id: self.id.0,
            private_data: [0; Drep::PRIVATE_DATA_LEN],
        }
    }

    pub fn arrives(&mut self, message: impl Into<Message>) {
        self.arrives_from(self.route.remote, message);
    }

    pub fn arrives_from(&mut self, remote: Gid, message: impl Into<Message>) {
        let mad = CmMad {
            transaction: self.transaction,
            message: message.into().0,
        };
        let route = Route {
            remote,
            ..self.route
        };
        self.manager
            .handle_mad(self.now, route, self.port, &mad.emit());
    }

    pub fn sent(&mut self) -> Option<CmMad> {
        let (route, mad) = self.manager.poll_transmit()?;
        assert_eq!(route.local, self.route.local);
        let mad = CmMad::parse(&mad).unwrap();
        if matches!(mad.message, CmMessage::Req(_) | CmMessage::SidrReq(_)) {
            self.transaction = mad.transaction;
        }
        Some(mad)
    }

    /// Everything that the manager sends now, one line for each datagram.
    pub fn sends(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.sent().map(|mad| self.line(&mad.message))).collect()
    }

    fn line(&self, message: &CmMessage) -> String {
        let id = |id: u32| match id {
            id if id != 0 && id == self.id.0 => "us".to_owned(),
            other => other.to_string(),
        };
        match message {
            CmMessage::Req(m) => format!("REQ {}", id(m.local_id)),
            CmMessage::Mra(m) => format!(
                "MRA {} {} {:?} {}",
                id(m.local_id),
                id(m.remote_id),
                m.about,
                m.service_timeout
            ),
            CmMessage::Rej(m) => {
                let ids = format!("{} {}", id(m.local_id), id(m.remote_id));
                format!("REJ {ids} {:?} {}", m.about, m.reason)
            }
            CmMessage::Rep(m) => format!("REP {} {}", id(m.local_id), id(m.remote_id)),
            CmMessage::Rtu(m) => format!("RTU {} {}", id(m.local_id), id(m.remote_id)),
            CmMessage::Dreq(m) => {
                let ids = format!("{} {}", id(m.local_id), id(m.remote_id));
                format!("DREQ {ids} {}", m.remote_qpn)
            }
            CmMessage::Drep(m) => format!("DREP {} {}", id(m.local_id), id(m.remote_id)),
            CmMessage::SidrReq(_) => "SIDR_REQ".to_owned(),
            CmMessage::SidrRep(m) => format!("SIDR_REP {} {} {}", m.status.0, m.qpn, m.qkey.0),
        }
    }

    /// All events, one line each. The connection of a request becomes the bench's.
    pub fn events(&mut self) -> Vec<String> {
        let mut lines = Vec::new();
        // The program has fetched none that was evicted.
        if let Some(evicted) = self.manager.poll_evicted() {
            self.manager.withdraw(evicted);
        }
        while let Some(event) = self.manager.poll_event() {
            lines.push(match event {
                Event::ConnectRequest(request) => {
                    self.id = request.id;
                    "ConnectRequest".to_owned()
                }
                Event::ConnectResponse(r) => {
                    format!("ConnectResponse {} {}", r.qpn, r.private_data.len())
                }
                Event::Established { private_data, .. } => {
                    format!("Established {}", private_data.len())
                }
                Event::Rejected {
                    reason,
                    private_data,
                    ..
                } => format!("Rejected {reason} {}", private_data.len()),
                Event::Unreachable { .. } => "Unreachable".to_owned(),
                Event::Disconnected { private_data, .. } => {
                    format!("Disconnected {}", private_data.len())
                }
                Event::TimewaitExit { .. } => "TimewaitExit".to_owned(),
                Event::SidrRequest(_) => "SidrRequest".to_owned(),
                Event::SidrResponse(r) => format!("SidrResponse {} {}", r.status.0, r.qpn),
                Event::SidrUnreachable { .. } => "SidrUnreachable".to_owned(),
                Event::SidrWithdrawn { .. } => "SidrWithdrawn".to_owned(),
            });
        }
        lines
    }

    /// Moves to the next timer, fires it, and returns the milliseconds that passed.
    pub fn next_timer(&mut self) -> u128 {
        let due = self.manager.poll_timeout().expect("a timer runs");
        let waited: Duration = due.duration_since(self.now);
        self.now = due;
        self.manager.handle_timeout(self.now);
        waited.as_millis()
    }

    pub fn counted(&self, counter: Counter) -> u64 {
        self.manager.counter(counter)
    }
}

pub struct Message(CmMessage);

macro_rules! messages {
    ($($variant:ident)*) => {
        $(impl From<$variant> for Message {
            fn from(message: $variant) -> Self {
                Message(CmMessage::$variant(message))
            }
        })*
    };
}

messages!(Req Mra Rej Rep Rtu Dreq Drep SidrReq SidrRep);
