//! The part of libibverbs' ABI that queue pairs and WRITEs need, looked up at run time.
//!
//! This program is measured as any other, on the libibverbs that `airdma run` provides.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

mod datagrams;

pub use datagrams::{AddressHandle, RecordLimits, RecordTo, Records};

/// Limits of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Cap {
    max_send_wr: u32,
    max_recv_wr: u32,
    max_send_sge: u32,
    max_recv_sge: u32,
    max_inline_data: u32,
}

#[repr(C)]
struct InitAttr {
    qp_context: *mut c_void,
    send_cq: *mut c_void,
    recv_cq: *mut c_void,
    srq: *mut c_void,
    cap: Cap,
    qp_type: u32,
    sq_sig_all: c_int,
}

/// GID of an end.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub struct Gid([u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Ah {
    dgid: Gid,
    flow_label: u32,
    sgid_index: u8,
    hop_limit: u8,
    traffic_class: u8,
    dlid: u16,
    sl: u8,
    src_path_bits: u8,
    static_rate: u8,
    is_global: u8,
    port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    qp_state: u32,
    cur_qp_state: u32,
    path_mtu: u32,
    path_mig_state: u32,
    qkey: u32,
    rq_psn: u32,
    sq_psn: u32,
    dest_qp_num: u32,
    qp_access_flags: u32,
    cap: Cap,
    ah: Ah,
    alt_ah: Ah,
    pkey_index: u16,
    alt_pkey_index: u16,
    en_sqd_async_notify: u8,
    sq_draining: u8,
    max_rd_atomic: u8,
    max_dest_rd_atomic: u8,
    min_rnr_timer: u8,
    port_num: u8,
    timeout: u8,
    retry_cnt: u8,
    rnr_retry: u8,
    alt_port_num: u8,
    alt_timeout: u8,
    rate_limit: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
struct Piece {
    address: u64,
    length: u32,
    key: u32,
}

/// `struct ibv_send_wr` of a WRITE; the fields of other operations stay zero.
#[repr(C)]
struct WriteRequest {
    id: u64,
    next: *mut c_void,
    pieces: *const Piece,
    piece_count: c_int,
    opcode: u32,
    flags: u32,
    immediate: u32,
    remote_address: u64,
    remote_key: u32,
    others: [u64; 9],
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Completion {
    /// Id of its work request, or handle of the record.
    pub id: u64,
    /// `IBV_WC_SUCCESS` (0), or how it failed.
    pub status: u32,
    opcode: u32,
    vendor_error: u32,
    /// Length of what arrived.
    pub bytes: u32,
    immediate: u32,
    /// Number of its queue pair.
    pub pair: u32,
    others: [u32; 4],
}

const _: () = assert!(mem::size_of::<InitAttr>() == 64 && mem::size_of::<Ah>() == 32);
const _: () = assert!(mem::size_of::<Attr>() == 144 && mem::size_of::<Piece>() == 16);
const _: () = assert!(mem::size_of::<WriteRequest>() == 128);
const _: () = assert!(mem::offset_of!(WriteRequest, remote_address) == 40);
const _: () = assert!(mem::size_of::<Completion>() == 48);

/// Offsets: number in `struct ibv_qp`, keys in `struct ibv_mr`, and the calls in `struct
/// ibv_context` that verbs.h inlines.
const QP_NUM_OFFSET: usize = 52;
const MR_LKEY_OFFSET: usize = 36;
const MR_RKEY_OFFSET: usize = 40;
const POLL_CQ_OFFSET: usize = 96;
const POST_SEND_OFFSET: usize = 208;

const RC: u32 = 2;
const MTU_1024: u32 = 3;
const OPCODE_WRITE: u32 = 0;
const SIGNALED: u32 = 1 << 1;
/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
const WRITABLE: u32 = 1 | 1 << 1;
/// `enum ibv_qp_attr_mask`: the attributes that each transition of an RC queue pair requires.
const INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const READY_TO_RECEIVE: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
const READY_TO_SEND: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

type CreateQp = unsafe extern "C" fn(*mut c_void, *mut InitAttr) -> *mut c_void;
type ModifyQp = unsafe extern "C" fn(*mut c_void, *mut Attr, c_int) -> c_int;
type RegMr = unsafe extern "C" fn(*mut c_void, *mut c_void, usize, c_int) -> *mut c_void;
type PollCq = unsafe extern "C" fn(*mut c_void, c_int, *mut Completion) -> c_int;
type PostSend =
    unsafe extern "C" fn(*mut c_void, *mut WriteRequest, *mut *mut WriteRequest) -> c_int;

/// A device, a protection domain and a completion queue.
///
/// These and all objects made of them live as long as the process.
pub struct Verbs {
    create_qp: CreateQp,
    modify_qp: ModifyQp,
    reg_mr: RegMr,
    poll_cq: PollCq,
    post_send: PostSend,
    domain: *mut c_void,
    completions: *mut c_void,
    gid: Gid,
}

/// An RC queue pair.
pub struct Pair {
    address: *mut c_void,
    /// Queue pair number.
    pub number: u32,
}

/// Registered memory, only accessed through the region.
pub struct Region {
    /// First address.
    pub address: u64,
    bytes: u32,
    local_key: u32,
    /// R_Key.
    pub remote_key: u32,
}

impl Region {
    /// Stores a byte.
    pub fn set(&self, at: u32, byte: u8) {
        assert!(at < self.bytes);
        let to = self.address as *mut u8;
        // SAFETY: in bounds of memory that is leaked; the library reads and writes it at any time,
        // so the access is volatile, and no reference to it exists.
        unsafe { to.add(at as usize).write_volatile(byte) };
    }

    /// The byte that is there now.
    pub fn get(&self, at: u32) -> u8 {
        assert!(at < self.bytes);
        let from = self.address as *const u8;
        // SAFETY: as in `set`.
        unsafe { from.add(at as usize).read_volatile() }
    }
}

impl Verbs {
    /// Opens the device of `interface`, with a completion queue of `entries` entries.
    pub fn open(interface: &str, entries: c_int) -> anyhow::Result<Verbs> {
        type Open = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
        // SAFETY: names, signatures and offsets are those of <infiniband/verbs.h>; each result is
        // checked before the next call gets it, and lives until the process ends.
        unsafe {
            libc::dlopen(
                c"libibverbs.so.1".as_ptr(),
                libc::RTLD_NOW | libc::RTLD_GLOBAL,
            );
            let list: unsafe extern "C" fn(*mut c_int) -> *mut *mut c_void =
                mem::transmute(symbol(c"ibv_get_device_list")?);
            let name: unsafe extern "C" fn(*mut c_void) -> *const c_char =
                mem::transmute(symbol(c"ibv_get_device_name")?);
            let open: Open = mem::transmute(symbol(c"ibv_open_device")?);
            let alloc_pd: Open = mem::transmute(symbol(c"ibv_alloc_pd")?);
            let create_cq: unsafe extern "C" fn(
                *mut c_void,
                c_int,
                *mut c_void,
                *mut c_void,
                c_int,
            ) -> *mut c_void = mem::transmute(symbol(c"ibv_create_cq")?);
            let query_gid: unsafe extern "C" fn(*mut c_void, u8, c_int, *mut Gid) -> c_int =
                mem::transmute(symbol(c"ibv_query_gid")?);
            let mut count = 0;
            let devices = found(list(&mut count), "ibv_get_device_list")?;
            let wanted = format!("airdma_{interface}");
            let device = (0..count as usize)
                .map(|index| *devices.add(index))
                .find(|device| CStr::from_ptr(name(*device)).to_bytes() == wanted.as_bytes());
            let device = device.with_context(|| format!("no device {wanted}"))?;
            let context = found(open(device), "ibv_open_device")?;
            let domain = found(alloc_pd(context), "ibv_alloc_pd")?;
            let none = ptr::null_mut();
            let completions = create_cq(context, entries, none, none, 0);
            let completions = found(completions, "ibv_create_cq")?;
            let mut gid = Gid::default();
            if query_gid(context, 1, 0, &mut gid) != 0 {
                bail!("ibv_query_gid fails");
            }
            Ok(Verbs {
                create_qp: mem::transmute::<*mut c_void, CreateQp>(symbol(c"ibv_create_qp")?),
                modify_qp: mem::transmute::<*mut c_void, ModifyQp>(symbol(c"ibv_modify_qp")?),
                reg_mr: mem::transmute::<*mut c_void, RegMr>(symbol(c"ibv_reg_mr")?),
                poll_cq: *context.byte_add(POLL_CQ_OFFSET).cast::<PollCq>(),
                post_send: *context.byte_add(POST_SEND_OFFSET).cast::<PostSend>(),
                domain,
                completions,
                gid,
            })
        }
    }

    /// GID of the device.
    pub fn gid(&self) -> Gid {
        self.gid
    }

    /// Registers `bytes` of new memory that the other end may write.
    pub fn region(&self, bytes: u32) -> anyhow::Result<Region> {
        let memory = vec![0_u8; bytes as usize].leak();
        let address = memory.as_mut_ptr();
        // SAFETY: the memory is leaked and not accessed here; the keys lie where the ABI has them.
        unsafe {
            let region =
                (self.reg_mr)(self.domain, address.cast(), memory.len(), WRITABLE as c_int);
            let region = found(region, "ibv_reg_mr")?;
            Ok(Region {
                address: address as u64,
                bytes,
                local_key: *region.byte_add(MR_LKEY_OFFSET).cast::<u32>(),
                remote_key: *region.byte_add(MR_RKEY_OFFSET).cast::<u32>(),
            })
        }
    }

    /// Makes a queue pair whose send queue has `depth` entries.
    pub fn pair(&self, depth: u32) -> anyhow::Result<Pair> {
        let mut asked = InitAttr {
            qp_context: ptr::null_mut(),
            send_cq: self.completions,
            recv_cq: self.completions,
            srq: ptr::null_mut(),
            cap: Cap {
                max_send_wr: depth,
                max_recv_wr: 1,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            },
            qp_type: RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are the library's; the number lies where the ABI has
        // it.
        unsafe {
            let address = found((self.create_qp)(self.domain, &mut asked), "ibv_create_qp")?;
            let number = *address.byte_add(QP_NUM_OFFSET).cast::<u32>();
            Ok(Pair { address, number })
        }
    }

    /// Connects `pair` to queue pair `number` of the device with `gid`, which may write to this
    /// memory.
    pub fn connect(&self, pair: &Pair, gid: Gid, number: u32) -> anyhow::Result<()> {
        let mut attributes = Attr {
            path_mtu: MTU_1024,
            dest_qp_num: number,
            qp_access_flags: WRITABLE,
            ah: Ah {
                dgid: gid,
                hop_limit: 1,
                is_global: 1,
                port_num: 1,
                ..Ah::default()
            },
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            port_num: 1,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..Attr::default()
        };
        for (state, mask) in [(1, INIT), (2, READY_TO_RECEIVE), (3, READY_TO_SEND)] {
            attributes.qp_state = state;
            // SAFETY: `pair` is a queue pair of the library; the attributes live through the call.
            let error = unsafe { (self.modify_qp)(pair.address, &mut attributes, mask) };
            if error != 0 {
                bail!("ibv_modify_qp to state {state}: error {error}");
            }
        }
        Ok(())
    }

    /// Posts a WRITE of `bytes` at `offset` of the region, whose completion carries `id`.
    pub fn write(
        &self,
        pair: &Pair,
        id: u64,
        (region, offset, bytes): (&Region, u32, u32),
        (remote_address, remote_key): (u64, u32),
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
        let mut request = WriteRequest {
            id,
            next: ptr::null_mut(),
            pieces: &raw const piece,
            piece_count: 1,
            opcode: OPCODE_WRITE,
            flags: SIGNALED,
            immediate: 0,
            remote_address,
            remote_key,
            others: [0; 9],
        };
        let mut bad = ptr::null_mut();
        // SAFETY: the queue pair is the library's; request and list live through the call, and the
        // memory as long as the process.
        let error = unsafe { (self.post_send)(pair.address, &mut request, &mut bad) };
        if error != 0 {
            bail!("ibv_post_send: error {error}");
        }
        Ok(())
    }

    /// Polls completions into `space`; each must have succeeded.
    pub fn poll<'a>(&self, space: &'a mut [Completion]) -> anyhow::Result<&'a [Completion]> {
        let done = self.poll_any(space)?;
        if let Some(failed) = done.iter().find(|completion| completion.status != 0) {
            bail!("a request ended with status {}", failed.status);
        }
        Ok(done)
    }

    /// Polls completions into `space`, also those of failure.
    pub fn poll_any<'a>(&self, space: &'a mut [Completion]) -> anyhow::Result<&'a [Completion]> {
        // SAFETY: the completion queue is the library's, and `space` has room for this count.
        let count =
            unsafe { (self.poll_cq)(self.completions, space.len() as c_int, space.as_mut_ptr()) };
        let done = usize::try_from(count)
            .ok()
            .and_then(|count| space.get(..count));
        done.with_context(|| format!("ibv_poll_cq returned {count}"))
    }
}

fn symbol(name: &CStr) -> anyhow::Result<*mut c_void> {
    // SAFETY: a C string; the default scope searches preloaded objects before opened ones.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    found(address, &name.to_string_lossy())
}

fn found<T>(pointer: *mut T, what: &str) -> anyhow::Result<*mut T> {
    if pointer.is_null() {
        bail!("{what}: nothing ({})", std::io::Error::last_os_error());
    }
    Ok(pointer)
}
