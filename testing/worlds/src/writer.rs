//! A device and memory that it writes to its peers: the base of transfers in virtual time.

use airdma_engine::simulated::{self, Simulated, interface};
use airdma_engine::{
    Access, Cq, DeviceInfo, Gid, Mr, PathMtu, Pd, Qp, QpAttributes, QpCaps, QpInit, QpType, Qpn,
    SendFlags, SendWr, Sge, Status,
};
use airdma_port::sim::{Carrier, carried};
use airdma_transport::{Operation, Path};
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes of a WRITE.
pub(crate) const MESSAGE: usize = 64 * 1024;
/// Most WRITEs in flight.
pub(crate) const MESSAGES: u64 = 128;
/// READs that a peer may have outstanding.
const READS: u8 = 16;

pub(crate) struct Writer {
    pub(crate) device: Simulated,
    pub(crate) carrier: Carrier,
    path_mtu: PathMtu,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    memory: Box<[u64]>,
    mr: Arc<Mr>,
}

impl Writer {
    /// Opens a device at this address, with an interface of this rate and the largest MTU.
    pub(crate) fn new(index: u8, address: IpAddr, speed_mbps: u32) -> Writer {
        let info = DeviceInfo {
            mtu: 4200,
            path_mtu: PathMtu::M4096,
            speed_mbps: Some(speed_mbps),
            ..interface(&format!("wire{index}"), index.into(), address)
        };
        let path_mtu = info.path_mtu;
        let (port, carrier) = carried(&[address]).expect("a descriptor");
        let seed = index.into();
        let device = Simulated::open(info, Box::new(port), seed).expect("a device in memory");
        let pd = device.device().alloc_pd().expect("a domain");
        let cq = device.device().create_cq(1024, None).expect("a queue");
        let mut memory = vec![0_u64; MESSAGE / 8].into_boxed_slice();
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mr(at, MESSAGE, at, access).expect("a region");
        Writer {
            device,
            carrier,
            path_mtu,
            pd,
            cq,
            memory,
            mr,
        }
    }

    pub(crate) fn queue_pair(&self) -> Arc<Qp> {
        queue_pair(&self.pd, &self.cq)
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    /// Connects an own queue pair to one of the peer's.
    pub(crate) fn connect(&self, own: &Qp, peer: &Writer, theirs: &Qp) {
        let gid = peer.device.device().info().gids[0].gid;
        connect(own, gid, self.path_mtu, theirs.number());
    }

    pub(crate) fn write(&self, own: &Qp, to: &Writer) {
        let sge = Sge {
            addr: self.address(),
            length: MESSAGE as u32,
            lkey: self.mr.lkey().0,
        };
        let write = SendWr {
            wr_id: 0,
            operation: Operation::Write {
                va: to.address(),
                rkey: to.mr.rkey(),
            },
            sges: &[sge],
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        };
        own.post_send(&write).expect("room for it");
    }

    /// WRITEs completed since the last call.
    pub(crate) fn completed(&self) -> u64 {
        let mut done = 0;
        let polled = self.cq.poll(1024, |completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
            done += 1;
        });
        polled.expect("a queue that does not overflow");
        done
    }
}

/// A queue pair that has up to [`MESSAGES`] WRITEs in flight.
pub(crate) fn queue_pair(pd: &Arc<Pd>, cq: &Arc<Cq>) -> Arc<Qp> {
    let caps = QpCaps {
        max_send_wr: MESSAGES as u32,
        max_recv_wr: 1,
        max_send_sge: 1,
        max_recv_sge: 1,
        max_inline: 0,
    };
    let init = QpInit {
        qp_type: QpType::Rc,
        send_cq: Arc::clone(cq),
        recv_cq: Arc::clone(cq),
        srq: None,
        caps,
        signal_all: true,
    };
    pd.create_qp(init).expect("a queue pair")
}

/// Moves a queue pair from RESET to ready-to-send, connected to number `number` at `gid`.
pub(crate) fn connect(qp: &Qp, gid: Gid, path_mtu: PathMtu, number: Qpn) {
    let attributes = QpAttributes {
        port: 1,
        access: Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        path: Path {
            gid,
            hop_limit: 64,
            ..Path::default()
        },
        path_mtu,
        dest_qpn: number,
        max_dest_rd_atomic: READS,
        max_rd_atomic: READS,
        min_rnr_timer: 1,
        retry_count: 7,
        rnr_retry: 7,
        // perftest's value.
        timeout: 14,
        ..QpAttributes::default()
    };
    simulated::connect(qp, &attributes);
}
