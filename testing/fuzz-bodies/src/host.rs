//! The host of a queue pair under attack. It does what it is asked, refuses what its memory does
//! not grant, and panics where the transport breaks its own word: what it touches was checked
//! first, every request completes once and in order.

use std::collections::VecDeque;

use airdma_transport::{
    Access, AtomicOperation, Bind, Completion, Counter, Host, LocalFault, MESSAGE_LEN_MAX, QpEvent,
    Receive, RemoteAccess, RemoteFault, SendRequest, Slot, Status,
};
use airdma_wire::{Qpn, Rkey};

/// First address of the memory.
pub const BASE: u64 = 0x10_0000;

/// Bytes of memory, granted or not.
const LENGTH: usize = 16 * 1024;

/// Key to bytes that are not stored: messages may have any length without as much memory.
pub const VAST: u32 = 0x00b1_6000;

/// Memory that a key opens.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Local and remote key.
    pub key: u32,
    /// Offset in the memory.
    pub start: usize,
    /// Bytes.
    pub length: usize,
    access: Access,
    /// It vanishes and comes back.
    pub valid: bool,
}

const REGIONS: [Region; 3] = [
    region(0x1100, 1024, 6 * 1024, Access::from_bits_retain(0xf)),
    region(0x1200, 8 * 1024, 2048, Access::REMOTE_READ),
    region(0x1300, 11 * 1024, 2048, Access::LOCAL_WRITE),
];

/// Number of shared receive queues that extended connections may name: 0, 1.
const SHARED_QUEUES: usize = 2;

const fn region(key: u32, start: usize, length: usize, access: Access) -> Region {
    Region {
        key,
        start,
        length,
        access,
        valid: true,
    }
}

/// Memory of a request's data.
#[derive(Clone, Copy, Debug)]
pub struct Buffer {
    /// A key, valid or not.
    pub key: u32,
    /// First address.
    pub va: u64,
    /// Bytes.
    pub length: u32,
}

/// A part of remote memory that was checked for an access.
#[derive(Clone, Copy, Debug)]
struct Checked {
    rkey: Rkey,
    va: u64,
    length: u32,
}

impl Checked {
    fn covers(&self, rkey: Rkey, va: u64, length: usize) -> bool {
        let ahead = va.wrapping_sub(self.va);
        self.rkey == rkey
            && ahead
                .checked_add(length as u64)
                .is_some_and(|end| end <= u64::from(self.length))
    }
}

#[derive(Debug)]
struct Sending {
    request: SendRequest,
    buffer: Buffer,
    /// Up to where its bytes were fetched or placed.
    touched: u32,
}

impl Sending {
    /// Whether it can have succeeded: all its bytes were fetched or placed.
    fn is_done(&self) -> bool {
        self.request.operation.is_local() || self.touched == self.request.length
    }
}

/// Memory, rings and what came out.
#[derive(Debug)]
pub struct Machine {
    qpn: Qpn,
    memory: Vec<u8>,
    /// Regions that the keys open now.
    pub regions: [Region; 3],
    /// Rights that the queue pair grants its peer now.
    pub granted: Access,
    last_write_check: Option<Checked>,
    read_checks: Vec<Checked>,
    /// Accesses after which the first region vanishes, in the middle of whatever is going on.
    pub vanishes_after: Option<u8>,
    /// Posted and not completed, oldest first.
    sends: VecDeque<Sending>,
    /// The queue pair's own receives that are posted and not taken.
    receives: VecDeque<(Receive, Buffer)>,
    shared: [VecDeque<(Receive, Buffer)>; SHARED_QUEUES],
    /// Taken and not completed, oldest first.
    taken: VecDeque<(Receive, Buffer)>,
    next: u32,
    /// Asynchronous events.
    pub events: Vec<QpEvent>,
    counts: [u64; Counter::ALL.len()],
}

impl Machine {
    /// For the queue pair of that number.
    pub fn new(qpn: Qpn) -> Self {
        Machine {
            qpn,
            memory: (0..LENGTH).map(pattern).collect(),
            regions: REGIONS,
            granted: Access::empty(),
            last_write_check: None,
            read_checks: Vec::new(),
            vanishes_after: None,
            sends: VecDeque::new(),
            receives: VecDeque::new(),
            shared: Default::default(),
            taken: VecDeque::new(),
            next: 0,
            events: Vec::new(),
            counts: [0; Counter::ALL.len()],
        }
    }

    /// Makes a request known under a slot and an identifier of its own.
    pub fn post_send(&mut self, request: SendRequest, buffer: Buffer) -> SendRequest {
        let (slot, wr_id) = self.name();
        let request = SendRequest {
            slot,
            wr_id,
            ..request
        };
        self.sends.push_back(Sending {
            request,
            buffer,
            touched: 0,
        });
        request
    }

    /// Posts a receive, to a shared queue if one is named.
    pub fn post_receive(&mut self, buffer: Buffer, shared: Option<usize>) {
        let (slot, wr_id) = self.name();
        let receive = Receive {
            slot,
            wr_id,
            length: buffer.length,
        };
        match shared {
            Some(srqn) => self.shared[srqn % SHARED_QUEUES].push_back((receive, buffer)),
            None => self.receives.push_back((receive, buffer)),
        }
    }

    fn name(&mut self) -> (Slot, u64) {
        self.next += 1;
        (Slot(self.next), u64::from(self.next) << 32 | 0xabcd)
    }

    /// Forgets what is posted, as on the way to reset.
    pub fn forget_rings(&mut self) {
        self.sends.clear();
        self.receives.clear();
        self.taken.clear();
    }

    /// Send requests that are not completed.
    pub fn sends_outstanding(&self) -> usize {
        self.sends.len()
    }

    /// Receives of the queue pair that are not completed.
    pub fn receives_outstanding(&self) -> usize {
        self.receives.len() + self.taken.len()
    }

    /// Receives that the queue pair has taken and not completed.
    pub fn receives_taken(&self) -> usize {
        self.taken.len()
    }

    /// Value of a counter.
    pub fn count_of(&self, counter: Counter) -> u64 {
        self.counts[counter as usize]
    }

    /// Whether every byte without a grant to write is unchanged.
    pub fn is_intact(&self) -> bool {
        let writable = |at: usize| {
            let open = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
            REGIONS.iter().any(|region| {
                region.access.intersects(open)
                    && (region.start..region.start + region.length).contains(&at)
            })
        };
        let mut bytes = self.memory.iter().enumerate();
        bytes.all(|(at, byte)| *byte == pattern(at) || writable(at))
    }

    /// The bytes behind a key; `Some(None)` for those that are not stored.
    fn open(
        &mut self,
        key: u32,
        va: u64,
        length: usize,
        needs: Access,
    ) -> Option<Option<&mut [u8]>> {
        if let Some(left) = &mut self.vanishes_after {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.vanishes_after = None;
                self.regions[0].valid = false;
            }
        }
        if key == VAST {
            return Some(None);
        }
        let found = self.regions.iter().find(|region| region.key == key)?;
        if !found.valid || !found.access.contains(needs) {
            return None;
        }
        let at = usize::try_from(va.checked_sub(BASE)?).ok()?;
        let ahead = at.checked_sub(found.start)?;
        let end = ahead.checked_add(length)?;
        if end > found.length {
            return None;
        }
        Some(Some(&mut self.memory[at..at + length]))
    }

    fn local(
        &mut self,
        buffer: Buffer,
        offset: u32,
        length: usize,
        needs: Access,
    ) -> Result<Option<&mut [u8]>, LocalFault> {
        let end = u64::from(offset) + length as u64;
        assert!(
            end <= u64::from(buffer.length),
            "beyond the list of a request"
        );
        let va = buffer.va.checked_add(u64::from(offset)).ok_or(LocalFault)?;
        self.open(buffer.key, va, length, needs).ok_or(LocalFault)
    }

    fn remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: usize,
        needs: Access,
    ) -> Result<Option<&mut [u8]>, RemoteFault> {
        assert!(
            self.granted.contains(needs),
            "the queue pair grants {:?}",
            self.granted
        );
        self.open(rkey.0, va, length, needs)
            .ok_or(RemoteFault::Access)
    }

    /// The list of a posted request, of which bytes up to `end` are fetched or placed now.
    fn touch(&mut self, slot: Slot, end: usize) -> Buffer {
        let mut sends = self.sends.iter_mut();
        let sending = sends.find(|sending| sending.request.slot == slot);
        let sending = sending.expect("a posted request");
        sending.touched = sending.touched.max(end as u32);
        sending.buffer
    }

    fn take(&mut self, receive: Option<(Receive, Buffer)>) -> Option<Receive> {
        let (receive, buffer) = receive?;
        self.taken.push_back((receive, buffer));
        Some(receive)
    }

    fn write_checked(&self, rkey: Rkey, va: u64, length: usize) {
        let checked = self.last_write_check;
        assert!(
            checked.is_some_and(|checked| checked.covers(rkey, va, length)),
            "{length} bytes at {va:#x} were not checked: {checked:?}"
        );
    }
}

impl Host for Machine {
    fn gather(&mut self, slot: Slot, offset: u32, out: &mut [u8]) -> Result<(), LocalFault> {
        let buffer = self.touch(slot, offset as usize + out.len());
        match self.local(buffer, offset, out.len(), Access::empty())? {
            Some(bytes) => out.copy_from_slice(bytes),
            None => out.fill(0x5a),
        }
        Ok(())
    }

    fn scatter(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let buffer = self.touch(slot, offset as usize + data.len());
        if let Some(bytes) = self.local(buffer, offset, data.len(), Access::LOCAL_WRITE)? {
            bytes.copy_from_slice(data);
        }
        Ok(())
    }

    fn share_memory(&mut self, one: Slot, other: Slot) -> bool {
        let [one, other] = [one, other].map(|slot| self.touch(slot, 0));
        one.va < other.va.saturating_add(other.length.into())
            && other.va < one.va.saturating_add(one.length.into())
    }

    fn take_receive(&mut self) -> Option<Receive> {
        let receive = self.receives.pop_front();
        self.take(receive)
    }

    fn take_shared_receive(&mut self, srqn: u32) -> Result<Option<Receive>, RemoteFault> {
        let queue = self.shared.get_mut(srqn as usize);
        let receive = queue.ok_or(RemoteFault::Access)?.pop_front();
        Ok(self.take(receive))
    }

    fn scatter_receive(&mut self, slot: Slot, offset: u32, data: &[u8]) -> Result<(), LocalFault> {
        let mut taken = self.taken.iter();
        let (_, buffer) = *taken
            .find(|(receive, _)| receive.slot == slot)
            .expect("a taken receive");
        if let Some(bytes) = self.local(buffer, offset, data.len(), Access::LOCAL_WRITE)? {
            bytes.copy_from_slice(data);
        }
        Ok(())
    }

    fn check_remote(
        &mut self,
        rkey: Rkey,
        va: u64,
        length: u32,
        access: RemoteAccess,
    ) -> Result<(), RemoteFault> {
        let needs = match access {
            RemoteAccess::Flush { needs, whole } => {
                let length = if whole { 0 } else { length };
                return self.remote(rkey, va, length as usize, needs).map(|_| ());
            }
            RemoteAccess::Read => Access::REMOTE_READ,
            RemoteAccess::Write => Access::REMOTE_WRITE,
            RemoteAccess::Atomic => Access::REMOTE_ATOMIC,
        };
        assert!(length <= MESSAGE_LEN_MAX);
        self.remote(rkey, va, length as usize, needs)?;
        let checked = Checked { rkey, va, length };
        match access {
            RemoteAccess::Read => self.read_checks.push(checked),
            RemoteAccess::Write | RemoteAccess::Atomic => self.last_write_check = Some(checked),
            RemoteAccess::Flush { .. } => {}
        }
        Ok(())
    }

    fn read_remote(&mut self, rkey: Rkey, va: u64, out: &mut [u8]) -> Result<(), RemoteFault> {
        let mut checks = self.read_checks.iter();
        assert!(
            checks.any(|checked| checked.covers(rkey, va, out.len())),
            "read unchecked"
        );
        // What was granted when the READ came may be answered after it is not any more.
        match self
            .open(rkey.0, va, out.len(), Access::REMOTE_READ)
            .ok_or(RemoteFault::Access)?
        {
            Some(bytes) => out.copy_from_slice(bytes),
            None => out.fill(0xa5),
        }
        Ok(())
    }

    fn write_remote(&mut self, rkey: Rkey, va: u64, data: &[u8]) -> Result<(), RemoteFault> {
        self.write_checked(rkey, va, data.len());
        if let Some(bytes) = self.remote(rkey, va, data.len(), Access::REMOTE_WRITE)? {
            bytes.copy_from_slice(data);
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        rkey: Rkey,
        va: u64,
        operation: AtomicOperation,
    ) -> Result<u64, RemoteFault> {
        self.write_checked(rkey, va, 8);
        assert!(va.is_multiple_of(8));
        let Some(bytes) = self.remote(rkey, va, 8, Access::REMOTE_ATOMIC)? else {
            return Ok(7);
        };
        let original = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
        let value = match operation {
            AtomicOperation::CompareSwap { compare, swap } if compare == original => swap,
            AtomicOperation::CompareSwap { .. } => original,
            AtomicOperation::FetchAdd { add } => original.wrapping_add(add),
        };
        bytes.copy_from_slice(&value.to_ne_bytes());
        Ok(original)
    }

    fn write_atomic(&mut self, rkey: Rkey, va: u64, data: [u8; 8]) -> Result<(), RemoteFault> {
        assert!(va.is_multiple_of(8));
        self.write_remote(rkey, va, &data)
    }

    fn invalidate(&mut self, rkey: Rkey) -> Result<(), RemoteFault> {
        self.invalidate_local(rkey).map_err(|_| RemoteFault::Access)
    }

    fn invalidate_local(&mut self, rkey: Rkey) -> Result<(), LocalFault> {
        let mut regions = self.regions.iter_mut();
        let found = regions.find(|region| region.key == rkey.0 && region.valid);
        found.ok_or(LocalFault)?.valid = false;
        Ok(())
    }

    fn bind(&mut self, bind: &Bind) -> Result<(), LocalFault> {
        if bind.length.is_multiple_of(2) {
            Ok(())
        } else {
            Err(LocalFault)
        }
    }

    fn complete_send(&mut self, slot: Slot, completion: Option<Completion>) {
        let sending = self.sends.pop_front().expect("a send completes once");
        let request = sending.request;
        assert_eq!(request.slot, slot, "sends complete in order");
        let Some(completion) = completion else {
            assert!(!request.signalled, "a signalled request ended silently");
            assert!(sending.is_done(), "done without its data");
            return;
        };
        assert_eq!(
            (completion.wr_id, completion.qpn),
            (request.wr_id, self.qpn)
        );
        assert!(request.signalled || completion.status != Status::Success);
        if completion.status == Status::Success {
            assert_eq!(completion.byte_len, request.length);
            assert!(sending.is_done(), "success without its data");
        }
    }

    fn complete_receive(&mut self, slot: Slot, completion: Completion) {
        let (receive, _) = self.taken.pop_front().expect("a receive completes once");
        assert_eq!(receive.slot, slot, "receives complete in order");
        assert_eq!(
            (completion.wr_id, completion.qpn),
            (receive.wr_id, self.qpn)
        );
        let filled = completion.opcode == airdma_transport::CompletionOpcode::Receive;
        if completion.status == Status::Success && filled {
            assert!(completion.byte_len <= receive.length);
        }
    }

    fn event(&mut self, event: QpEvent) {
        self.events.push(event);
    }

    fn count(&mut self, counter: Counter) {
        self.counts[counter as usize] += 1;
    }
}

fn pattern(at: usize) -> u8 {
    (at as u8).wrapping_mul(31) ^ (at >> 8) as u8
}
