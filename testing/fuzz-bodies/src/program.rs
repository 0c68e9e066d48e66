//! Objects of a C program before it posts: a device in a time of its own whose packets come back to
//! it, memory of which a part is registered, queues, and two queue pairs that are connected to each
//! other.

use std::collections::{BTreeMap, VecDeque};
use std::mem::offset_of;
use std::net::Ipv4Addr;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use airdma_engine::simulated::{Inventory, Simulated, interface};
use airdma_engine::{Gid, PathMtu};
use airdma_port::icrc::{Flow, IcrcCache};
use airdma_port::sim::{Carrier, Frame, carried};
use airdma_verbs::rlib::{abi, open, symbols};
use airdma_wire::ROCE_PORT;

use crate::input::Input;

const ADDRESS: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// Bytes of memory; the parts that are registered are [`OPEN`] and [`READABLE`].
const MEMORY: usize = 8192;

/// Registered for everything.
pub const OPEN: std::ops::Range<usize> = 1024..5120;

/// Registered for reading only.
pub const READABLE: std::ops::Range<usize> = 6144..7168;

const ALL_ACCESS: i32 = (abi::IBV_ACCESS_LOCAL_WRITE
    | abi::IBV_ACCESS_REMOTE_WRITE
    | abi::IBV_ACCESS_REMOTE_READ
    | abi::IBV_ACCESS_REMOTE_ATOMIC
    | abi::IBV_ACCESS_MW_BIND) as i32;

/// A queue pair, and what was posted to it and must complete: identifiers, oldest first, and
/// whether success is reported.
pub struct Posted {
    /// The queue pair.
    pub qp: *mut abi::ibv_qp,
    /// Its type.
    pub qp_type: abi::ibv_qp_type,
    /// Granted capacities.
    pub cap: abi::ibv_qp_cap,
    /// `sq_sig_all`.
    pub signal_all: bool,
    /// Send requests.
    pub sends: VecDeque<(u64, bool)>,
    /// Receives of its own queue.
    pub receives: VecDeque<u64>,
}

/// Change of a packet on its way, by an intruder. It knows everything, and closes the packet with
/// the right ICRC.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Lets this many packets pass first.
    Pass(u8),
    /// Sets a byte.
    Set(u8, u8),
    /// Flips bits of a byte.
    Flip(u8, u8),
    /// Changes its length to this many words.
    Length(u8),
    /// Lets it get lost.
    Drop,
    /// Sends an old packet, this many packets back, before it.
    Replay(u8),
}

impl Change {
    /// A change of the input's choice.
    pub fn decode(input: &mut Input<'_>) -> Self {
        let [kind, at, value] = input.bytes();
        match kind % 8 {
            0 => Change::Pass(value % 8),
            // The BTH and the first extended header.
            1 | 2 => Change::Set(at % 40, value),
            3 | 4 => Change::Flip(at % 40, value),
            5 => Change::Length(value),
            6 => Change::Drop,
            _ => Change::Replay(value % FRAMES_KEPT),
        }
    }
}

/// Packets that an intruder keeps.
const FRAMES_KEPT: u8 = 8;

/// The program.
pub struct Program {
    device: Simulated,
    carrier: Carrier,
    nothing: Inventory,
    now: Duration,
    /// Changes of the next packets.
    pub changes: VecDeque<Change>,
    seen: VecDeque<Frame>,
    memory: Box<[u64]>,
    /// The context.
    pub context: *mut abi::ibv_context,
    pd: *mut abi::ibv_pd,
    cq: *mut abi::ibv_cq,
    xrcd: *mut abi::ibv_xrcd,
    /// Shared receive queues: a plain one, and one for messages of extended connections.
    pub srqs: [*mut abi::ibv_srq; 2],
    /// The number of the latter.
    pub srq_number: u32,
    /// Receives that were posted to either.
    pub shared: Vec<u64>,
    /// Registered for everything.
    pub open: *mut abi::ibv_mr,
    /// Registered for reading.
    pub readable: *mut abi::ibv_mr,
    /// An address handle.
    pub ah: *mut abi::ibv_ah,
    /// A memory window of type 2.
    pub window: *mut abi::ibv_mw,
    /// Two queue pairs, each the other's peer.
    pub qps: Vec<Posted>,
    next_wr_id: u64,
}

/// A panic that the boundary to C caught.
static PANICKED: AtomicBool = AtomicBool::new(false);

fn watch_for_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICKED.store(true, Ordering::Relaxed);
            before(info);
        }));
    });
}

macro_rules! call {
    ($function:expr, $($argument:expr),*) => {{
        let function = $function.expect("a function of the table");
        // SAFETY: the objects of the program, which live; what else is wrong is what is tried here.
        #[allow(unused_unsafe, reason = "some stand in an unsafe block")]
        let answer = unsafe { function($($argument),*) };
        answer
    }};
}
pub(crate) use call;

fn zeroed<T>() -> T {
    // SAFETY: used for structs of integers and pointers only.
    unsafe { std::mem::zeroed() }
}

impl Program {
    /// A program with queue pairs of one service, in states and with sizes of the input's choice.
    pub fn new(input: &mut Input<'_>) -> Self {
        watch_for_panics();
        let (port, carrier) = carried(&[ADDRESS.into()]).expect("descriptors");
        let info = interface("hostile0", 1, ADDRESS.into());
        let device = Simulated::open(info, Box::new(port), 7).expect("memory");
        let nothing = device.inventory();
        let context = open(device.device()).expect("descriptors");
        let mut memory = vec![0; MEMORY / 8].into_boxed_slice();
        let address: *mut u8 = memory.as_mut_ptr().cast();
        for at in 0..MEMORY {
            // SAFETY: inside the memory.
            unsafe { address.add(at).write(pattern(at)) };
        }
        let mut program = Program {
            device,
            carrier,
            nothing,
            now: Duration::ZERO,
            changes: VecDeque::new(),
            seen: VecDeque::new(),
            memory,
            context,
            pd: ptr::null_mut(),
            cq: ptr::null_mut(),
            xrcd: ptr::null_mut(),
            srqs: [ptr::null_mut(); 2],
            srq_number: 0,
            shared: Vec::new(),
            open: ptr::null_mut(),
            readable: ptr::null_mut(),
            ah: ptr::null_mut(),
            window: ptr::null_mut(),
            qps: Vec::new(),
            next_wr_id: 1,
        };
        program.create(input);
        program
    }

    fn create(&mut self, input: &mut Input<'_>) {
        let base: *mut u8 = self.memory.as_mut_ptr().cast();
        let mut srq = abi::ibv_srq_init_attr {
            attr: abi::ibv_srq_attr {
                max_wr: 8,
                max_sge: 2,
                srq_limit: 0,
            },
            ..zeroed()
        };
        let mut route = abi::ibv_ah_attr {
            is_global: 1,
            port_num: 1,
            ..zeroed()
        };
        route.grh.dgid.raw = Gid::from(ADDRESS).0;
        let mut domain = abi::ibv_xrcd_init_attr {
            comp_mask: 3,
            fd: -1,
            oflags: 0,
        };
        // SAFETY: the objects of the program, created in their order.
        unsafe {
            self.pd = symbols::ibv_alloc_pd(self.context);
            self.cq =
                symbols::ibv_create_cq(self.context, 255, ptr::null_mut(), ptr::null_mut(), 0);
            let region = |range: &std::ops::Range<usize>, access| {
                let start = base.add(range.start).cast();
                symbols::ibv_reg_mr(self.pd, start, range.len(), access)
            };
            self.open = region(&OPEN, ALL_ACCESS);
            self.readable = region(&READABLE, abi::IBV_ACCESS_REMOTE_READ as i32);
            self.srqs[0] = symbols::ibv_create_srq(self.pd, &raw mut srq);
            self.ah = symbols::ibv_create_ah(self.pd, &raw mut route);
            self.window = call!((*self.context).ops.alloc_mw, self.pd, abi::IBV_MW_TYPE_2);
            self.xrcd = call!(self.table().open_xrcd, self.context, &raw mut domain);
            let mut extended = abi::ibv_srq_init_attr_ex {
                attr: srq.attr,
                comp_mask: abi::IBV_SRQ_INIT_ATTR_TYPE
                    | abi::IBV_SRQ_INIT_ATTR_PD
                    | abi::IBV_SRQ_INIT_ATTR_XRCD
                    | abi::IBV_SRQ_INIT_ATTR_CQ,
                srq_type: abi::IBV_SRQT_XRC,
                pd: self.pd,
                xrcd: self.xrcd,
                cq: self.cq,
                ..zeroed()
            };
            self.srqs[1] = call!(self.table().create_srq_ex, self.context, &raw mut extended);
            call!(
                self.table().get_srq_num,
                self.srqs[1],
                &raw mut self.srq_number
            );
        }
        let pointers: [*const (); 9] = [
            self.pd.cast(),
            self.cq.cast(),
            self.open.cast(),
            self.readable.cast(),
            self.srqs[0].cast(),
            self.srqs[1].cast(),
            self.ah.cast(),
            self.window.cast(),
            self.xrcd.cast(),
        ];
        assert!(pointers.iter().all(|pointer| !pointer.is_null()));
        let services = [
            abi::IBV_QPT_RC,
            abi::IBV_QPT_RC,
            abi::IBV_QPT_UC,
            abi::IBV_QPT_UD,
            abi::IBV_QPT_XRC_SEND,
        ];
        let service = input.pick(&services);
        let peer = if service == abi::IBV_QPT_XRC_SEND {
            abi::IBV_QPT_XRC_RECV
        } else {
            service
        };
        self.create_qp(service, input);
        self.create_qp(peer, input);
        for index in 0..2 {
            self.start(index, input.pick(&[3, 3, 3, 3, 3, 3, 2, 1, 0]));
        }
    }

    fn table(&self) -> &abi::verbs_context {
        let table = self
            .context
            .wrapping_byte_sub(offset_of!(abi::verbs_context, context));
        // SAFETY: the table lies in front of every context.
        unsafe { &*table.cast() }
    }

    fn create_qp(&mut self, qp_type: abi::ibv_qp_type, input: &mut Input<'_>) {
        let [sizes, elements, inline, flags] = input.bytes();
        let mut init: abi::ibv_qp_init_attr_ex = zeroed();
        init.qp_type = qp_type;
        init.pd = self.pd;
        (init.send_cq, init.recv_cq) = (self.cq, self.cq);
        init.sq_sig_all = i32::from(flags & 1);
        init.cap = abi::ibv_qp_cap {
            max_send_wr: u32::from(sizes & 0xf),
            max_recv_wr: u32::from(sizes >> 4),
            max_send_sge: u32::from(elements & 3),
            max_recv_sge: u32::from(elements >> 4 & 3),
            max_inline_data: u32::from(inline & 0x7f),
        };
        if flags & 6 == 6 && qp_type != abi::IBV_QPT_XRC_SEND {
            init.srq = self.srqs[0];
        }
        init.comp_mask = abi::IBV_QP_INIT_ATTR_PD;
        if qp_type == abi::IBV_QPT_XRC_RECV {
            init.comp_mask = abi::IBV_QP_INIT_ATTR_XRCD;
            init.xrcd = self.xrcd;
        } else if flags & 8 == 0 {
            init.comp_mask |= abi::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
            init.send_ops_flags = match qp_type {
                abi::IBV_QPT_UD => 0x0c,
                abi::IBV_QPT_UC => 0x18f,
                _ => 0x13ff,
            };
        }
        let qp = call!(self.table().create_qp_ex, self.context, &raw mut init);
        assert!(!qp.is_null(), "within the limits of the device");
        self.qps.push(Posted {
            qp,
            qp_type,
            cap: init.cap,
            signal_all: init.sq_sig_all != 0,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
        });
    }

    /// Moves a queue pair from reset through `states` states.
    fn start(&mut self, index: usize, states: usize) {
        let mut attr: abi::ibv_qp_attr = zeroed();
        attr.port_num = 1;
        attr.qp_access_flags = ALL_ACCESS as u32;
        attr.path_mtu = PathMtu::M256 as u32;
        // SAFETY: a queue pair of the program.
        attr.dest_qp_num = unsafe { (*self.qps[1 - index].qp).qp_num };
        attr.qkey = 5;
        (attr.max_rd_atomic, attr.max_dest_rd_atomic) = (2, 2);
        (
            attr.timeout,
            attr.retry_cnt,
            attr.rnr_retry,
            attr.min_rnr_timer,
        ) = (10, 1, 1, 1);
        attr.ah_attr.is_global = 1;
        attr.ah_attr.port_num = 1;
        attr.ah_attr.grh.dgid.raw = Gid::from(ADDRESS).0;
        let qp_type = self.qps[index].qp_type;
        let path =
            abi::IBV_QP_AV | abi::IBV_QP_PATH_MTU | abi::IBV_QP_DEST_QPN | abi::IBV_QP_RQ_PSN;
        let answers = abi::IBV_QP_MAX_DEST_RD_ATOMIC | abi::IBV_QP_MIN_RNR_TIMER;
        let retries = abi::IBV_QP_MAX_QP_RD_ATOMIC | abi::IBV_QP_RETRY_CNT | abi::IBV_QP_RNR_RETRY;
        let init = abi::IBV_QP_PKEY_INDEX | abi::IBV_QP_PORT;
        let [init, receive, send] = match qp_type {
            abi::IBV_QPT_UD => [init | abi::IBV_QP_QKEY, 0, 0],
            abi::IBV_QPT_UC => [init | abi::IBV_QP_ACCESS_FLAGS, path, 0],
            abi::IBV_QPT_XRC_RECV => [
                init | abi::IBV_QP_ACCESS_FLAGS,
                path | answers,
                abi::IBV_QP_TIMEOUT,
            ],
            abi::IBV_QPT_XRC_SEND => [
                init | abi::IBV_QP_ACCESS_FLAGS,
                path,
                retries | abi::IBV_QP_TIMEOUT,
            ],
            _ => [
                init | abi::IBV_QP_ACCESS_FLAGS,
                path | answers,
                retries | abi::IBV_QP_TIMEOUT,
            ],
        };
        let masks = [init, receive, send | abi::IBV_QP_SQ_PSN];
        for (state, mask) in (1..).zip(masks).take(states) {
            attr.qp_state = state;
            assert_eq!(
                self.modify(index, &mut attr, mask),
                0,
                "all that the transition asks for"
            );
        }
    }

    fn modify(&mut self, index: usize, attr: &mut abi::ibv_qp_attr, mask: u32) -> i32 {
        let mask = (mask | abi::IBV_QP_STATE) as i32;
        // SAFETY: a queue pair of the program, and a struct.
        unsafe { symbols::ibv_modify_qp(self.qps[index].qp, attr, mask) }
    }

    /// Moves a queue pair to RTS, SQD, ERR or RESET, if it can go there.
    pub fn move_to(&mut self, index: usize, state: abi::ibv_qp_state) {
        let mut attr: abi::ibv_qp_attr = zeroed();
        attr.qp_state = state;
        // What is posted is told apart from what was flushed before.
        self.run(0);
        if self.modify(index, &mut attr, 0) == 0 && state == abi::IBV_QPS_RESET {
            self.qps[index].sends.clear();
            self.qps[index].receives.clear();
        }
    }

    /// The state of a queue pair.
    pub fn state(&self, index: usize) -> abi::ibv_qp_state {
        let (mut attr, mut init): (abi::ibv_qp_attr, abi::ibv_qp_init_attr) = (zeroed(), zeroed());
        let mask = abi::IBV_QP_STATE as i32;
        // SAFETY: a queue pair of the program, and structs.
        let failed = unsafe {
            symbols::ibv_query_qp(self.qps[index].qp, &raw mut attr, mask, &raw mut init)
        };
        assert_eq!(failed, 0);
        attr.qp_state
    }

    /// An identifier that no request had.
    pub fn wr_id(&mut self) -> u64 {
        self.next_wr_id += 1;
        self.next_wr_id
    }

    /// The address of a byte of the memory, or of one beyond it.
    pub fn address(&self, at: usize) -> u64 {
        (self.memory.as_ptr().expose_provenance() + at) as u64
    }

    /// Time passes, packets come back, and the completion queue is emptied.
    pub fn run(&mut self, micros: u64) {
        self.now += Duration::from_micros(micros);
        for _ in 0..64 {
            self.device.run(self.now);
            let mut idle = true;
            while let Some(frame) = self.carrier.take() {
                idle = false;
                self.carry(frame);
            }
            if idle {
                break;
            }
        }
        self.poll();
        assert!(!PANICKED.load(Ordering::Relaxed), "a panic was kept from C");
    }

    /// Carries a packet back to the device, with what happens to it on the way.
    fn carry(&mut self, mut frame: Frame) {
        self.seen.push_front(frame.clone());
        self.seen.truncate(FRAMES_KEPT.into());
        while let Some(change) = self.changes.pop_front() {
            match change {
                Change::Pass(0) => {}
                Change::Pass(more) => {
                    self.changes.push_front(Change::Pass(more - 1));
                    break;
                }
                Change::Set(at, value) => {
                    let byte = frame.bytes.get_mut(usize::from(at));
                    byte.into_iter().for_each(|byte| *byte = value);
                }
                Change::Flip(at, bits) => {
                    let byte = frame.bytes.get_mut(usize::from(at));
                    byte.into_iter().for_each(|byte| *byte ^= bits);
                }
                Change::Length(words) => frame.bytes.resize(usize::from(words) * 4, 0),
                Change::Drop => return,
                Change::Replay(back) => {
                    if let Some(old) = self.seen.get(usize::from(back)) {
                        self.carrier.give(old.clone());
                    }
                }
            }
        }
        seal(&mut frame);
        self.carrier.give(frame);
    }

    fn poll(&mut self) {
        let mut completions: [abi::ibv_wc; 16] = zeroed();
        loop {
            let poll = {
                // SAFETY: the context of the program.
                unsafe { (*self.context).ops.poll_cq }
            };
            let count = call!(poll, self.cq, 16, completions.as_mut_ptr());
            let count = usize::try_from(count).expect("no error");
            for completion in &completions[..count] {
                self.take(completion);
            }
            if count == 0 {
                break;
            }
        }
    }

    /// Checks that each request completes once, and in order; only unsignalled ones may be silent.
    fn take(&mut self, completion: &abi::ibv_wc) {
        let wr_id = completion.wr_id;
        if let Some(at) = self.shared.iter().position(|posted| *posted == wr_id) {
            self.shared.remove(at);
            return;
        }
        // SAFETY: the queue pairs of the program.
        let is_its = |posted: &&mut Posted| unsafe { (*posted.qp).qp_num } == completion.qp_num;
        let posted = self
            .qps
            .iter_mut()
            .find(is_its)
            .expect("of a queue pair of the program");
        if posted.receives.front() == Some(&wr_id) {
            posted.receives.pop_front();
            return;
        }
        while let Some((id, signalled)) = posted.sends.pop_front() {
            if id == wr_id {
                assert!(
                    signalled || completion.status != abi::IBV_WC_SUCCESS,
                    "{wr_id} was not to be told"
                );
                return;
            }
            assert!(!signalled, "{id} was passed over by {wr_id}");
        }
        panic!("{wr_id} was not posted");
    }

    /// Checks that bytes without a grant are unchanged.
    pub fn check_memory(&self) {
        let base: *const u8 = self.memory.as_ptr().cast();
        for at in (0..OPEN.start).chain(OPEN.end..MEMORY) {
            // SAFETY: inside the memory.
            let byte = unsafe { base.add(at).read_volatile() };
            assert_eq!(byte, pattern(at), "byte {at} has changed");
        }
    }

    /// Everything is flushed, destroyed and given back.
    pub fn finish(mut self) {
        for index in 0..2 {
            self.move_to(index, abi::IBV_QPS_ERR);
        }
        self.run(0);
        for posted in &self.qps {
            let left = posted
                .sends
                .iter()
                .filter(|(_, signalled)| *signalled)
                .count();
            assert_eq!((left, posted.receives.len()), (0, 0), "not flushed");
        }
        self.check_memory();
        let mut failures: BTreeMap<&str, i32> = BTreeMap::new();
        // SAFETY: the objects of the program, each once, users before what they use.
        unsafe {
            for posted in &self.qps {
                failures.insert("qp", symbols::ibv_destroy_qp(posted.qp));
            }
            failures.insert("window", call!((*self.context).ops.dealloc_mw, self.window));
            failures.insert("ah", symbols::ibv_destroy_ah(self.ah));
            for srq in self.srqs {
                *failures.entry("srq").or_default() |= symbols::ibv_destroy_srq(srq);
            }
            failures.insert("xrcd", call!(self.table().close_xrcd, self.xrcd));
            failures.insert("open", symbols::ibv_dereg_mr(self.open));
            failures.insert("readable", symbols::ibv_dereg_mr(self.readable));
            failures.insert("cq", symbols::ibv_destroy_cq(self.cq));
            failures.insert("pd", symbols::ibv_dealloc_pd(self.pd));
            failures.insert("context", symbols::ibv_close_device(self.context));
        }
        assert!(failures.values().all(|errno| *errno == 0), "{failures:?}");
        let left = Inventory {
            timers: 0,
            peers: 0,
            ..self.device.inventory()
        };
        assert_eq!(left, self.nothing);
    }
}

/// Puts the ICRC right.
fn seal(frame: &mut Frame) {
    let flow = Flow::new(
        frame.source,
        frame.destination,
        frame.source_port,
        ROCE_PORT,
    );
    let Some((transport, trailer)) = frame.bytes.split_last_chunk_mut() else {
        return;
    };
    let flow = flow.expect("all addresses are of one family");
    *trailer = IcrcCache::new(0).icrc(&flow, 0, transport).to_le_bytes();
}

fn pattern(at: usize) -> u8 {
    (at as u8).wrapping_mul(29) ^ (at >> 8) as u8
}
