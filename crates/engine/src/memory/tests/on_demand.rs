//! Memory that comes and goes while it is registered, and how the kernel is asked about it.

use super::*;

/// Two pages, the second of which can be taken away.
fn pages() -> *mut u8 {
    // SAFETY: a fresh mapping.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            8192,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(base, libc::MAP_FAILED);
    base.cast()
}

#[test]
fn on_demand_memory_may_go_away_and_come_back() {
    let base = pages();
    let address = base.expose_provenance() as u64;
    let mut table = MemoryTable::default();
    let explicit = table
        .register(PD, address, 8192, address, ALL | Access::ON_DEMAND)
        .unwrap();
    let implicit = table
        .register(PD, 0, usize::MAX, 0, ALL | Access::ON_DEMAND)
        .unwrap();
    for key in [explicit, implicit] {
        let place = |va| Place {
            pd: PD,
            key,
            va,
            qp: 5,
        };
        let add = AtomicOperation::FetchAdd { add: 1 };
        let mut out = [0; 4];
        table
            .write(place(address + 4094), Access::REMOTE_WRITE, b"abcd")
            .unwrap();
        table
            .read(place(address + 4094), Access::REMOTE_READ, &mut out)
            .unwrap();
        assert_eq!(&out, b"abcd");
        // SAFETY: the second page of the mapping above, to which nothing else refers.
        unsafe { libc::munmap(base.wrapping_add(4096).cast(), 4096) };
        assert_eq!(
            table.write(place(address + 4094), Access::REMOTE_WRITE, b"efgh"),
            Err(Refused)
        );
        assert_eq!(
            table.read(place(address + 4096), Access::REMOTE_READ, &mut out),
            Err(Refused)
        );
        assert_eq!(
            table.atomic(place(address + 4096), add),
            Err(RemoteFault::Access)
        );
        // SAFETY: maps a fresh page where the old one was.
        let again = unsafe {
            libc::mmap(
                base.wrapping_add(4096).cast(),
                4096,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_ne!(again, libc::MAP_FAILED);
        assert_eq!(table.atomic(place(address + 4096), add), Ok(0));
        assert_eq!(table.atomic(place(address + 4096), add), Ok(1));
    }
    let place = Place {
        pd: PD,
        key: explicit,
        va: address,
        qp: 5,
    };
    for (protection, readable) in [(libc::PROT_READ, true), (libc::PROT_NONE, false)] {
        // SAFETY: the first page of the mapping above, to which nothing else refers.
        unsafe { libc::mprotect(base.cast(), 4096, protection) };
        assert_eq!(
            table.write(place, Access::REMOTE_WRITE, b"ijkl"),
            Err(Refused)
        );
        let read = table.read(place, Access::REMOTE_READ, &mut [0; 4]);
        assert_eq!(read.is_ok(), readable);
        let add = AtomicOperation::FetchAdd { add: 1 };
        assert_eq!(table.atomic(place, add), Err(RemoteFault::Access));
    }
    let beyond = table.address_of(PD, explicit, address + 8190, 4, Access::empty());
    assert_eq!(beyond, None);
}

/// Programs may end `main`'s thread and go on with the others.
#[test]
fn on_demand_memory_is_there_without_the_first_thread() {
    let base = pages();
    let address = base.expose_provenance() as u64;
    let _alone = crate::sharing::alone();
    let mut table = MemoryTable::default();
    let key = table
        .register(PD, address, 8192, address, ALL | Access::ON_DEMAND)
        .unwrap();
    // SAFETY: the child has this thread only, and does nothing that a lock of another could hold up
    // for ever: the C library readies its allocator and its threads in the child.
    let child = unsafe { libc::fork() };
    if child == 0 {
        std::thread::spawn(move || {
            let first = format!("/proc/self/task/{}/stat", std::process::id());
            while !std::fs::read_to_string(&first).is_ok_and(|stat| stat.contains(") Z ")) {
                std::thread::yield_now();
            }
            let place = Place {
                pd: PD,
                key,
                va: address,
                qp: 5,
            };
            let mut out = [0; 2];
            let fine = table.write(place, Access::REMOTE_WRITE, b"on").is_ok()
                && table.read(place, Access::REMOTE_READ, &mut out).is_ok();
            // SAFETY: ends the child.
            unsafe { libc::_exit(if fine && &out == b"on" { 0 } else { 1 }) };
        });
        // SAFETY: ends this thread alone, as `pthread_exit` does, and unwinds nothing.
        unsafe { libc::syscall(libc::SYS_exit, 0) };
    }
    let mut status = 0;
    // SAFETY: our child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0);
}

#[test]
fn only_an_implicit_region_opens_the_whole_address_space() {
    let mut table = MemoryTable::default();
    let on_demand = ALL | Access::ON_DEMAND;
    let mut register =
        |address, length, access| table.register(PD, address, length, address, access);
    let bounded = [
        register(0, 16, ALL).unwrap(),
        register(0, 16, on_demand).unwrap(),
        register(0x1000, 16, on_demand).unwrap(),
    ];
    for (address, access) in [(0x1000, on_demand), (0, ALL)] {
        let refused = register(address, usize::MAX, access).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL);
    }
    let all = register(0, usize::MAX, on_demand).unwrap();
    let at = |key, va| table.address_of(PD, key, va, 8, Access::REMOTE_READ);
    for key in bounded {
        assert_eq!(at(key, 0x2000), None);
    }
    assert_eq!(at(bounded[0], 8), Some(8));
    assert_eq!(at(bounded[2], 0x1008), Some(0x1008));
    assert_eq!(at(all, 0x2000), Some(0x2000));
}

#[test]
fn missing_or_unwritable_memory_is_detected() {
    let base = pages();
    let address = base.expose_provenance() as u64;
    let check = |address, length, access| {
        let checked = populate::check(address, length, access);
        checked.map_err(|error| error.errno())
    };
    let (read, write) = (Access::empty(), Access::LOCAL_WRITE);
    for (at, length) in [(0, 8192), (1, 8191), (4095, 2), (5000, 1)] {
        assert_eq!(check(address + at, length, read), Ok(()));
        assert_eq!(check(address + at, length, write), Ok(()));
    }
    // SAFETY: the first page of the mapping above, to which nothing else refers.
    unsafe { libc::mprotect(base.cast(), 4096, libc::PROT_READ) };
    assert_eq!(check(address + 1, 1, read), Ok(()));
    assert_eq!(check(address + 1, 1, write), Err(libc::EFAULT));
    assert_eq!(check(address + 4096, 4096, write), Ok(()));
    // SAFETY: the second page, likewise.
    unsafe { libc::mprotect(base.wrapping_add(4096).cast(), 4096, libc::PROT_NONE) };
    for (at, length) in [(0, 4097), (4095, 2), (4096, 1), (5000, 100)] {
        assert_eq!(check(address + at, length, read), Err(libc::EFAULT));
        assert_eq!(check(address + at, length, write), Err(libc::EFAULT));
    }
    // SAFETY: as above.
    unsafe { libc::mprotect(base.wrapping_add(4096).cast(), 4096, libc::PROT_WRITE) };
    assert_eq!(check(address + 4096, 4096, write), Ok(()));
    // SAFETY: as above.
    unsafe { libc::munmap(base.wrapping_add(4096).cast(), 4096) };
    for (at, length) in [(0, 4097), (4095, 2), (4096, 1), (5000, 100)] {
        assert_eq!(check(address + at, length, read), Err(libc::EFAULT));
    }
    // Lengths that cannot be are for the table to refuse.
    assert_eq!(check(address + 5000, 0, write), Ok(()));
    assert_eq!(check(u64::MAX - 3, 4, write), Ok(()));
}

#[test]
fn memory_that_cannot_be_populated_is_judged_by_its_mapping() {
    std::thread::spawn(|| {
        let base = pages();
        let address = base.expose_provenance() as u64;
        // As a kernel that does not know the advice.
        refuse(libc::EINVAL, [libc::SYS_madvise; 2]);
        let (read, write) = (Access::empty(), Access::LOCAL_WRITE);
        let check = |length, access| {
            let is_there = populate::check(address, length, access).is_ok();
            assert_eq!(is_there, populate::is_touchable(address, length, access));
            is_there
        };
        assert!(check(8192, read) && check(8192, write));
        for (protection, readable) in [(libc::PROT_READ, true), (libc::PROT_NONE, false)] {
            // SAFETY: the second page of the mapping above, to which nothing else refers.
            unsafe { libc::mprotect(base.wrapping_add(4096).cast(), 4096, protection) };
            assert_eq!(check(4097, read), readable);
            assert!(!check(4097, write) && check(4096, write));
        }
        // SAFETY: as above.
        unsafe { libc::munmap(base.wrapping_add(4096).cast(), 4096) };
        assert!(!check(4097, read) && check(4096, read));
    })
    .join()
    .unwrap();
}

#[test]
fn memory_of_which_nothing_can_be_found_out_is_taken_for_good() {
    for knows_the_advice in [true, false] {
        std::thread::spawn(move || {
            let base = pages();
            let address = base.expose_provenance() as u64;
            // SAFETY: the mapping above, to which nothing else refers.
            unsafe { libc::mprotect(base.cast(), 8192, libc::PROT_NONE) };
            refuse(libc::EACCES, [libc::SYS_openat; 2]);
            if !knows_the_advice {
                refuse(libc::EINVAL, [libc::SYS_madvise; 2]);
            }
            for access in [Access::empty(), Access::LOCAL_WRITE] {
                assert!(populate::check(address, 8192, access).is_ok());
                // A caller that touches the memory itself needs a stricter answer.
                let is_touchable = populate::is_touchable(address, 8192, access);
                assert_eq!(is_touchable, !knows_the_advice);
            }
        })
        .join()
        .unwrap();
    }
}

/// From now on the kernel refuses this thread, and it alone, to copy with `process_vm_readv` and
/// `process_vm_writev`.
fn sandbox(errno: libc::c_int) {
    refuse(
        errno,
        [libc::SYS_process_vm_readv, libc::SYS_process_vm_writev],
    );
}

/// From now on the kernel refuses these calls to this thread, and to it alone.
fn refuse(errno: libc::c_int, [first, second]: [libc::c_long; 2]) {
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jt, jf, k| libc::sock_filter { code, jt, jf, k };
    let mut steps = [
        step(load, 0, 0, 0), // the number of the system call
        step(jump, 1, 0, first as u32),
        step(jump, 0, 1, second as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: steps.len() as u16,
        filter: steps.as_mut_ptr(),
    };
    // SAFETY: a filter of that length, which the kernel copies.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const program,
            )
    };
    assert_eq!(done, 0);
}

#[test]
fn on_demand_memory_works_in_a_sandbox_without_kernel_copies() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        std::thread::spawn(move || {
            let base = pages();
            let address = base.expose_provenance() as u64;
            let mut table = MemoryTable::default();
            let key = table
                .register(PD, address, 8192, address, ALL | Access::ON_DEMAND)
                .unwrap();
            let place = |va| Place {
                pd: PD,
                key,
                va,
                qp: 5,
            };
            sandbox(errno);
            let mut out = [0; 4];
            table
                .write(place(address + 4090), Access::REMOTE_WRITE, b"abcd")
                .unwrap();
            table
                .read(place(address + 4090), Access::REMOTE_READ, &mut out)
                .unwrap();
            assert_eq!(&out, b"abcd");
            // SAFETY: the second page of the mapping above, to which nothing else refers.
            unsafe { libc::munmap(base.wrapping_add(4096).cast(), 4096) };
            let refused = |va, readable: bool| {
                let read = table.read(place(va), Access::REMOTE_READ, &mut [0; 4]);
                assert_eq!(read.is_ok(), readable);
                let write = table.write(place(va), Access::REMOTE_WRITE, b"efgh");
                assert_eq!(write, Err(Refused));
            };
            refused(address + 4094, false);
            for (protection, readable) in [(libc::PROT_READ, true), (libc::PROT_NONE, false)] {
                // SAFETY: the first page, likewise.
                unsafe { libc::mprotect(base.cast(), 4096, protection) };
                refused(address, readable);
            }
        })
        .join()
        .unwrap();
    }
}
