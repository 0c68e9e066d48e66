#![allow(clippy::unwrap_used)]

mod keys;
mod on_demand;
mod windows;

use super::*;
use airdma_transport::{AtomicOperation, RemoteAccess};
use std::ptr;

const PD: PdIndex = PdIndex::new(3);
const OTHER_PD: PdIndex = PdIndex::new(4);
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
fn the_end_of_a_message_is_placed_at_any_address_and_length() {
    for start in 0..16usize {
        for length in 0..=40usize {
            let fixture = Fixture::new(ALL, |_| 0);
            let data: Vec<u8> = (1..=length as u8).collect();
            let written =
                fixture
                    .table
                    .write_last(fixture.place(start as u64), Access::REMOTE_WRITE, &data);
            assert_eq!(written, Ok(()));
            let mut expected = [0x11; 64];
            expected[start..start + length].copy_from_slice(&data);
            let mut seen = [0; 64];
            let place = fixture.place(0);
            (fixture.table.read(place, Access::REMOTE_READ, &mut seen)).unwrap();
            assert_eq!(seen, expected, "{length} bytes at {start}");
        }
    }
    let fixture = Fixture::new(ALL, |_| 0);
    let beyond = (fixture.table).write_last(fixture.place(56), Access::REMOTE_WRITE, &[7; 9]);
    assert_eq!(beyond, Err(Refused));
    assert!(fixture.is_untouched());
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
                pd: OTHER_PD,
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
fn a_key_dies_with_its_region_and_the_next_gets_another() {
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
        pd: PdIndex::NONE,
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
fn a_null_region_reads_as_zeros_and_is_not_for_peers() {
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

#[test]
fn a_full_table_takes_no_more_until_a_key_is_given_back() {
    let mut table = MemoryTable::default();
    let keys: Vec<_> = (0..LIMITS.max_mr)
        .map(|_| table.register_empty(PD).unwrap())
        .collect();
    let refused = table.register_empty(PD).unwrap_err();
    assert_eq!(refused.errno(), libc::ENOMEM);
    assert_eq!(table.count(), LIMITS.max_mr as usize);
    table.deregister(keys[0]).unwrap();
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
fn a_reregistered_region_keeps_only_its_key() {
    let mut fixture = Fixture::new(ALL, |address| address);
    let (address, key) = (fixture.memory.as_ptr().addr() as u64, fixture.key);
    let change = RegionChange {
        translation: Some((address, 16)),
        access: Some(Access::LOCAL_WRITE),
    };
    fixture.table.reregister(key, OTHER_PD, &change).unwrap();
    let place = |pd, va| Place {
        pd,
        key,
        va,
        qp: OURSELVES,
    };
    let read = |place, right| fixture.table.read(place, right, &mut [0; 16]);
    assert_eq!(read(place(OTHER_PD, address), Access::empty()), Ok(()));
    assert_eq!(read(place(PD, address), Access::empty()), Err(Refused));
    assert_eq!(
        read(place(OTHER_PD, address), Access::REMOTE_READ),
        Err(Refused)
    );
    assert_eq!(
        read(place(OTHER_PD, address + 32), Access::empty()),
        Err(Refused)
    );
    let bad = RegionChange {
        access: Some(Access::REMOTE_WRITE),
        ..RegionChange::default()
    };
    let refused = fixture.table.reregister(key, OTHER_PD, &bad);
    assert_eq!(refused.unwrap_err().errno(), libc::EINVAL);
}

#[test]
fn elements_have_one_span_whatever_region_names_them() {
    let mut fixture = Fixture::new(ALL, |_| 0x10_0000);
    let address = fixture.memory.as_ptr().addr() as u64;
    let sge = |lkey, addr, length| Sge { addr, length, lkey };
    let table = &mut fixture.table;
    let whole = table
        .register(PD, address, 128, 77, ALL | Access::ZERO_BASED)
        .unwrap();
    let span = (address + 40, address + 50);
    assert_eq!(
        table.span(PD, &sge(fixture.key, 0x10_0008, 10)),
        Ok(Some(span))
    );
    assert_eq!(table.span(PD, &sge(whole, 40, 10)), Ok(Some(span)));
    assert_eq!(table.span(PD, &sge(whole, 120, 9)), Err(Refused));
    assert_eq!(table.span(PD, &sge(0, 40, 0)), Ok(None));
    let null = table.register_null(PD).unwrap();
    assert_eq!(table.span(PD, &sge(null, 40, 10)), Ok(None));
    assert_eq!(table.span(OTHER_PD, &sge(null, 40, 10)), Err(Refused));
}

/// As UCX 1.23 asks a device that gave it no key for that; it hangs if it is refused.
#[test]
fn a_read_that_flushes_gets_zeros_and_nothing_else_does() {
    let fixture = Fixture::new(ALL, |address| address);
    let flush = Place {
        pd: PD,
        key: 0xff,
        va: 0,
        qp: 7,
    };
    let mut out = [0x11; 8];
    let read = fixture.table.read(flush, Access::REMOTE_READ, &mut out);
    assert_eq!((read, out), (Ok(()), [0; 8]));
    assert_eq!(fixture.table.check(flush, 8, RemoteAccess::Read), Ok(()));
    for access in [RemoteAccess::Write, RemoteAccess::Atomic] {
        assert!(fixture.table.check(flush, 8, access).is_err(), "{access:?}");
    }
    assert!(fixture.table.check(flush, 9, RemoteAccess::Read).is_err());
    for other in [
        Place { va: 1, ..flush },
        Place { key: 0xfe, ..flush },
        Place {
            qp: OURSELVES,
            ..flush
        },
    ] {
        assert!(fixture.table.check(other, 8, RemoteAccess::Read).is_err());
    }
    assert!(fixture.is_untouched());
}
