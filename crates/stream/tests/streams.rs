//! Frames from one end to the other.
#![allow(clippy::unwrap_used)]

mod world;

use airdma_stream::{
    Description, Error, Flags, Frame, Incoming, Policy, Pool, Receiver, Source, now_ns,
};
use std::collections::BTreeMap;
use std::task::Waker;
use std::time::{Duration, Instant};
use world::common::{PATIENCE, isolated};
use world::{World, content, counts, exchange, is_intact, next, received, send};

#[test]
fn frames_of_many_devices_arrive_intact_and_in_order() {
    isolated(
        "frames_of_many_devices_arrive_intact_and_in_order",
        "",
        || {
            const FRAMES: u64 = 100;
            let world = World::new();
            let pool = world.pool(3, 100_000);
            let mut sender = world.sender(9, 100_000, 1);
            let mut receiver = world.open(&mut sender, &pool);
            for device in 0..3 {
                sender.add(device, Source::default()).unwrap();
                sender
                    .set_format(device, &format!("format {device}"))
                    .unwrap();
            }
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    for sequence in 0..FRAMES {
                        for device in 0..3 {
                            let length = (sequence as usize * 977 + device as usize) % 100_001;
                            send(&mut sender, device, sequence, length);
                        }
                    }
                    assert!(sender.flush(PATIENCE).unwrap());
                    assert_eq!(counts(&sender, 1).sent, FRAMES);
                });
                let mut following = [0; 3];
                for _ in 0..3 * FRAMES {
                    let frame = next(&mut receiver);
                    let following = &mut following[frame.device() as usize];
                    assert_eq!(frame.sequence(), *following);
                    assert!(is_intact(&frame), "{frame:?}");
                    let format = format!("format {}", frame.device());
                    assert_eq!(frame.format().unwrap()[..], format);
                    *following += 1;
                }
                // The sender's last acknowledgement comes while this end runs the device.
                receiver.next(Duration::from_millis(100)).ok();
            });
            assert_eq!(received(&receiver, 2).missing, 0);
        },
    );
}

#[test]
fn a_frame_that_is_kept_stops_no_other_and_stays_as_it_is() {
    isolated(
        "a_frame_that_is_kept_stops_no_other_and_stays_as_it_is",
        "",
        || {
            let world = World::new();
            let pool = world.pool(3, 5000);
            let mut sender = world.sender(4, 5000, 1);
            let mut receiver = world.open(&mut sender, &pool);
            sender.add(1, Source::default()).unwrap();
            let mut kept = Vec::new();
            for sequence in 0..60 {
                send(&mut sender, 1, sequence, 5000);
                let frame = exchange(&mut sender, &mut receiver);
                assert_eq!(frame.sequence(), sequence);
                if kept.len() < 2 {
                    kept.push(frame);
                }
            }
            assert!(kept.iter().all(is_intact));
            // All blocks are kept: the next frames wait at the sender.
            send(&mut sender, 1, 60, 5000);
            kept.push(exchange(&mut sender, &mut receiver));
            send(&mut sender, 1, 61, 5000);
            sender.poll(Waker::noop()).unwrap();
            assert!(receiver.next(Duration::from_millis(50)).unwrap().is_none());
            assert!(!sender.is_idle());
            // Another thread drops one.
            let last = kept.pop();
            std::thread::spawn(move || drop(last)).join().unwrap();
            let sending = std::thread::spawn(move || sender.flush(PATIENCE).unwrap());
            assert_eq!(next(&mut receiver).sequence(), 61);
            assert!(sending.join().unwrap());
            assert!(kept.iter().all(is_intact));
        },
    );
}

#[test]
fn late_frames_are_dropped_unsent_and_told() {
    isolated("late_frames_are_dropped_unsent_and_told", "", || {
        let world = World::new();
        let pool = world.pool(1, 100);
        let mut sender = world.sender(8, 100, 1);
        let mut receiver = world.open(&mut sender, &pool);
        let quota = 8;
        let source = Source {
            quota,
            ..Source::default()
        };
        sender.add(1, source).unwrap();
        send(&mut sender, 1, 0, 10);
        let kept = exchange(&mut sender, &mut receiver);
        for _ in 0..3 {
            let block = sender.block(1, 10).unwrap().unwrap();
            let deadline = now_ns() + 5_000_000;
            let description = Description {
                deadline,
                ..Description::now()
            };
            sender.send(block, description);
        }
        std::thread::sleep(Duration::from_millis(20));
        sender.poll(Waker::noop()).unwrap();
        let count = counts(&sender, 1);
        assert_eq!((count.offered, count.late), (4, 3));
        send(&mut sender, 1, 4, 10);
        drop(kept);
        let sending = std::thread::spawn(move || sender.flush(PATIENCE).unwrap());
        let frame = next(&mut receiver);
        assert_eq!((frame.sequence(), frame.missing()), (4, 3));
        assert!(sending.join().unwrap());
        assert_eq!(received(&receiver, 1).missing, 3);
    });
}

#[test]
fn a_device_that_wants_the_newest_frame_sends_that() {
    isolated(
        "a_device_that_wants_the_newest_frame_sends_that",
        "",
        || {
            let world = World::new();
            let pool = world.pool(1, 100);
            let mut sender = world.sender(8, 100, 1);
            let mut receiver = world.open(&mut sender, &pool);
            let source = Source {
                policy: Policy::Newest,
                ..Source::default()
            };
            sender.add(1, source).unwrap();
            send(&mut sender, 1, 0, 10);
            let kept = exchange(&mut sender, &mut receiver);
            for sequence in 1..20 {
                send(&mut sender, 1, sequence, 10);
            }
            assert_eq!(counts(&sender, 1).replaced, 18);
            drop(kept);
            let sending = std::thread::spawn(move || sender.flush(PATIENCE).unwrap());
            assert_eq!(next(&mut receiver).sequence(), 19);
            assert!(sending.join().unwrap());
        },
    );
}

#[test]
fn devices_share_the_receiver_in_turns_and_by_priority() {
    isolated(
        "devices_share_the_receiver_in_turns_and_by_priority",
        "",
        || {
            let world = World::new();
            let pool = world.pool(1, 100);
            let mut sender = world.sender(16, 100, 1);
            let mut receiver = world.open(&mut sender, &pool);
            for device in 0..3 {
                let source = Source {
                    quota: 5,
                    priority: u8::from(device == 2),
                    ..Source::default()
                };
                sender.add(device, source).unwrap();
            }
            send(&mut sender, 0, 0, 10);
            let kept = exchange(&mut sender, &mut receiver);
            // Device 0 fills its quota before the others come.
            for sequence in 1..6 {
                send(&mut sender, 0, sequence, 10);
            }
            assert!(sender.block(0, 10).unwrap().is_none(), "beyond its quota");
            for device in [1, 2] {
                for sequence in 0..3 {
                    send(&mut sender, device, sequence, 10);
                }
            }
            drop(kept);
            let sending = std::thread::spawn(move || sender.flush(PATIENCE).unwrap());
            let order: Vec<_> = (0..11).map(|_| next(&mut receiver).device()).collect();
            assert!(sending.join().unwrap());
            assert_eq!(order, [2, 2, 2, 1, 0, 1, 0, 1, 0, 0, 0]);
        },
    );
}

#[test]
fn a_sender_that_is_started_again_is_told_from_the_one_before() {
    isolated(
        "a_sender_that_is_started_again_is_told_from_the_one_before",
        "",
        || {
            let world = World::new();
            let pool = world.pool(4, 100);
            let mut sender = world.sender(4, 100, 1);
            let mut receiver = world.open(&mut sender, &pool);
            sender.add(1, Source::default()).unwrap();
            send(&mut sender, 1, 0, 10);
            let kept = exchange(&mut sender, &mut receiver);
            drop(sender);
            let ended = loop {
                match receiver.next(PATIENCE) {
                    Ok(frame) => assert!(frame.is_none()),
                    Err(error) => break error,
                }
            };
            assert!(ended.is_closed(), "{ended}");
            let mut sender = world.sender(4, 100, 2);
            sender.add(1, Source::default()).unwrap();
            world.reopen(&mut sender, &mut receiver, &pool);
            for sequence in 0..10 {
                send(&mut sender, 1, sequence, 10);
                let frame = exchange(&mut sender, &mut receiver);
                assert_eq!(frame.sequence(), sequence);
            }
            assert!(is_intact(&kept));
            let told = received(&receiver, 1);
            assert_eq!((told.restarts, told.frames, told.missing), (1, 11, 0));
        },
    );
}

#[test]
fn unconfirmed_frames_go_to_the_next_receiver() {
    isolated("unconfirmed_frames_go_to_the_next_receiver", "", || {
        let world = World::new();
        let pool = world.pool(4, 256);
        let mut sender = world.sender(8, 256, 1);
        sender.add(1, Source::default()).unwrap();
        let mut receiver = world.open(&mut sender, &pool);
        send(&mut sender, 1, 0, 100);
        assert_eq!(exchange(&mut sender, &mut receiver).sequence(), 0);
        assert!(sender.flush(PATIENCE).unwrap());
        drop(receiver);
        // The sender has not noticed, and has credits: these are written, and fail.
        for sequence in 1..4 {
            let mut block = sender.block(1, 100).unwrap().unwrap();
            block.copy_from_slice(&content(1, sequence, 100));
            sender.send(block, Description::now());
        }
        let mut receiver = world.open(&mut sender, &pool);
        for sequence in 1..4 {
            let frame = exchange(&mut sender, &mut receiver);
            assert_eq!(frame.sequence(), sequence);
            assert!(is_intact(&frame));
        }
        assert_eq!(received(&receiver, 1).missing, 0);
    });
}

#[test]
fn a_frame_beyond_the_receivers_blocks_is_told_and_not_sent() {
    isolated(
        "a_frame_beyond_the_receivers_blocks_is_told_and_not_sent",
        "",
        || {
            let world = World::new();
            let pool = world.pool(2, 1000);
            let mut sender = world.sender(4, 3000, 1);
            let mut receiver = world.open(&mut sender, &pool);
            sender.add(1, Source::default()).unwrap();
            assert_eq!(sender.frame_bytes_max(), 1024);
            assert!(matches!(sender.block(1, 3001), Err(Error::TooLong { .. })));
            send(&mut sender, 1, 0, 2000);
            send(&mut sender, 1, 1, 1000);
            let frame = exchange(&mut sender, &mut receiver);
            assert_eq!((frame.sequence(), frame.missing()), (1, 1));
            assert_eq!(counts(&sender, 1).too_long, 1);
        },
    );
}

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }
}

/// What was given to the sender, by device, and how far the receiver is.
#[derive(Default)]
struct Model {
    offered: BTreeMap<u32, Vec<usize>>,
    next: BTreeMap<u32, u64>,
    missing: u64,
}

impl Model {
    fn judge(&mut self, frame: &Frame) {
        let next = self.next.entry(frame.device()).or_default();
        let length = self.offered[&frame.device()][frame.sequence() as usize];
        assert_eq!(frame.sequence(), *next + frame.missing(), "{frame:?}");
        assert_eq!(frame.len(), length);
        assert!(is_intact(frame), "{frame:?}");
        *next = frame.sequence() + 1;
        self.missing += frame.missing();
    }
}

/// Random frames of random devices, which are kept for a while; connections are lost in between.
fn random_run(world: &World, seed: u64) {
    let mut random = Random(seed);
    let frame_bytes = 1 + random.below(9000) as usize;
    let pool = world.pool(1 + random.below(6) as u32, frame_bytes);
    let mut sender = world.sender(1 + random.below(12) as u32, frame_bytes, seed as u32);
    let mut receiver = world.open(&mut sender, &pool);
    let devices = 1 + random.below(5) as u32;
    for device in 0..devices {
        sender.add(device, Source::default()).unwrap();
    }
    let mut model = Model::default();
    let mut kept: Vec<Frame> = Vec::new();
    for _ in 0..400 {
        match random.below(20) {
            0..8 => {
                let device = random.below(devices.into()) as u32;
                let length = random.below(frame_bytes as u64 + 1) as usize;
                if let Some(mut block) = sender.block(device, length).unwrap() {
                    let offered = model.offered.entry(device).or_default();
                    block.copy_from_slice(&content(device, offered.len() as u64, length));
                    offered.push(length);
                    sender.send(block, Description::now());
                }
            }
            8..14 => {
                if let Some(frame) = receiver.next(Duration::from_micros(200)).unwrap() {
                    model.judge(&frame);
                    kept.push(frame);
                }
            }
            14..17 if !kept.is_empty() => {
                let frame = kept.swap_remove(random.below(kept.len() as u64) as usize);
                assert!(is_intact(&frame), "it changed while it was kept: {frame:?}");
            }
            17 if random.below(8) == 0 => {
                sender.close();
                // What has arrived comes before the end.
                let ended = loop {
                    match receiver.next(PATIENCE) {
                        Ok(frame) => {
                            let frame = frame.expect("a frame or the end");
                            model.judge(&frame);
                            kept.push(frame);
                        }
                        Err(error) => break error,
                    }
                };
                assert!(ended.is_closed(), "{ended}");
                world.reopen(&mut sender, &mut receiver, &pool);
            }
            _ => sender.poll(Waker::noop()).unwrap(),
        }
    }
    kept.clear();
    let start = Instant::now();
    while !sender.is_idle() {
        assert!(start.elapsed() < PATIENCE, "frames remain");
        sender.poll(Waker::noop()).unwrap();
        if let Some(frame) = receiver.next(Duration::from_millis(1)).unwrap() {
            model.judge(&frame);
        }
    }
    while let Some(frame) = receiver.next(Duration::from_millis(20)).unwrap() {
        model.judge(&frame);
    }
    for (device, offered) in &model.offered {
        let next = model.next.get(device).copied().unwrap_or_default();
        assert_eq!(next, offered.len() as u64, "device {device}");
    }
    assert_eq!(model.missing, 0, "no frame had a deadline");
}

#[test]
fn no_frame_is_lost_repeated_or_changed_in_random_runs() {
    isolated(
        "no_frame_is_lost_repeated_or_changed_in_random_runs",
        "",
        || {
            let world = World::new();
            let seeds = match std::env::var("AIRDMA_SEED") {
                Ok(seed) => vec![seed.parse().unwrap()],
                Err(_) => (1..=12).collect(),
            };
            for seed in seeds {
                eprintln!("AIRDMA_SEED={seed}");
                random_run(&world, seed);
            }
        },
    );
}

#[test]
fn frames_have_their_flags_and_times() {
    isolated("frames_have_their_flags_and_times", "", || {
        let world = World::new();
        let pool = world.pool(2, 100);
        let mut sender = world.sender(2, 100, 1);
        let mut receiver = world.open(&mut sender, &pool);
        sender.add(9, Source::default()).unwrap();
        let block = sender.block(9, 0).unwrap().unwrap();
        let flags = Flags::END | Flags::KEY;
        let description = Description {
            time: 5,
            deadline: 0,
            flags,
        };
        sender.send(block, description);
        let sending = std::thread::spawn(move || sender.flush(PATIENCE).unwrap());
        let frame = next(&mut receiver);
        assert_eq!((frame.device(), frame.time(), frame.deadline()), (9, 5, 0));
        assert!(frame.flags().contains(flags) && frame.is_empty());
        assert!(!frame.flags().contains(Flags::DISCONTINUITY));
        assert!(frame.file().is_none());
        assert!(sending.join().unwrap());
    });
}

/// A sender that speaks the protocol as it likes: the bytes are those of the documents.
struct Hostile<'a> {
    world: &'a World,
    endpoint: airdma::Endpoint,
    credits: airdma::Shared,
}

impl Hostile<'_> {
    fn open<'a>(world: &'a World, pool: &Pool) -> (Hostile<'a>, Receiver) {
        let (endpoint, far) = world.connect();
        let ring = world.here.allocate(4096 * 32).unwrap();
        let credits = ring.share(airdma::Rights::WRITE).unwrap();
        let mut hello = b"aiSH\x01\0\0\0".to_vec();
        hello.extend(5u32.to_le_bytes());
        hello.extend(100u32.to_le_bytes());
        hello.extend(credits.remote(&endpoint).unwrap().to_bytes());
        let receiver = std::thread::scope(|scope| {
            let receiver = scope.spawn(|| Receiver::open(world.hear(far), pool).unwrap());
            let said = endpoint.send(world::common::filled(&world.here, &hello), ..);
            let answer = endpoint.recv(world.here.allocate(100).unwrap(), ..).wait();
            assert_eq!(&answer.unwrap()[..4], b"aiSW");
            said.wait().unwrap();
            receiver.join().unwrap()
        });
        let this = Hostile {
            world,
            endpoint,
            credits,
        };
        (this, receiver)
    }

    /// The block of a credit.
    fn block(&self, number: u64) -> airdma::Remote {
        let at = (number % 4096) as usize * 32;
        let start = Instant::now();
        while self.credits.word(at + 24).unwrap() != number {
            assert!(start.elapsed() < PATIENCE, "no credit");
            self.endpoint.run();
        }
        let mut remote = [0; 24];
        self.credits.copy_out(at, &mut remote).unwrap();
        airdma::Remote::from_bytes(&remote).unwrap()
    }

    /// Writes these bytes to the end of a block.
    fn write(&self, to: &airdma::Remote, bytes: &[u8]) -> airdma::Result<()> {
        let region = world::common::filled(&self.world.here, bytes);
        let at = to.len() - bytes.len() as u64;
        self.endpoint.write(region, .., to, at).wait().map(drop)
    }
}

/// A header with these fields, and no payload.
fn header(kind: u8, device: u32, (epoch, sequence): (u32, u64), length: u32, turn: u64) -> Vec<u8> {
    let mut bytes = b"aiSt\x01".to_vec();
    bytes.push(kind);
    bytes.extend([0; 2]);
    bytes.extend(device.to_le_bytes());
    bytes.extend(epoch.to_le_bytes());
    bytes.extend(sequence.to_le_bytes());
    bytes.extend([0; 16]);
    bytes.extend(length.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(turn.to_le_bytes());
    bytes
}

#[test]
fn what_is_no_frame_is_counted_and_its_block_freed() {
    isolated(
        "what_is_no_frame_is_counted_and_its_block_freed",
        "",
        || {
            let world = World::new();
            let pool = Pool::new(&world.there, 2, 100).unwrap();
            let (sender, mut receiver) = Hostile::open(&world, &pool);
            let mut turn = 0;
            let mut write = |receiver: &mut Receiver, bytes: &dyn Fn(u64) -> Vec<u8>| {
                turn += 1;
                let to = sender.block(turn);
                sender.write(&to, &bytes(turn)).unwrap();
                receiver.next(Duration::from_millis(100)).unwrap()
            };
            let garbage = |turn: u64| [vec![0xee; 56], turn.to_le_bytes().to_vec()].concat();
            for round in 0..10 {
                assert!(write(&mut receiver, &garbage).is_none());
                let unknown = |turn| header(1, 9, (5, 0), 0, turn);
                assert!(write(&mut receiver, &unknown).is_none());
                let long = |turn| header(1, 9, (5, 0), u32::MAX - round, turn);
                assert!(write(&mut receiver, &long).is_none());
                let of_another_run = |turn| header(1, 9, (6, 0), 0, turn);
                assert!(write(&mut receiver, &of_another_run).is_none());
            }
            let refused = receiver.refused();
            let reasons = (refused.header, refused.device, refused.length);
            assert_eq!(reasons, (20, 10, 10));
            // It goes on, and a jump of its numbers is a gap.
            let announced = |turn| header(2, 9, (5, 0), 0, turn);
            assert!(write(&mut receiver, &announced).is_none());
            let jump = |turn| header(1, 9, (5, 1 << 60), 0, turn);
            let frame = write(&mut receiver, &jump).unwrap();
            assert_eq!((frame.device(), frame.missing()), (9, 1 << 60));
            let again = |turn| header(1, 9, (5, 7), 0, turn);
            drop(frame);
            assert!(write(&mut receiver, &again).is_none());
            assert_eq!(received(&receiver, 9).repeated, 1);
        },
    );
}

#[test]
fn a_frame_with_the_turn_of_another_ends_the_connection() {
    isolated(
        "a_frame_with_the_turn_of_another_ends_the_connection",
        "",
        || {
            let world = World::new();
            let pool = Pool::new(&world.there, 2, 100).unwrap();
            let (sender, mut receiver) = Hostile::open(&world, &pool);
            sender
                .write(&sender.block(1), &header(2, 9, (5, 0), 0, 2))
                .unwrap();
            let error = receiver.next(PATIENCE).unwrap_err();
            assert!(matches!(error, Error::Protocol(_)), "{error}");
        },
    );
}

#[test]
fn a_sender_cannot_change_a_frame_that_was_taken() {
    isolated("a_sender_cannot_change_a_frame_that_was_taken", "", || {
        let world = World::new();
        let pool = Pool::new(&world.there, 3, 64).unwrap();
        let (sender, mut receiver) = Hostile::open(&world, &pool);
        sender
            .write(&sender.block(1), &header(2, 9, (5, 0), 0, 1))
            .unwrap();
        let block = sender.block(2);
        let frame = [vec![7; 64], header(1, 9, (5, 0), 64, 2)].concat();
        sender.write(&block, &frame).unwrap();
        let kept = next(&mut receiver);
        assert_eq!(kept[..], [7; 64]);
        let refused = sender.write(&block, &[9; 128]).unwrap_err();
        assert_eq!(refused.blame(), airdma::Blame::Peer, "{refused}");
        assert_eq!(kept[..], [7; 64]);
        assert!(receiver.next(PATIENCE).is_err(), "the connection is over");
    });
}

#[test]
fn a_peer_that_speaks_something_else_is_refused() {
    isolated("a_peer_that_speaks_something_else_is_refused", "", || {
        let world = World::new();
        let (near, far) = world.connect();
        let said = near.send(world::common::filled(&world.here, b"GET / HTTP/1.1"), ..);
        let refused = Incoming::hear(&world.there, far).unwrap_err();
        assert!(matches!(refused, Error::Protocol(_)), "{refused}");
        said.wait().unwrap();
        let (near, far) = world.connect();
        let mut sender = world.sender(1, 10, 1);
        let heard = far.recv(world.there.allocate(100).unwrap(), ..);
        let said = far.send(world::common::filled(&world.there, b"220 ready"), ..);
        let refused = sender.open(near).unwrap_err();
        assert!(matches!(refused, Error::Protocol(_)), "{refused}");
        drop((heard, said));
    });
}
