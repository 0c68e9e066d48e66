//! The list of files that a sender offers: whatever the bytes are, and however they are cut into
//! pieces.

use airdma_files::manifest::{Content, Decoder, Kind};
use airdma_files::{Limits, Manifest, Plan, Unwanted};

const LIMITS: Limits = Limits {
    entries_max: 100,
    bytes_max: 10_000,
    depth_max: 5,
};

/// First bytes of an encoded manifest.
const HEADER: &[u8] = b"airdma-m\x01";

/// The first byte chooses the pieces. The rest is a manifest as it is, and one without its
/// beginning.
pub fn run(data: &[u8]) {
    let Some((&piece, rest)) = data.split_first() else {
        return;
    };
    check(rest, usize::from(piece));
    check(&[HEADER, rest].concat(), usize::from(piece));
}

fn check(bytes: &[u8], piece: usize) {
    let whole = decode(bytes, bytes.len().max(1));
    assert_eq!(decode(bytes, piece.max(1)), whole);
    let Some(manifest) = whole else { return };
    assert_eq!(manifest.encode(), bytes);
    assert_eq!(manifest.id().0, *blake3::hash(bytes).as_bytes());
    assert!(manifest.entries().len() <= LIMITS.entries_max as usize);
    for (index, entry) in manifest.iter() {
        assert!(entry.depth <= LIMITS.depth_max);
        let path = manifest.path(index);
        let names: Vec<_> = path.split(|&byte| byte == b'/').collect();
        assert_eq!(names.len(), usize::from(entry.depth) + 1);
        assert!(
            names
                .iter()
                .all(|name| ![&b""[..], b".", b".."].contains(name))
        );
        assert!(entry.parent.is_none_or(|parent| parent < index));
        if let Kind::File(content) = &entry.kind {
            check_content(content);
        }
    }
    check_plan(&manifest);
}

fn decode(bytes: &[u8], piece: usize) -> Option<Manifest> {
    let mut decoder = Decoder::new(LIMITS);
    for piece in bytes.chunks(piece) {
        if let Err(error) = decoder.push(piece) {
            assert_eq!(decoder.push(b"more"), Err(error), "an error stays");
            return None;
        }
    }
    decoder.finish().ok().map(|(manifest, _)| manifest)
}

/// Each byte of data lies in the file, and later ones lie later.
fn check_content(content: &Content) {
    let mut at = 0;
    let mut free_from = 0;
    while at < content.data_bytes() {
        let (offset, run) = content.locate(at);
        assert!(run > 0 && offset >= free_from && offset + run <= content.size);
        (at, free_from) = (at + run, offset + run);
    }
    assert_eq!(at, content.data_bytes());
}

fn check_plan(manifest: &Manifest) {
    let plan = Plan::new(manifest, &Unwanted::default());
    for chunk in [
        0,
        1,
        plan.chunks() / 2,
        plan.chunks().saturating_sub(1),
        plan.chunks(),
        u64::MAX,
    ] {
        let bytes: usize = plan
            .pieces(chunk)
            .take(1000)
            .map(|piece| piece.length)
            .sum();
        assert_eq!(bytes, plan.chunk_bytes(chunk));
    }
}
