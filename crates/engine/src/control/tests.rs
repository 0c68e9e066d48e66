#![allow(clippy::unwrap_used)]

use super::encoding::{MESSAGE_BYTES_MAX, Malformed, Value, decode, encode};
use super::*;
use crate::{Psn, QpState};
use airdma_cm::Route;
use airdma_wire::cm::{IpAddressing, SidrStatus, TransportService};
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::net::{IpAddr, Ipv6Addr};

const QP: QpHandle = QpHandle {
    index: QpIndex::new(4097),
    serial: 1 << 33,
};
const CQ: CqHandle = CqHandle {
    index: CqIndex::new(3),
    serial: 77,
};
const SRQ: SrqHandle = SrqHandle {
    index: SrqIndex::new(9),
    serial: 78,
};
const PD: PdIndex = PdIndex::new(u64::MAX - 1);
const GID: Gid = Gid([7; 16]);
const DATA: &[u8] = b"private";
const ID: ConnectionId = ConnectionId(0xfeed_beef);
const SIDR: SidrId = SidrId(5);
const LISTENER: ListenerId = ListenerId(6);

/// Folder of the seeds of the fuzz target `control`.
const SEEDS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/control");
/// Set to write the seeds that are missing.
const WRITE_SEEDS: &str = "AIRDMA_WRITE_SEEDS";

fn seeds() -> BTreeSet<Vec<u8>> {
    let files = fs::read_dir(SEEDS).unwrap();
    files
        .map(|file| fs::read(file.unwrap().path()).unwrap())
        .collect()
}

/// The fuzz target begins with each of these messages.
fn are_seeds<'a, V: Value<'a> + Debug>(values: &[V]) {
    let seeds = seeds();
    for value in values {
        let message = encode(value);
        if !seeds.contains(&message) {
            let writes = std::env::var_os(WRITE_SEEDS).is_some();
            assert!(writes, "no seed for {value:?}: test with {WRITE_SEEDS}=1");
            write_seed(&message);
        }
    }
}

fn write_seed(message: &[u8]) {
    let mut hasher = DefaultHasher::new();
    message.hash(&mut hasher);
    fs::write(format!("{SEEDS}/{:016x}", hasher.finish()), message).unwrap();
}

/// Each value comes back, and every variant of the enum is among them.
fn comes_back<'a, V: Value<'a> + Debug + PartialEq>(values: &[V], numbers: &[u8]) {
    let mut seen = BTreeSet::new();
    for value in values {
        let message: &'static [u8] = encode(value).leak();
        assert_eq!(decode::<V>(message).as_ref(), Ok(value));
        seen.insert(message[1]);
        for end in 0..message.len() {
            assert_eq!(decode::<V>(&message[..end]), Err(Malformed), "{value:?}");
        }
        let longer: &'static [u8] = [message, &[0]].concat().leak();
        assert_eq!(decode::<V>(longer), Err(Malformed), "{value:?}");
    }
    assert_eq!(seen, numbers.iter().copied().collect());
}

fn memory() -> Vec<MemoryControl> {
    let change = RegionChange {
        translation: Some((1 << 40, 4096)),
        access: Some(Access::LOCAL_WRITE),
    };
    let bind = Bind {
        window: Rkey(0x100),
        new_key: Rkey(0x101),
        region: Lkey(0x200),
        va: 5,
        length: u64::MAX,
        access: Access::REMOTE_READ,
    };
    vec![
        MemoryControl::Register {
            pd: PD,
            address: 1 << 47,
            length: usize::MAX,
            iova: 3,
            access: Access::all(),
            can_be_cut: true,
        },
        MemoryControl::RegisterNull { pd: PD },
        MemoryControl::RegisterRecords {
            pd: PD,
            address: 0x7000,
            length: 4096,
            source: Some(GID),
            is_read: false,
            can_be_cut: false,
        },
        MemoryControl::RegisterGroupRecords {
            pd: PD,
            address: 0x7000,
            length: 4096,
            source: None,
            group: GID,
            key: 5,
            can_be_cut: true,
        },
        MemoryControl::RegisterEmpty { pd: PD },
        MemoryControl::Reregister {
            key: 5,
            pd: PD,
            change,
            can_be_cut: false,
        },
        MemoryControl::Reregister {
            key: 5,
            pd: PD,
            change: RegionChange::default(),
            can_be_cut: false,
        },
        MemoryControl::Deregister { key: 5 },
        MemoryControl::Locate {
            pd: PD,
            key: 5,
            va: 6,
            length: 7,
            right: Access::empty(),
        },
        MemoryControl::AllocateWindow {
            pd: PD,
            type_two: true,
        },
        MemoryControl::OpenWindow {
            qp: QP,
            pd: PD,
            bind,
        },
        MemoryControl::FreeWindow { key: 5 },
        MemoryControl::CloseWindows { key: 5 },
    ]
}

fn queues() -> Vec<QueueControl> {
    let options = CqOptions {
        timestamps: true,
        ignore_overrun: false,
    };
    vec![
        QueueControl::CreateCompletions {
            serial: 5,
            cookie: 6,
            options,
        },
        QueueControl::ResizeCompletions { cq: CQ },
        QueueControl::PurgeCompletions {
            cq: CQ,
            of: Qpn::MULTICAST,
        },
        QueueControl::DestroyCompletions { cq: CQ },
        QueueControl::CreateReceives {
            serial: 5,
            pd: PD,
            extended: Some((8, CQ)),
        },
        QueueControl::LimitReceives { srq: SRQ, limit: 5 },
        QueueControl::ResizeReceives { srq: SRQ },
        QueueControl::DestroyReceives { srq: SRQ },
    ]
}

fn receives() -> Vec<ReceivesFrom> {
    vec![
        ReceivesFrom::Own,
        ReceivesFrom::Shared { srq: SRQ },
        ReceivesFrom::Domain { domain: 5 },
    ]
}

fn attributes() -> QpAttributes {
    QpAttributes {
        state: QpState::Error,
        cur_state: QpState::SendQueueDrain,
        path_mtu: PathMtu::M4096,
        qkey: Qkey(1),
        rq_psn: Psn::new(2),
        sq_psn: Psn::new(3),
        dest_qpn: Qpn::new(4),
        access: Access::REMOTE_WRITE,
        path: Path {
            gid: GID,
            sgid_index: 1,
            traffic_class: 2,
            hop_limit: 3,
            flow_label: 4,
        },
        pkey_index: 5,
        port: 6,
        sq_draining: true,
        max_rd_atomic: 7,
        max_dest_rd_atomic: 8,
        min_rnr_timer: 9,
        timeout: 10,
        retry_count: 11,
        rnr_retry: 12,
        path_mig_state: 13,
        en_sqd_async_notify: true,
        rate_limit_kbps: 14,
    }
}

fn queue_pairs() -> Vec<QueuePairControl> {
    vec![
        QueuePairControl::Query,
        QueuePairControl::Modify {
            attributes: attributes(),
            // With an attribute that is unknown here, which the handler refuses.
            mask: AttrMask::from_bits_retain(u32::MAX),
            source: Some((GID, true)),
        },
        QueuePairControl::Seal,
        QueuePairControl::QueryBinding,
        QueuePairControl::NoteApplicationBuffer,
        QueuePairControl::EnableRecords {
            config: RecordConfig {
                strict_last: true,
                ..RecordConfig::default()
            },
        },
        QueuePairControl::EnableReliable {
            config: ReliableConfig::default(),
        },
        QueuePairControl::CloseRecord {
            rkey: Rkey(7),
            va: 0x7010,
        },
        QueuePairControl::ReadRecord {
            path: Path::default(),
            qpn: Qpn::new(6),
            qkey: Qkey(7),
            va: 0x8000,
            rkey: Rkey(8),
            length: 4096,
            lkey: Lkey(9),
            to: 0x9000,
            deadline: Duration::from_secs(1),
            tries: 8,
        },
        QueuePairControl::AttachCounter {
            operations: CountedOperations::RECV,
        },
        QueuePairControl::IsFinished,
        QueuePairControl::Attach { group: GID },
        QueuePairControl::Detach { group: GID },
        QueuePairControl::IsAttached,
        QueuePairControl::DetachAll,
        QueuePairControl::Retire,
        QueuePairControl::RepeatLastAnswer,
        QueuePairControl::Destroy,
        QueuePairControl::LimitRate {
            kbps: 5,
            burst_max: 6,
        },
    ]
}

fn inits() -> Vec<QueuePairInit> {
    let types = [
        QpType::Rc,
        QpType::Uc,
        QpType::Ud,
        QpType::XrcSend,
        QpType::XrcReceive,
        QpType::RawPacket,
    ];
    let caps = QpCaps {
        max_send_wr: 1,
        max_recv_wr: 2,
        max_send_sge: 3,
        max_recv_sge: 4,
        max_inline: 5,
    };
    let init = |(qp_type, receives)| QueuePairInit {
        serial: 5,
        qp_type,
        caps,
        signal_all: true,
        receives,
        pd: PD,
        send_cq: Some(CQ),
        recv_cq: None,
        port_mtu: PathMtu::M1024,
    };
    let receives = receives().into_iter().cycle();
    types.into_iter().zip(receives).map(init).collect()
}

fn management() -> Vec<CmControl> {
    let listen = |takes| CmControl::Listen {
        service: ServiceId(1 << 60),
        takes,
        local: Some(GID),
        backlog: 5,
        cookie: 6,
    };
    vec![
        CmControl::Open {
            guid: 5,
            path_mtu: PathMtu::M256,
            interface_index: 6,
        },
        listen(Takes::Datagrams),
        listen(Takes::Connections(TransportService::Rc)),
        listen(Takes::Connections(TransportService::Uc)),
        listen(Takes::Connections(TransportService::Rd)),
        listen(Takes::Connections(TransportService::Extended)),
        CmControl::Close { listener: LISTENER },
        CmControl::ReportFirst,
        CmControl::Exit,
        CmControl::IsEnding { again: true },
    ]
}

const ROUTE: Route = Route {
    local: GID,
    remote: Gid([8; 16]),
    traffic_class: 1,
};

fn connect(addressing: Option<IpAddressing>) -> Connect<'static> {
    Connect {
        route: ROUTE,
        service_id: ServiceId(2),
        transport: TransportService::Extended,
        qpn: Qpn::new(3),
        psn: Psn::new(0xff_ffff),
        path_mtu: PathMtu::M2048,
        responder_resources: 4,
        initiator_depth: 5,
        retry_count: 6,
        rnr_retry_count: 7,
        srq: true,
        ack_timeout: 8,
        flow_label: 9,
        addressing,
        private_data: DATA,
    }
}

fn connections() -> Vec<ConnectionControl<'static>> {
    let v4 = [IpAddr::from([192, 0, 2, 1]), IpAddr::from([192, 0, 2, 2])];
    let v6 = [1, 2].map(|host| IpAddr::V6(Ipv6Addr::from_bits(host)));
    let resolve = Resolve {
        route: ROUTE,
        service_id: ServiceId(2),
        addressing: IpAddressing::new(v6[0], 7471, v6[1]),
        private_data: &[],
    };
    let accept = Accept {
        qpn: Qpn::new(3),
        psn: Psn::new(4),
        responder_resources: 5,
        initiator_depth: 6,
        rnr_retry_count: 7,
        srq: false,
        private_data: DATA,
    };
    let answer = SidrAnswer {
        status: SidrStatus::REJECTED,
        qpn: Qpn::new(3),
        qkey: Qkey(4),
        private_data: DATA,
    };
    vec![
        ConnectionControl::Connect {
            wanted: connect(IpAddressing::new(v4[0], 7471, v4[1])),
            cookie: 5,
        },
        ConnectionControl::Connect {
            wanted: connect(None),
            cookie: 5,
        },
        ConnectionControl::Waits { id: ID },
        ConnectionControl::HandOver { id: ID, cookie: 5 },
        ConnectionControl::Accept {
            id: ID,
            with: accept,
        },
        ConnectionControl::Ready {
            id: ID,
            private_data: DATA,
        },
        ConnectionControl::Reject {
            id: ID,
            reason: RejReason::NO_QP,
            private_data: DATA,
        },
        ConnectionControl::Disconnect {
            id: ID,
            private_data: &[],
        },
        ConnectionControl::Destroy { id: ID },
        ConnectionControl::DataArrived { id: ID },
        ConnectionControl::Resolve {
            wanted: resolve,
            cookie: 5,
        },
        ConnectionControl::MoveResolution { id: SIDR },
        ConnectionControl::Fetched { id: SIDR },
        ConnectionControl::Forget { id: SIDR },
        ConnectionControl::Answer {
            id: SIDR,
            with: answer,
        },
        ConnectionControl::MoveListener { listener: LISTENER },
        ConnectionControl::LimitAnswered {
            listener: LISTENER,
            max: 5,
        },
    ]
}

/// All requests.
fn controls() -> Vec<Control<'static>> {
    let mut all = vec![Control::Flush];
    all.extend(memory().into_iter().map(|call| Control::Memory { call }));
    all.extend(queues().into_iter().map(|call| Control::Queue { call }));
    let inits = inits().into_iter();
    all.extend(inits.map(|init| Control::CreateQueuePair { init }));
    let calls = queue_pairs().into_iter();
    all.extend(calls.map(|call| Control::QueuePair { qp: QP, call }));
    all.extend(management().into_iter().map(|call| Control::Cm { call }));
    let calls = connections().into_iter();
    all.extend(calls.map(|call| Control::Connection { call }));
    all
}

fn replies() -> Vec<Reply> {
    vec![
        Reply::Done,
        Reply::Failed {
            errno: libc::EBUSY,
            message: "the region is in use: größer".to_owned(),
        },
        Reply::Answer { yes: true },
        Reply::Key { key: 5 },
        Reply::Address { address: Some(5) },
        Reply::Address { address: None },
        Reply::CompletionQueue { index: CQ.index },
        Reply::SharedReceiveQueue { number: SRQ.index },
        Reply::QueuePair {
            index: QP.index,
            number: Qpn::new(5),
        },
        Reply::Attributes {
            attributes: attributes(),
        },
        Reply::Binding {
            binding: Some([5; 32]),
        },
        Reply::Listener { id: LISTENER },
        Reply::Connection { id: ID },
        Reply::Resolution { id: SIDR },
        Reply::Record { handle: 1 << 33 },
    ]
}

#[test]
fn every_request_and_reply_comes_back() {
    comes_back(&memory(), MemoryControl::NUMBERS);
    comes_back(&queues(), QueueControl::NUMBERS);
    comes_back(&receives(), ReceivesFrom::NUMBERS);
    comes_back(&queue_pairs(), QueuePairControl::NUMBERS);
    comes_back(&management(), CmControl::NUMBERS);
    comes_back(&connections(), ConnectionControl::NUMBERS);
    comes_back(&controls(), Control::NUMBERS);
    comes_back(&replies(), Reply::NUMBERS);
}

#[test]
fn each_kind_of_message_is_a_seed_of_the_fuzz_target() {
    are_seeds(&controls());
    are_seeds(&replies());
}

#[test]
fn bytes_that_are_no_message_are_refused() {
    let refused = |message: &[u8]| {
        assert_eq!(
            decode::<Control<'_>>(message),
            Err(Malformed),
            "{message:?}"
        );
    };
    refused(&[]);
    // Another version, and no such variant.
    refused(&[1, 0]);
    refused(&[2, 200]);
    refused(&[2, 1, 200]);
    let purge = Control::Queue {
        call: QueueControl::PurgeCompletions {
            cq: CQ,
            of: Qpn::MULTICAST,
        },
    };
    let mut message = encode(&purge);
    // A queue pair number of 25 bits.
    *message.last_mut().unwrap() = 1;
    refused(&message);
    let ending = Control::Cm {
        call: CmControl::IsEnding { again: true },
    };
    let mut message = encode(&ending);
    // A truth value of 2.
    *message.last_mut().unwrap() = 2;
    refused(&message);
}

#[test]
fn a_length_beyond_the_message_allocates_nothing() {
    let mut message = encode(&Reply::Failed {
        errno: 0,
        message: String::new(),
    });
    let length = message.len() - 4;
    message[length..].fill(0xff);
    assert_eq!(decode::<Reply>(&message), Err(Malformed));
    let text = "x".repeat(MESSAGE_BYTES_MAX);
    let message = encode(&Reply::Failed {
        errno: 0,
        message: text,
    });
    assert_eq!(decode::<Reply>(&message), Err(Malformed));
}

#[test]
fn an_error_keeps_its_number_and_text_on_the_way() {
    let error = Error::Busy("the region");
    let (errno, text) = (error.errno(), error.to_string());
    let message = encode(&Reply::from(error));
    let result: Result<Reply, Error> = decode::<Reply>(&message).unwrap().into();
    let error = result.unwrap_err();
    assert_eq!((error.errno(), error.to_string()), (errno, text));
}

/// What is sent to another process is all of this: a request that changes its bytes changes the
/// version too.
#[test]
fn requests_have_the_bytes_of_this_version() {
    let register = Control::Memory {
        call: MemoryControl::Register {
            pd: PdIndex::new(2),
            address: 0x1000,
            length: 16,
            iova: 0x2000,
            access: Access::LOCAL_WRITE,
            can_be_cut: false,
        },
    };
    #[rustfmt::skip]
    let expected = [
        5, 1, 0, // version, memory, register
        2, 0, 0, 0, 0, 0, 0, 0,
        0, 0x10, 0, 0, 0, 0, 0, 0,
        16, 0, 0, 0, 0, 0, 0, 0,
        0, 0x20, 0, 0, 0, 0, 0, 0,
        1, 0, 0, 0,
        0,
    ];
    assert_eq!(encode(&register), expected);
}
