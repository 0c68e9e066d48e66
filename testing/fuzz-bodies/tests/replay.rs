//! Every target on the inputs that were kept, and on random ones from fixed seeds: what `make fuzz`
//! does for hours, as a test of seconds on a stable toolchain.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use airdma_fuzz_bodies::{TARGETS, Target};
use airdma_sim::Random;

/// Random inputs for each target.
const RANDOM: u64 = 2_000;

/// The same for whole worlds, of which `make worlds` runs thousands.
const RANDOM_WORLDS: u64 = 50;

/// Random inputs for targets with two devices.
const RANDOM_PATHS: u64 = 200;

/// Longest random input. libFuzzer's own limit is 4,096.
const LENGTH_MAX: u64 = 1_024;

fn fuzz_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz")
}

/// Says which input it was if the target panics.
struct Running<'a>(&'a str, String);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("target {}, input {}", self.0, self.1);
        }
    }
}

fn replay((name, run): Target) {
    for folder in ["corpus", "regressions"] {
        let folder = fuzz_folder().join(folder).join(name);
        let files = fs::read_dir(&folder).into_iter().flatten();
        for file in files.map(|file| file.unwrap().path()) {
            let _running = Running(name, file.display().to_string());
            run(&fs::read(&file).unwrap());
        }
    }
    let random = match name {
        "world" => RANDOM_WORLDS,
        "off_path" | "on_path" => RANDOM_PATHS,
        _ => RANDOM,
    };
    for seed in 0..random {
        let _running = Running(name, format!("of seed {seed}"));
        let mut random = Random::new(seed);
        let len = random.below(LENGTH_MAX) as usize;
        run(&random.bytes(len));
    }
}

macro_rules! replays {
    ($($target:ident),* $(,)?) => {
        $(#[test]
        fn $target() {
            let target = TARGETS.iter().find(|(name, _)| *name == stringify!($target));
            replay(*target.unwrap());
        })*

        #[test]
        fn every_target_is_replayed_and_fuzzed() {
            let names: Vec<&str> = TARGETS.iter().map(|(name, _)| *name).collect();
            assert_eq!(names, [$(stringify!($target)),*]);
            for name in names {
                let target = fuzz_folder().join(format!("fuzz_targets/{name}.rs"));
                assert!(fs::read_to_string(target).unwrap().contains(&format!("{name}::run")));
                assert!(fs::read_dir(fuzz_folder().join("corpus").join(name)).unwrap().count() > 0);
            }
        }
    };
}

replays!(
    packet,
    icrc,
    frame,
    responder,
    requester,
    selective,
    air_message,
    off_path,
    on_path,
    cm_mad,
    cm_manager,
    work_request,
    control,
    local_ring,
    file_manifest,
    file_control,
    file_journal,
    queue_request,
    queue_journal,
    known_peers,
    stream_block,
    world
);
