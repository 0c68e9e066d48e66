//! Each discipline, with both ends in this process, in a network of its own.
#![allow(clippy::unwrap_used)]

#[path = "../../../crates/engine/tests/common/isolated.rs"]
mod isolated;

use std::thread;
use std::time::Duration;

use super::*;
use isolated::isolated;

const PORT: u16 = 20_081;
const ALL: [Discipline; 5] = [
    Discipline::Credits,
    Discipline::Paper,
    Discipline::Window,
    Discipline::WindowMerged,
    Discipline::WindowAny,
];
const LOAD: Load = Load {
    discipline: Discipline::Credits,
    blocks: 3,
    bytes: 4096,
    devices: 1,
    rate: None,
    // What is sent is counted.
    seconds: 60.0,
    frames: Some(10),
    holds: false,
    keeps_ms: None,
    keeps_frames: None,
};

/// What both ends found.
fn run(load: Load) -> (drive::Sent, take::Came) {
    let here = IpAddr::from([127, 0, 0, 1]);
    let receiver = thread::spawn(move || {
        let meeting = Meeting::await_peer(here, PORT).unwrap();
        receive(meeting, &load).unwrap()
    });
    let meeting = loop {
        match Meeting::with((here, PORT).into()) {
            Ok(meeting) => break meeting,
            Err(_) if !receiver.is_finished() => thread::sleep(Duration::from_millis(5)),
            Err(error) => panic!("{error}"),
        }
    };
    let sent = send(meeting, &load).unwrap();
    (sent, receiver.join().unwrap())
}

#[test]
fn all_frames_arrive_by_each_discipline() {
    isolated("tests::all_frames_arrive_by_each_discipline", "", || {
        for discipline in ALL {
            for bytes in [64, 4096, 1 << 20] {
                let (sent, came) = run(Load {
                    discipline,
                    bytes,
                    ..LOAD
                });
                // Each block was used again.
                assert_eq!((sent.frames, came.frames), (10, 10), "{discipline:?}");
            }
        }
    });
}

#[test]
fn the_control_delay_is_that_of_each_free_block() {
    isolated(
        "tests::the_control_delay_is_that_of_each_free_block",
        "",
        || {
            for discipline in ALL {
                for blocks in [2, 3, 64] {
                    let load = Load {
                        discipline,
                        blocks,
                        bytes: 64,
                        holds: true,
                        frames: Some(2 * blocks + 10),
                        ..LOAD
                    };
                    let (sent, came) = run(load);
                    assert_eq!(sent.frames, came.frames, "{discipline:?}");
                    let delay = came.control_us.unwrap();
                    let is_within = delay.p50 > 0.0 && delay.max <= 1e6 * came.seconds;
                    assert!(is_within, "{discipline:?}: {delay:?}");
                }
            }
        },
    );
}

#[test]
fn a_kept_block_stops_only_sliding_windows() {
    isolated("tests::a_kept_block_stops_only_sliding_windows", "", || {
        for discipline in ALL {
            let stops = matches!(discipline, Discipline::Window | Discipline::WindowMerged);
            let (sent, came) = run(Load {
                discipline,
                frames: Some(60),
                keeps_ms: Some(if stops { 100 } else { 20_000 }),
                keeps_frames: Some(10),
                ..LOAD
            });
            assert_eq!((sent.frames, came.frames), (60, 60), "{discipline:?}");
            let meanwhile = came.kept_frames.unwrap();
            if stops {
                // Those of the blocks beside it.
                assert!(meanwhile < LOAD.blocks, "{discipline:?}: {meanwhile}");
            } else {
                assert_eq!(meanwhile, 10, "{discipline:?}");
            }
        }
    });
}

#[test]
fn frames_of_many_cameras_arrive() {
    isolated("tests::frames_of_many_cameras_arrive", "", || {
        for discipline in ALL {
            let (sent, came) = run(Load {
                discipline,
                blocks: 36,
                devices: 12,
                rate: Some(50),
                // Fewer than are due within a second, so that none is given up.
                frames: Some(120),
                ..LOAD
            });
            assert_eq!((sent.frames, came.frames), (120, 120), "{discipline:?}");
            assert!(came.in_time.is_some(), "{discipline:?}");
        }
    });
}
