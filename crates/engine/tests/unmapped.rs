//! Registered memory is unmapped: what is written there is lost, what is read from there is an
//! error completion, and the program continues.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_shm::Sge;
use common::*;
use std::sync::Arc;

/// Registered pages, of which the second is unmapped. It alone: no other mapping of this process is
/// so short that the kernel would place it there.
struct Holed {
    at: *mut libc::c_void,
    mr: Arc<Mr>,
    page: usize,
}

const PAGES: usize = 3;

impl Holed {
    fn new(pd: &Arc<Pd>) -> Self {
        Self::with(|at, bytes| pd.reg_mr(at, bytes, at, ALL))
    }

    fn with(register: impl FnOnce(u64, usize) -> Result<Arc<Mr>, Error>) -> Self {
        // SAFETY: no arguments but a number.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap();
        let rights = libc::PROT_READ | libc::PROT_WRITE;
        let how = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(std::ptr::null_mut(), PAGES * page, rights, how, -1, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let mr = register(at.expose_provenance() as u64, PAGES * page).unwrap();
        Self { at, mr, page }
    }

    fn unmap(&self) {
        // SAFETY: a page of the mapping of this value, which only the engine may still touch.
        let unmapped = unsafe { libc::munmap(self.at.byte_add(self.page), self.page) };
        assert_eq!(unmapped, 0);
    }

    /// Where the hole is.
    fn hole(&self) -> u64 {
        self.at.expose_provenance() as u64 + self.page as u64
    }

    fn is_mapped(&self) -> bool {
        let mut state = 0;
        // SAFETY: one page, so one byte of an answer.
        let answer =
            unsafe { libc::mincore(self.at.byte_add(self.page), self.page, &raw mut state) };
        answer == 0
    }

    fn sge(&self, at: u64, length: usize) -> Sge {
        Sge {
            addr: at,
            length: length as u32,
            lkey: self.mr.lkey().0,
        }
    }

    fn rkey(&self) -> Rkey {
        self.mr.rkey()
    }
}

impl Drop for Holed {
    fn drop(&mut self) {
        self.mr.deregister().unwrap();
        // SAFETY: a mapping of this value, no longer in use.
        unsafe { libc::munmap(self.at, PAGES * self.page) };
    }
}

/// Requests on the bytes of a peer.
fn accesses(va: u64, rkey: Rkey) -> Vec<(Operation, usize)> {
    vec![
        (Operation::Write { va, rkey }, 64),
        (Operation::Read { va, rkey }, 64),
        (Operation::Write { va, rkey }, 6000),
        (Operation::Read { va, rkey }, 6000),
        (Operation::FetchAdd { va, rkey, add: 1 }, 8),
        (
            Operation::CompareSwap {
                va,
                rkey,
                compare: 0,
                swap: 1,
            },
            8,
        ),
        (Operation::AtomicWrite { va, rkey }, 8),
    ]
}

fn wanted(index: usize) -> Status {
    let is_write = matches!(accesses(0, Rkey(0))[index].0, Operation::Write { .. });
    match is_write {
        true => Status::Success,
        false => Status::RemoteAccessError,
    }
}

#[test]
fn of_unmapped_memory_a_peer_reads_nothing_and_writes_are_lost() {
    let (one, other) = wired();
    for index in 0..accesses(0, Rkey(0)).len() {
        let (left, right) = pair_on(&one, &other, 8192);
        let holed = Holed::new(&right.pd);
        let access = |at| {
            let (operation, length) = accesses(at, holed.rkey()).swap_remove(index);
            left.send(operation, 0, length);
            (left.complete().status, length)
        };
        let (status, length) = access(holed.hole());
        assert_eq!(status, Status::Success, "{index}");
        holed.unmap();
        if length <= 64 {
            assert_eq!(access(holed.hole() - 64).0, Status::Success, "{index}");
        }
        assert_eq!(access(holed.hole()).0, wanted(index), "{index}");
        assert!(!holed.is_mapped(), "{index}");
    }
}

#[test]
fn what_is_sent_from_unmapped_memory_fails_here() {
    for (length, is_send) in [(64, false), (64, true), (6000, false)] {
        let (left, right) = pair(8192);
        let holed = Holed::new(&left.pd);
        let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
        let operation = match is_send {
            true => Operation::Send,
            false => Operation::Write { va, rkey },
        };
        right.recv(1, 0, 64);
        holed.unmap();
        let from = holed.sge(holed.hole() - 32, length);
        left.qp.post_send(&signalled(operation, from)).unwrap();
        assert_eq!(left.complete().status, Status::LocalProtectionError);
        assert!(!holed.is_mapped());
    }
}

#[test]
fn a_response_to_unmapped_memory_is_lost() {
    let (left, right) = pair(8192);
    let holed = Holed::new(&left.pd);
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    holed.unmap();
    let to = holed.sge(holed.hole(), 6000);
    let read = signalled(Operation::Read { va, rkey }, to);
    left.qp.post_send(&read).unwrap();
    left.ok();
    assert!(!holed.is_mapped());
}

#[test]
fn a_message_to_unmapped_memory_is_lost_and_completes() {
    let (left, right) = pair(256);
    let holed = Holed::new(&right.pd);
    let sges = [holed.sge(holed.hole() - 4, 64)];
    let receive = RecvWr {
        wr_id: 3,
        sges: &sges,
    };
    right.qp.post_recv(&receive).unwrap();
    holed.unmap();
    left.send(Operation::Send, 0, 8);
    left.ok();
    assert_eq!(right.ok().byte_len, 8);
    assert!(!holed.is_mapped());
}

/// A handler that the engine has set up must not hide the faults of the program itself.
#[test]
fn what_the_program_itself_accesses_there_ends_it() {
    let (left, right) = pair(256);
    let holed = Holed::new(&right.pd);
    holed.unmap();
    left.send(write_to(&holed), 0, 64);
    left.ok();
    // SAFETY: the child touches nothing but the page that is not there.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let at = std::ptr::with_exposed_provenance_mut::<u8>(holed.hole() as usize);
        // SAFETY: this is the fault that is wanted, in a process that ends by it.
        unsafe {
            libc::alarm(10);
            at.write_volatile(1);
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: a child of this process, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status), "{status:x}");
    assert_eq!(libc::WTERMSIG(status), libc::SIGSEGV);
}

fn write_to(holed: &Holed) -> Operation {
    let (va, rkey) = (holed.hole(), holed.rkey());
    Operation::Write { va, rkey }
}

#[test]
fn a_record_to_unmapped_memory_harms_none_but_itself() {
    let (one, other) = wired();
    let [from, to] = [&one, &other].map(|device| End::new(device, QpType::Ud, 8192));
    for end in [&from, &to] {
        datagram_to_rts(&end.qp, QKEY);
    }
    to.qp.enable_records(RecordConfig::default()).unwrap();
    let holed = Holed::with(|at, bytes| to.pd.reg_record_mr(at, bytes, None));
    holed.unmap();
    let post = |va, length| {
        let rkey = holed.rkey();
        let mut record = signalled(Operation::Record { va, rkey }, from.memory.sge(0, length));
        record.datagram = Some(Datagram {
            path: to.path(),
            qpn: to.qp.number(),
            qkey: QKEY,
        });
        from.qp.post_send(&record).unwrap();
        from.ok();
    };
    post(holed.hole(), 64);
    post(holed.hole() - 4096, 6000);
    post(holed.hole() - 64, 64);
    let whole = |completion: Completion| {
        let handle = RecordHandle(completion.wr_id);
        let length = to
            .qp
            .record(handle, |record| (record.length, record.valid_bytes));
        length == Some((64, 64))
    };
    while !whole(to.complete()) {}
    assert!(!holed.is_mapped());
}

const QKEY: Qkey = Qkey(0x1234);
