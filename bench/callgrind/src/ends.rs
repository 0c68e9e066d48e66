//! Two devices, a queue pair on each, and a clock that moves by the step.

use crate::counted::{far, near};
use airdma_engine::simulated::{self, Simulated, interface};
use airdma_engine::*;
use airdma_port::{Port, UdpConfig, UdpPort, sim};
use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

/// Rights of all memory.
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

/// Time between two steps: about what a round of a busy device takes.
const STEP: Duration = Duration::from_micros(1);

/// Steps within which anything completes, or it hangs.
const STEPS_MAX: u32 = 100_000;

/// What sealed ends share.
const SECRET: &[u8] = b"what no other host of this program has";

/// Carrier of the packets.
#[derive(Clone, Copy, Debug)]
pub enum Wire {
    /// A pair of queues in memory.
    Memory,
    /// Sockets on the loopback interface.
    Sockets,
}

/// Composition of a pair of ends.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    pub wire: Wire,
    pub qp_type: QpType,
    pub path_mtu: PathMtu,
    /// Bytes of registered memory of each end.
    pub bytes: usize,
    /// Connected queue pairs beside the first.
    pub others: usize,
    /// Whether both have agreed on more than RoCEv2, as hosts on a wire do.
    pub agreed: bool,
    /// Whether both have the same secret, so that their packets are sealed.
    pub sealed: bool,
}

impl Setup {
    pub const PLAIN: Setup = Setup {
        wire: Wire::Memory,
        qp_type: QpType::Rc,
        path_mtu: PathMtu::M1024,
        bytes: 1 << 16,
        others: 0,
        agreed: false,
        sealed: false,
    };

    pub const AGREED: Setup = Setup {
        agreed: true,
        ..Setup::PLAIN
    };

    pub const SEALED: Setup = Setup {
        sealed: true,
        ..Setup::AGREED
    };
}

/// One end.
pub struct End {
    pub device: Simulated,
    pub cq: Arc<Cq>,
    pub qp: Arc<Qp>,
    /// With room for a few requests only.
    pub others: Vec<Arc<Qp>>,
    pub mr: Arc<Mr>,
    pub address: u64,
    _memory: Box<[u64]>,
}

/// Both.
pub struct Ends {
    pub near: End,
    pub far: End,
    now: Cell<Duration>,
}

/// An end of a wire, and the address there.
pub type Plug = (IpAddr, Box<dyn Port>);

/// Two ends of a wire.
pub fn wire(kind: Wire) -> [Plug; 2] {
    match kind {
        Wire::Memory => {
            let [near, far] = [[192, 0, 2, 1], [192, 0, 2, 2]].map(IpAddr::from);
            let (left, right) = sim::pair(&[near], &[far]).expect("descriptors");
            [(near, Box::new(left)), (far, Box::new(right))]
        }
        Wire::Sockets => {
            let [near, far] = [[127, 0, 0, 41], [127, 0, 0, 42]].map(IpAddr::from);
            let bind = |address, port| {
                let config = UdpConfig {
                    port,
                    ..UdpConfig::default()
                };
                UdpPort::bind(&[address], 1, config)
                    .expect("a free UDP port of the loopback interface")
            };
            // Any port that is free at the one is free at the other.
            let left = bind(near, 0);
            let right = bind(far, left.port());
            [(near, Box::new(left)), (far, Box::new(right))]
        }
    }
}

/// A device on an end of a wire, whose time stands still until it is moved.
pub fn device(name: &str, (address, port): Plug, path_mtu: PathMtu) -> Simulated {
    let info = DeviceInfo {
        path_mtu,
        mtu: 9000,
        ..interface(name, 1, address)
    };
    // Ends with the same random numbers would take each other for themselves.
    let seed = name.len() as u64;
    Simulated::open(info, port, seed).expect("memory and descriptors")
}

impl Ends {
    pub fn new(setup: Setup) -> Self {
        let [left, right] = wire(setup.wire);
        let devices = [("near", left), ("far", right)].map(|(name, plug)| {
            let device = device(name, plug, setup.path_mtu);
            if setup.sealed {
                let shared = device.device().share_secret(SECRET);
                shared.expect("a secret that is long enough");
            }
            if setup.agreed {
                device.set_interface_mtu(1500);
                device.offer_wired(RateControl::default());
            }
            device
        });
        let [near, far] = devices.map(|device| End::new(device, setup));
        connect(&near, &near.qp, &far, &far.qp, setup.path_mtu);
        for (one, other) in near.others.iter().zip(&far.others) {
            connect(&near, one, &far, other, setup.path_mtu);
        }
        let ends = Ends {
            near,
            far,
            now: Cell::new(Duration::ZERO),
        };
        if setup.agreed {
            ends.agree();
        }
        ends
    }

    /// Lets the time of an agreement pass: with sealed ends that of one that is repeated, since the
    /// first question is lost for lack of keys.
    fn agree(&self) {
        for _ in 0..STEPS_MAX / 1_000 {
            for _ in 0..1_000 {
                self.step();
                self.near.device.run(self.now.get());
                self.far.device.run(self.now.get());
            }
            if self.near.counter("air_agreed") > 0 {
                return;
            }
        }
        panic!("no agreement");
    }

    /// Time passes.
    pub fn step(&self) {
        let now = self.now.get() + STEP;
        self.now.set(now);
        self.near.device.move_clock(now);
        self.far.device.move_clock(now);
    }

    /// Polls both ends in turn until the requesting end has `wanted` completions. The other's are
    /// discarded.
    pub fn complete(&self, wanted: usize) {
        let mut count = 0;
        for _ in 0..STEPS_MAX {
            self.step();
            far(|| {
                self.far.poll();
            });
            near(|| count += self.near.poll());
            if count >= wanted {
                return;
            }
        }
        panic!("{count} of {wanted} completions");
    }

    /// Packets that both have sent so far.
    pub fn packets(&self) -> u64 {
        [&self.near, &self.far]
            .map(|end| end.counter("tx_packets"))
            .iter()
            .sum()
    }
}

impl End {
    fn new(device: Simulated, setup: Setup) -> Self {
        let pd = device.device().alloc_pd().expect("memory");
        let cq = device.device().create_cq(4096, None).expect("memory");
        let caps = QpCaps {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 128,
        };
        let create = |caps| {
            let init = QpInit {
                qp_type: setup.qp_type,
                send_cq: Arc::clone(&cq),
                recv_cq: Arc::clone(&cq),
                srq: None,
                caps,
                signal_all: false,
            };
            pd.create_qp(init).expect("memory")
        };
        let qp = create(caps);
        let others = (0..setup.others)
            .map(|_| {
                create(QpCaps {
                    max_send_wr: 4,
                    max_recv_wr: 4,
                    max_send_sge: 1,
                    max_recv_sge: 1,
                    max_inline: 0,
                })
            })
            .collect();
        // Room to begin at a page, whatever the allocator does: copies take other ways for other
        // alignments.
        let mut memory = vec![0_u64; (setup.bytes + 8192) / 8].into_boxed_slice();
        let address = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096);
        let mr = pd
            .reg_mr(address, setup.bytes, address, ALL)
            .expect("memory of this program");
        End {
            device,
            cq,
            qp,
            others,
            mr,
            address,
            _memory: memory,
        }
    }

    /// Takes what completed; how many.
    pub fn poll(&self) -> usize {
        let check = |completion: Completion| {
            assert_eq!(completion.status, Status::Success, "{completion:?}");
        };
        self.cq
            .poll(16, check)
            .expect("a queue that does not overflow")
    }

    pub fn sge(&self, length: usize) -> Sge {
        Sge {
            addr: self.address,
            length: length as u32,
            lkey: self.mr.lkey().0,
        }
    }

    fn path(&self) -> Path {
        Path {
            gid: self.device.device().info().gids[0].gid,
            hop_limit: 64,
            ..Path::default()
        }
    }

    pub fn counter(&self, name: &str) -> u64 {
        let counters = self.device.device().counters();
        let found = counters.iter().find(|(other, _)| *other == name);
        found.expect("a counter of the port").1
    }
}

fn connect(near: &End, near_qp: &Qp, far: &End, far_qp: &Qp, path_mtu: PathMtu) {
    to_rts(near_qp, far_qp.number(), far.path(), path_mtu);
    to_rts(far_qp, near_qp.number(), near.path(), path_mtu);
}

fn to_rts(qp: &Qp, dest_qpn: Qpn, path: Path, path_mtu: PathMtu) {
    let attributes = QpAttributes {
        port: 1,
        access: ALL,
        path,
        path_mtu,
        dest_qpn,
        max_rd_atomic: 16,
        max_dest_rd_atomic: 16,
        min_rnr_timer: 1,
        retry_count: 7,
        rnr_retry: 7,
        timeout: 14,
        ..QpAttributes::default()
    };
    simulated::connect(qp, &attributes);
}
