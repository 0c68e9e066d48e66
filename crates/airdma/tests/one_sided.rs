//! One-sided operations on the other side's memory.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::{Blame, Remote, Rights};
use common::*;
use std::time::{Duration, Instant};

#[test]
fn writes_and_reads_reach_the_peers_region() {
    isolated("writes_and_reads_reach_the_peers_region", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let shared = there
            .allocate(200_000)
            .unwrap()
            .share(Rights::READ | Rights::WRITE)
            .unwrap();
        let remote = Remote::from_bytes(&shared.remote(&right).unwrap().to_bytes()).unwrap();
        assert_eq!(remote.len(), 200_000);

        let bytes = pattern(150_000, 9);
        let region = left
            .write(filled(&here, &bytes), .., &remote, 1000)
            .wait()
            .unwrap();
        let mut seen = vec![0; 150_000];
        shared.copy_out(1000, &mut seen).unwrap();
        assert!(seen == bytes);

        shared.copy_in(0, b"from the owner").unwrap();
        let region = left.read(region, 10..24, &remote, 0).wait().unwrap();
        assert_eq!(&region[10..24], b"from the owner");
        assert_eq!(region[..10], bytes[..10]);
        assert_eq!(region[24..], bytes[24..]);
        // Zero bytes are allowed, too.
        left.write(region, ..0, &remote, 200_000).wait().unwrap();
        assert_eq!(&shared.withdraw()[..14], b"from the owner");
    });
}

#[test]
fn shared_bytes_are_copied_at_any_offset_and_length() {
    isolated(
        "shared_bytes_are_copied_at_any_offset_and_length",
        "",
        || {
            let device = airdma::Device::open("lo").unwrap();
            let shared = device.allocate(64).unwrap().share(Rights::READ).unwrap();
            let mut expected = [0; 64];
            for (round, (start, length)) in (0..20)
                .flat_map(|start| (0..40).map(move |length| (start, length)))
                .enumerate()
            {
                let bytes = pattern(length, round as u8);
                expected[start..start + length].copy_from_slice(&bytes);
                shared.copy_in(start, &bytes).unwrap();
                let mut copy = vec![0; length];
                shared.copy_out(start, &mut copy).unwrap();
                assert_eq!(copy, bytes, "{length} bytes at {start}");
            }
            assert_eq!(shared.withdraw()[..], expected);
        },
    );
}

#[test]
fn many_threads_add_to_one_word_and_none_is_lost() {
    isolated("many_threads_add_to_one_word_and_none_is_lost", "", || {
        let Pair {
            there, left, right, ..
        } = pair();
        let shared = there.allocate(64).unwrap().share(Rights::ATOMIC).unwrap();
        let remote = shared.remote(&right).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let adding: Vec<_> = (0..200).map(|_| left.fetch_add(&remote, 8, 3)).collect();
                    for operation in adding {
                        assert!(operation.wait().unwrap().is_multiple_of(3));
                    }
                });
            }
        });
        assert_eq!(shared.word(8).unwrap(), 4 * 200 * 3);
        assert_eq!(left.compare_swap(&remote, 8, 1, 5).wait().unwrap(), 2400);
        assert_eq!(left.compare_swap(&remote, 8, 2400, 5).wait().unwrap(), 2400);
        assert_eq!(shared.word(8).unwrap(), 5);
        assert_eq!(shared.word(4).unwrap_err().blame(), Blame::You);
        assert_eq!(shared.word(64).unwrap_err().blame(), Blame::You);
    });
}

#[test]
fn caller_errors_are_found_locally_and_the_connection_survives() {
    isolated(
        "caller_errors_are_found_locally_and_the_connection_survives",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let shared = there.allocate(64).unwrap().share(Rights::all()).unwrap();
            let remote = shared.remote(&right).unwrap();
            let region = || here.allocate(32).unwrap();
            for error in [
                left.write(region(), .., &remote, 33).wait().unwrap_err(),
                left.read(region(), .., &remote, u64::MAX)
                    .wait()
                    .unwrap_err(),
                left.fetch_add(&remote, 4, 1)
                    .wait()
                    .map(|_| ())
                    .unwrap_err(),
                left.fetch_add(&remote, 64, 1)
                    .wait()
                    .map(|_| ())
                    .unwrap_err(),
                Remote::from_bytes(b"rubbish").map(|_| ()).unwrap_err(),
                Remote::from_bytes(&[0; Remote::BYTES])
                    .map(|_| ())
                    .unwrap_err(),
            ] {
                assert_eq!(error.blame(), Blame::You, "{error}");
            }
            left.write(region(), .., &remote, 32).wait().unwrap();
        },
    );
}

#[test]
fn a_peer_does_only_what_it_was_given_the_right_to() {
    isolated(
        "a_peer_does_only_what_it_was_given_the_right_to",
        "",
        || {
            let forbidden = |rights: Rights, withdraw: bool, what: &str| {
                let Pair {
                    here,
                    there,
                    left,
                    right,
                } = pair();
                let shared = there.allocate(64).unwrap().share(rights).unwrap();
                let remote = shared.remote(&right).unwrap();
                let receiving = right.recv(there.allocate(8).unwrap(), ..);
                let withdrawn = withdraw.then(|| shared.withdraw());
                let region = filled(&here, b"8 bytes!");
                let error = match what {
                    "write" => left.write(region, .., &remote, 0).wait().map(|_| ()),
                    "read" => left.read(region, .., &remote, 0).wait().map(|_| ()),
                    _ => left.fetch_add(&remote, 0, 1).wait().map(|_| ()),
                }
                .unwrap_err();
                assert_eq!(
                    error.blame(),
                    Blame::Peer,
                    "{what} with {rights:?}: {error}"
                );
                assert!(error.to_string().contains("does not allow"), "{error}");
                let error = receiving.wait().unwrap_err();
                assert_eq!(error.blame(), Blame::Peer, "{error}");
                if let Some(region) = withdrawn {
                    assert_eq!(region[..], [0; 64]);
                }
            };
            forbidden(Rights::READ, false, "write");
            forbidden(Rights::WRITE, false, "read");
            forbidden(Rights::READ | Rights::WRITE, false, "add");
            forbidden(Rights::all(), true, "write");
        },
    );
}

#[test]
fn dropped_memory_is_not_touched_by_a_peers_write() {
    let test = "dropped_memory_is_not_touched_by_a_peers_write";
    isolated(test, "", || {
        const PART: usize = 1 << 20;
        for _ in 0..5 {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let shared = there.allocate(8 * PART).unwrap().share(Rights::WRITE);
            let shared = shared.unwrap();
            let remote = shared.remote(&right).unwrap();
            let write =
                |part| left.write(filled(&here, &[1; PART]), .., &remote, part * PART as u64);
            let writes: Vec<_> = (0..8).map(write).collect();
            let start = std::time::Instant::now();
            while shared.word(0).unwrap() == 0 {
                assert!(start.elapsed() < PATIENCE, "nothing arrives");
            }
            drop(shared);
            // The writes were done before, or are refused: this program survives.
            for write in writes {
                let _ = write.wait();
            }
            drop(right);
        }
    });
}

#[test]
fn a_key_given_to_one_peer_opens_nothing_to_another() {
    isolated(
        "a_key_given_to_one_peer_opens_nothing_to_another",
        "",
        || {
            let there = airdma::Device::open("127.0.0.1").unwrap();
            let listener = there.listen(PORT).unwrap();
            let meet = || {
                let device = airdma::Device::open("127.0.0.1").unwrap();
                let (connected, accepted) = std::thread::scope(|scope| {
                    let accepting = scope.spawn(|| listener.accept().wait().unwrap());
                    let connected = device.connect(("127.0.0.1", PORT)).wait().unwrap();
                    (connected, accepting.join().unwrap())
                });
                (device, connected, accepted)
            };
            let (friend, from_friend, to_friend) = meet();
            let shared = there.allocate(64).unwrap().share(Rights::all()).unwrap();
            let remote = shared.remote(&to_friend).unwrap();
            for what in ["write", "read", "add"] {
                let (device, from_stranger, to_stranger) = meet();
                // It does not matter that this end has a key, too.
                assert_ne!(shared.remote(&to_stranger).unwrap(), remote);
                let region = filled(&device, b"8 bytes!");
                let attacked = match what {
                    "write" => from_stranger.write(region, .., &remote, 0).wait().map(drop),
                    "read" => from_stranger.read(region, .., &remote, 0).wait().map(drop),
                    _ => from_stranger.fetch_add(&remote, 0, 1).wait().map(drop),
                };
                let error = attacked.expect_err(what);
                assert_eq!(error.blame(), Blame::Peer, "{what}: {error}");
                assert!(
                    error.to_string().contains("does not allow"),
                    "{what}: {error}"
                );
                assert_eq!(shared.word(0).unwrap(), 0, "{what}");
            }
            // The peer that got the key is not affected.
            from_friend
                .write(filled(&friend, b"8 bytes!"), .., &remote, 0)
                .wait()
                .unwrap();
            assert_eq!(shared.word(0).unwrap(), u64::from_ne_bytes(*b"8 bytes!"));
            drop(to_friend);
        },
    );
}

/// Offset of an address in its mapped file (`proc_pid_maps(5)`).
fn place_in_file(address: u64) -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let hex = |text: &str| u64::from_str_radix(text, 16).unwrap();
    let place = |line: &str| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let offset = words.nth(1)?;
        (hex(start)..hex(end))
            .contains(&address)
            .then(|| hex(offset) + address - hex(start))
    };
    maps.lines().find_map(place).unwrap()
}

/// The file only grows, and a process with a file size limit (RLIMIT_FSIZE) is killed at it
/// (SIGXFSZ).
#[test]
fn connections_of_strangers_do_not_make_the_memory_file_longer() {
    isolated(
        "connections_of_strangers_do_not_make_the_memory_file_longer",
        "",
        || {
            let there = airdma::Device::open("127.0.0.1").unwrap();
            let listener = there.listen(PORT).unwrap();
            let place = || place_in_file(there.allocate(1).unwrap().as_ptr().addr() as u64);
            let step = place().abs_diff(place());
            let before = place();
            let stranger = airdma::Device::open("127.0.0.1").unwrap();
            for _ in 0..3 {
                std::thread::scope(|scope| {
                    let accepting = scope.spawn(|| listener.accept().wait().unwrap());
                    let connected = stranger.connect(("127.0.0.1", PORT)).wait().unwrap();
                    drop((accepting.join().unwrap(), connected));
                });
            }
            assert_eq!(place(), before + step);
        },
    );
}

#[test]
fn a_region_is_opened_to_endpoints_of_its_own_device() {
    isolated(
        "a_region_is_opened_to_endpoints_of_its_own_device",
        "",
        || {
            let Pair {
                here, left, right, ..
            } = pair();
            let shared = here.allocate(8).unwrap().share(Rights::READ).unwrap();
            assert_eq!(shared.remote(&right).unwrap_err().blame(), Blame::You);
            assert!(shared.remote(&left).is_ok());
        },
    );
}

#[test]
fn a_write_wakes_a_thread_that_waits_for_it() {
    isolated("a_write_wakes_a_thread_that_waits_for_it", "", || {
        const ROUNDS: u64 = 60;
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let shared = there.allocate(64).unwrap().share(Rights::WRITE).unwrap();
        let remote = shared.remote(&right).unwrap();
        let (asleep, awake) = std::sync::mpsc::channel();
        let start = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..ROUNDS {
                    asleep.send(()).unwrap();
                    let mut written = right.written(round);
                    let count = written.wait_timeout(PATIENCE).unwrap().unwrap();
                    assert_eq!(count, round + 1);
                    assert_eq!(shared.word(56).unwrap(), round);
                }
            });
            let mut region = here.allocate(64).unwrap();
            for round in 0..ROUNDS {
                awake.recv().unwrap();
                // Beyond its polling.
                std::thread::sleep(Duration::from_millis(5));
                region[56..].copy_from_slice(&round.to_ne_bytes());
                region = left.write(region, .., &remote, 0).wait().unwrap();
            }
        });
        // Without an event, a wait looks once a second.
        assert!(start.elapsed().as_secs() < ROUNDS / 2);
    });
}

#[test]
fn a_wait_for_a_write_ends_with_the_connection() {
    isolated("a_wait_for_a_write_ends_with_the_connection", "", || {
        let pair = pair();
        let mut written = pair.right.written(0);
        assert!(written.wait_timeout(Duration::from_millis(20)).is_none());
        drop(pair.left);
        let ended = written.wait_timeout(PATIENCE).unwrap();
        assert!(ended.unwrap_err().is_closed());
    });
}
