//! The attacker's own connection to a host, which accepted it as any peer.

use crate::host::Host;
use airdma_engine::{
    Access, Cq, Mr, Path, PathMtu, Pd, Psn, Qp, QpAttributes, QpCaps, QpInit, QpType, Qpn,
    simulated,
};
use airdma_sim::Random;
use std::net::IpAddr;
use std::sync::Arc;

/// Bytes that the host grants it for reads and writes.
pub(super) const BYTES: usize = 256;
/// Their address in the region.
pub(super) const VA: u64 = 0x6000_0000;

/// The attacker's state at one host.
pub(super) struct Own {
    objects: Option<Objects>,
    /// Number of the host's queue pair.
    pub(super) number: Qpn,
    /// Number of the attacker's queue pair, to the host.
    own_number: Qpn,
    /// Next PSN that the host accepts from it.
    pub(super) psn: Psn,
    /// Key of the granted memory.
    pub(super) key: u32,
    /// Instance that the host has shown it.
    pub(super) instance: Option<u64>,
    /// Nonce of the host's last Hello.
    pub(super) nonce: u64,
    /// Id of the host's manager for a connection with the attacker.
    pub(super) id: Option<u32>,
    /// The host has refused a request, and refuses all that follow.
    pub(super) is_over: bool,
    /// The host has reported the refusal.
    pub(super) refused: bool,
}

/// Objects that the host holds for it until the attacker leaves.
struct Objects {
    qp: Arc<Qp>,
    mr: Arc<Mr>,
    cq: Arc<Cq>,
    pd: Arc<Pd>,
    _memory: Box<[u64]>,
}

impl Own {
    /// Connects a host to the attacker.
    pub(super) fn new(host: &Host, address: IpAddr, random: &mut Random) -> Own {
        let device = host.device.device();
        let pd = device.alloc_pd().expect("a domain");
        let cq = device.create_cq(16, None).expect("a completion queue");
        let memory = vec![0u64; BYTES / 8].into_boxed_slice();
        let at = memory.as_ptr().expose_provenance() as u64;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let mr = pd.reg_mr(at, BYTES, VA, rights);
        let mr = mr.expect("memory that is there");
        let qp = pd.create_qp(QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: 1,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 0,
            },
            signal_all: false,
        });
        let qp = qp.expect("a queue pair");
        let own = Own {
            number: qp.number(),
            own_number: Qpn::new(2 + random.below((1 << 24) - 3) as u32),
            psn: Psn::new(random.below(1 << 24) as u32),
            key: mr.lkey().0,
            instance: None,
            nonce: 0,
            id: None,
            is_over: false,
            refused: false,
            objects: Some(Objects {
                qp,
                mr,
                cq,
                pd,
                _memory: memory,
            }),
        };
        own.bring_up(address);
        own
    }

    fn bring_up(&self, address: IpAddr) {
        let attributes = QpAttributes {
            path_mtu: PathMtu::M256,
            rq_psn: self.psn,
            dest_qpn: self.own_number,
            access: Access::REMOTE_WRITE | Access::REMOTE_READ,
            path: Path {
                gid: address.into(),
                hop_limit: 64,
                ..Path::default()
            },
            port: 1,
            max_dest_rd_atomic: 1,
            max_rd_atomic: 1,
            min_rnr_timer: 1,
            timeout: 8,
            retry_count: 7,
            rnr_retry: 7,
            ..QpAttributes::default()
        };
        let Objects { qp, .. } = self.objects.as_ref().expect("just created");
        simulated::connect(qp, &attributes);
    }

    /// Destroys the host's objects.
    pub(super) fn leave(&mut self) -> Result<(), String> {
        let Some(Objects { qp, mr, cq, pd, .. }) = self.objects.take() else {
            return Ok(());
        };
        let ended = qp.destroy().and_then(|()| mr.deregister());
        let ended = ended
            .and_then(|()| cq.destroy())
            .and_then(|()| pd.destroy());
        ended.map_err(|error| format!("what the attacker had: {error}"))
    }
}
