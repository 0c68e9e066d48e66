//! Messages: their content, order and memory.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::{Blame, Device};
use common::*;
use std::io::Read;
use std::time::{Duration, Instant};

#[test]
fn messages_arrive_whole_and_in_order_both_ways() {
    isolated("messages_arrive_whole_and_in_order_both_ways", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        for (index, length) in [1, 5, 1024, 4096, 100_000, 0].into_iter().enumerate() {
            let bytes = pattern(length, index as u8);
            let mut region = here.allocate(100_000).unwrap();
            region[..length].copy_from_slice(&bytes);
            let sending = left.send(region, ..length);
            let message = right
                .recv(there.allocate(100_000).unwrap(), ..)
                .wait()
                .unwrap();
            assert!(message[..] == bytes, "{length} bytes");
            let sending_back = right.send(message.into_region(), ..length);
            let answer = left.recv(sending.wait().unwrap(), ..).wait().unwrap();
            assert!(answer[..] == bytes, "{length} bytes back");
            sending_back.wait().unwrap();
        }
    });
}

#[test]
fn a_message_lands_in_the_part_of_the_region_that_was_named() {
    isolated(
        "a_message_lands_in_the_part_of_the_region_that_was_named",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let sending = left.send(filled(&here, b"0123456789"), 2..5);
            let message = right
                .recv(filled(&there, b"----------"), 4..)
                .wait()
                .unwrap();
            assert_eq!(&message[..], b"234");
            assert_eq!(&message.into_region()[..], b"----234---");
            assert_eq!(&sending.wait().unwrap()[..], b"0123456789");
        },
    );
}

#[test]
fn far_more_messages_than_the_queues_hold_arrive_in_order() {
    isolated(
        "far_more_messages_than_the_queues_hold_arrive_in_order",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            const COUNT: u32 = 1000;
            let sending: Vec<_> = (0..COUNT)
                .map(|number| left.send(filled(&here, &number.to_be_bytes()), ..))
                .collect();
            let receiving: Vec<_> = (0..COUNT)
                .map(|_| right.recv(there.allocate(4).unwrap(), ..))
                .collect();
            for (number, operation) in (0..COUNT).zip(receiving) {
                assert_eq!(operation.wait().unwrap()[..], number.to_be_bytes());
            }
            for operation in sending {
                operation.wait().unwrap();
            }
        },
    );
}

#[test]
fn a_sender_waits_for_a_receiver_that_is_slow() {
    isolated("a_sender_waits_for_a_receiver_that_is_slow", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let mut sending = left.send(filled(&here, b"early"), ..);
        assert!(sending.wait_timeout(Duration::from_millis(300)).is_none());
        let message = right.recv(there.allocate(16).unwrap(), ..).wait().unwrap();
        assert_eq!(&message[..], b"early");
        sending.wait_timeout(PATIENCE).unwrap().unwrap();
    });
}

#[test]
fn a_wait_ends_in_time_and_can_be_repeated() {
    isolated("a_wait_ends_in_time_and_can_be_repeated", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let mut receiving = right.recv(there.allocate(16).unwrap(), ..);
        for limit in [Duration::ZERO, Duration::from_millis(50)] {
            let start = Instant::now();
            assert!(receiving.wait_timeout(limit).is_none());
            assert!(start.elapsed() >= limit && start.elapsed() < limit + PATIENCE / 4);
        }
        left.send(filled(&here, b"at last"), ..).wait().unwrap();
        assert_eq!(
            &receiving.wait_timeout(PATIENCE).unwrap().unwrap()[..],
            b"at last"
        );
    });
}

#[test]
fn a_receive_that_is_given_up_loses_no_message() {
    isolated("a_receive_that_is_given_up_loses_no_message", "", || {
        let Pair {
            here,
            there,
            left,
            right,
        } = pair();
        let mut first = right.recv(there.allocate(16).unwrap(), ..);
        assert!(first.wait_timeout(Duration::ZERO).is_none());
        drop(first);
        left.send(filled(&here, b"one"), ..).wait().unwrap();
        let sending = left.send(filled(&here, b"two"), ..);
        let second = right.recv(there.allocate(16).unwrap(), ..);
        let third = right.recv(there.allocate(16).unwrap(), ..);
        assert_eq!(&third.wait().unwrap()[..], b"two");
        assert_eq!(&second.wait().unwrap()[..], b"one");
        sending.wait().unwrap();
    });
}

#[test]
fn memory_of_a_cancelled_send_is_kept_until_it_has_arrived() {
    isolated(
        "memory_of_a_cancelled_send_is_kept_until_it_has_arrived",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let bytes = pattern(300_000, 3);
            // There is no receive yet, so it stays in flight.
            drop(left.send(filled(&here, &bytes), ..));
            // These would reuse memory that was released too early.
            let others: Vec<_> = (0..8)
                .map(|_| filled(&here, &pattern(300_000, 77)))
                .collect();
            let message = right
                .recv(there.allocate(300_000).unwrap(), ..)
                .wait()
                .unwrap();
            assert!(message[..] == bytes);
            drop(others);
            // The connection still works.
            let sending = left.send(filled(&here, b"next"), ..);
            assert_eq!(
                &right.recv(message.into_region(), ..).wait().unwrap()[..],
                b"next"
            );
            sending.wait().unwrap();
        },
    );
}

#[test]
fn what_was_sent_before_a_close_is_received_and_then_the_end() {
    isolated(
        "what_was_sent_before_a_close_is_received_and_then_the_end",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let receiving: Vec<_> = (0..4)
                .map(|_| right.recv(there.allocate(8).unwrap(), ..))
                .collect();
            drop(left.send(filled(&here, b"one"), ..));
            drop(left.send(filled(&here, b"two"), ..));
            left.close().wait().unwrap();
            let results: Vec<_> = receiving
                .into_iter()
                .map(|receiving| receiving.wait())
                .collect();
            assert_eq!(&results[0].as_ref().unwrap()[..], b"one");
            assert_eq!(&results[1].as_ref().unwrap()[..], b"two");
            for result in &results[2..] {
                let error = result.as_ref().unwrap_err();
                assert!(error.is_closed() && error.blame() == Blame::Peer, "{error}");
            }
            let error = right.send(filled(&there, b"late"), ..).wait().unwrap_err();
            assert!(error.is_closed(), "{error}");
            assert_eq!(
                &error.into_region().unwrap()[..],
                b"late",
                "the region comes back"
            );
        },
    );
}

#[test]
fn what_waits_on_an_endpoint_that_is_dropped_ends() {
    isolated("what_waits_on_an_endpoint_that_is_dropped_ends", "", || {
        let Pair {
            here, left, right, ..
        } = pair();
        let receiving = left.recv(here.allocate(8).unwrap(), ..);
        let sending = left.send(filled(&here, b"nobody receives this"), ..);
        drop(left);
        for error in [receiving.wait().unwrap_err(), sending.wait().unwrap_err()] {
            assert!(error.is_closed() && error.blame() == Blame::You, "{error}");
            assert!(error.into_region().is_some());
        }
        drop(right);
    });
}

#[test]
fn a_message_that_does_not_fit_is_blamed_on_the_receiver() {
    isolated(
        "a_message_that_does_not_fit_is_blamed_on_the_receiver",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let receiving = right.recv(there.allocate(4).unwrap(), ..);
            let error = left.send(filled(&here, b"five!"), ..).wait().unwrap_err();
            assert_eq!(error.blame(), Blame::Peer, "{error}");
            assert!(error.to_string().contains("too small"), "{error}");
            let error = receiving.wait().unwrap_err();
            assert_eq!(error.blame(), Blame::You, "{error}");
            assert!(
                error.to_string().contains("longer than the 4 bytes"),
                "{error}"
            );
            assert_eq!(error.into_region().unwrap().len(), 4);
        },
    );
}

#[test]
fn regions_are_used_within_their_bounds_and_on_their_device() {
    isolated(
        "regions_are_used_within_their_bounds_and_on_their_device",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right: _right,
            } = pair();
            let cases: [(_, &str); 3] = [
                (
                    left.send(filled(&here, b"abc"), ..4).wait(),
                    "bytes 0..4 of a region of 3 bytes",
                ),
                (
                    left.send(filled(&here, b"abc"), 5..).wait(),
                    "bytes 5..3 of a region of 3 bytes",
                ),
                (
                    left.send(filled(&there, b"abc"), ..).wait(),
                    "another device",
                ),
            ];
            for (result, text) in cases {
                let error = result.unwrap_err();
                assert_eq!(error.blame(), Blame::You);
                assert!(error.to_string().contains(text), "{error}");
                assert_eq!(&error.into_region().unwrap()[..], b"abc");
            }
            assert_eq!(here.allocate(0).unwrap_err().blame(), Blame::You);
        },
    );
}

#[test]
fn a_region_is_cut_and_its_parts_are_sent_by_themselves() {
    isolated(
        "a_region_is_cut_and_its_parts_are_sent_by_themselves",
        "",
        || {
            let Pair {
                here,
                there,
                left,
                right,
            } = pair();
            let (first, rest) = filled(&here, b"firstrest").split_at(5).unwrap();
            let rest = rest.split_at(9).unwrap_err().into_region().unwrap();
            let sending = [left.send(first, ..), left.send(rest, ..)];
            for expected in [&b"first"[..], b"rest"] {
                let message = right.recv(there.allocate(8).unwrap(), ..).wait().unwrap();
                assert_eq!(&message[..], expected);
            }
            for operation in sending {
                operation.wait().unwrap();
            }
        },
    );
}

#[test]
fn memory_is_a_file_that_others_can_map() {
    isolated("memory_is_a_file_that_others_can_map", "", || {
        use std::os::unix::fs::FileExt;
        let device = Device::open("lo").unwrap();
        let mut region = device.allocate_file(9).unwrap();
        region.copy_from_slice(b"in a file");
        let (_, part) = region.split_at(5).unwrap();
        let (file, offset) = part.file().unwrap();
        let file = std::fs::File::from(file.try_clone_to_owned().unwrap());
        let mut bytes = [0; 4];
        file.read_exact_at(&mut bytes, offset).unwrap();
        assert_eq!(&bytes, b"file");
    });
}

/// Another process that gets one region's file gets only that region.
#[test]
fn a_file_of_a_region_holds_no_other_region() {
    isolated("a_file_of_a_region_holds_no_other_region", "", || {
        let device = Device::open("lo").unwrap();
        let mut secret = device.allocate(4096).unwrap();
        secret.fill(7);
        assert!(secret.file().is_none());
        let mut regions = [1, 2].map(|seed| (seed, device.allocate_file(4096).unwrap()));
        for (seed, region) in &mut regions {
            region.fill(*seed);
        }
        for (seed, region) in &regions {
            let (file, at) = region.file().unwrap();
            let mut file = std::fs::File::from(file.try_clone_to_owned().unwrap());
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes[at as usize..][..4096], [*seed; 4096]);
            assert!(bytes.iter().all(|byte| [0, *seed].contains(byte)));
        }
    });
}

#[test]
fn memory_of_one_process_is_memory_like_any_and_in_no_file() {
    isolated(
        "memory_of_one_process_is_memory_like_any_and_in_no_file",
        "",
        || {
            let device = Device::open("lo").unwrap();
            assert!(device.allocate_private(0).is_err());
            assert!(device.allocate_private(usize::MAX).is_err());
            let mut regions: Vec<_> = [1, 5000, (2 << 20) - 1, 2 << 20, (4 << 20) + 1]
                .map(|length| device.allocate_private(length).unwrap())
                .into();
            for (seed, region) in regions.iter_mut().enumerate() {
                assert!(region.file().is_none());
                assert!(region.iter().all(|&byte| byte == 0));
                region.fill(seed as u8);
            }
            for (seed, region) in regions.iter().enumerate() {
                assert!(region.iter().all(|&byte| byte == seed as u8), "{seed}");
            }
        },
    );
}

#[test]
fn devices_have_the_names_and_addresses_of_their_interfaces() {
    let setup = "ip address add 127.0.0.9/8 dev lo";
    isolated(
        "devices_have_the_names_and_addresses_of_their_interfaces",
        setup,
        || {
            assert_eq!(Device::names().unwrap(), ["lo"]);
            let expected: Vec<std::net::IpAddr> = vec![
                "127.0.0.1".parse().unwrap(),
                "127.0.0.9".parse().unwrap(),
                "::1".parse().unwrap(),
            ];
            let mut found = Device::open("lo").unwrap().addresses();
            found.sort();
            assert_eq!(found, expected);
            let one = Device::open("127.0.0.9").unwrap();
            assert_eq!(one.addresses(), expected[1..2]);
        },
    );
}

/// The peer's port refuses a path MTU above its own.
#[test]
fn hosts_with_different_mtus_connect_with_the_smaller_one() {
    let setup = "ip link add veth0 mtu 9000 type veth peer name veth1 mtu 1500
        ip addr add 10.9.9.1/24 dev veth0
        ip addr add 10.9.9.2/24 dev veth1
        ip link set veth0 up
        ip link set veth1 up";
    isolated(
        "hosts_with_different_mtus_connect_with_the_smaller_one",
        setup,
        || {
            let large = Device::open("10.9.9.1").unwrap();
            let small = Device::open("10.9.9.2").unwrap();
            for (here, there) in [(&large, &small), (&small, &large)] {
                let listener = there.listen(PORT).unwrap();
                let mut accepting = listener.accept();
                let to = (there.address().unwrap(), PORT);
                let mut connecting = here.connect(to);
                let [left, right] = std::thread::scope(|scope| {
                    let left = scope.spawn(|| connecting.wait_timeout(PATIENCE).unwrap().unwrap());
                    let right = accepting.wait_timeout(PATIENCE).unwrap().unwrap();
                    [left.join().unwrap(), right]
                });
                let bytes = pattern(100_000, 7);
                let mut receiving = right.recv(there.allocate(100_000).unwrap(), ..);
                let mut sending = left.send(filled(here, &bytes), ..);
                let heard = receiving.wait_timeout(PATIENCE).unwrap().unwrap();
                assert!(heard[..] == bytes);
                sending.wait_timeout(PATIENCE).unwrap().unwrap();
            }
        },
    );
}
