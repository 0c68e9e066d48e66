//! The same messages, by the function pointers that C programs call.

use crate::counted::{begin, end, far, near};
use crate::ends::{Wire, device, wire};
use crate::{Done, Scenario};
use airdma_engine::simulated::Simulated;
use airdma_engine::{Gid, PathMtu};
use airdma_verbs::rlib::{abi, open, symbols};
use std::net::IpAddr;
use std::ptr;
use std::time::Duration;

pub fn scenarios() -> Vec<Scenario> {
    vec![
        Scenario {
            name: "c_write_64",
            what: "WRITE of 64 B by the C functions, one at a time",
            run: || write(1),
        },
        Scenario {
            name: "c_write_64_list",
            what: "WRITE of 64 B by the C functions, in lists of 16",
            run: || write(16),
        },
        Scenario {
            name: "c_post_send",
            what: "a request of a list of 16 posted by `post_send` behind others",
            run: post_send,
        },
        Scenario {
            name: "c_poll_empty",
            what: "`poll_cq` of an empty completion queue",
            run: poll_empty,
        },
    ]
}

const ALL_ACCESS: i32 = (abi::IBV_ACCESS_LOCAL_WRITE
    | abi::IBV_ACCESS_REMOTE_WRITE
    | abi::IBV_ACCESS_REMOTE_READ) as i32;

const BYTES: usize = 4096;
const LENGTH: u32 = 64;
const TIMES: u64 = 960;

/// Objects of a C program, never destroyed: the process ends soon.
struct Program {
    device: Simulated,
    gid: Gid,
    address: u64,
    cq: *mut abi::ibv_cq,
    qp: *mut abi::ibv_qp,
    mr: *mut abi::ibv_mr,
    poll_cq: unsafe extern "C" fn(*mut abi::ibv_cq, i32, *mut abi::ibv_wc) -> i32,
    post_send: unsafe extern "C" fn(
        *mut abi::ibv_qp,
        *mut abi::ibv_send_wr,
        *mut *mut abi::ibv_send_wr,
    ) -> i32,
}

fn zeroed<T>() -> T {
    // SAFETY: used for structs of integers and pointers only.
    unsafe { std::mem::zeroed() }
}

impl Program {
    fn new(device: Simulated, own: IpAddr) -> Self {
        let context = open(device.device()).expect("descriptors");
        let memory = vec![0_u64; 2 * BYTES / 8].leak();
        let address = (memory.as_mut_ptr().expose_provenance() as u64).next_multiple_of(4096);
        let start = ptr::with_exposed_provenance_mut(address as usize);
        let mut init: abi::ibv_qp_init_attr = zeroed();
        init.qp_type = abi::IBV_QPT_RC;
        init.cap = abi::ibv_qp_cap {
            max_send_wr: 256,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline_data: 128,
        };
        // SAFETY: objects that are created here, in their order, and the functions of a context.
        unsafe {
            let pd = symbols::ibv_alloc_pd(context);
            let mr = symbols::ibv_reg_mr(pd, start, BYTES, ALL_ACCESS);
            let cq = symbols::ibv_create_cq(context, 1024, ptr::null_mut(), ptr::null_mut(), 0);
            (init.send_cq, init.recv_cq) = (cq, cq);
            let qp = symbols::ibv_create_qp(pd, &raw mut init);
            assert!(!mr.is_null() && !cq.is_null() && !qp.is_null());
            Program {
                device,
                gid: Gid::from(own),
                address,
                cq,
                qp,
                mr,
                poll_cq: (*context).ops.poll_cq.expect("it is in every table"),
                post_send: (*context).ops.post_send.expect("it is in every table"),
            }
        }
    }

    fn connect(&self, peer: &Program) {
        let mut attr: abi::ibv_qp_attr = zeroed();
        attr.port_num = 1;
        attr.qp_access_flags = ALL_ACCESS as u32;
        attr.path_mtu = PathMtu::M1024 as u32;
        // SAFETY: a queue pair that lives.
        attr.dest_qp_num = unsafe { (*peer.qp).qp_num };
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (16, 16);
        (
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
            attr.min_rnr_timer,
        ) = (14, 7, 7, 1);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.grh.dgid.raw = peer.gid.0;
        let to_init = abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT | abi::IBV_QP_ACCESS_FLAGS;
        let to_receive = abi::IBV_QP_AV
            | abi::IBV_QP_PATH_MTU
            | abi::IBV_QP_DEST_QPN
            | abi::IBV_QP_RQ_PSN
            | abi::IBV_QP_MAX_DEST_RD_ATOMIC
            | abi::IBV_QP_MIN_RNR_TIMER;
        let to_send = abi::IBV_QP_SQ_PSN
            | abi::IBV_QP_MAX_QP_RD_ATOMIC
            | abi::IBV_QP_RETRY_CNT
            | abi::IBV_QP_RNR_RETRY
            | abi::IBV_QP_TIMEOUT;
        for (state, mask) in (abi::IBV_QPS_INIT..).zip([to_init, to_receive, to_send]) {
            attr.qp_state = state;
            let mask = (mask | abi::IBV_QP_STATE) as i32;
            // SAFETY: a queue pair that lives, and a struct.
            let failed = unsafe { symbols::ibv_modify_qp(self.qp, &raw mut attr, mask) };
            assert_eq!(failed, 0, "all that the transition asks for");
        }
    }

    /// Posts a list of writes.
    fn post(&self, list: &mut [abi::ibv_send_wr]) {
        let mut bad = ptr::null_mut();
        // SAFETY: a queue pair that lives, and a list whose elements name each other.
        let failed = unsafe { (self.post_send)(self.qp, list.as_mut_ptr(), &raw mut bad) };
        assert_eq!(failed, 0);
    }

    /// Number of completions.
    fn poll(&self) -> usize {
        let mut completions: [abi::ibv_wc; 16] = zeroed();
        // SAFETY: a queue that is alive, and room for 16 completions.
        let count = unsafe { (self.poll_cq)(self.cq, 16, completions.as_mut_ptr()) };
        let count = usize::try_from(count).expect("a queue that does not overflow");
        assert!(
            completions[..count]
                .iter()
                .all(|completion| completion.status == 0)
        );
        count
    }

    fn packets(&self) -> u64 {
        let counters = self.device.device().counters();
        let found = counters.iter().find(|(name, _)| *name == "tx_packets");
        found.expect("a counter of the port").1
    }
}

/// A list of writes to the peer, which name each other: it stays where it is.
struct List {
    requests: Box<[abi::ibv_send_wr]>,
    _sge: Box<abi::ibv_sge>,
}

impl List {
    fn new(own: &Program, peer: &Program, count: usize, signalled: bool) -> Self {
        let mut sge = Box::new(abi::ibv_sge {
            addr: own.address,
            length: LENGTH,
            // SAFETY: a region that lives.
            lkey: unsafe { (*own.mr).lkey },
        });
        let mut request: abi::ibv_send_wr = zeroed();
        request.opcode = abi::IBV_WR_RDMA_WRITE;
        (request.sg_list, request.num_sge) = (&raw mut *sge, 1);
        request.wr.rdma.remote_addr = peer.address;
        // SAFETY: a region that lives.
        request.wr.rdma.rkey = unsafe { (*peer.mr).rkey };
        let mut requests = vec![request; count].into_boxed_slice();
        for index in 1..count {
            requests[index - 1].next = &raw mut requests[index];
        }
        if signalled {
            requests[count - 1].send_flags = abi::IBV_SEND_SIGNALED;
        }
        List {
            requests,
            _sge: sge,
        }
    }
}

struct Programs {
    near: Program,
    far: Program,
    now: Duration,
}

impl Programs {
    fn new() -> Self {
        let [left, right] = wire(Wire::Memory);
        let (own, other) = (left.0, right.0);
        let near = Program::new(device("near", left, PathMtu::M1024), own);
        let far = Program::new(device("far", right, PathMtu::M1024), other);
        near.connect(&far);
        far.connect(&near);
        Programs {
            near,
            far,
            now: Duration::ZERO,
        }
    }

    fn step(&mut self) {
        self.now += Duration::from_micros(1);
        self.near.device.move_clock(self.now);
        self.far.device.move_clock(self.now);
    }

    fn complete(&mut self) {
        let mut count = 0;
        while count == 0 {
            self.step();
            far(|| {
                self.far.poll();
            });
            near(|| count += self.near.poll());
        }
    }
}

fn repeat(programs: &mut Programs, lists: u64, mut call: impl FnMut(&mut Programs)) -> u64 {
    for _ in 0..100 {
        call(programs);
    }
    let before = programs.near.packets() + programs.far.packets();
    begin();
    for _ in 0..lists {
        call(programs);
    }
    end();
    programs.near.packets() + programs.far.packets() - before
}

fn write(count: usize) -> Done {
    let mut programs = Programs::new();
    let mut list = List::new(&programs.near, &programs.far, count, true);
    let packets = repeat(&mut programs, TIMES / count as u64, |programs| {
        near(|| programs.near.post(&mut list.requests));
        programs.complete();
    });
    Done {
        times: TIMES,
        packets,
    }
}

fn post_send() -> Done {
    let mut programs = Programs::new();
    let mut first = List::new(&programs.near, &programs.far, 1, false);
    let mut list = List::new(&programs.near, &programs.far, 16, true);
    repeat(&mut programs, TIMES / 16, |programs| {
        // Posted first, so that the next requests wait for its answer.
        programs.near.post(&mut first.requests);
        near(|| programs.near.post(&mut list.requests));
        let mut count = 0;
        while count == 0 {
            programs.step();
            programs.far.poll();
            count = programs.near.poll();
        }
    });
    Done {
        times: TIMES,
        packets: 0,
    }
}

fn poll_empty() -> Done {
    let mut programs = Programs::new();
    repeat(&mut programs, TIMES, |programs| {
        programs.step();
        near(|| {
            programs.near.poll();
        });
    });
    Done {
        times: TIMES,
        packets: 0,
    }
}
