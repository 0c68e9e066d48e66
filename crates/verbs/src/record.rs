//! `airdma/verbs_record.h`: Write-Record beside plain verbs.

use std::ffi::c_void;
use std::mem::offset_of;
use std::slice;
use std::time::Duration;

use airdma_engine::{
    Datagram, DatagramRead, Gid, Lkey, Operation, Qkey, QpType, Qpn, Record, RecordConfig,
    RecordHandle, ReliableConfig, Rkey, SendFlags, SendWr,
};

use crate::abi;
use crate::address::Ah;
use crate::errno::Errno;
use crate::memory::{self, Pd};
use crate::object::Object;
use crate::post;
use crate::queue_pair::Qp;

/// `AIRDMA_RECORD_STRICT_LAST`.
const STRICT_LAST: u32 = 1;
/// `AIRDMA_RECORD_WITH_IMM`.
const WITH_IMM: u32 = 1;
/// `AIRDMA_RECORD_RELIABLE`.
const RELIABLE: u32 = 2;
/// `AIRDMA_RECORD_TO_GROUP`.
const TO_GROUP: u32 = 4;
/// `AIRDMA_RECORD_WAS_READ`.
const WAS_READ: u32 = 8;
/// `AIRDMA_RECORD_OPEN`.
const OPEN: u32 = 255;

/// Default of `deadline_us`.
const READ_DEADLINE: Duration = Duration::from_secs(1);
/// Default of `tries`.
const READ_TRIES: u32 = 8;

const NONE: Errno = Errno(libc::ENOENT);

/// `struct airdma_record_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct RecordAttr {
    open_max: u32,
    closed_max: u32,
    units_max: u32,
    sources_max: u32,
    idle_us: u32,
    age_us: u32,
    flags: u32,
    reserved: u32,
}

/// `struct airdma_record_wr`.
#[repr(C)]
#[derive(Debug)]
pub struct RecordWr {
    wr_id: u64,
    sg_list: *mut abi::ibv_sge,
    num_sge: i32,
    send_flags: u32,
    ah: *mut abi::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
    remote_addr: u64,
    rkey: u32,
    imm_data: [u8; 4],
    flags: u32,
    reserved: u32,
}

/// `struct airdma_record_read_wr`.
#[repr(C)]
#[derive(Debug)]
pub struct ReadWr {
    ah: *mut abi::ibv_ah,
    remote_qpn: u32,
    remote_qkey: u32,
    remote_addr: u64,
    rkey: u32,
    length: u32,
    addr: u64,
    lkey: u32,
    deadline_us: u32,
    tries: u32,
    reserved: u32,
}

/// `struct airdma_rd_attr`.
#[repr(C)]
#[derive(Debug)]
pub struct RdAttr {
    messages_max: u32,
    share_max: u32,
    destinations_max: u32,
    silence_us: u32,
    not_ready_us: u32,
    reserved: [u32; 3],
}

/// `struct airdma_record`.
#[repr(C, align(8))]
#[derive(Debug)]
pub struct RecordView {
    addr: u64,
    rkey: u32,
    length: u32,
    unit: u32,
    valid: u32,
    id: u32,
    src_qp: u32,
    source: [u8; 16],
    imm_data: [u8; 4],
    flags: u32,
    ended: u32,
    words: u32,
}

const _: () = {
    assert!(size_of::<RecordAttr>() == 32);
    assert!(size_of::<RdAttr>() == 32);
    assert!(size_of::<ReadWr>() == 56 && offset_of!(ReadWr, deadline_us) == 44);
    assert!(size_of::<RecordWr>() == 64 && offset_of!(RecordWr, imm_data) == 52);
    assert!(size_of::<RecordView>() == 64 && offset_of!(RecordView, ended) == 56);
};

/// A field of an attribute: 0 stands for the default.
fn or(value: u32, usual: u32) -> u32 {
    if value == 0 { usual } else { value }
}

/// As [`or`], in microseconds.
fn micros(value: u32, usual: Duration) -> Duration {
    if value == 0 {
        return usual;
    }
    Duration::from_micros(value.into())
}

impl RdAttr {
    fn config(&self) -> Result<ReliableConfig, Errno> {
        if self.reserved != [0; 3] {
            return Err(Errno::INVALID);
        }
        let usual = ReliableConfig::default();
        let messages_max = or(self.messages_max, usual.messages_max);
        Ok(ReliableConfig {
            messages_max,
            share_max: or(self.share_max, usual.share_max.min(messages_max)),
            destinations_max: or(self.destinations_max, usual.destinations_max),
            silence: micros(self.silence_us, usual.silence),
            not_ready: micros(self.not_ready_us, usual.not_ready),
        })
    }
}

impl RecordAttr {
    fn config(&self) -> Result<RecordConfig, Errno> {
        if self.flags & !STRICT_LAST != 0 || self.reserved != 0 {
            return Err(Errno::INVALID);
        }
        let usual = RecordConfig::default();
        Ok(RecordConfig {
            open_max: or(self.open_max, usual.open_max),
            closed_max: or(self.closed_max, usual.closed_max),
            units_max: or(self.units_max, usual.units_max),
            sources_max: or(self.sources_max, usual.sources_max),
            idle: micros(self.idle_us, usual.idle),
            age: micros(self.age_us, usual.age),
            strict_last: self.flags & STRICT_LAST != 0,
        })
    }
}

/// `airdma_record_enable`.
pub unsafe fn enable(qp: *mut abi::ibv_qp, attr: *const RecordAttr) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and struct.
    let (qp, attr) = unsafe { (Qp::of(qp)?, attr.as_ref()) };
    let config = attr.map_or(Ok(RecordConfig::default()), RecordAttr::config)?;
    Ok(qp.engine().enable_records(config)?)
}

/// `airdma_rd_enable`.
pub unsafe fn enable_reliable(qp: *mut abi::ibv_qp, attr: *const RdAttr) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and struct.
    let (qp, attr) = unsafe { (Qp::of(qp)?, attr.as_ref()) };
    let config = attr.map_or(Ok(ReliableConfig::default()), RdAttr::config)?;
    Ok(qp.engine().enable_reliable(config)?)
}

/// `airdma_record_reg`.
pub unsafe fn register(
    raw_pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    source: *const abi::ibv_gid,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and address, whose member `raw` is all of it.
    let (pd, source) = unsafe {
        let source = source.as_ref().map(|source| Gid(source.raw));
        (Pd::of(raw_pd)?, source)
    };
    let engine = pd.engine().reg_record_mr(addr as u64, length, source)?;
    Ok(memory::hand_out(raw_pd, pd, (addr, length), engine))
}

/// `airdma_record_reg_group`.
pub unsafe fn register_group(
    raw_pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    group: *const abi::ibv_gid,
    key: u32,
    source: *const abi::ibv_gid,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and addresses, whose member `raw` is all of each.
    let (pd, group, source) = unsafe {
        let group = group.as_ref().ok_or(Errno::INVALID)?;
        let source = source.as_ref().map(|source| Gid(source.raw));
        (Pd::of(raw_pd)?, Gid(group.raw), source)
    };
    let name = (group, Rkey(key));
    let engine = (pd.engine()).reg_group_record_mr(addr as u64, length, name, source)?;
    Ok(memory::hand_out(raw_pd, pd, (addr, length), engine))
}

/// `airdma_record_reg_read`.
pub unsafe fn register_read(
    raw_pd: *mut abi::ibv_pd,
    addr: *mut c_void,
    length: usize,
    source: *const abi::ibv_gid,
) -> Result<*mut abi::ibv_mr, Errno> {
    // SAFETY: the caller's domain and address, whose member `raw` is all of it.
    let (pd, source) = unsafe {
        let source = source.as_ref().map(|source| Gid(source.raw));
        (Pd::of(raw_pd)?, source)
    };
    let engine = pd
        .engine()
        .reg_record_read_mr(addr as u64, length, source)?;
    Ok(memory::hand_out(raw_pd, pd, (addr, length), engine))
}

/// `airdma_record_read_from`.
pub unsafe fn read_from(
    qp: *mut abi::ibv_qp,
    wr: *const ReadWr,
    handle: *mut u64,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair, request, handle of an address, and number.
    let (qp, wr, out, path) = unsafe {
        let wr = wr.as_ref().ok_or(Errno::INVALID)?;
        let out = handle.as_mut().ok_or(Errno::INVALID)?;
        (Qp::of(qp)?, wr, out, Ah::of(wr.ah)?.path())
    };
    if wr.reserved != 0 {
        return Err(Errno::INVALID);
    }
    let read = DatagramRead {
        datagram: Datagram {
            path,
            qpn: Qpn::new(wr.remote_qpn),
            qkey: Qkey(wr.remote_qkey),
        },
        va: wr.remote_addr,
        rkey: Rkey(wr.rkey),
        length: wr.length,
        lkey: Lkey(wr.lkey),
        to: wr.addr,
        deadline: micros(wr.deadline_us, READ_DEADLINE),
        tries: or(wr.tries, READ_TRIES),
    };
    let RecordHandle(number) = qp.engine().read_record(&read)?;
    *out = number;
    Ok(())
}

/// `airdma_record_post`.
pub unsafe fn post(qp: *mut abi::ibv_qp, wr: *const RecordWr) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and request.
    let (qp, wr) = unsafe { (Qp::of(qp)?, wr.as_ref().ok_or(Errno::INVALID)?) };
    if qp.engine().qp_type() != QpType::Ud
        || wr.flags & !(WITH_IMM | RELIABLE) != 0
        || wr.reserved != 0
    {
        return Err(Errno::INVALID);
    }
    let (va, rkey, imm) = (wr.remote_addr, Rkey(wr.rkey), wr.imm_data);
    let operation = if wr.flags & WITH_IMM != 0 {
        Operation::RecordImm { va, rkey, imm }
    } else {
        Operation::Record { va, rkey }
    };
    // SAFETY: the caller's elements and handle.
    let (sges, path) = unsafe {
        (
            post::elements(wr.sg_list, wr.num_sge)?,
            Ah::of(wr.ah)?.path(),
        )
    };
    let mut flags = SendFlags::from_bits(wr.send_flags).ok_or(Errno::INVALID)?;
    flags.set(SendFlags::RELIABLE, wr.flags & RELIABLE != 0);
    let request = SendWr {
        wr_id: wr.wr_id,
        operation,
        sges,
        flags,
        datagram: Some(Datagram {
            path,
            qpn: Qpn::new(wr.remote_qpn),
            qkey: Qkey(wr.remote_qkey),
        }),
        srqn: 0,
    };
    Ok(qp.engine().post_send(&request)?)
}

fn view(record: &Record<'_>) -> RecordView {
    RecordView {
        addr: record.va,
        rkey: record.rkey.0,
        length: record.length,
        unit: record.unit.into(),
        valid: record.valid_bytes,
        id: record.id,
        src_qp: record.src_qpn.get(),
        source: Gid::from(record.source).0,
        imm_data: record.imm.unwrap_or_default(),
        flags: flags_of(record),
        ended: record.ended.map_or(OPEN, |ended| ended as u32),
        words: record.map.len() as u32,
    }
}

fn flags_of(record: &Record<'_>) -> u32 {
    let flag = |is_set: bool, flag: u32| if is_set { flag } else { 0 };
    flag(record.imm.is_some(), WITH_IMM)
        | flag(record.group.is_some(), TO_GROUP)
        | flag(record.is_read, WAS_READ)
}

/// Copies as much of the map as there is room for.
fn copy_map(record: &Record<'_>, bits: &mut [u64]) {
    let words = bits.len().min(record.map.len());
    bits[..words].copy_from_slice(&record.map[..words]);
}

/// The caller's room for a map.
unsafe fn room<'a>(bits: *mut u64, words: usize) -> Result<&'a mut [u64], Errno> {
    if words == 0 {
        return Ok(&mut []);
    }
    if bits.is_null() || words > isize::MAX as usize / size_of::<u64>() {
        return Err(Errno::INVALID);
    }
    // SAFETY: the caller's array has `words` elements, which are its own during the call.
    Ok(unsafe { slice::from_raw_parts_mut(bits, words) })
}

/// `airdma_record_read`.
pub unsafe fn read(
    qp: *mut abi::ibv_qp,
    handle: u64,
    record: *mut RecordView,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and struct.
    let (qp, out) = unsafe { (Qp::of(qp)?, record.as_mut().ok_or(Errno::INVALID)?) };
    let seen = qp.engine().record(RecordHandle(handle), view);
    *out = seen.ok_or(NONE)?;
    Ok(())
}

/// `airdma_record_map`.
pub unsafe fn map(
    qp: *mut abi::ibv_qp,
    handle: u64,
    bits: *mut u64,
    words: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair and array.
    let (qp, bits) = unsafe { (Qp::of(qp)?, room(bits, words)?) };
    let copied = qp
        .engine()
        .record(RecordHandle(handle), |record| copy_map(record, bits));
    copied.ok_or(NONE)
}

/// `airdma_record_free`.
pub unsafe fn free(qp: *mut abi::ibv_qp, handle: u64) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { Qp::of(qp) }?;
    if qp.engine().free_record(RecordHandle(handle)) {
        Ok(())
    } else {
        Err(NONE)
    }
}

/// `airdma_record_peek`.
pub unsafe fn peek(
    qp: *mut abi::ibv_qp,
    rkey: u32,
    addr: u64,
    record: *mut RecordView,
    bits: *mut u64,
    words: usize,
) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair, struct and array.
    let (qp, out, bits) = unsafe {
        let out = record.as_mut().ok_or(Errno::INVALID)?;
        (Qp::of(qp)?, out, room(bits, words)?)
    };
    let seen = qp.engine().peek_record(Rkey(rkey), addr, |record| {
        copy_map(record, bits);
        view(record)
    });
    *out = seen.ok_or(NONE)?;
    Ok(())
}

/// `airdma_record_close`.
pub unsafe fn close(qp: *mut abi::ibv_qp, rkey: u32, addr: u64) -> Result<(), Errno> {
    // SAFETY: the caller's queue pair.
    let qp = unsafe { Qp::of(qp) }?;
    if qp.engine().close_record(Rkey(rkey), addr)? {
        Ok(())
    } else {
        Err(NONE)
    }
}
