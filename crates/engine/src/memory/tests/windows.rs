//! Memory windows.

use super::*;
use airdma_transport::Bind;
use airdma_wire::{Lkey, Rkey};

const QP: Serial = 0x21;

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

fn write(fixture: &Fixture, key: u32, va: u64, qp: Serial) -> Result<(), Refused> {
    let place = Place {
        pd: PD,
        key,
        va,
        qp,
    };
    fixture.table.write(place, Access::REMOTE_WRITE, b"in")
}

#[test]
fn a_window_opens_its_part_to_its_queue_pair_until_invalidated() {
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
            "bits that are not its to choose",
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
        fixture.table.bind(OTHER_PD, QP, &good),
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
    let (region, other) = (fixture.key, window ^ 0x100);
    for key in [region, other, window ^ 1 << 31, 0, u32::MAX] {
        fixture.table.free_window(key);
        assert_eq!(fixture.table.count(), 2, "{key:#x}");
        assert_eq!(write(&fixture, good.new_key.0, good.va, QP), Ok(()));
    }
    fixture.table.free_window(good.new_key.0);
    assert_eq!(fixture.table.count(), 1);
    fixture.table.free_window(window);
    assert_eq!(fixture.table.count(), 1, "not given back twice");
}

#[test]
fn closing_a_regions_windows_leaves_those_of_others_open() {
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
    // The first number that it draws is 0x5a.
    let mut table = MemoryTable::new(Random::Seeded(0x47d0_01e5_045f_b46a));
    let key = table.alloc_window(PD, false).unwrap();
    assert_ne!(key & !0xff, 0, "{key:#x}");
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
