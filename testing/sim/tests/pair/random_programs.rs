//! Random programs over random links, compared with their model.
//!
//! `AIRDMA_SEEDS=20000 cargo test --release -p airdma-sim random_programs` runs more of them,
//! `AIRDMA_SEED=n cargo test -p airdma-sim replay -- --nocapture` one again,
//! with all its packets if `AIRDMA_TRACE` is set.

use airdma_sim::{Link, Pair, Random, Setup, Side, gbit};
use airdma_transport::{Counter, QpType};
use airdma_wire::{PathMtu, Psn};

use crate::program::{Program, Shape};
use crate::scene::{assert_untroubled, count, us};

/// Programs that run by default, shared by the tests below.
const SEEDS: u64 = 320;
const SHARES: u64 = 4;

/// Types of the two queue pairs; of an extended connection, A is the half that sends.
const RC: [QpType; 2] = [QpType::Rc; 2];
const EXTENDED: [QpType; 2] = [QpType::XrcSend, QpType::XrcReceive];

/// Set to print all packets of a replayed run, also if it succeeds.
const TRACE: &str = "AIRDMA_TRACE";

/// An impairment: often none, else up to five in a hundred.
fn draw_chance(random: &mut Random, clean: bool) -> f64 {
    let chance = random.fraction() * 0.05;
    if random.chance(0.4) || clean {
        0.0
    } else {
        chance
    }
}

fn draw_link(random: &mut Random, clean: bool, narrow: bool) -> Link {
    let mut link = Link::new();
    if random.chance(0.7) {
        link = link.rate(gbit(random.pick(&[1, 10, 40, 100])));
    }
    link = link.delay(us(random.between(1, 60)));
    if narrow {
        link = link.bottleneck(gbit(1), random.between(20_000, 200_000));
    }
    link = link
        .drop(draw_chance(random, clean))
        .duplicate(draw_chance(random, clean))
        .reorder(draw_chance(random, clean));
    if random.chance(0.15) && !clean {
        link = link.reorder_by(0.02, us(10_000));
    }
    link = link.corrupt(draw_chance(random, clean));
    if random.chance(0.4) {
        link = link.batch(us(random.between(5, 150)));
    }
    link
}

fn draw_setup(random: &mut Random) -> Setup {
    let rd_atomic = random.pick(&[1, 1, 2, 4, 16, 64]);
    let mut psn = || {
        let near_the_end = 0x00ff_ffff - random.below(50) as u32;
        let anywhere = random.next_u64() as u32;
        Psn::new(random.pick(&[near_the_end, anywhere]))
    };
    Setup {
        first_psns: [psn(), psn()],
        mtu: random.pick(&PathMtu::ALL),
        timeout: random.between(8, 12) as u8,
        min_rnr_timer: random.between(1, 12) as u8,
        max_rd_atomic: rd_atomic,
        max_dest_rd_atomic: rd_atomic,
        ..Setup::default()
    }
}

fn replay_command(seed: u64) -> String {
    format!("AIRDMA_SEED={seed} cargo test -p airdma-sim replay -- --nocapture")
}

fn run(seed: u64) -> Pair {
    let mut random = Random::new(seed);
    let clean = random.chance(0.2);
    let narrow = random.chance(0.1) && !clean;
    let mut link = || draw_link(&mut random, clean, narrow);
    let (to_b, to_a) = (link(), link());
    let mut pair = Pair::new(seed, to_b, to_a);
    pair.replay_with(replay_command(seed));
    if std::env::var_os(TRACE).is_some() {
        pair.print_all();
    }
    let setup = draw_setup(&mut random);
    // Senders here do not slow down for a full queue: an open window would lose all
    // acknowledgements.
    let open = if narrow { 32 << 10 } else { 1 << 30 };
    let windows = [1, 2 * setup.mtu.bytes(), 16 << 10, 64 << 10, open];
    for side in Side::BOTH {
        pair[side].window_bytes = random.pick(&windows);
    }
    let qps: Vec<usize> = (0..random.pick(&[1, 1, 1, 2, 3]))
        .map(|_| {
            let qp_types = random.pick(&[RC, RC, RC, EXTENDED]);
            pair.connect_as(qp_types, &setup)
        })
        .collect();
    let shape = Shape {
        requests_max: 16,
        mtu: setup.mtu.bytes(),
        late_receives: if random.chance(0.3) && !clean {
            0.2
        } else {
            0.0
        },
    };
    let mut program = Program::draw(&mut random, &mut pair, &qps, &shape);
    program.run(&mut pair);
    program.check(&pair);
    let hasty = setup.timeout < 10;
    // Queue pairs that share a very small window may starve one of them until its timer.
    let starved = qps.len() > 1 && Side::BOTH.iter().any(|&s| pair[s].window_bytes <= 64 << 10);
    check_counters(&mut pair, &qps, clean && !starved && !hasty);
    pair
}

fn check_counters(pair: &mut Pair, qps: &[usize], clean: bool) {
    for side in Side::BOTH {
        let link = pair.link(side.other()).counters();
        let port = pair[side].port_counters();
        assert_eq!(port.bad_icrc, link.damaged);
        assert_eq!(port.malformed + port.no_queue_pair, 0);
        let arrived = link.entered - link.dropped + link.duplicated;
        assert_eq!(port.delivered + port.bad_icrc, arrived);
        for &qp in qps {
            // A refused or unparsable packet would be a fault of this code.
            for counter in [
                Counter::InvalidRequests,
                Counter::RemoteAccessErrors,
                Counter::DropBadState,
                Counter::DropMalformed,
                Counter::DropGhost,
            ] {
                assert_eq!(count(pair, side, qp, counter), 0, "{counter:?}");
            }
        }
    }
    if clean {
        qps.iter().for_each(|&qp| assert_untroubled(pair, qp));
    }
}

fn share(number: u64) {
    let seeds = std::env::var("AIRDMA_SEEDS");
    let seeds = seeds.map_or(SEEDS, |text| text.parse().unwrap());
    for seed in (number..seeds).step_by(SHARES as usize) {
        run(seed);
    }
}

#[test]
fn random_programs_do_what_their_model_says_1() {
    share(0);
}

#[test]
fn random_programs_do_what_their_model_says_2() {
    share(1);
}

#[test]
fn random_programs_do_what_their_model_says_3() {
    share(2);
}

#[test]
fn random_programs_do_what_their_model_says_4() {
    share(3);
}

/// Runs the program of `AIRDMA_SEED`.
#[test]
fn replay() {
    let seed = std::env::var("AIRDMA_SEED");
    let seed = seed.map_or(0, |text| text.parse().unwrap());
    let pair = run(seed);
    if std::env::var_os(TRACE).is_some() {
        eprintln!("{pair:?}");
    }
}
