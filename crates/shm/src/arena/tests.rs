#![allow(clippy::unwrap_used)]

use std::fs::File;
use std::os::fd::FromRawFd;
use std::os::unix::fs::MetadataExt;

use super::*;

fn bytes_of(block: &Block) -> Vec<u8> {
    let mut bytes = vec![0; block.len()];
    // SAFETY: all of the block is mapped, and no thread writes to it now.
    unsafe {
        block
            .ptr()
            .as_ptr()
            .copy_to_nonoverlapping(bytes.as_mut_ptr(), block.len())
    };
    bytes
}

fn fill(block: &Block, value: u8) {
    // SAFETY: all of the block is mapped, and no other thread uses it now.
    unsafe { block.ptr().write_bytes(value, block.len()) };
}

fn range(block: &Block) -> std::ops::Range<usize> {
    let start = block.ptr().addr().get();
    start..start + block.len()
}

/// Bytes that the system holds for the block's memfd.
fn resident(block: &Block) -> u64 {
    let file = File::from(block.fd().try_clone_to_owned().unwrap());
    file.metadata().unwrap().blocks() * 512
}

#[test]
fn blocks_are_zeroed_aligned_and_apart() {
    let arena = Arena::new();
    let blocks: Vec<_> = [
        (1, 1),
        (127, 8),
        (128, 128),
        (129, 4096),
        (4096, 4096),
        (7, 64),
    ]
    .map(|(bytes, align)| {
        let block = arena.alloc(bytes, align).unwrap();
        assert_eq!(block.len(), bytes);
        assert!(
            block
                .ptr()
                .addr()
                .get()
                .is_multiple_of(align.max(BLOCK_ALIGN_MIN))
        );
        block
    })
    .into();
    for (n, block) in blocks.iter().enumerate() {
        assert!(bytes_of(block).iter().all(|&byte| byte == 0));
        fill(block, n as u8 + 1);
    }
    for (n, block) in blocks.iter().enumerate() {
        assert!(bytes_of(block).iter().all(|&byte| byte == n as u8 + 1));
    }
    assert_eq!(arena.mapped_bytes(), CHUNK_BYTES_MIN);
}

#[test]
fn a_dropped_block_is_used_again_and_is_zero_again() {
    let arena = Arena::new();
    let _neighbour = arena.alloc(100, 1).unwrap();
    let block = arena.alloc(1000, 1).unwrap();
    fill(&block, 0xff);
    let place = range(&block);
    drop(block);
    let again = arena.alloc(1000, 1).unwrap();
    assert_eq!(range(&again), place);
    assert!(bytes_of(&again).iter().all(|&byte| byte == 0));
}

#[test]
fn neighbours_that_are_dropped_become_one_range() {
    let arena = Arena::new();
    let blocks: Vec<_> = (0..16)
        .map(|_| arena.alloc(CHUNK_BYTES_MIN / 16, 1).unwrap())
        .collect();
    assert_eq!(arena.mapped_bytes(), CHUNK_BYTES_MIN);
    let (keep, drop_these): (Vec<_>, Vec<_>) =
        blocks.into_iter().enumerate().partition(|(n, _)| *n >= 8);
    // The odd ones are dropped first, so that each even one joins two free ranges.
    let (odd, even): (Vec<_>, Vec<_>) = drop_these.into_iter().partition(|(n, _)| n % 2 == 1);
    drop(odd);
    drop(even);
    let half = arena.alloc(CHUNK_BYTES_MIN / 2, 1).unwrap();
    assert_eq!(arena.mapped_bytes(), CHUNK_BYTES_MIN);
    assert_eq!(range(&half).end, range(&keep[0].1).start);
}

#[test]
fn ranges_are_cut_at_the_alignment_and_merged_again() {
    let mut extents = Extents::all_free(1000);
    assert_eq!(extents.take(100, 1), Some(0));
    assert_eq!(extents.take(100, 256), Some(256));
    assert_eq!(
        extents.take(156, 1),
        Some(100),
        "the gap before an aligned range is used"
    );
    assert_eq!(extents.take(640, 512), None, "no room behind the alignment");
    assert_eq!(extents.take(644, 1), Some(356));
    assert_eq!(extents.take(1, 1), None);
    for (start, len) in [(100, 156), (356, 644), (0, 100)] {
        extents.give(start, len);
        assert!(!extents.is_all_free());
    }
    extents.give(256, 100);
    assert!(extents.is_all_free());
}

#[test]
fn a_big_block_has_its_own_chunk_which_goes_with_it() {
    let arena = Arena::new();
    let small = arena.alloc(64, 1).unwrap();
    let big = arena.alloc(100 << 20, 4096).unwrap();
    assert_eq!(arena.mapped_bytes(), CHUNK_BYTES_MIN + (100 << 20));
    assert!(!Arc::ptr_eq(&big.mapping, &small.mapping));
    fill(&big, 1);
    drop(big);
    assert_eq!(arena.mapped_bytes(), CHUNK_BYTES_MIN);
}

#[test]
fn pages_of_a_dropped_block_go_back_to_the_system() {
    let arena = Arena::new();
    let small = arena.alloc(1, 1).unwrap();
    fill(&small, 1);
    let block = arena.alloc(512 << 10, 1).unwrap();
    fill(&block, 1);
    assert!(resident(&small) >= 512 << 10);
    let place = range(&block);
    drop(block);
    assert!(
        resident(&small) <= 16 << 10,
        "still holds {}",
        resident(&small)
    );
    assert_eq!(bytes_of(&small), [1]);
    let again = arena.alloc(512 << 10, 1).unwrap();
    assert_eq!(range(&again), place);
    assert!(bytes_of(&again).iter().all(|&byte| byte == 0));
}

#[test]
fn one_empty_chunk_is_kept_and_the_others_unmapped() {
    let arena = Arena::new();
    let blocks: Vec<_> = (0..200)
        .map(|_| arena.alloc(900 << 10, 1).unwrap())
        .collect();
    assert!(arena.mapped_bytes() >= 200 * (900 << 10));
    let mut chunks = 0;
    arena.for_each_chunk(|_, _| chunks += 1);
    assert!(chunks <= 10, "{chunks} descriptors for 200 blocks");
    drop(blocks);
    assert!(arena.mapped_bytes() <= CHUNK_BYTES_MAX);
    assert_eq!(Arc::strong_count(&arena.shared), 1);
}

#[test]
fn random_allocation_never_overlaps_and_ends_empty() {
    let arena = Arena::new();
    let mut live: Vec<(Block, u8)> = Vec::new();
    // xorshift64, fixed seed.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = move |below: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state % below) as usize
    };
    for round in 0..2000_usize {
        if random(5) < 3 && live.len() < 100 {
            let bytes = if random(20) == 0 {
                1 + random(3 << 20)
            } else {
                1 + random(20_000)
            };
            let block = arena.alloc(bytes, 1 << random(13)).unwrap();
            assert!(
                bytes_of(&block).iter().all(|&byte| byte == 0),
                "round {round}"
            );
            fill(&block, round as u8 | 1);
            live.push((block, round as u8 | 1));
        } else if !live.is_empty() {
            let (block, value) = live.swap_remove(random(live.len() as u64));
            assert!(
                bytes_of(&block).iter().all(|&byte| byte == value),
                "round {round}"
            );
        }
    }
    drop(live);
    assert!(arena.mapped_bytes() <= CHUNK_BYTES_MAX);
    assert!(
        arena
            .shared
            .lock()
            .iter()
            .all(|chunk| chunk.extents.is_all_free())
    );
}

#[test]
fn blocks_outlive_the_arena_and_cross_threads() {
    let arena = Arena::new();
    let block = arena.alloc(64, 1).unwrap();
    drop(arena);
    let block = std::thread::spawn(move || {
        fill(&block, 3);
        block
    });
    assert_eq!(bytes_of(&block.join().unwrap()), [3; 64]);
}

#[test]
fn another_mapping_sees_the_same_bytes() {
    let arena = Arena::new();
    let _before = arena.alloc(5000, 1).unwrap();
    let block = arena.alloc(10_000, 1).unwrap();
    assert!(!block.offset().is_multiple_of(4096));
    let there = Block::map(
        block.fd().try_clone_to_owned().unwrap(),
        block.offset(),
        block.len(),
    )
    .unwrap();
    assert_ne!(range(&there), range(&block));
    fill(&block, 7);
    assert!(bytes_of(&there).iter().all(|&byte| byte == 7));
    drop(block);
    assert!(
        bytes_of(&there).iter().all(|&byte| byte == 0),
        "freed memory is zeroed for all"
    );
}

#[test]
fn memory_that_can_be_cut_off_is_not_mapped() {
    // SAFETY: a C string; the descriptor is new and only ours.
    let unsealed = unsafe {
        let fd = libc::memfd_create(
            c"unsealed".as_ptr(),
            libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING,
        );
        assert!(fd >= 0);
        OwnedFd::from_raw_fd(fd)
    };
    let file = File::from(unsealed);
    file.set_len(8192).unwrap();
    assert!(
        Block::map(file.into(), 0, 4096).is_err(),
        "a memfd without seals"
    );
    assert!(
        Block::map(File::open("/dev/zero").unwrap().into(), 0, 4096).is_err(),
        "no memfd at all"
    );

    let block = Arena::new().alloc(128, 1).unwrap();
    let fd = || block.fd().try_clone_to_owned().unwrap();
    assert!(
        File::from(fd()).set_len(4096).is_err(),
        "the size of our own is sealed"
    );
    for (offset, len) in [
        (0, CHUNK_BYTES_MIN + 1),
        (CHUNK_BYTES_MIN as u64, 1),
        (u64::MAX - 127, 1),
        (128, CHUNK_BYTES_MIN),
        (128, usize::MAX),
        (64, 64),
        (0, 0),
    ] {
        assert!(
            Block::map(fd(), offset, len).is_err(),
            "{len} bytes at {offset}"
        );
    }
    assert!(Block::map(fd(), 128, CHUNK_BYTES_MIN - 128).is_ok());
}

#[test]
fn impossible_requests_are_the_callers_error() {
    let arena = Arena::new();
    for (bytes, align) in [(0, 1), (1, 0), (1, 3), (1, 1 << 20), (usize::MAX, 1)] {
        let error = arena.alloc(bytes, align).map(|_| ()).unwrap_err();
        assert_eq!(
            error.kind(),
            io::ErrorKind::InvalidInput,
            "{bytes} at {align}"
        );
    }
    assert!(
        arena.alloc(isize::MAX as usize / 4, 1).is_err(),
        "more than there is"
    );
    assert_eq!(arena.mapped_bytes(), 0);
}

#[test]
fn a_forked_child_neither_reuses_nor_clears_its_parents_memory() {
    let arena = Arena::new();
    let block = arena.alloc(100_000, 1).unwrap();
    fill(&block, 5);
    // SAFETY: the child only allocates, drops and leaves through _exit; the C library makes malloc
    // work after fork.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        let own = arena.alloc(100_000, 1);
        let apart = own
            .as_ref()
            .is_ok_and(|own| !Arc::ptr_eq(&own.mapping, &block.mapping) && own.mapping.is_ours());
        if let Ok(own) = &own {
            fill(own, 9);
        }
        drop(block);
        // SAFETY: leaves at once, without running anything of the test harness.
        unsafe { libc::_exit(if apart { 0 } else { 1 }) };
    }
    let mut status = -1;
    // SAFETY: our own child, and a place for its status.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0, "the child got memory of its own");
    assert!(
        bytes_of(&block).iter().all(|&byte| byte == 5),
        "the parent's memory is untouched"
    );
}
