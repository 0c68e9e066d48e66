use super::*;
use crate::seal::session::{PrivateKey, Session};
use std::collections::HashSet;
use std::io::Write;

#[test]
fn numbers_of_the_kernel_differ_and_are_handed_out_once() {
    let mut random = Random::kernel();
    let drawn: HashSet<u64> = (0..1000).map(|_| random.next_u64()).collect();
    assert_eq!(drawn.len(), 1000);
    let page = random.fetched();
    let (left, bytes) = (usize::from(page[0]) * 4, &page[4..]);
    assert!(left > 0 && bytes[..left].iter().any(|byte| *byte != 0));
    assert!(bytes[left..].iter().all(|byte| *byte == 0));
    assert_eq!(format!("{random:?}"), "Kernel(Fetched)");
}

#[test]
fn a_page_is_mapped_for_the_first_number() {
    let mut random = Random::kernel();
    let mut fork = random.fork();
    random.secret_u64();
    assert!(!random.has_page() && !fork.has_page());
    fork.next_u32();
    assert!(!random.has_page() && fork.has_page());
}

#[test]
fn without_a_page_each_number_is_fetched() {
    let mut random = Random::Kernel(Fetched(OnceCell::from(None)));
    let drawn: HashSet<u64> = (0..1000).map(|_| random.next_u64()).collect();
    assert_eq!(drawn.len(), 1000);
}

#[test]
fn a_secret_neither_takes_nor_leaves_numbers_that_were_fetched() {
    let mut random = Random::kernel();
    random.next_u32();
    let before = random.fetched();
    PrivateKey::draw(&mut random);
    Session::with_itself(&mut random).unwrap();
    let secrets: HashSet<[u8; 16]> = (0..100).map(|_| random.secret()).collect();
    assert_eq!(secrets.len(), 100);
    assert!(before == random.fetched());
}

#[test]
fn a_secret_of_a_seed_is_made_of_its_numbers() {
    let (mut numbers, mut secrets) = (Random::Seeded(7), Random::Seeded(7));
    let words = [(); 2].map(|()| numbers.next_u32().to_ne_bytes());
    assert_eq!(secrets.secret::<8>(), words.concat()[..]);
    assert_eq!(secrets.secret_u64(), numbers.next_u64());
}

/// What two processes draw after `fork`, which makes a child and returns its id, or 0 in it.
fn draws_of_parent_and_child(fork: fn() -> libc::pid_t) -> [Vec<u8>; 2] {
    let mut random = Random::kernel();
    let mut draw = || [(); 8].map(|()| random.next_u32().to_ne_bytes()).concat();
    draw();
    let (mut read, mut write) = std::io::pipe().unwrap();
    match fork() {
        0 => {
            let written = write.write_all(&draw());
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(written.is_err())) }
        }
        child => {
            drop(write);
            let mut of_child = Vec::new();
            read.read_to_end(&mut of_child).unwrap();
            let mut status = -1;
            // SAFETY: a child of ours and a local integer.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
            [draw(), of_child]
        }
    }
}

#[test]
fn a_forked_child_draws_other_numbers_than_its_parent() {
    // SAFETY: the child draws, writes and ends.
    let by_libc = || unsafe { libc::fork() };
    // SAFETY: as above; a fork that no handler of the C library notices.
    let by_call = || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32 };
    for fork in [by_libc as fn() -> libc::pid_t, by_call] {
        let [of_parent, of_child] = draws_of_parent_and_child(fork);
        assert_eq!(of_child.len(), of_parent.len());
        let all: HashSet<&[u8]> = of_parent.chunks(4).chain(of_child.chunks(4)).collect();
        assert_eq!(all.len(), 16);
    }
}
