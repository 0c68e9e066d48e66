//! Two devices in one process, and helpers of the tests.
#![allow(dead_code, clippy::unwrap_used)]

mod at_daemon;
mod connecting;
mod isolated;
mod process;

use airdma_engine::*;
use airdma_port::{Port, UdpConfig, UdpPort, sim};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

#[allow(unused_imports)]
pub use at_daemon::{Running, TWO_INTERFACES, daemon, folder, info_of, open, serve};
#[allow(unused_imports)]
pub use connecting::{next_event, request_from};
#[allow(unused_imports)]
pub use isolated::{isolated, skipped};
#[allow(unused_imports)]
pub use process::{Process, ROLE, SOCKET, say};

pub const LEFT: [u8; 4] = [192, 0, 2, 1];
pub const RIGHT: [u8; 4] = [192, 0, 2, 2];

/// Bound of every wait: far more than it takes, far less than a stuck test.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

pub fn info(name: &str, address: IpAddr) -> DeviceInfo {
    simulated::interface(name, 1, address)
}

/// A device in virtual time, whose packets the test carries.
pub struct Host {
    pub device: simulated::Simulated,
    pub carrier: sim::Carrier,
}

pub fn host(name: &str, address: [u8; 4]) -> Host {
    let address = IpAddr::from(address);
    let (port, carrier) = sim::carried(&[address]).unwrap();
    let device = simulated::Simulated::open(info(name, address), Box::new(port), 7).unwrap();
    Host { device, carrier }
}

/// Two devices on the ends of a wire in memory.
pub fn wired() -> (Arc<Device>, Arc<Device>) {
    let (left, right) = (IpAddr::from(LEFT), IpAddr::from(RIGHT));
    let (a, b) = sim::pair(&[left], &[right]).unwrap();
    wired_on((left, Box::new(a)), (right, Box::new(b)))
}

pub fn wired_on(
    left: (IpAddr, Box<dyn Port>),
    right: (IpAddr, Box<dyn Port>),
) -> (Arc<Device>, Arc<Device>) {
    let left = Device::with_port(info("left", left.0), left.1).unwrap();
    let right = Device::with_port(info("right", right.0), right.1).unwrap();
    (left, right)
}

/// Not RoCE's port: a real device may be in use on this machine.
pub const PORT: u16 = 24_791;

/// A port on a socket at an address of the loopback interface.
pub fn bind(address: &str) -> (IpAddr, Box<dyn Port>) {
    let address: IpAddr = address.parse().unwrap();
    let config = UdpConfig {
        port: PORT,
        ..UdpConfig::default()
    };
    (
        address,
        Box::new(UdpPort::bind(&[address], 1, config).unwrap()),
    )
}

/// Two devices on sockets, at two addresses of the loopback interface.
pub fn sockets(left: &str, right: &str) -> (Arc<Device>, Arc<Device>) {
    sockets_with(left, right, PathMtu::M1024)
}

/// Two devices on sockets, whose ports have this path MTU.
pub fn sockets_with(left: &str, right: &str, path_mtu: PathMtu) -> (Arc<Device>, Arc<Device>) {
    let open = |name, address: &str| {
        let (address, port) = bind(address);
        let info = DeviceInfo {
            path_mtu,
            ..info(name, address)
        };
        Device::with_port(info, port).unwrap()
    };
    (open("left", left), open("right", right))
}

/// Memory that the tests and the engine use at the same time, only through volatile accesses.
pub struct Memory {
    words: Box<[u64]>,
    pub mr: Arc<Mr>,
}

impl Memory {
    pub fn new(pd: &Arc<Pd>, bytes: usize, access: Access) -> Self {
        let mut words = vec![0u64; bytes.div_ceil(8)].into_boxed_slice();
        let address = words.as_mut_ptr().expose_provenance() as u64;
        let mr = pd.reg_mr(address, bytes, address, access).unwrap();
        Memory { words, mr }
    }

    pub fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    pub fn sge(&self, offset: usize, length: usize) -> Sge {
        Sge {
            addr: self.address() + offset as u64,
            length: length as u32,
            lkey: self.mr.lkey().0,
        }
    }

    pub fn byte(&self, offset: usize) -> u8 {
        assert!(offset < self.words.len() * 8);
        // SAFETY: in bounds, and alive with `self`.
        unsafe {
            std::ptr::with_exposed_provenance::<u8>(self.address() as usize + offset)
                .read_volatile()
        }
    }

    pub fn word(&self, offset: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(offset, 8).try_into().unwrap())
    }

    pub fn bytes(&self, offset: usize, length: usize) -> Vec<u8> {
        (offset..offset + length).map(|at| self.byte(at)).collect()
    }

    pub fn fill(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.words.len() * 8);
        let at = std::ptr::with_exposed_provenance_mut::<u8>(self.address() as usize + offset);
        for (index, &byte) in bytes.iter().enumerate() {
            // SAFETY: in bounds, and alive with `self`.
            unsafe { at.add(index).write_volatile(byte) };
        }
    }
}

/// A queue pair with its objects.
pub struct End {
    pub device: Arc<Device>,
    pub pd: Arc<Pd>,
    pub channel: Arc<Channel>,
    pub cq: Arc<Cq>,
    pub qp: Arc<Qp>,
    pub memory: Memory,
}

pub const CAPS: QpCaps = QpCaps {
    max_send_wr: 64,
    max_recv_wr: 64,
    max_send_sge: 4,
    max_recv_sge: 4,
    max_inline: 128,
};

impl End {
    pub fn new(device: &Arc<Device>, qp_type: QpType, bytes: usize) -> Self {
        Self::with_caps(device, qp_type, bytes, CAPS)
    }

    pub fn with_caps(device: &Arc<Device>, qp_type: QpType, bytes: usize, caps: QpCaps) -> Self {
        let pd = device.alloc_pd().unwrap();
        let channel = device.create_channel().unwrap();
        let cq = device
            .create_cq(512, Some((Arc::clone(&channel), 42)))
            .unwrap();
        let qp = create_qp(&pd, &cq, qp_type, caps);
        let memory = Memory::new(&pd, bytes, ALL);
        End {
            device: Arc::clone(device),
            pd,
            channel,
            cq,
            qp,
            memory,
        }
    }

    pub fn path(&self) -> Path {
        Path {
            gid: self.device.info().gids[0].gid,
            hop_limit: 64,
            ..Path::default()
        }
    }

    pub fn connect(&self, peer: &End) {
        connect(&self.qp, peer.qp.number(), peer.path());
    }

    pub fn write(&self, peer: &End, offset: usize, length: usize) -> SendWr<'static> {
        let va = peer.memory.address() + offset as u64;
        signalled(
            Operation::Write {
                va,
                rkey: peer.memory.mr.rkey(),
            },
            self.memory.sge(offset, length),
        )
    }

    pub fn send(&self, operation: Operation, offset: usize, length: usize) {
        let wr = signalled(operation, self.memory.sge(offset, length));
        self.qp.post_send(&wr).unwrap();
    }

    pub fn recv(&self, wr_id: u64, offset: usize, length: usize) {
        let sges = [self.memory.sge(offset, length)];
        self.qp.post_recv(&RecvWr { wr_id, sges: &sges }).unwrap();
    }

    /// The next completion.
    pub fn complete(&self) -> Completion {
        next(&self.cq)
    }

    /// The next completion, if there is one.
    pub fn try_complete(&self) -> Option<Completion> {
        let mut found = None;
        self.cq
            .poll(1, |completion| found = Some(completion))
            .unwrap();
        found
    }

    pub fn ok(&self) -> Completion {
        let completion = self.complete();
        assert_eq!(completion.status, Status::Success, "{completion:?}");
        completion
    }
}

/// A signalled request of one element. The element is leaked: tests are short.
pub fn signalled(operation: Operation, sge: Sge) -> SendWr<'static> {
    let sges = Box::leak(Box::new([sge]));
    SendWr {
        wr_id: 7,
        operation,
        sges,
        flags: SendFlags::SIGNALLED,
        datagram: None,
        srqn: 0,
    }
}

pub fn create_qp(pd: &Arc<Pd>, cq: &Arc<Cq>, qp_type: QpType, caps: QpCaps) -> Arc<Qp> {
    let init = QpInit {
        qp_type,
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        srq: None,
        caps,
        signal_all: false,
    };
    pd.create_qp(init).unwrap()
}

/// Takes a queue pair to RTS.
pub fn connect(qp: &Qp, peer: Qpn, path: Path) {
    to_rtr(qp, peer, path);
    to_rts(qp, 14);
}

pub fn to_rtr(qp: &Qp, peer: Qpn, path: Path) {
    to_rtr_with(qp, peer, path, PathMtu::M1024);
}

pub fn to_rtr_with(qp: &Qp, peer: Qpn, path: Path, path_mtu: PathMtu) {
    for (attributes, mask) in steps_to_rtr(peer, path, path_mtu) {
        qp.modify(&attributes, mask).unwrap();
    }
}

/// What changes a queue pair from RESET to INIT, and to RTR.
pub fn steps_to_rtr(peer: Qpn, path: Path, path_mtu: PathMtu) -> [(QpAttributes, AttrMask); 2] {
    let init = QpAttributes {
        state: QpState::Init,
        port: 1,
        access: ALL,
        ..QpAttributes::default()
    };
    let rtr = QpAttributes {
        state: QpState::ReadyToReceive,
        path,
        path_mtu,
        dest_qpn: peer,
        rq_psn: PSN,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        ..init
    };
    let in_init = AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    let in_rtr = AttrMask::STATE
        | AttrMask::AV
        | AttrMask::PATH_MTU
        | AttrMask::DEST_QPN
        | AttrMask::RQ_PSN
        | AttrMask::MAX_DEST_RD_ATOMIC
        | AttrMask::MIN_RNR_TIMER;
    [(init, in_init), (rtr, in_rtr)]
}

/// Both directions start near the wrap-around.
pub const PSN: Psn = Psn::new(0xff_fff0);

pub fn to_rts(qp: &Qp, timeout: u8) {
    let attributes = QpAttributes {
        state: QpState::ReadyToSend,
        sq_psn: PSN,
        max_rd_atomic: 16,
        retry_count: 7,
        rnr_retry: 7,
        timeout,
        ..QpAttributes::default()
    };
    qp.modify(
        &attributes,
        AttrMask::STATE
            | AttrMask::SQ_PSN
            | AttrMask::MAX_QP_RD_ATOMIC
            | AttrMask::RETRY_CNT
            | AttrMask::RNR_RETRY
            | AttrMask::TIMEOUT,
    )
    .unwrap();
}

pub fn connect_unreliable(qp: &Qp, peer: Qpn, path: Path) {
    let attributes = QpAttributes {
        port: 1,
        access: ALL,
        path,
        path_mtu: PathMtu::M1024,
        dest_qpn: peer,
        ..QpAttributes::default()
    };
    let to = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
    let init = AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS;
    for (state, mask) in [
        (QpState::Init, init),
        (QpState::ReadyToReceive, to),
        (QpState::ReadyToSend, AttrMask::SQ_PSN),
    ] {
        let attributes = QpAttributes {
            state,
            ..attributes
        };
        qp.modify(&attributes, mask | AttrMask::STATE).unwrap();
    }
}

pub fn datagram_to_rts(qp: &Qp, qkey: Qkey) {
    let set = |state, mask| {
        let attributes = QpAttributes {
            state,
            port: 1,
            qkey,
            ..QpAttributes::default()
        };
        qp.modify(&attributes, AttrMask::STATE | mask).unwrap();
    };
    set(
        QpState::Init,
        AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::QKEY,
    );
    set(QpState::ReadyToReceive, AttrMask::empty());
    set(QpState::ReadyToSend, AttrMask::SQ_PSN);
}

/// A connected pair with `bytes` of memory each.
pub fn pair(bytes: usize) -> (End, End) {
    let (left, right) = wired();
    pair_on(&left, &right, bytes)
}

pub fn pair_on(left: &Arc<Device>, right: &Arc<Device>, bytes: usize) -> (End, End) {
    let (left, right) = (
        End::new(left, QpType::Rc, bytes),
        End::new(right, QpType::Rc, bytes),
    );
    left.connect(&right);
    right.connect(&left);
    (left, right)
}

/// The next completion of a queue.
pub fn next(cq: &Cq) -> Completion {
    let mut found = None;
    wait_until("a completion", || {
        cq.poll(1, |completion| found = Some(completion)).unwrap();
        found.is_some()
    });
    found.unwrap()
}

/// Polls until `condition` holds, as applications do.
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < PATIENCE, "no {what} in {PATIENCE:?}");
        std::thread::yield_now();
    }
}

pub fn counter(device: &Device, name: &str) -> u64 {
    let counters = device.counters();
    counters
        .iter()
        .find(|&&(other, _)| other == name)
        .unwrap_or_else(|| panic!("no counter {name}"))
        .1
}

/// Bytes that depend on their offset.
pub fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length)
        .map(|at| (at as u32).wrapping_mul(2_654_435_761).to_be_bytes()[0] ^ seed)
        .collect()
}
