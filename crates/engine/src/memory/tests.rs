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
        fixture.table.deregister(old);
        fixture.table.deregister(old);
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
}
