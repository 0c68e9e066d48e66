//! Malformed, repeated and forged messages of connection management, one by one through a plain
//! socket.
//!
//! Each is counted once, in the counters of `airdma devices -v`, and an established connection is
//! not affected.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{
    Accept, ConnectionId, Event, IpAddressing, PortSpace, RejReason, ServiceId, SidrStatus, Takes,
    TransportService,
};
use airdma_engine::*;
use airdma_wire::cm::*;
use airdma_wire::mad::{GSI_QKEY, MAD_LEN};
use airdma_wire::{Bth, Deth, HEADERS_LEN_MAX, Headers, ICRC_LEN, IpPseudo, Opcode, icrc};
use common::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

/// A link comes up after a while, and with it the route to its address.
const SETUP: &str = "ip link add veth0 type veth peer name veth1
    ip -6 address add fd09::1/64 dev veth0 nodad
    ip -6 address add fd09::2/128 dev lo nodad
    ip -6 address add fd09::3/128 dev lo nodad
    ip link set veth1 up
    ip link set veth0 up
    until ip -6 route get fd09::1 | grep -q ^local; do sleep 0.01; done";

const OURS: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 1);
const PEERS: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 2);
const STRANGERS: Ipv6Addr = Ipv6Addr::new(0xfd09, 0, 0, 0, 0, 0, 0, 3);
const ROCE: u16 = 4791;
const TCP_PORT: u16 = 7471;
const BACKLOG: usize = 2;

/// The communication id and the queue pair of the peer's connection, and our queue pair.
const PEER: u32 = 7;
const PEER_QPN: Qpn = Qpn::new(0x22);
const QPN: Qpn = Qpn::new(0x11);

/// A socket that sends any message.
struct Speaker {
    ip: Ipv6Addr,
    socket: UdpSocket,
}

impl Speaker {
    fn new(ip: Ipv6Addr) -> Self {
        let socket = UdpSocket::bind((ip, ROCE)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        Speaker { ip, socket }
    }

    fn datagram(&self, payload: &[u8], qkey: Qkey) -> Vec<u8> {
        let headers = Headers {
            deth: Some(Deth {
                qkey,
                src_qpn: Qpn::new(1),
            }),
            ..Headers::new(Bth::new(Opcode::UdSendOnly, Qpn::new(1), Psn::new(1)))
        };
        let mut bytes = vec![0; HEADERS_LEN_MAX];
        let length = headers.emit(&mut bytes);
        bytes.truncate(length);
        bytes.extend_from_slice(payload);
        let ip = IpPseudo::V6 {
            src: self.ip,
            dst: OURS,
        };
        let sum = icrc(&ip, ROCE, ROCE, &bytes);
        bytes.extend_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn send(&self, bytes: &[u8]) {
        self.socket.send_to(bytes, (OURS, ROCE)).unwrap();
    }

    fn mad(&self, bytes: &[u8]) {
        self.send(&self.datagram(bytes, GSI_QKEY));
    }

    fn say(&self, message: CmMessage) {
        self.mad(&mad(message));
    }

    /// The next message from the device.
    fn hear(&self) -> CmMessage {
        let mut bytes = [0; 2048];
        let length = self.socket.recv(&mut bytes).unwrap();
        let payload = &bytes[length - ICRC_LEN - MAD_LEN..length - ICRC_LEN];
        CmMad::parse(payload).unwrap().message
    }

    /// Whether nothing has come from the device.
    fn heard_nothing(&self) -> bool {
        self.socket.set_nonblocking(true).unwrap();
        let got = self.socket.recv(&mut [0; 2048]);
        self.socket.set_nonblocking(false).unwrap();
        got.is_err()
    }
}

fn mad(message: CmMessage) -> [u8; MAD_LEN] {
    CmMad {
        transaction: 5,
        message,
    }
    .emit()
}

fn req(local_id: u32, qpn: Qpn, port: u16) -> Req {
    let mut private_data = [0; Req::PRIVATE_DATA_LEN];
    let addressing = IpAddressing::new(PEERS.into(), 99, OURS.into()).unwrap();
    private_data[..IpAddressing::LEN].copy_from_slice(&addressing.to_bytes());
    Req {
        local_id,
        service_id: ServiceId::of_port(PortSpace::TCP, port),
        ca_guid: 1,
        qkey: Qkey(0),
        qpn,
        responder_resources: 1,
        ee_context: 0,
        initiator_depth: 1,
        remote_ee_context: 0,
        remote_response_timeout: 20,
        transport: TransportService::Rc,
        flow_control: false,
        psn: Psn::new(9),
        local_response_timeout: 20,
        retry_count: 7,
        pkey: 0xffff,
        path_mtu: PathMtu::M1024,
        rdc_exists: false,
        rnr_retry_count: 7,
        cm_retries_max: 15,
        srq: false,
        extended_transport: 0,
        primary: PathRecord {
            local_gid: PEERS.into_gid(),
            remote_gid: OURS.into_gid(),
            // The resulting timewait of 4.3 s outlasts the test.
            ack_timeout: 20,
            ..PathRecord::NONE
        },
        alternate: PathRecord::NONE,
        private_data,
    }
}

trait IntoGid {
    fn into_gid(self) -> Gid;
}

impl IntoGid for Ipv6Addr {
    fn into_gid(self) -> Gid {
        Gid::from(IpAddr::V6(self))
    }
}

fn dreq(local_id: u32, remote_id: u32, remote_qpn: Qpn) -> CmMessage {
    CmMessage::Dreq(Dreq {
        local_id,
        remote_id,
        remote_qpn,
        private_data: [0; Dreq::PRIVATE_DATA_LEN],
    })
}

fn drep(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Drep(Drep {
        local_id,
        remote_id,
        private_data: [0; Drep::PRIVATE_DATA_LEN],
    })
}

fn rej(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Rej(Rej {
        local_id,
        remote_id,
        about: About::Other,
        reason: RejReason::TIMEOUT,
        info_len: 0,
        info: [0; Rej::INFO_LEN],
        private_data: [0; Rej::PRIVATE_DATA_LEN],
    })
}

fn rtu(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Rtu(Rtu {
        local_id,
        remote_id,
        private_data: [0; Rtu::PRIVATE_DATA_LEN],
    })
}

fn mra(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Mra(Mra {
        local_id,
        remote_id,
        about: About::Rep,
        service_timeout: 24,
        private_data: [0; Mra::PRIVATE_DATA_LEN],
    })
}

fn rep(local_id: u32, remote_id: u32) -> CmMessage {
    CmMessage::Rep(Rep {
        local_id,
        remote_id,
        qkey: Qkey(0),
        qpn: PEER_QPN,
        ee_context: 0,
        psn: Psn::new(1),
        responder_resources: 1,
        initiator_depth: 1,
        target_ack_delay: 15,
        failover_accepted: 0,
        flow_control: false,
        rnr_retry_count: 7,
        srq: false,
        ca_guid: 1,
        private_data: [0; Rep::PRIVATE_DATA_LEN],
    })
}

/// The device, its channel, and its peer.
struct Scene {
    device: Arc<Device>,
    info: DeviceInfo,
    channel: Arc<CmChannel>,
    peer: Speaker,
    /// Last content of the file.
    known: BTreeMap<&'static str, u64>,
}

impl Scene {
    fn new() -> Self {
        let all = devices().unwrap();
        let info = all.iter().find(|info| info.interface == "veth0").unwrap();
        let device = Device::open(info).unwrap();
        let channel = CmChannel::new().unwrap();
        let service = ServiceId::of_port(PortSpace::TCP, TCP_PORT);
        device
            .cm_listen(service, Takes::RC, None, BACKLOG, &channel, 1)
            .unwrap();
        let mut scene = Scene {
            device,
            info: info.clone(),
            channel,
            peer: Speaker::new(PEERS),
            known: BTreeMap::new(),
        };
        scene.known = scene.counters();
        scene
    }

    /// Counters of messages and drops in `airdma devices -v`.
    fn counters(&self) -> BTreeMap<&'static str, u64> {
        self.device.counters();
        let named = counters_of(&self.info).into_iter();
        named
            .filter(|(name, _)| name.starts_with("cm_") || name.starts_with("drop_"))
            .collect()
    }

    /// Checks that these counters grow by these amounts, and no others.
    fn counts(&mut self, wanted: &[(&'static str, u64)], what: &str) {
        let mut expected = self.known.clone();
        for (name, by) in wanted {
            *expected.get_mut(name).unwrap() += by;
        }
        wait_until(what, || {
            let sum = |counters: &BTreeMap<_, u64>| counters.values().sum::<u64>();
            sum(&self.counters()) >= sum(&expected)
        });
        // Any other message would come at once.
        std::thread::sleep(Duration::from_millis(5));
        assert_eq!(self.counters(), expected, "{what}");
        self.known = expected;
        assert!(!self.channel.has_news(), "{what}");
    }

    fn event(&self) -> (u64, Event) {
        wait_until("an event", || self.channel.has_news());
        match self.channel.pop().unwrap() {
            (cookie, CmNews::Event(event)) => (cookie, event),
            own @ (_, CmNews::Own(_)) => panic!("{own:?}"),
        }
    }

    fn requested(&self) -> ConnectionId {
        match self.event() {
            (1, Event::ConnectRequest(request)) => request.id,
            other => panic!("{other:?}"),
        }
    }

    /// Establishes the peer's connection; returns our communication id.
    fn connect(&self) -> u32 {
        self.peer.say(CmMessage::Req(req(PEER, PEER_QPN, TCP_PORT)));
        let id = self.requested();
        self.device.cm_hand_over(id, &self.channel, 2).unwrap();
        let with = Accept {
            qpn: QPN,
            psn: Psn::new(1),
            responder_resources: 1,
            initiator_depth: 1,
            rnr_retry_count: 7,
            srq: false,
            private_data: &[],
        };
        self.device.cm_accept(id, &with).unwrap();
        let CmMessage::Rep(rep) = self.peer.hear() else {
            panic!("no REP");
        };
        self.peer.say(rtu(PEER, rep.local_id));
        assert!(matches!(self.event(), (2, Event::Established { .. })));
        rep.local_id
    }
}

#[test]
fn each_bad_message_is_counted_once_where_devices_shows_it() {
    isolated(
        "each_bad_message_is_counted_once_where_devices_shows_it",
        SETUP,
        counted,
    );
}

fn counted() {
    let mut scene = Scene::new();
    let stranger = Speaker::new(STRANGERS);
    let ours = scene.connect();
    scene.counts(&[], "a connection that is made");
    malformed(&mut scene);
    replayed(&mut scene, ours);
    forged(&mut scene, &stranger, ours);
    unknown(&mut scene, ours);
    assert!(stranger.heard_nothing());
    too_many(&mut scene);
    // After all that the connection exists, and ends by its peer's DREQ.
    scene.peer.say(dreq(PEER, ours, QPN));
    assert!(matches!(scene.event(), (2, Event::Disconnected { .. })));
    // A program that ends now has answered already.
    scene.peer.socket.set_nonblocking(true).unwrap();
    assert!(matches!(scene.peer.hear(), CmMessage::Drep(drep) if drep.remote_id == PEER));
    scene.peer.socket.set_nonblocking(false).unwrap();
    scene.counts(&[], "a connection that ends");
    scene.peer.say(dreq(PEER, ours, QPN));
    assert!(matches!(scene.peer.hear(), CmMessage::Drep(_)));
    scene.counts(&[("cm_duplicates", 1)], "the end once more");
}

fn malformed(scene: &mut Scene) {
    let good = mad(CmMessage::Req(req(8, Qpn::new(0x23), TCP_PORT)));
    let changed = |at: usize, to: u8| {
        let mut bytes = good;
        bytes[at] = to;
        bytes
    };
    let bad: [(&str, &[u8]); 7] = [
        ("nothing", &[]),
        ("zeros", &[0; MAD_LEN]),
        ("a short one", &good[..MAD_LEN - 4]),
        ("a long one", &[good.as_slice(), &[0; 4]].concat()),
        ("another base version", &changed(0, 2)),
        ("another management class", &changed(1, 3)),
        ("an attribute that there is not", &changed(17, 0x7f)),
    ];
    for (what, bytes) in bad {
        scene.peer.mad(bytes);
        scene.counts(&[("cm_drop_malformed", 1)], what);
    }
    scene
        .peer
        .say(CmMessage::Req(req(0, Qpn::new(0x23), TCP_PORT)));
    scene.counts(&[("cm_drop_malformed", 1)], "a request without id");
    let mut damaged = scene.peer.datagram(&good, GSI_QKEY);
    damaged[40] ^= 1;
    scene.peer.send(&damaged);
    scene.counts(&[("drop_bad_icrc", 1)], "a damaged one");
    let other_key = scene.peer.datagram(&good, Qkey(0x1111_1111));
    scene.peer.send(&other_key);
    scene.counts(&[("drop_unknown_qp", 1)], "another key");
    assert!(scene.peer.heard_nothing());
}

fn replayed(scene: &mut Scene, ours: u32) {
    scene
        .peer
        .say(CmMessage::Req(req(PEER, PEER_QPN, TCP_PORT)));
    scene.counts(&[("cm_duplicates", 1)], "the request again");
    for _ in 0..3 {
        scene.peer.say(rtu(PEER, ours));
    }
    scene.counts(&[("cm_duplicates", 3)], "the last message again");
    assert!(scene.peer.heard_nothing());
}

/// Messages of a host that has seen the ids.
fn forged(scene: &mut Scene, stranger: &Speaker, ours: u32) {
    for message in [rej(PEER, ours), drep(PEER, ours), mra(PEER, ours)] {
        stranger.say(message);
        scene.counts(&[("cm_drop_wrong_peer", 1)], "from another address");
    }
    // The answers are those to an unknown id.
    let as_nobodys = [
        (dreq(PEER, ours, QPN), "cm_drop_unknown_id"),
        (rtu(PEER, ours), "cm_rejected_invalid_id"),
        (rep(PEER, ours), "cm_rejected_invalid_id"),
    ];
    for (message, counter) in as_nobodys {
        stranger.say(message);
        scene.counts(&[(counter, 1)], "an id of another's connection");
        assert!(matches!(
            stranger.hear(),
            CmMessage::Drep(_) | CmMessage::Rej(_)
        ));
    }
    // In the peer's name, which the path of the request, or its addresses, contradict.
    stranger.say(CmMessage::Req(req(9, Qpn::new(0x24), TCP_PORT)));
    scene.counts(&[("cm_drop_wrong_peer", 1)], "a path of others");
    let mut forged = req(9, Qpn::new(0x24), TCP_PORT);
    forged.primary.local_gid = STRANGERS.into_gid();
    stranger.say(CmMessage::Req(forged));
    scene.counts(&[("cm_drop_wrong_peer", 1)], "addresses of others");
    // From another program at the same host, which must guess.
    scene.peer.say(dreq(PEER + 1, ours, QPN));
    scene.peer.say(dreq(PEER, ours, Qpn::new(0x12)));
    scene.peer.say(rej(PEER + 1, ours));
    scene.peer.say(rtu(PEER + 1, ours));
    scene.counts(&[("cm_drop_wrong_id", 4)], "other ids");
}

fn unknown(scene: &mut Scene, ours: u32) {
    let nobodys = ours ^ 0x55;
    scene.peer.say(drep(PEER, ours));
    scene.counts(&[("cm_drop_unexpected", 1)], "an answer to no question");
    scene.peer.say(rej(0x77, nobodys));
    scene.peer.say(mra(0x77, nobodys));
    scene.peer.say(CmMessage::SidrRep(SidrRep {
        request_id: nobodys,
        status: SidrStatus::VALID,
        info_len: 0,
        qpn: QPN,
        service_id: ServiceId::of_port(PortSpace::UDP, TCP_PORT),
        qkey: Qkey(1),
        info: [0; SidrRep::INFO_LEN],
        private_data: [0; SidrRep::PRIVATE_DATA_LEN],
    }));
    scene.counts(&[("cm_drop_unknown_id", 3)], "about nobody");
    scene.peer.say(dreq(0x77, nobodys, QPN));
    scene.counts(&[("cm_drop_unknown_id", 1)], "the end of nothing");
    assert!(matches!(scene.peer.hear(), CmMessage::Drep(_)));
    for message in [rep(0x77, nobodys), rtu(0x77, nobodys)] {
        scene.peer.say(message);
        scene.counts(&[("cm_rejected_invalid_id", 1)], "a connection of nobody");
        assert!(matches!(scene.peer.hear(), CmMessage::Rej(_)));
    }
    let nowhere = CmMessage::Req(req(10, Qpn::new(0x25), TCP_PORT + 1));
    scene.peer.say(nowhere);
    scene.counts(&[("cm_rejected_invalid_service", 1)], "nobody listens");
    let CmMessage::Rej(rej) = scene.peer.hear() else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, RejReason::INVALID_SERVICE_ID);
    let too_long = Req {
        path_mtu: PathMtu::M4096,
        ..req(10, Qpn::new(0x25), TCP_PORT)
    };
    scene.peer.say(CmMessage::Req(too_long));
    scene.counts(&[("cm_rejected_path_mtu", 1)], "more than fits the port");
    let CmMessage::Rej(rej) = scene.peer.hear() else {
        panic!("no REJ");
    };
    assert_eq!(rej.reason, RejReason::INVALID_PATH_MTU);
}

fn too_many(scene: &mut Scene) {
    for number in 0..5 {
        let qpn = Qpn::new(0x100 + number);
        scene
            .peer
            .say(CmMessage::Req(req(0x100 + number, qpn, TCP_PORT)));
    }
    let evicted = "cm_half_open_evicted";
    let expected = scene.known[evicted] + 3;
    wait_until(evicted, || scene.counters()[evicted] == expected);
    // The oldest gave way. They raise no event, except for the one that a poll may have announced
    // when it waited alone.
    let waits = || scene.channel.has_news().then(|| scene.requested());
    let taken: Vec<_> = std::iter::from_fn(waits).collect();
    assert!((BACKLOG..=BACKLOG + 1).contains(&taken.len()), "{taken:?}");
    scene.counts(&[(evicted, 3)], "beyond the backlog");
    let refused = taken.len();
    for id in taken {
        scene.device.cm_destroy(id);
    }
    for _ in 0..refused {
        assert!(matches!(scene.peer.hear(), CmMessage::Rej(_)));
    }
    assert!(scene.peer.heard_nothing());
}
