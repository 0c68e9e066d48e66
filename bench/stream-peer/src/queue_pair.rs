//! Verbs for the disciplines that have no library: memory, queue pairs, and a completion queue on
//! which a thread polls for a while and then sleeps, as the library of the third does.

use std::collections::VecDeque;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use airdma_engine::{
    Access, Channel, ChannelWait, Completion, Cq, Device, EventWait, Gid, LIMITS, Lkey, Mr, Path,
    PathMtu, Pd, Qp, QpAttributes, QpCaps, QpInit, QpType, Qpn, Rkey, Sge, Status, all_devices,
};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

use crate::load::{STAMP_WORDS, Stamp};

/// How long a wait polls before it sleeps; that of `airdma::Operation`.
const SPIN: Duration = Duration::from_micros(100);
/// Polls between two reads of the clock, as there.
const POLLS_PER_TIME: u32 = 8;
/// Completions of one poll.
const POLL: usize = 64;
/// Timeout of 268 ms and RNR timer of 0.64 ms: those of connections of the crate `airdma`.
const ACK_TIMEOUT: u8 = 16;
const RNR_TIMER: u8 = 12;
const PAGE_BYTES: usize = 4096;
/// Bytes in front of the payload of a block, of which a discipline may have some.
pub const HEAD_BYTES: usize = 8;

/// The device, and a completion queue for all queue pairs of an end.
pub struct Queues {
    device: Arc<Device>,
    pd: Arc<Pd>,
    channel: Arc<Channel>,
    cq: Arc<Cq>,
    here: IpAddr,
    found: VecDeque<Completion>,
}

/// Memory of the peer, as it is told of it.
#[derive(Clone, Copy, Debug, Deserialize, Serialize)]
pub struct There {
    pub address: u64,
    pub key: u32,
}

/// Bytes that the device and this program share, for as long as the process lives.
pub struct Bytes<T: 'static> {
    pub memory: &'static [T],
    mr: Arc<Mr>,
}

/// Blocks of one length.
pub struct Blocks {
    words: Bytes<AtomicU64>,
    /// Words from one block to the next.
    stride: usize,
    /// Words of a payload.
    length: usize,
}

impl Queues {
    /// Opens the device of an address.
    pub fn open(here: IpAddr, completions: u32) -> anyhow::Result<Queues> {
        let devices = all_devices()?;
        let has = |row: &airdma_engine::GidEntry| row.address == here;
        let info = devices.iter().find(|info| info.gids.iter().any(has));
        let device = Device::open(info.context("no device has the address")?)?;
        let channel = device.create_channel()?;
        Ok(Queues {
            pd: device.alloc_pd()?,
            cq: device.create_cq(completions, Some((Arc::clone(&channel), 0)))?,
            channel,
            device,
            here,
            found: VecDeque::new(),
        })
    }

    pub fn queue_pair(&self, sends: u32, receives: u32) -> anyhow::Result<Arc<Qp>> {
        ensure!(sends.max(receives) <= LIMITS.max_qp_wr, "too many blocks");
        Ok(self.pd.create_qp(QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&self.cq),
            recv_cq: Arc::clone(&self.cq),
            srq: None,
            caps: QpCaps {
                max_send_wr: sends,
                max_recv_wr: receives,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline: 8,
            },
            signal_all: false,
        })?)
    }

    /// Connects a queue pair with one of the peer.
    pub fn connect(&self, qp: &Qp, there: IpAddr, number: u32) -> anyhow::Result<()> {
        let info = self.device.current();
        let own = info.gids.iter().position(|row| row.address == self.here);
        let attributes = QpAttributes {
            port: 1,
            access: Access::REMOTE_READ | Access::REMOTE_WRITE,
            path: Path {
                gid: Gid::from(there),
                sgid_index: u8::try_from(own.context("the address is gone")?)?,
                hop_limit: 64,
                ..Path::default()
            },
            path_mtu: self.path_mtu(there),
            dest_qpn: Qpn::new(number),
            max_rd_atomic: 1,
            max_dest_rd_atomic: 1,
            min_rnr_timer: RNR_TIMER,
            retry_count: 7,
            rnr_retry: 7,
            timeout: ACK_TIMEOUT,
            ..QpAttributes::default()
        };
        qp.connect(&attributes)?;
        Ok(())
    }

    fn path_mtu(&self, there: IpAddr) -> PathMtu {
        self.device.path_mtu_to(self.here, there)
    }

    /// Zeroed bytes.
    pub fn bytes(&self, count: usize) -> anyhow::Result<Bytes<AtomicU8>> {
        self.registered(count, AtomicU8::default)
    }

    /// `count` blocks for payloads of `bytes`, which are not zero: pages of zeros would be one.
    pub fn blocks(&self, count: u32, bytes: usize) -> anyhow::Result<Blocks> {
        let length = bytes / 8;
        let stride = (length + HEAD_BYTES / 8).next_multiple_of(8);
        let words = self.registered(stride * count as usize, || AtomicU64::new(u64::MAX / 3))?;
        Ok(Blocks {
            words,
            stride,
            length,
        })
    }

    fn registered<T: 'static>(
        &self,
        count: usize,
        make: impl FnMut() -> T,
    ) -> anyhow::Result<Bytes<T>> {
        // From a page's begin on, as memory of the crate `airdma`.
        let spare = PAGE_BYTES / size_of::<T>();
        let all = std::iter::repeat_with(make).take(count + spare);
        let all: Box<[T]> = all.collect();
        let all: &'static [T] = Box::leak(all);
        let memory = &all[all.as_ptr().align_offset(PAGE_BYTES).min(spare)..][..count];
        let address = memory.as_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let mr = self
            .pd
            .reg_mr(address, size_of_val(memory), address, access)?;
        Ok(Bytes { memory, mr })
    }

    /// The next completion, if there is one.
    pub fn completion(&mut self) -> anyhow::Result<Option<Completion>> {
        if self.found.is_empty() {
            let found = &mut self.found;
            self.cq
                .poll(POLL, |completion| found.push_back(completion))?;
        }
        let next = self.found.pop_front();
        if let Some(failed) = next.filter(|next| next.status != Status::Success) {
            anyhow::bail!("a request failed: {:?}", failed.status);
        }
        Ok(next)
    }

    /// Waits for a completion, or until `is_changed`, at most until then.
    pub fn wait(&mut self, until: Instant, is_changed: impl Fn() -> bool) -> anyhow::Result<()> {
        let spun = Instant::now() + SPIN;
        loop {
            for _ in 0..POLLS_PER_TIME {
                if self.is_found(false)? || is_changed() {
                    return Ok(());
                }
                std::hint::spin_loop();
            }
            let now = Instant::now();
            if now >= until {
                return Ok(());
            }
            if now >= spun {
                break;
            }
        }
        if self.is_found(true)? || is_changed() {
            return Ok(());
        }
        let mut wait = ChannelWait::new(&self.channel);
        loop {
            if wait.step()?.is_some() {
                drop(wait);
                self.is_found(true)?;
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            sleep(&mut wait, left)?;
        }
    }

    /// Whether there are completions; if not, `arms` makes the next one an event.
    fn is_found(&mut self, arms: bool) -> anyhow::Result<bool> {
        if self.found.is_empty() {
            let found = &mut self.found;
            let sink = |completion| found.push_back(completion);
            if arms {
                self.cq.arm_and_poll(false, POLL, sink)?;
            } else {
                self.cq.poll(POLL, sink)?;
            }
        }
        Ok(!self.found.is_empty())
    }

    /// Entries of the completion queue.
    pub fn completions(&self) -> u32 {
        self.cq.capacity()
    }
}

/// One sleep of a wait, after a step without event.
fn sleep(wait: &mut ChannelWait, left: Duration) -> anyhow::Result<()> {
    let (descriptors, due) = wait.descriptors();
    let due = due.map(|due| Duration::new(due.tv_sec.unsigned_abs(), due.tv_nsec as u32));
    let limit = due.map_or(left, |due| due.min(left));
    let timeout = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: limit.subsec_nanos().into(),
    };
    let count = descriptors.len() as libc::nfds_t;
    // SAFETY: that many pollfds, and a time that outlives the call.
    let ready = unsafe {
        libc::ppoll(
            descriptors.as_mut_ptr(),
            count,
            &raw const timeout,
            std::ptr::null(),
        )
    };
    let ready = usize::try_from(ready).map_err(|_| io::Error::last_os_error());
    Ok(wait.woke(ready)?)
}

impl<T: 'static> Bytes<T> {
    /// For the peer.
    pub fn there(&self) -> There {
        There {
            address: self.address(),
            key: self.mr.rkey().0,
        }
    }

    pub fn sge(&self, at: usize, length: usize) -> Sge {
        Sge {
            addr: self.address() + at as u64,
            length: length as u32,
            lkey: self.lkey().0,
        }
    }

    fn lkey(&self) -> Lkey {
        self.mr.lkey()
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }
}

impl Blocks {
    pub fn there(&self) -> There {
        self.words.there()
    }

    /// Fills a block: its last bytes before the payload, and what differs in the payload.
    pub fn fill(&self, block: usize, head: u64, stamp: &Stamp) {
        let words = self.block(block);
        words[0].store(head, Ordering::Relaxed);
        for (word, value) in words[1..].iter().zip(stamp.words()) {
            word.store(value, Ordering::Relaxed);
        }
        words[self.length].store(stamp.end(), Ordering::Relaxed);
    }

    /// The bytes before the payload of a block, and its stamp.
    pub fn read(&self, block: usize) -> anyhow::Result<(u64, Stamp)> {
        let words = self.block(block);
        let mut stamp = [0; STAMP_WORDS];
        for (value, word) in stamp.iter_mut().zip(&words[1..]) {
            *value = word.load(Ordering::Relaxed);
        }
        let end = words[self.length].load(Ordering::Relaxed);
        let head = words[0].load(Ordering::Relaxed);
        Ok((head, Stamp::read(stamp, end)?))
    }

    /// The payload of a block, with `head_bytes` before it.
    pub fn sge(&self, block: usize, head_bytes: usize) -> Sge {
        let at = block * self.stride * 8 + HEAD_BYTES - head_bytes;
        self.words.sge(at, self.length * 8 + head_bytes)
    }

    fn block(&self, block: usize) -> &[AtomicU64] {
        &self.words.memory[block * self.stride..][..self.length + 1]
    }
}

impl There {
    pub fn key(&self) -> Rkey {
        Rkey(self.key)
    }
}
