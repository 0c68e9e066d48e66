//! A registered file is truncated by another program: an error completion, and the program
//! continues.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use airdma_shm::Sge;
use common::*;
use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

const PAGE: usize = 64 << 10;

/// Two pages of a file in memory, registered.
struct Mapped {
    file: File,
    at: *mut libc::c_void,
    mr: Arc<Mr>,
}

impl Mapped {
    fn new(pd: &Arc<Pd>) -> Self {
        // SAFETY: a string with its end.
        let file = unsafe { libc::memfd_create(c"cut".as_ptr(), libc::MFD_CLOEXEC) };
        // SAFETY: the new descriptor has no other owner.
        let file = unsafe { File::from_raw_fd(file) };
        file.set_len(2 * PAGE as u64).unwrap();
        let (rights, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
        let (nowhere, descriptor) = (std::ptr::null_mut(), file.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let at = unsafe { libc::mmap(nowhere, 2 * PAGE, rights, how, descriptor, 0) };
        assert_ne!(at, libc::MAP_FAILED);
        let address = at.expose_provenance() as u64;
        let mr = pd.reg_mr(address, 2 * PAGE, address, ALL).unwrap();
        Self { file, at, mr }
    }

    fn address(&self) -> u64 {
        self.at.expose_provenance() as u64
    }

    /// An element in its second page.
    fn behind(&self) -> Sge {
        Sge {
            addr: self.address() + PAGE as u64,
            length: 8,
            lkey: self.mr.lkey().0,
        }
    }

    fn cut(&self) {
        self.file.set_len(PAGE as u64).unwrap();
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.mr.deregister().unwrap();
        // SAFETY: a mapping of this value, no longer in use.
        unsafe { libc::munmap(self.at, 2 * PAGE) };
    }
}

fn write_to(mapped: &Mapped, offset: u64) -> Operation {
    let (va, rkey) = (mapped.address() + offset, mapped.mr.rkey());
    Operation::Write { va, rkey }
}

#[test]
fn what_is_sent_from_behind_the_end_of_a_file_fails_here() {
    let (left, right) = pair(256);
    let mapped = Mapped::new(&left.pd);
    let send = signalled(right_write(&right), mapped.behind());
    left.qp.post_send(&send).unwrap();
    left.ok();
    mapped.cut();
    left.qp.post_send(&send).unwrap();
    assert_eq!(left.complete().status, Status::LocalProtectionError);
}

fn right_write(right: &End) -> Operation {
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    Operation::Write { va, rkey }
}

#[test]
fn what_a_peer_accesses_behind_the_end_of_a_file_is_refused() {
    for is_read in [false, true] {
        let (left, right) = pair(256);
        let mapped = Mapped::new(&right.pd);
        let access = |offset| match is_read {
            false => write_to(&mapped, offset),
            true => Operation::Read {
                va: mapped.address() + offset,
                rkey: mapped.mr.rkey(),
            },
        };
        left.send(access(PAGE as u64), 0, 64);
        left.ok();
        mapped.cut();
        left.send(access(0), 0, 64);
        left.ok();
        left.send(access(PAGE as u64), 0, 64);
        assert_eq!(left.complete().status, Status::RemoteAccessError);
    }
}

#[test]
fn a_message_behind_the_end_of_a_file_fails_at_both_ends() {
    let (left, right) = pair(256);
    let mapped = Mapped::new(&right.pd);
    mapped.cut();
    let receive = RecvWr {
        wr_id: 3,
        sges: &[mapped.behind()],
    };
    right.qp.post_recv(&receive).unwrap();
    left.send(Operation::Send, 0, 8);
    assert_eq!(left.complete().status, Status::RemoteOperationError);
    assert_eq!(right.complete().status, Status::LocalProtectionError);
}
