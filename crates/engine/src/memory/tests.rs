#![allow(clippy::unwrap_used)]
use super::*;

const PD: u32 = 3;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_ATOMIC);

struct Fixture {
    table: MemoryTable,
    memory: Box<[u64; 16]>,
    key: u32,
}

impl Fixture {
    fn new(access: Access, iova: impl Fn(u64) -> u64) -> Self {
        let mut memory = Box::new([0x1111_1111_1111_1111u64; 16]);
        let address = memory.as_mut_ptr().expose_provenance() as u64;
        let mut table = MemoryTable::default();
        // The middle 64 bytes: what lies before and behind must never change.
        let key = table
            .register(PD, address + 32, 64, iova(address + 32), access)
            .unwrap();
        Fixture { table, memory, key }
    }

    fn place(&self, va: u64) -> Place {
        Place {
            pd: PD,
            key: self.key,
            va,
            qp: OURSELVES,
        }
    }

    fn is_untouched(&self) -> bool {
        // SAFETY: the box is alive; volatile because the table wrote through a raw pointer.
        let memory = unsafe { std::ptr::read_volatile(self.memory.as_ptr().cast::<[u64; 16]>()) };
        memory == [0x1111_1111_1111_1111; 16]
    }
}

#[test]
fn bytes_are_written_and_read_at_their_remote_address() {
    let fixture = Fixture::new(ALL, |_| 0x10_0000);
    fixture
        .table
        .write(fixture.place(0x10_0003), Access::REMOTE_WRITE, b"abc")
        .unwrap();
    let mut out = [0; 5];
    fixture
        .table
        .read(fixture.place(0x10_0002), Access::REMOTE_READ, &mut out)
        .unwrap();
    assert_eq!(&out, b"\x11abc\x11");
}

#[test]
fn every_way_out_of_bounds_is_refused_and_nothing_is_touched() {
    let iova = 0x10_0000;
    let fixture = Fixture::new(ALL, |_| iova);
    let data = [0xee; 65];
    for (va, length) in [
        (iova - 1, 1),
        (iova + 64, 1),
        (iova + 63, 2),
        (iova, 65),
        (iova - 1, 65),
        (0, 1),
        (u64::MAX, 1),
        (u64::MAX - 10, 64),
        (iova.wrapping_sub(64), 64),
    ] {
        let place = fixture.place(va);
        assert_eq!(
            fixture
                .table
                .write(place, Access::REMOTE_WRITE, &data[..length]),
            Err(Refused),
            "{va:#x}"
        );
        let mut out = vec![0; length];
        assert_eq!(
            fixture.table.read(place, Access::REMOTE_READ, &mut out),
            Err(Refused),
            "{va:#x}"
        );
        let checked = fixture
            .table
            .check(place, length as u32, RemoteAccess::Write);
        assert_eq!(checked, Err(RemoteFault::Access), "{va:#x}");
    }
    assert!(
        fixture
            .table
            .check(fixture.place(iova), u32::MAX, RemoteAccess::Read)
            .is_err()
    );
    assert!(fixture.is_untouched());
}

#[test]
fn wrong_keys_domains_and_rights_are_refused() {
    let fixture = Fixture::new(Access::LOCAL_WRITE | Access::REMOTE_READ, |_| 0);
    let place = fixture.place(0);
    let write = |place, right| fixture.table.write(place, right, &[1]);
    assert_eq!(write(place, Access::REMOTE_WRITE), Err(Refused));
    assert_eq!(
        write(
            Place {
                pd: PD + 1,
                ..place
            },
            Access::LOCAL_WRITE
        ),
        Err(Refused)
    );
    for key in [
        0,
        1,
        fixture.key ^ 1,
        fixture.key ^ 1 << 12,
        fixture.key ^ 1 << 31,
        u32::MAX,
    ] {
        assert_eq!(
            write(Place { key, ..place }, Access::LOCAL_WRITE),
            Err(Refused),
            "{key:#x}"
        );
    }
    let add = AtomicOperation::FetchAdd { add: 1 };
    assert_eq!(fixture.table.atomic(place, add), Err(RemoteFault::Access));
    assert!(fixture.is_untouched());
    assert_eq!(write(place, Access::LOCAL_WRITE), Ok(()));
}

#[test]
fn a_key_dies_with_its_region_and_its_slot_gets_another() {
    let mut fixture = Fixture::new(ALL, |_| 0);
    let (place, address) = (
        fixture.place(0),
        fixture.memory.as_ptr().expose_provenance() as u64,
    );
    for _ in 0..100 {
        let old = fixture.key;
        fixture.table.deregister(old).unwrap();
        fixture.table.deregister(old).unwrap();
        assert_eq!(
            fixture.table.write(place, Access::REMOTE_WRITE, &[1]),
            Err(Refused)
        );
        fixture.key = fixture
            .table
            .register(PD, address + 32, 64, 0, ALL)
            .unwrap();
        assert_eq!(fixture.key >> TAG_BITS, old >> TAG_BITS);
        assert_ne!(fixture.key, old);
        assert_eq!(
            fixture
                .table
                .write(Place { key: old, ..place }, Access::REMOTE_WRITE, &[1]),
            Err(Refused)
        );
    }
    assert!(fixture.is_untouched());
}

#[test]
fn atomics_return_the_original_and_must_be_aligned() {
    let fixture = Fixture::new(ALL, |_| 0x1000);
    let table = &fixture.table;
    let original = 0x1111_1111_1111_1111;
    let place = fixture.place(0x1008);
    assert_eq!(
        table.atomic(place, AtomicOperation::FetchAdd { add: 5 }),
        Ok(original)
    );
    let swap = AtomicOperation::CompareSwap {
        compare: original,
        swap: 9,
    };
    assert_eq!(table.atomic(place, swap), Ok(original + 5));
    let swap = AtomicOperation::CompareSwap {
        compare: original + 5,
        swap: 9,
    };
    assert_eq!(table.atomic(place, swap), Ok(original + 5));
    assert_eq!(
        table.atomic(place, AtomicOperation::FetchAdd { add: u64::MAX }),
        Ok(9)
    );
    assert_eq!(
        table.atomic(place, AtomicOperation::FetchAdd { add: 0 }),
        Ok(8)
    );
    assert_eq!(
        table.atomic(fixture.place(0x1009), swap),
        Err(RemoteFault::Misaligned)
    );
    assert_eq!(
        table.atomic(fixture.place(0x103c), swap),
        Err(RemoteFault::Access)
    );
    let skewed = Fixture::new(ALL, |address| address + 4);
    let va = skewed.memory.as_ptr().addr() as u64 + 32 + 8;
    assert_eq!(
        skewed.table.atomic(skewed.place(va), swap),
        Err(RemoteFault::Misaligned)
    );
}

#[test]
fn a_length_of_zero_needs_no_key() {
    let table = MemoryTable::default();
    let place = Place {
        pd: 0,
        key: 77,
        va: u64::MAX,
        qp: OURSELVES,
    };
    assert_eq!(table.check(place, 0, RemoteAccess::Write), Ok(()));
    assert_eq!(table.read(place, Access::REMOTE_READ, &mut []), Ok(()));
}

#[test]
fn registration_refuses_what_the_manual_refuses() {
    let mut table = MemoryTable::default();
    let mut register =
        |address, length, iova, access| table.register(PD, address, length, iova, access);
    let refused = [
        register(0x1000, 0, 0, ALL),
        register(0x1000, LIMITS.max_mr_size as usize + 1, 0, ALL),
        register(u64::MAX - 3, 4, 0, ALL),
        register(0x1000, 4, u64::MAX - 2, ALL),
        register(0x1000, 4, 0, Access::REMOTE_WRITE),
        register(0x1000, 4, 0, Access::REMOTE_ATOMIC),
        register(0x1000, 4, 0, Access::from_bits_retain(1 << 30)),
    ];
    for (case, result) in refused.into_iter().enumerate() {
        assert_eq!(
            result.map_err(|error| error.errno()),
            Err(libc::EINVAL),
            "case {case}"
        );
    }
    assert!(register(0x1000, 4, u64::MAX - 3, Access::REMOTE_READ).is_ok());
    assert!(register(0x1000, 4, 77, ALL | Access::RELAXED_ORDERING).is_ok());
    assert!(register(0x1000, LIMITS.max_mr_size as usize, 0, ALL).is_ok());
}

#[test]
fn a_null_region_gives_zeros_at_any_address_and_is_not_for_peers() {
    let mut table = MemoryTable::default();
    let key = table.register_null(PD).unwrap();
    let place = Place {
        pd: PD,
        key,
        va: 0xdead_0000_0000,
        qp: OURSELVES,
    };
    let mut out = [7; 9];
    table.read(place, Access::empty(), &mut out).unwrap();
    assert_eq!(out, [0; 9]);
    table.write(place, Access::LOCAL_WRITE, b"gone").unwrap();
    assert_eq!(
        table.write(place, Access::REMOTE_WRITE, b"no"),
        Err(Refused)
    );
    table.deregister(key).unwrap();
    assert_eq!(table.read(place, Access::empty(), &mut out), Err(Refused));
}

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
    let _alone = crate::process::alone();
    let mut table = MemoryTable::default();
    let key = table
        .register(PD, address, 8192, address, ALL | Access::ON_DEMAND)
        .unwrap();
    // SAFETY: the child has this thread only, and does nothing that a lock of another could hold up for ever: the C library
    // readies its allocator and its threads in the child.
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
fn all_of_the_address_space_is_opened_to_who_asks_for_all_of_it_only() {
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
fn memory_that_is_not_there_or_not_writable_is_told_from_memory_that_is() {
    let base = pages();
    let address = base.expose_provenance() as u64;
    let check = |address, length, access| {
        let checked = presence::check(address, length, access);
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
fn memory_that_the_kernel_does_not_populate_is_judged_by_its_mapping() {
    std::thread::spawn(|| {
        let base = pages();
        let address = base.expose_provenance() as u64;
        // As a kernel that does not know the advice.
        refuse(libc::EINVAL, [libc::SYS_madvise; 2]);
        let (read, write) = (Access::empty(), Access::LOCAL_WRITE);
        let check = |length, access| {
            let is_there = presence::check(address, length, access).is_ok();
            assert_eq!(is_there, presence::is_touchable(address, length, access));
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
                assert!(presence::check(address, 8192, access).is_ok());
                // Whoever is to touch it himself is more careful.
                let is_touchable = presence::is_touchable(address, 8192, access);
                assert_eq!(is_touchable, !knows_the_advice);
            }
        })
        .join()
        .unwrap();
    }
}

/// From now on the kernel refuses this thread, and it alone, to copy with `process_vm_readv` and `process_vm_writev`.
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
fn on_demand_memory_is_there_in_a_sandbox_that_forbids_the_kernels_copies() {
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

#[test]
fn a_full_table_takes_no_more_until_a_slot_is_given_back() {
    let mut table = MemoryTable::default();
    let taken = Region {
        key: 1,
        ..Region::empty(PD)
    };
    table.regions = vec![taken; LIMITS.max_mr as usize - 1];
    let last = table.register_empty(PD).unwrap();
    assert_eq!(last >> TAG_BITS, LIMITS.max_mr - 1);
    let refused = table.register_empty(PD).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOMEM);
    assert_eq!(table.count(), LIMITS.max_mr as usize);
    table.deregister(last).unwrap();
    assert!(table.register_empty(PD).is_ok());
}

#[test]
fn what_is_no_region_of_memory_is_not_registered_again() {
    let mut fixture = Fixture::new(ALL, |address| address);
    let table = &mut fixture.table;
    let null = table.register_null(PD).unwrap();
    let window = table.alloc_window(PD, true).unwrap();
    let old = table.register_empty(PD).unwrap();
    table.deregister(old).unwrap();
    let change = RegionChange::default();
    for key in [null, window, old, fixture.key ^ 1, u32::MAX] {
        let refused = table.reregister(key, PD, &change).unwrap_err();
        assert_eq!(refused.errno(), libc::EINVAL, "{key:#x}");
    }
    assert!(table.reregister(fixture.key, PD, &change).is_ok());
}

#[test]
fn a_region_that_is_registered_again_keeps_its_key_and_nothing_else() {
    let mut fixture = Fixture::new(ALL, |address| address);
    let (address, key) = (fixture.memory.as_ptr().addr() as u64, fixture.key);
    let change = RegionChange {
        translation: Some((address, 16)),
        access: Some(Access::LOCAL_WRITE),
    };
    fixture.table.reregister(key, PD + 1, &change).unwrap();
    let place = |pd, va| Place {
        pd,
        key,
        va,
        qp: OURSELVES,
    };
    let read = |place, right| fixture.table.read(place, right, &mut [0; 16]);
    assert_eq!(read(place(PD + 1, address), Access::empty()), Ok(()));
    assert_eq!(read(place(PD, address), Access::empty()), Err(Refused));
    assert_eq!(
        read(place(PD + 1, address), Access::REMOTE_READ),
        Err(Refused)
    );
    assert_eq!(
        read(place(PD + 1, address + 32), Access::empty()),
        Err(Refused)
    );
    let bad = RegionChange {
        access: Some(Access::REMOTE_WRITE),
        ..RegionChange::default()
    };
    let refused = fixture.table.reregister(key, PD + 1, &bad);
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
}

mod windows {
    use super::*;
    use airdma_transport::Bind;
    use airdma_wire::{Lkey, Rkey};

    const QP: u32 = 0x21;

    fn bindable() -> Fixture {
        Fixture::new(ALL | Access::MW_BIND, |address| address)
    }

    fn bind(fixture: &Fixture, window: u32, new_key: u32) -> Bind {
        Bind {
            window: Rkey(window),
            new_key: Rkey(new_key),
            region: Lkey(fixture.key),
            va: fixture.memory.as_ptr().addr() as u64 + 40,
            length: 16,
            access: Access::REMOTE_WRITE,
        }
    }

    fn inc(key: u32) -> u32 {
        (key & !0xff) | (key.wrapping_add(1) & 0xff)
    }

    fn write(fixture: &Fixture, key: u32, va: u64, qp: u32) -> Result<(), Refused> {
        let place = Place {
            pd: PD,
            key,
            va,
            qp,
        };
        fixture.table.write(place, Access::REMOTE_WRITE, b"in")
    }

    #[test]
    fn a_window_opens_its_part_to_its_queue_pair_until_it_is_invalidated() {
        let mut fixture = bindable();
        let first = fixture.table.alloc_window(PD, true).unwrap();
        let key = inc(first);
        let bind = bind(&fixture, first, key);
        fixture.table.bind(PD, QP, &bind).unwrap();
        assert_eq!(write(&fixture, key, bind.va, QP), Ok(()));
        assert_eq!(write(&fixture, key, bind.va + 14, QP), Ok(()));
        assert_eq!(write(&fixture, key, bind.va + 15, QP), Err(Refused));
        assert_eq!(write(&fixture, key, bind.va - 1, QP), Err(Refused));
        assert_eq!(write(&fixture, first, bind.va, QP), Err(Refused), "old key");
        assert_eq!(write(&fixture, key, bind.va, QP + 1), Err(Refused), "2B");
        assert_eq!(
            write(&fixture, key, bind.va, OURSELVES),
            Err(Refused),
            "no lkey"
        );
        let refused = fixture.table.deregister(fixture.key).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
        assert_eq!(fixture.table.invalidate(PD, QP + 1, key), Err(Refused));
        assert_eq!(fixture.table.invalidate(PD, QP, first), Err(Refused));
        fixture.table.invalidate(PD, QP, key).unwrap();
        assert_eq!(write(&fixture, key, bind.va, QP), Err(Refused));
        assert_eq!(fixture.table.invalidate(PD, QP, key), Err(Refused), "twice");
        fixture.table.deregister(fixture.key).unwrap();
    }

    #[test]
    fn the_last_key_of_a_window_is_not_the_next_one() {
        let tags = || (0..100_000).map(|_| next_tag(&mut Random::Kernel, 0x8ff, 0x800));
        assert!(tags().all(|tag| tag != 0x8ff && tag & 0x800 != 0));
        let mut fixture = bindable();
        let first = fixture.table.alloc_window(PD, false).unwrap();
        let mut bind = bind(&fixture, first, inc(first));
        fixture.table.bind(PD, QP, &bind).unwrap();
        (bind.window, bind.new_key) = (bind.new_key, Rkey(inc(bind.new_key.0)));
        fixture.table.bind(PD, QP, &bind).unwrap();
        fixture.table.free_window(first);
        let slot = (first >> TAG_BITS) as usize;
        assert_eq!(
            fixture.table.regions[slot].last_tag,
            bind.new_key.0 & TAG_MASK
        );
    }

    #[test]
    fn a_window_of_type_one_is_bound_again_and_by_no_length_closed() {
        let mut fixture = bindable();
        let first = fixture.table.alloc_window(PD, false).unwrap();
        let mut bind = bind(&fixture, first, inc(first));
        fixture.table.bind(PD, QP, &bind).unwrap();
        let other = QP + 1;
        assert_eq!(write(&fixture, inc(first), bind.va, other), Ok(()));
        (bind.window, bind.new_key, bind.length) = (bind.new_key, Rkey(inc(bind.new_key.0)), 0);
        fixture.table.bind(PD, QP, &bind).unwrap();
        assert_eq!(write(&fixture, inc(first), bind.va, QP), Err(Refused));
        assert_eq!(write(&fixture, bind.new_key.0, bind.va, QP), Err(Refused));
        fixture.table.deregister(fixture.key).unwrap();
    }

    #[test]
    fn what_a_bind_must_not_do_is_refused() {
        let mut fixture = bindable();
        let window = fixture.table.alloc_window(PD, true).unwrap();
        let good = bind(&fixture, window, inc(window));
        let read_only = fixture
            .table
            .register(PD, 0x1000, 64, 0x1000, Access::MW_BIND)
            .unwrap();
        let unbindable = fixture
            .table
            .register(PD, good.va, 16, good.va, ALL)
            .unwrap();
        for (what, bad) in [
            ("beyond the region", Bind { length: 57, ..good }),
            (
                "before the region",
                Bind {
                    va: good.va - 9,
                    ..good
                },
            ),
            (
                "wraps",
                Bind {
                    length: u64::MAX,
                    ..good
                },
            ),
            ("nothing", Bind { length: 0, ..good }),
            (
                "the same key",
                Bind {
                    new_key: Rkey(window),
                    ..good
                },
            ),
            (
                "another slot's key",
                Bind {
                    new_key: Rkey(window + 0x100),
                    ..good
                },
            ),
            (
                "a region as window",
                Bind {
                    window: Rkey(fixture.key),
                    ..good
                },
            ),
            (
                "a window as region",
                Bind {
                    region: Lkey(window),
                    ..good
                },
            ),
            (
                "a key that the window does not have",
                Bind {
                    window: Rkey(window ^ 0x100),
                    new_key: Rkey(inc(window ^ 0x100)),
                    ..good
                },
            ),
            (
                "a key that the region does not have",
                Bind {
                    region: Lkey(fixture.key ^ 1),
                    ..good
                },
            ),
            (
                "an unknown region",
                Bind {
                    region: Lkey(0),
                    ..good
                },
            ),
            (
                "no right to bind",
                Bind {
                    region: Lkey(unbindable),
                    ..good
                },
            ),
            (
                "writing what may not be written",
                Bind {
                    region: Lkey(read_only),
                    va: 0x1000,
                    ..good
                },
            ),
        ] {
            assert_eq!(fixture.table.bind(PD, QP, &bad), Err(Refused), "{what}");
        }
        assert_eq!(
            fixture.table.bind(PD + 1, QP, &good),
            Err(Refused),
            "another domain"
        );
        fixture.table.bind(PD, QP, &good).unwrap();
        let again = Bind {
            window: good.new_key,
            new_key: Rkey(inc(good.new_key.0)),
            ..good
        };
        assert_eq!(fixture.table.bind(PD, QP, &again), Err(Refused), "bound");
        fixture.table.free_window(window);
        assert_eq!(write(&fixture, good.new_key.0, good.va, QP), Err(Refused));
        fixture.table.deregister(fixture.key).unwrap();
    }

    #[test]
    fn only_a_window_is_freed_and_only_by_a_key_of_its_own() {
        let mut fixture = bindable();
        let window = fixture.table.alloc_window(PD, true).unwrap();
        let good = bind(&fixture, window, inc(window));
        fixture.table.bind(PD, QP, &good).unwrap();
        let other_slot = window ^ 1 << TAG_BITS;
        let (region, other_tag) = (fixture.key, window ^ 0x100);
        for key in [region, other_slot, other_tag, 0, u32::MAX] {
            fixture.table.free_window(key);
            assert_eq!(fixture.table.count(), 2, "{key:#x}");
            assert_eq!(write(&fixture, good.new_key.0, good.va, QP), Ok(()));
        }
        fixture.table.free_window(good.new_key.0);
        assert_eq!(fixture.table.count(), 1);
        fixture.table.free_window(window);
        assert_eq!(fixture.table.free.len(), 1, "not given back twice");
    }

    #[test]
    fn the_windows_of_a_region_are_closed_together_and_those_of_others_stay_open() {
        let mut fixture = bindable();
        let address = fixture.memory.as_ptr().addr() as u64;
        let table = &mut fixture.table;
        let other = table
            .register(PD, address + 32, 64, address + 32, ALL | Access::MW_BIND)
            .unwrap();
        let windows = [(); 3].map(|()| table.alloc_window(PD, true).unwrap());
        let binds = windows.map(|window| bind(&fixture, window, inc(window)));
        for bind in &binds[..2] {
            fixture.table.bind(PD, QP, bind).unwrap();
        }
        let region = Lkey(other);
        let third = Bind { region, ..binds[2] };
        fixture.table.bind(PD, QP, &third).unwrap();
        fixture.table.close_windows(fixture.key);
        for (index, expected) in [Err(Refused), Err(Refused), Ok(())].into_iter().enumerate() {
            let key = binds[index].new_key.0;
            assert_eq!(write(&fixture, key, third.va, QP), expected, "{index}");
        }
        fixture.table.deregister(fixture.key).unwrap();
        let refused = fixture.table.deregister(other).unwrap_err();
        assert_eq!(refused.errno(), libc::EBUSY);
    }

    #[test]
    fn no_bind_can_choose_key_zero() {
        let mut table = MemoryTable::default();
        for _ in 0..100 {
            let key = table.alloc_window(PD, false).unwrap();
            assert_ne!(key & TAG_MASK & !0xff, 0, "{key:#x}");
            assert_ne!(key & 0x800, 0, "{key:#x}");
        }
    }

    #[test]
    fn a_window_may_open_its_region_to_the_last_byte() {
        let mut fixture = bindable();
        let window = fixture.table.alloc_window(PD, true).unwrap();
        let bind = Bind {
            length: 56,
            ..bind(&fixture, window, inc(window))
        };
        fixture.table.bind(PD, QP, &bind).unwrap();
        assert_eq!(write(&fixture, inc(window), bind.va + 54, QP), Ok(()));
        assert_eq!(write(&fixture, inc(window), bind.va + 55, QP), Err(Refused));
    }

    #[test]
    fn a_window_is_bound_in_no_other_window() {
        let mut fixture = bindable();
        let outer = fixture.table.alloc_window(PD, true).unwrap();
        let inner = fixture.table.alloc_window(PD, true).unwrap();
        let open = Bind {
            access: ALL | Access::MW_BIND,
            ..bind(&fixture, outer, inc(outer))
        };
        fixture.table.bind(PD, QP, &open).unwrap();
        let nested = Bind {
            window: Rkey(inner),
            new_key: Rkey(inc(inner)),
            region: Lkey(inc(outer)),
            access: Access::REMOTE_WRITE,
            ..open
        };
        assert_eq!(fixture.table.bind(PD, QP, &nested), Err(Refused));
    }

    #[test]
    fn a_zero_based_window_counts_from_zero() {
        let mut fixture = bindable();
        let window = fixture.table.alloc_window(PD, true).unwrap();
        let bind = Bind {
            access: Access::REMOTE_WRITE | Access::ZERO_BASED,
            ..bind(&fixture, window, inc(window))
        };
        fixture.table.bind(PD, QP, &bind).unwrap();
        assert_eq!(write(&fixture, inc(window), 14, QP), Ok(()));
        assert_eq!(write(&fixture, inc(window), bind.va, QP), Err(Refused));
    }
}
