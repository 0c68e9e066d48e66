//! The little of libibverbs' ABI that making queue pairs takes, looked up at run time: this program is measured like any
//! other, on whatever `airdma run` gives it.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem;
use std::ptr;

use anyhow::{Context, bail};

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

#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Gid([u8; 16]);

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

const _: () = assert!(mem::size_of::<InitAttr>() == 64 && mem::size_of::<Ah>() == 32);
const _: () = assert!(mem::size_of::<Attr>() == 144);

/// Where `struct ibv_qp` keeps its number.
const QP_NUM_OFFSET: usize = 52;
const RC: u32 = 2;
const MTU_1024: u32 = 3;
/// `enum ibv_qp_attr_mask`: what each transition of RC needs.
const INIT: c_int = 1 | 1 << 3 | 1 << 4 | 1 << 5;
const READY_TO_RECEIVE: c_int = 1 | 1 << 7 | 1 << 8 | 1 << 12 | 1 << 15 | 1 << 17 | 1 << 20;
const READY_TO_SEND: c_int = 1 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 13 | 1 << 16;

/// A device, a protection domain and a completion queue.
pub struct Verbs {
    create_qp: unsafe extern "C" fn(*mut c_void, *mut InitAttr) -> *mut c_void,
    modify_qp: unsafe extern "C" fn(*mut c_void, *mut Attr, c_int) -> c_int,
    domain: *mut c_void,
    completions: *mut c_void,
    gid: Gid,
}

impl Verbs {
    /// The device of `interface`.
    pub fn open(interface: &str) -> anyhow::Result<Verbs> {
        type Open = unsafe extern "C" fn(*mut c_void) -> *mut c_void;
        // SAFETY: the names and signatures are those of <infiniband/verbs.h>; what a call returned is checked before the
        // next one gets it, and all of it lives until the process ends.
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
            let completions = found(create_cq(context, 1, none, none, 0), "ibv_create_cq")?;
            let mut gid = Gid::default();
            if query_gid(context, 1, 0, &mut gid) != 0 {
                bail!("ibv_query_gid fails");
            }
            Ok(Verbs {
                create_qp: mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, *mut InitAttr) -> *mut c_void,
                >(symbol(c"ibv_create_qp")?),
                modify_qp: mem::transmute::<
                    *mut c_void,
                    unsafe extern "C" fn(*mut c_void, *mut Attr, c_int) -> c_int,
                >(symbol(c"ibv_modify_qp")?),
                domain,
                completions,
                gid,
            })
        }
    }

    /// One more RC queue pair with rings of one entry, connected to itself, ready to send. It lives as long as we do.
    pub fn connected_pair(&self) -> anyhow::Result<()> {
        let one = Cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let mut asked = InitAttr {
            qp_context: ptr::null_mut(),
            send_cq: self.completions,
            recv_cq: self.completions,
            srq: ptr::null_mut(),
            cap: one,
            qp_type: RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and completion queue are those that the library made; the number stands where the ABI has it.
        let (pair, number) = unsafe {
            let pair = found((self.create_qp)(self.domain, &mut asked), "ibv_create_qp")?;
            (pair, *pair.byte_add(QP_NUM_OFFSET).cast::<u32>())
        };
        let mut attributes = Attr {
            path_mtu: MTU_1024,
            dest_qp_num: number,
            ah: Ah {
                dgid: self.gid,
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
            let error = unsafe { (self.modify_qp)(pair, &mut attributes, mask) };
            if error != 0 {
                bail!("ibv_modify_qp to state {state}: error {error}");
            }
        }
        Ok(())
    }
}

fn symbol(name: &CStr) -> anyhow::Result<*mut c_void> {
    // SAFETY: a C string; the default scope has what `airdma run` preloads before what was opened.
    let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    found(address, &name.to_string_lossy())
}

fn found<T>(pointer: *mut T, what: &str) -> anyhow::Result<*mut T> {
    if pointer.is_null() {
        bail!("{what}: nothing ({})", std::io::Error::last_os_error());
    }
    Ok(pointer)
}
