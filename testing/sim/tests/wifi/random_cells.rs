//! Random cells with random loads, and the invariants of all of them.

use core::time::Duration;

use airdma_sim::Random;
use airdma_sim::wifi::{
    Access, Fate, Interference, Load, Medium, Outcome, Profile, Rival, StationId,
};
use airdma_transport::Time;

const CELLS: u64 = 2_000;

/// Time in which packets are queued.
const LOAD: Duration = Duration::from_millis(60);

fn profile(random: &mut Random) -> Profile {
    let mut profile = Profile::ALL[random.index(Profile::ALL.len())].clone();
    if random.chance(0.5) {
        profile.window = random.between(1, u64::from(profile.window)) as u16;
    }
    profile.attempts_max = random.between(1, 7) as u8;
    profile.aggregates_early = random.chance(0.5);
    profile.rts_above_bytes = random.chance(0.3).then_some(2_000);
    if random.chance(0.3) {
        profile.access.txop = Duration::from_micros(random.between(100, 8_000));
    }
    if random.chance(0.3) {
        profile.lifetime = Duration::from_millis(random.between(1, 50));
    }
    if random.chance(0.3) {
        profile.queue_packets_max = random.between(1, 100) as usize;
    }
    if random.chance(0.3) {
        profile.interference = Some(Interference {
            rise_db: 20.0,
            on: Duration::from_millis(2),
            off: Duration::from_millis(10),
        });
    }
    profile
}

fn rival(random: &mut Random) -> Rival {
    Rival {
        ppdu: Duration::from_micros(random.between(50, 5_000)),
        load: if random.chance(0.3) {
            Load::Saturated
        } else {
            Load::OnOff {
                on: Duration::from_micros(random.between(10, 2_000)),
                off: Duration::from_micros(random.between(10, 50_000)),
            }
        },
    }
}

struct World {
    medium: Medium,
    stations: Vec<StationId>,
    random: Random,
    now: Time,
    out: Vec<Outcome>,
    /// Accepted tokens.
    taken: Vec<u64>,
    refused: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let mut medium = Medium::new(profile(&mut random));
        let count = random.between(2, 5);
        let stations: Vec<_> = (0..count).map(|_| medium.add_station()).collect();
        for _ in 0..random.below(3) {
            medium.add_rival(rival(&mut random), Access::BEST_EFFORT);
        }
        for (index, &a) in stations.iter().enumerate() {
            for &b in &stations[index + 1..] {
                let snr_db = random.fraction() * 50.0 - 8.0;
                medium.set_snr(a, b, snr_db);
            }
        }
        World {
            medium,
            stations,
            random,
            now: Time::ZERO,
            out: Vec::new(),
            taken: Vec::new(),
            refused: 0,
        }
    }

    /// Advances to `at`, at every event or in one step.
    fn go_to(&mut self, at: Time) {
        let closely = self.random.chance(0.7);
        while let Some(next) = self.medium.poll_at().filter(|&next| closely && next <= at) {
            assert!(next >= self.now, "an event in the past");
            self.step(next);
        }
        self.step(at);
    }

    fn step(&mut self, now: Time) {
        let told = self.out.len();
        self.medium.advance(now, &mut self.random, &mut self.out);
        for outcome in &self.out[told..] {
            assert!(outcome.at <= now && outcome.at >= self.now);
        }
        self.now = now;
        assert!(self.medium.airtime().busy_ns() <= now.as_nanos());
    }

    fn enqueue_some(&mut self) {
        let from = self.random.index(self.stations.len());
        let to = self.random.index(self.stations.len());
        if from == to {
            return;
        }
        let (from, to) = (self.stations[from], self.stations[to]);
        let bytes = self.random.between(20, 4_300) as u32;
        for _ in 0..self.random.between(1, 60) {
            let token = self.taken.len() as u64 + self.refused;
            let result = self.medium.enqueue(self.now, from, to, bytes, token);
            match result {
                Ok(()) => self.taken.push(token),
                Err(_) => self.refused += 1,
            }
            let most = self.medium.profile().queue_packets_max;
            assert!(self.medium.backlog(from).packets <= most);
        }
    }

    /// Runs until every packet has its result, and its sender knows.
    fn drain(&mut self) {
        let end = self.now + Duration::from_secs(60);
        while self.out.len() < self.taken.len() || self.holds_some() {
            let next = self.medium.poll_at().expect("packets are left");
            assert!(next <= end, "packets stay for ever");
            self.go_to(next);
        }
    }

    fn holds_some(&self) -> bool {
        let mut stations = self.stations.iter();
        stations.any(|&station| self.medium.backlog(station).packets > 0)
    }

    fn check(&self) {
        let mut ended: Vec<u64> = self.out.iter().map(|outcome| outcome.token).collect();
        ended.sort_unstable();
        assert_eq!(ended, self.taken, "each packet ends once");
        for &from in &self.stations {
            let counters = self.medium.counters(from);
            assert_eq!(self.medium.backlog(from), Default::default());
            let sent_by = |outcome: &&Outcome| outcome.from == from;
            let lost = |outcome: &&Outcome| outcome.fate != Fate::Delivered;
            let given_up = self.out.iter().filter(sent_by).filter(lost).count();
            assert_eq!(counters.given_up, given_up as u64);
            for &to in &self.stations {
                let window = u64::from(self.medium.profile().window);
                assert!(self.medium.widest_window(from, to) <= window);
                let between = self.out.iter().filter(|o| o.from == from && o.to == to);
                let delivered = between.filter(|o| o.fate == Fate::Delivered);
                assert!(delivered.map(|o| o.token).is_sorted(), "in order");
            }
        }
    }
}

/// A failure prints the seed of its cell; `AIRDMA_SEED=n` runs that one only.
#[test]
fn each_packet_ends_once_in_order_and_the_air_is_used_once() {
    let only = std::env::var("AIRDMA_SEED").ok();
    let only = only.map(|seed| seed.parse().expect("AIRDMA_SEED is a number"));
    for seed in only.map_or(0..CELLS, |seed: u64| seed..seed + 1) {
        let result = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            while world.now < Time::ZERO + LOAD {
                world.enqueue_some();
                let pause = Duration::from_nanos(world.random.below(5_000_000));
                world.go_to(world.now + pause);
            }
            world.drain();
            world.check();
        });
        assert!(result.is_ok(), "seed {seed}");
    }
}
