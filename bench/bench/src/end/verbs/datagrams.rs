//! Queue pairs for datagrams, and `airdma/verbs_record.h`.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;

use anyhow::bail;

use super::{
    Ah, Attr, Cap, Completion, Gid, InitAttr, MR_LKEY_OFFSET, MR_RKEY_OFFSET, Pair, Piece,
    QP_NUM_OFFSET, Region, SIGNALED, Verbs, found, symbol,
};

/// `IBV_QPT_UD`.
const UD: u32 = 4;
/// Attributes of a queue pair for datagrams: to INIT, to RTR, to RTS.
const STEPS: [(u32, c_int); 3] = [(1, 1 | 1 << 4 | 1 << 5 | 1 << 6), (2, 1), (3, 1 | 1 << 16)];
/// The Q_Key of all of them.
const QKEY: u32 = 0x1234;
/// `AIRDMA_WC_RECORD`.
const RECORD: u32 = 136;
/// `AIRDMA_RECORD_STRICT_LAST` of a table.
const STRICT_LAST: u32 = 1;
/// `AIRDMA_RECORD_RELIABLE` of a request.
const RELIABLE: u32 = 1 << 1;

/// `struct airdma_record_attr`; 0 stands for the default of a field.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RecordLimits {
    open_max: u32,
    closed_max: u32,
    units_max: u32,
    sources_max: u32,
    idle_us: u32,
    age_us: u32,
    flags: u32,
    reserved: u32,
}

impl RecordLimits {
    /// A table for a fast source: with the default one packets find no entry whenever this program
    /// is later than the worker. Where `is_strict`, the packet at the end closes a message, and one
    /// without it is lost.
    pub fn large(is_strict: bool) -> RecordLimits {
        RecordLimits {
            open_max: 64,
            closed_max: 4032,
            sources_max: 4096,
            flags: if is_strict { STRICT_LAST } else { 0 },
            ..RecordLimits::default()
        }
    }

    /// A small table, for one of many queue pairs.
    pub fn few() -> RecordLimits {
        RecordLimits {
            open_max: 4,
            closed_max: 8,
            ..RecordLimits::default()
        }
    }
}

/// `struct airdma_record_wr`.
#[repr(C)]
struct RecordRequest {
    id: u64,
    pieces: *const Piece,
    piece_count: c_int,
    send_flags: u32,
    handle: *mut c_void,
    remote_pair: u32,
    remote_qkey: u32,
    remote_address: u64,
    remote_key: u32,
    immediate: u32,
    flags: u32,
    reserved: u32,
}

/// `struct airdma_record_read_wr`.
#[repr(C)]
struct ReadRequest {
    handle: *mut c_void,
    remote_pair: u32,
    remote_qkey: u32,
    remote_address: u64,
    remote_key: u32,
    bytes: u32,
    address: u64,
    local_key: u32,
    deadline_us: u32,
    tries: u32,
    reserved: u32,
}

/// `struct airdma_record`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Arrived {
    address: u64,
    key: u32,
    /// Bytes of the whole message.
    pub length: u32,
    /// Bytes of a bit of the map.
    pub unit: u32,
    /// Bytes that arrived.
    pub valid: u32,
    id: u32,
    source_pair: u32,
    source: Gid,
    immediate: u32,
    flags: u32,
    ended: u32,
    words: u32,
}

const _: () = assert!(mem::size_of::<RecordLimits>() == 32);
const _: () = assert!(mem::size_of::<RecordRequest>() == 64);
const _: () = assert!(mem::size_of::<ReadRequest>() == 56);
const _: () = assert!(mem::size_of::<Arrived>() == 64);

type Enable = unsafe extern "C" fn(*mut c_void, *const RecordLimits) -> c_int;
type Register = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, *const Gid) -> *mut c_void;
type Post = unsafe extern "C" fn(*mut c_void, *const RecordRequest) -> c_int;
type ReadFrom = unsafe extern "C" fn(*mut c_void, *const ReadRequest, *mut u64) -> c_int;
type Read = unsafe extern "C" fn(*mut c_void, u64, *mut Arrived) -> c_int;
type Map = unsafe extern "C" fn(*mut c_void, u64, *mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void, u64) -> c_int;
type Repeat = unsafe extern "C" fn(*mut c_void, *const c_void) -> c_int;
type CreateAh = unsafe extern "C" fn(*mut c_void, *mut Ah) -> *mut c_void;

/// The calls of `airdma/verbs_record.h`.
pub struct Records {
    enable: Enable,
    register: Register,
    register_read: Register,
    post: Post,
    read_from: ReadFrom,
    read: Read,
    map: Map,
    free: Free,
    repeat: Repeat,
    create_ah: CreateAh,
}

/// An address handle.
pub struct AddressHandle(*mut c_void);

/// Destination of a record.
#[derive(Clone, Copy)]
pub struct RecordTo<'a> {
    /// The host.
    pub host: &'a AddressHandle,
    /// Number of the queue pair.
    pub pair: u32,
    /// Address of the first byte.
    pub address: u64,
    /// R_Key.
    pub key: u32,
}

impl Completion {
    /// Whether a record arrived.
    pub fn is_record(&self) -> bool {
        self.opcode == RECORD
    }
}

impl Records {
    /// Looks the calls up.
    pub fn new() -> anyhow::Result<Records> {
        // SAFETY: the signatures are those of airdma/verbs_record.h and <infiniband/verbs.h>.
        unsafe {
            Ok(Records {
                enable: mem::transmute::<*mut c_void, Enable>(symbol(c"airdma_record_enable")?),
                register: mem::transmute::<*mut c_void, Register>(symbol(c"airdma_record_reg")?),
                register_read: mem::transmute::<*mut c_void, Register>(symbol(
                    c"airdma_record_reg_read",
                )?),
                post: mem::transmute::<*mut c_void, Post>(symbol(c"airdma_record_post")?),
                read_from: mem::transmute::<*mut c_void, ReadFrom>(symbol(
                    c"airdma_record_read_from",
                )?),
                read: mem::transmute::<*mut c_void, Read>(symbol(c"airdma_record_read")?),
                map: mem::transmute::<*mut c_void, Map>(symbol(c"airdma_record_map")?),
                free: mem::transmute::<*mut c_void, Free>(symbol(c"airdma_record_free")?),
                repeat: mem::transmute::<*mut c_void, Repeat>(symbol(c"airdma_rd_enable")?),
                create_ah: mem::transmute::<*mut c_void, CreateAh>(symbol(c"ibv_create_ah")?),
            })
        }
    }

    /// Makes a queue pair for datagrams, in RTS, whose send queue has `depth` entries.
    pub fn pair(&self, verbs: &Verbs, depth: u32) -> anyhow::Result<Pair> {
        let mut asked = InitAttr {
            qp_context: ptr::null_mut(),
            send_cq: verbs.completions,
            recv_cq: verbs.completions,
            srq: ptr::null_mut(),
            cap: Cap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: UD,
            sq_sig_all: 0,
        };
        let mut attributes = Attr {
            qkey: QKEY,
            port_num: 1,
            ..Attr::default()
        };
        // SAFETY: domain and completion queue are the library's; the attributes live through the
        // calls, and the number lies where the ABI has it.
        unsafe {
            let address = (verbs.create_qp)(verbs.domain, &mut asked);
            let address = found(address, "ibv_create_qp")?;
            for (state, mask) in STEPS {
                attributes.qp_state = state;
                let error = (verbs.modify_qp)(address, &mut attributes, mask);
                worked("ibv_modify_qp", error)?;
            }
            let number = *address.byte_add(QP_NUM_OFFSET).cast::<u32>();
            Ok(Pair { address, number })
        }
    }

    /// Lets a queue pair take records.
    pub fn enable(&self, pair: &Pair, limits: RecordLimits) -> anyhow::Result<()> {
        // SAFETY: `pair` is a queue pair of the library; the limits live through the call.
        let error = unsafe { (self.enable)(pair.address, &limits) };
        worked("airdma_record_enable", error)
    }

    /// Lets a queue pair repeat messages.
    pub fn repeat(&self, pair: &Pair) -> anyhow::Result<()> {
        // SAFETY: `pair` is a queue pair of the library; NULL stands for the defaults.
        let error = unsafe { (self.repeat)(pair.address, ptr::null()) };
        worked("airdma_rd_enable", error)
    }

    /// Registers `bytes` of new memory for records.
    pub fn region(&self, verbs: &Verbs, bytes: u32) -> anyhow::Result<Region> {
        register(verbs, bytes, self.register)
    }

    /// Registers `bytes` of new memory that peers read by datagrams.
    pub fn readable(&self, verbs: &Verbs, bytes: u32) -> anyhow::Result<Region> {
        register(verbs, bytes, self.register_read)
    }

    /// Makes an address handle of the host with `gid`.
    pub fn host(&self, verbs: &Verbs, gid: Gid) -> anyhow::Result<AddressHandle> {
        let mut attributes = Ah {
            dgid: gid,
            hop_limit: 1,
            is_global: 1,
            port_num: 1,
            ..Ah::default()
        };
        // SAFETY: the domain is the library's; the attributes live through the call.
        let handle = unsafe { (self.create_ah)(verbs.domain, &mut attributes) };
        Ok(AddressHandle(found(handle, "ibv_create_ah")?))
    }

    /// Posts `bytes` at `offset` of the region as a record; `signaled` says whether it completes.
    pub fn post(
        &self,
        pair: &Pair,
        (id, signaled, reliable): (u64, bool, bool),
        (region, offset, bytes): (&Region, u32, u32),
        to: RecordTo<'_>,
    ) -> anyhow::Result<()> {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= region.bytes)
        );
        let piece = Piece {
            address: region.address + u64::from(offset),
            length: bytes,
            key: region.local_key,
        };
        let request = RecordRequest {
            id,
            pieces: &raw const piece,
            piece_count: 1,
            send_flags: if signaled { SIGNALED } else { 0 },
            handle: to.host.0,
            remote_pair: to.pair,
            remote_qkey: QKEY,
            remote_address: to.address,
            remote_key: to.key,
            immediate: 0,
            flags: if reliable { RELIABLE } else { 0 },
            reserved: 0,
        };
        // SAFETY: queue pair and address handle are the library's; request and list live through
        // the call, and the memory as long as the process.
        let error = unsafe { (self.post)(pair.address, &request) };
        worked("airdma_record_post", error)
    }

    /// Reads `bytes` of `from` to `offset` of the region; the answer is the record's handle.
    pub fn read_from(
        &self,
        pair: &Pair,
        from: RecordTo<'_>,
        (region, offset, bytes): (&Region, u32, u32),
    ) -> anyhow::Result<u64> {
        assert!(
            offset
                .checked_add(bytes)
                .is_some_and(|end| end <= region.bytes)
        );
        let request = ReadRequest {
            handle: from.host.0,
            remote_pair: from.pair,
            remote_qkey: QKEY,
            remote_address: from.address,
            remote_key: from.key,
            bytes,
            address: region.address + u64::from(offset),
            local_key: region.local_key,
            deadline_us: 0,
            tries: 0,
            reserved: 0,
        };
        let mut handle = 0;
        // SAFETY: queue pair and address handle are the library's; the request and the place of the
        // handle live through the call, and the memory as long as the process.
        let error = unsafe { (self.read_from)(pair.address, &request, &mut handle) };
        worked("airdma_record_read_from", error)?;
        Ok(handle)
    }

    /// Reads a record, with its map.
    pub fn read(&self, pair: &Pair, handle: u64, map: &mut [u64]) -> anyhow::Result<Arrived> {
        let mut arrived = Arrived::default();
        // SAFETY: `pair` is a queue pair of the library; record and map live through the calls, and
        // the map has room for that many words.
        unsafe {
            worked(
                "airdma_record_read",
                (self.read)(pair.address, handle, &mut arrived),
            )?;
            let copied = (self.map)(pair.address, handle, map.as_mut_ptr(), map.len());
            worked("airdma_record_map", copied)?;
        }
        Ok(arrived)
    }

    /// Frees a record.
    pub fn free(&self, pair: &Pair, handle: u64) -> anyhow::Result<()> {
        // SAFETY: `pair` is a queue pair of the library.
        worked("airdma_record_free", unsafe {
            (self.free)(pair.address, handle)
        })
    }

    /// Moves a queue pair to RESET: packets to it are those to an unknown one.
    pub fn reset(&self, verbs: &Verbs, pair: &Pair) -> anyhow::Result<()> {
        let mut attributes = Attr::default();
        // SAFETY: `pair` is a queue pair of the library; the attributes live through the call.
        let error = unsafe { (verbs.modify_qp)(pair.address, &mut attributes, 1) };
        worked("ibv_modify_qp", error)
    }
}

fn worked(what: &str, error: c_int) -> anyhow::Result<()> {
    if error != 0 {
        bail!("{what}: error {error}");
    }
    Ok(())
}

/// Registers `bytes` of new memory by a call of `airdma/verbs_record.h`.
fn register(verbs: &Verbs, bytes: u32, by: Register) -> anyhow::Result<Region> {
    let memory = vec![0_u8; bytes as usize].leak();
    let address = memory.as_mut_ptr();
    // SAFETY: the memory is leaked and not accessed here; the keys lie where the ABI has them.
    unsafe {
        let region = by(verbs.domain, address.cast(), memory.len(), ptr::null());
        let region = found(region, "registering memory for datagrams")?;
        Ok(Region {
            address: address as u64,
            bytes,
            local_key: *region.byte_add(MR_LKEY_OFFSET).cast::<u32>(),
            remote_key: *region.byte_add(MR_RKEY_OFFSET).cast::<u32>(),
        })
    }
}
