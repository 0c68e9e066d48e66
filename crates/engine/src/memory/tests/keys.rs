//! What a peer that was given some keys knows of the others.

use super::*;

/// Fresh tables, each with two regions.
fn pairs(tables: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..tables).map(|_| {
        let mut table = MemoryTable::default();
        (
            table.register_empty(PD).unwrap(),
            table.register_empty(PD).unwrap(),
        )
    })
}

#[test]
fn no_bit_of_a_key_follows_from_the_key_before() {
    const TABLES: u32 = 1000;
    let mut set = [(0u32, 0u32); 32];
    for (first, second) in pairs(TABLES) {
        for (bit, (alone, beside)) in set.iter_mut().enumerate() {
            *alone += first >> bit & 1;
            *beside += (first ^ second) >> bit & 1;
        }
    }
    // Ten standard deviations.
    let fair = TABLES / 2 - 160..TABLES / 2 + 160;
    for (bit, (alone, beside)) in set.into_iter().enumerate() {
        assert!(fair.contains(&alone), "bit {bit} is set {alone} times");
        assert!(fair.contains(&beside), "bit {bit} differs {beside} times");
    }
}

#[test]
fn a_key_does_not_reveal_the_next_ones_in_twelve_bits() {
    let mut fixture = Fixture::new(ALL, |_| 0);
    let address = fixture.memory.as_ptr().expose_provenance() as u64;
    let secret = fixture.table.register(PD, address, 128, 0, ALL).unwrap();
    let slot = (fixture.key >> 12) + 1;
    let hits = (0..1 << 12).map(|tag| slot << 12 | tag).filter(|&key| {
        let place = Place {
            key,
            ..fixture.place(0)
        };
        fixture.table.check(place, 1, RemoteAccess::Write).is_ok()
    });
    assert_eq!(hits.count(), 0, "{secret:#x}");
}

#[test]
fn regions_keep_their_keys_while_the_table_grows() {
    let mut fixture = Fixture::new(ALL | Access::MW_BIND, |_| 0);
    let first = fixture.key;
    let window = fixture.table.alloc_window(PD, false).unwrap();
    let bind = airdma_transport::Bind {
        window: airdma_wire::Rkey(window),
        new_key: airdma_wire::Rkey(window ^ 1),
        region: airdma_wire::Lkey(first),
        va: 0,
        length: 8,
        access: Access::REMOTE_READ,
    };
    fixture.table.bind(PD, 7, &bind).unwrap();
    let keys: Vec<_> = (0..1000)
        .map(|_| fixture.table.register_empty(PD).unwrap())
        .collect();
    assert_eq!(fixture.table.count(), 1002);
    fixture
        .table
        .write(fixture.place(0), Access::REMOTE_WRITE, &[1])
        .unwrap();
    let busy = fixture.table.deregister(first).unwrap_err();
    assert_eq!(busy.errno(), libc::EBUSY);
    fixture.table.free_window(window ^ 1);
    for key in keys.into_iter().chain([first]) {
        fixture.table.deregister(key).unwrap();
    }
    assert_eq!(fixture.table.count(), 0);
}
