use super::*;
use proptest::prelude::*;

fn entry(depth: u8, name: &str, kind: Kind) -> Entry {
    let modified = Modified {
        seconds: -1,
        nanos: 999_999_999,
    };
    Entry {
        parent: None,
        depth,
        name: name.as_bytes().into(),
        mode: 0o644,
        modified,
        kind,
    }
}

fn file(size: u64) -> Kind {
    Kind::File(Content {
        size,
        stamp: 7,
        extents: None,
    })
}

fn sparse(size: u64, runs: &[(u64, u64)]) -> Kind {
    let mut before = 0;
    let extents = runs.iter().map(|&(offset, length)| {
        let extent = Extent {
            offset,
            length,
            before,
        };
        before = before.wrapping_add(length);
        extent
    });
    Kind::File(Content {
        size,
        stamp: 7,
        extents: Some(extents.collect()),
    })
}

fn build(entries: &[Entry]) -> Result<Manifest, ManifestError> {
    let mut builder = Builder::new(Limits::default());
    entries
        .iter()
        .try_for_each(|entry| builder.push(entry.clone()).map(drop))?;
    Ok(builder.finish())
}

fn decode(bytes: &[u8], piece: usize) -> Result<(Manifest, ManifestId), ManifestError> {
    let mut decoder = Decoder::new(Limits::default());
    bytes
        .chunks(piece)
        .try_for_each(|piece| decoder.push(piece))?;
    decoder.finish()
}

fn sample() -> Manifest {
    build(&[
        entry(0, "a", Kind::Directory),
        entry(1, "b", Kind::Directory),
        entry(2, "x\ny", file(5)),
        entry(1, "c", sparse(1 << 62, &[(0, 10), (4096, 1)])),
        entry(0, "b", Kind::Symlink(b"a/b".as_slice().into())),
        entry(0, "c", file(0)),
    ])
    .unwrap()
}

#[test]
fn a_manifest_survives_being_sent_in_pieces_of_any_size() {
    let manifest = sample();
    let bytes = manifest.encode();
    for piece in [1, 2, 7, 64, bytes.len()] {
        let (decoded, id) = decode(&bytes, piece).unwrap();
        assert_eq!((decoded, id), (manifest.clone(), manifest.id()));
    }
}

#[test]
fn a_manifest_that_ends_early_or_goes_on_is_refused() {
    let bytes = sample().encode();
    for cut in 0..bytes.len() {
        assert_eq!(decode(&bytes[..cut], 100).unwrap_err(), ManifestError::End);
    }
    let longer = [&bytes[..], b"x"].concat();
    assert_eq!(decode(&longer, 100).unwrap_err(), ManifestError::End);
    assert_eq!(decode(&longer, 1).unwrap_err(), ManifestError::End);
}

#[test]
fn paths_are_the_names_from_the_top() {
    let manifest = sample();
    assert_eq!(manifest.path(2), b"a/b/x\ny");
    assert_eq!(manifest.path(3), b"a/c");
    assert_eq!(manifest.content_bytes(), 5 + 11);
}

#[test]
fn a_name_of_unfinished_transfers_is_refused_at_every_depth() {
    for name in [".airdma-0123456789abcdef", ".AIRDMA-", ".air\u{200d}dma-x"] {
        for depth in 0..3 {
            let above = (0..depth).map(|depth| entry(depth, "a", Kind::Directory));
            let mut entries: Vec<Entry> = above.collect();
            entries.push(entry(depth, name, file(1)));
            assert_eq!(build(&entries), Err(ManifestError::Reserved), "{name:?}");
        }
    }
}

#[test]
fn names_that_are_no_names_are_refused() {
    for name in ["", ".", "..", "a/b", "/", "a\0", &"x".repeat(256)] {
        assert_eq!(
            build(&[entry(0, name, file(1))]),
            Err(ManifestError::Name),
            "{name:?}"
        );
    }
    assert!(
        build(&[
            entry(0, &"x".repeat(255), file(1)),
            entry(0, "y...", file(1))
        ])
        .is_ok()
    );
}

#[test]
fn siblings_come_in_order_and_once() {
    assert_eq!(
        build(&[entry(0, "b", file(1)), entry(0, "a", file(1))]),
        Err(ManifestError::Order)
    );
    assert_eq!(
        build(&[entry(0, "a", file(1)), entry(0, "a", Kind::Directory)]),
        Err(ManifestError::Order)
    );
    let inner = |name| entry(1, name, file(1));
    let (a, b) = (
        entry(0, "a", Kind::Directory),
        entry(0, "b", Kind::Directory),
    );
    assert!(build(&[a.clone(), inner("z"), b.clone(), inner("a")]).is_ok());
    assert_eq!(
        build(&[a.clone(), inner("z"), inner("z"), b]),
        Err(ManifestError::Order)
    );
    assert_eq!(
        build(&[a, inner("z"), entry(0, "a", Kind::Directory)]),
        Err(ManifestError::Order)
    );
}

#[test]
fn nothing_is_inside_of_a_file_or_a_link() {
    for kind in [file(1), Kind::Symlink(b"/etc".as_slice().into())] {
        assert_eq!(
            build(&[entry(0, "a", kind), entry(1, "b", file(1))]),
            Err(ManifestError::Parent)
        );
    }
    assert_eq!(build(&[entry(1, "b", file(1))]), Err(ManifestError::Parent));
    let closed = [
        entry(0, "a", Kind::Directory),
        entry(0, "b", file(1)),
        entry(1, "c", file(1)),
    ];
    assert_eq!(build(&closed), Err(ManifestError::Parent));
}

#[test]
fn sizes_that_no_file_can_have_are_refused() {
    assert_eq!(
        build(&[entry(0, "a", file(1 << 63))]),
        Err(ManifestError::Size)
    );
    let half = file(1 << 62);
    assert_eq!(
        build(&[entry(0, "a", half.clone()), entry(0, "b", half)]),
        Err(ManifestError::Size)
    );
}

#[test]
fn maps_of_holes_that_make_no_sense_are_refused() {
    for (size, runs) in [
        (10, &[(0, 11)][..]),
        (10, &[(5, 0)]),
        (10, &[(0, 5), (4, 2)]),
        (10, &[(0, 5), (5, 2)]),
        (10, &[(6, 2), (0, 2)]),
        (10, &[(u64::MAX, 2)]),
        (10, &[(2, u64::MAX)]),
    ] {
        assert_eq!(
            build(&[entry(0, "a", sparse(size, runs))]),
            Err(ManifestError::Extents),
            "{runs:?}"
        );
    }
    let many: Vec<_> = (0..=EXTENTS_MAX as u64).map(|run| (run * 2, 1)).collect();
    assert_eq!(
        build(&[entry(0, "a", sparse(1 << 20, &many))]),
        Err(ManifestError::Extents)
    );
    assert!(build(&[entry(0, "a", sparse(1 << 20, &many[1..]))]).is_ok());
}

#[test]
fn targets_attributes_and_depth_have_limits() {
    for target in [&b""[..], b"a\0b", &[b'x'; 4096]] {
        assert_eq!(
            build(&[entry(0, "a", Kind::Symlink(target.into()))]),
            Err(ManifestError::Target)
        );
    }
    let nanos = Entry {
        modified: Modified {
            seconds: 0,
            nanos: 1_000_000_000,
        },
        ..entry(0, "a", file(1))
    };
    assert_eq!(build(&[nanos]), Err(ManifestError::Attributes));
    assert_eq!(
        build(&[Entry {
            mode: 0o10000,
            ..entry(0, "a", file(1))
        }]),
        Err(ManifestError::Attributes)
    );
    let deep: Vec<_> = (0..=101)
        .map(|depth| entry(depth, "d", Kind::Directory))
        .collect();
    assert!(build(&deep[..101]).is_ok());
    assert_eq!(build(&deep), Err(ManifestError::Depth));
}

#[test]
fn more_than_the_limits_is_refused_as_it_comes() {
    let limits = Limits {
        entries_max: 3,
        bytes_max: 1 << 20,
        depth_max: 1,
    };
    let mut decoder = Decoder::new(limits);
    let bytes = sample().encode();
    assert_eq!(decoder.push(&bytes), Err(ManifestError::Depth));
    assert_eq!(decoder.push(b"more"), Err(ManifestError::Depth));
    assert_eq!(decoder.finish().unwrap_err(), ManifestError::Depth);
    let mut decoder = Decoder::new(Limits {
        entries_max: 5,
        ..Limits::default()
    });
    assert_eq!(decoder.push(&bytes), Err(ManifestError::TooMany));
    let mut decoder = Decoder::new(Limits {
        bytes_max: 60,
        ..Limits::default()
    });
    assert_eq!(decoder.push(&bytes), Err(ManifestError::TooMany));
}

#[test]
fn data_is_found_behind_holes() {
    let Kind::File(content) = sparse(100, &[(10, 5), (50, 50)]) else {
        unreachable!()
    };
    assert_eq!(content.data_bytes(), 55);
    assert_eq!(content.locate(0), (10, 5));
    assert_eq!(content.locate(4), (14, 1));
    assert_eq!(content.locate(5), (50, 50));
    assert_eq!(content.locate(54), (99, 1));
}

proptest! {
    #[test]
    fn any_bytes_are_refused_or_mean_what_they_are_encoded_as(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        check(&bytes);
    }

    #[test]
    fn a_damaged_manifest_is_refused_or_is_another(at in 0_usize..200, flip in 1_u8.., cut in 0_usize..400) {
        let mut bytes = sample().encode();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        bytes.truncate(cut.max(at + 1));
        check(&bytes);
    }
}

fn check(bytes: &[u8]) {
    if let Ok((manifest, id)) = decode(bytes, 50) {
        assert_eq!(manifest.encode(), bytes);
        assert_eq!(manifest.id(), id);
    }
}

#[test]
fn what_is_too_much_is_said_with_the_limit() {
    let limits = Limits::default();
    let (many, deep) = (ManifestError::TooMany, ManifestError::Depth);
    for (error, number) in [
        (many, u64::from(limits.entries_max)),
        (many, limits.bytes_max >> 20),
        (deep, u64::from(limits.depth_max)),
    ] {
        let said = error.to_string();
        assert!(said.contains(&format!(" {number} ")), "{said}");
    }
}
