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
    seconds: 0.3,
    holds: false,
    keeps_ms: None,
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
                assert!(
                    sent.frames > u64::from(2 * LOAD.blocks),
                    "{discipline:?}: {sent:?}"
                );
                assert_eq!(sent.frames, came.frames, "{discipline:?}");
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
                        ..LOAD
                    };
                    let (sent, came) = run(load);
                    assert_eq!(sent.frames, came.frames, "{discipline:?}");
                    let delay = came.control_us.unwrap();
                    assert!(
                        delay.p50 > 0.0 && delay.p50 < 1e5,
                        "{discipline:?}: {delay:?}"
                    );
                }
            }
        },
    );
}

#[test]
fn a_kept_block_stops_the_windows_alone() {
    isolated("tests::a_kept_block_stops_the_windows_alone", "", || {
        for discipline in ALL {
            let (sent, came) = run(Load {
                discipline,
                seconds: 1.0,
                keeps_ms: Some(200),
                ..LOAD
            });
            assert_eq!(sent.frames, came.frames, "{discipline:?}");
            let lost = came.kept_loss.unwrap();
            let stops = matches!(discipline, Discipline::Window | Discipline::WindowMerged);
            assert_eq!(lost > 95.0, stops, "{discipline:?} lost {lost} %");
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
                seconds: 1.0,
                ..LOAD
            });
            assert_eq!((sent.frames, sent.given_up), (600, 0), "{discipline:?}");
            assert_eq!(came.frames, 600, "{discipline:?}");
            assert!(came.in_time.is_some() && came.uneven.is_some());
        }
    });
}
