//! A queue of the kernel in virtual time, under the orders of [`Air`].

use super::*;

const STEP: Duration = Duration::from_millis(4);

/// A queue with an HTB in front of it, and whoever fills it.
struct Queue {
    packet_bytes: u64,
    packets_max: u64,
    queued: u64,
    sent: u64,
    tokens: f64,
    offered: f64,
}

impl Queue {
    fn new(packet_bytes: u64, packets_max: u64) -> Queue {
        Queue {
            packet_bytes,
            packets_max,
            queued: 0,
            sent: 0,
            tokens: 0.0,
            offered: 0.0,
        }
    }

    /// Lets time pass while `packets_per_s` packets a second are offered.
    fn pass(&mut self, time: Duration, rate: u64, packets_per_s: f64) {
        // Fine enough that no slice brings more tokens than the bucket holds.
        let slices = time.as_micros() / 20;
        let slice = 20e-6;
        for _ in 0..slices {
            self.offered += packets_per_s * slice;
            let come = self.offered as u64;
            self.offered -= come as f64;
            self.queued = (self.queued + come).min(self.packets_max);
            self.tokens = (self.tokens + rate as f64 * slice).min(16_384.0);
            let frame = (self.packet_bytes + 14) as f64;
            while self.queued > 0 && self.tokens >= 0.0 {
                self.tokens -= frame;
                self.queued -= 1;
                self.sent += 1;
            }
        }
    }

    fn seen(&self) -> Seen {
        let frame = self.packet_bytes + 14;
        Seen {
            sent_bytes: self.sent * frame,
            sent_packets: self.sent,
            backlog_bytes: self.queued * frame,
            backlog_packets: self.queued,
            dropped: 0,
        }
    }
}

struct World {
    air: Air,
    queues: [Queue; 2],
    orders: [Order; 2],
    now: Time,
    /// As many as the orders say, in the mean.
    lost: [f64; 2],
    seen_sent: [u64; 2],
}

impl World {
    fn new(name: &str, snr_db: f64, stations: usize, queues: [Queue; 2]) -> World {
        let profile = Profile::find(name).unwrap();
        let mut air = Air::new(&profile, stations, 1);
        air.set_snr(snr_db);
        World {
            air,
            queues,
            orders: [Order {
                bytes_per_s: 1_000_000,
                loss: 0.0,
            }; 2],
            now: Time::ZERO,
            lost: [0.0; 2],
            seen_sent: [0; 2],
        }
    }

    /// Goodput of UDP in Mb/s in both directions, with `offered` packets a second.
    fn run(&mut self, seconds: f64, step: Duration, offered: [f64; 2]) -> [f64; 2] {
        let before = [self.queues[0].sent, self.queues[1].sent];
        let end = self.now + Duration::from_secs_f64(seconds);
        while self.now < end {
            for ((queue, order), offered) in self.queues.iter_mut().zip(self.orders).zip(offered) {
                queue.pass(step, order.bytes_per_s, offered);
            }
            for side in [0, 1] {
                let left = self.queues[side].sent - self.seen_sent[side];
                self.seen_sent[side] = self.queues[side].sent;
                self.lost[side] += self.orders[side].loss * left as f64;
            }
            self.now = self.now + step;
            let seen = [self.queues[0].seen(), self.queues[1].seen()];
            self.orders = self.air.step(self.now, seen);
        }
        [0, 1].map(|side| {
            let queue = &self.queues[side];
            let bits = (queue.sent - before[side]) * (queue.packet_bytes - 28) * 8;
            bits as f64 / seconds / 1e6
        })
    }
}

fn full() -> Queue {
    Queue::new(1500, 1400)
}

fn idle() -> Queue {
    Queue::new(52, 1400)
}

#[test]
fn a_full_queue_gets_what_the_table_says() {
    let cases = [
        ("wifi4-40", 7),
        ("wifi5-80", 9),
        ("wifi5-160", 9),
        ("wifi6-80", 11),
        ("wifi6-160", 11),
        ("wifi7-320", 13),
    ];
    for (name, mcs) in cases {
        let mut world = World::new(name, 60.0, 0, [full(), idle()]);
        world.run(1.0, STEP, [1e6, 0.0]);
        let [found, _] = world.run(2.0, STEP, [1e6, 0.0]);
        let expected = Profile::find(name).unwrap().mac.ideal_goodput_mbit(mcs);
        // Rate control spends some frames on schemes that are worse.
        assert!(
            (found / expected - 1.0).abs() < 0.03,
            "{name}: {found:.0} {expected:.0}"
        );
    }
}

#[test]
fn steps_may_be_late_and_uneven() {
    for step_ms in [2, 5, 20] {
        let mut world = World::new("wifi5-80", 60.0, 0, [full(), idle()]);
        world.run(1.0, STEP, [1e6, 0.0]);
        let [found, _] = world.run(2.0, Duration::from_millis(step_ms), [1e6, 0.0]);
        assert!(
            (found / 668.0 - 1.0).abs() < 0.04,
            "{step_ms} ms: {found:.0}"
        );
    }
}

#[test]
fn what_is_less_than_the_link_carries_passes() {
    let mut world = World::new("wifi5-80", 40.0, 0, [full(), idle()]);
    world.run(1.0, STEP, [20_000.0, 0.0]);
    let [found, _] = world.run(1.0, STEP, [20_000.0, 0.0]);
    let offered = 20_000.0 * 1472.0 * 8.0 / 1e6;
    assert!((found / offered - 1.0).abs() < 0.01, "{found}");
    assert!(world.queues[0].queued < 40, "{}", world.queues[0].queued);
}

#[test]
fn both_directions_share_the_air() {
    let mut world = World::new("wifi5-80", 60.0, 0, [full(), full()]);
    world.run(1.0, STEP, [1e6, 1e6]);
    let [a, b] = world.run(4.0, STEP, [1e6, 1e6]);
    // Collisions and backoffs: the sum is below what one alone has.
    assert!((560.0..668.0).contains(&(a + b)), "{a} {b}");
    assert!((a - b).abs() < 60.0, "{a} {b}");
}

#[test]
fn answers_cost_airtime() {
    let mut world = World::new("wifi5-80", 60.0, 0, [full(), idle()]);
    let [alone, _] = world.run(3.0, STEP, [1e6, 0.0]);
    let mut world = World::new("wifi5-80", 60.0, 0, [full(), idle()]);
    let [answered, _] = world.run(3.0, STEP, [1e6, 25_000.0]);
    let share = answered / alone;
    assert!((0.65..0.9).contains(&share), "{answered} {alone}");
}

#[test]
fn others_take_their_share() {
    let mut world = World::new("wifi5-80", 60.0, 3, [full(), idle()]);
    let [found, _] = world.run(4.0, STEP, [1e6, 0.0]);
    assert!((250.0..600.0).contains(&found), "{found}");
}

#[test]
fn a_dead_link_loses_and_comes_back() {
    let mut world = World::new("wifi5-80", 40.0, 0, [full(), idle()]);
    world.run(1.0, STEP, [1e6, 0.0]);
    world.air.set_snr(-20.0);
    let [found, _] = world.run(3.0, STEP, [1e6, 0.0]);
    assert!(found < 30.0, "{found}");
    assert!(world.air.used().lost[0] > 0);
    world.air.set_snr(40.0);
    world.run(1.0, STEP, [1e6, 0.0]);
    let [found, _] = world.run(1.0, STEP, [1e6, 0.0]);
    assert!(found > 600.0, "{found}");
}

#[test]
fn what_the_mac_gives_up_is_lost() {
    let mut world = World::new("wifi5-80", -1.0, 0, [full(), idle()]);
    world.run(2.0, STEP, [1e6, 0.0]);
    let used = world.air.used();
    let lost = used.lost[0] as f64 / (used.lost[0] + used.delivered[0]) as f64;
    assert!(lost > 0.05, "{lost}");
    // The model may be a horizon ahead or behind, no more.
    let served = used.lost[0] + used.delivered[0];
    assert!(served.abs_diff(world.queues[0].sent) < 1_000);
}

#[test]
fn segmented_packets_count_as_many() {
    // A queue that does not split: 64 KiB as one packet until it is sent.
    let profile = Profile::find("wifi5-80").unwrap();
    let mut air = Air::new(&profile, 0, 1);
    let waiting = Seen {
        backlog_bytes: 40 * 1514,
        backlog_packets: 1,
        ..Seen::default()
    };
    air.step(Time::from_nanos(4_000_000), [waiting, Seen::default()]);
    let sent = Seen {
        sent_bytes: 40 * 1514,
        sent_packets: 40,
        ..Seen::default()
    };
    for step in 2..100 {
        let now = Time::from_nanos(step * 4_000_000);
        air.step(now, [sent, Seen::default()]);
    }
    let used = air.used();
    let bytes = used.delivered_bytes[0];
    assert!((50_000..61_000).contains(&bytes), "{bytes}");
}

#[test]
fn no_byte_is_forgotten_however_long_packets_are() {
    let profile = Profile::find("wifi5-80").unwrap();
    let mut air = Air::new(&profile, 0, 1);
    let mut seen = Seen::default();
    for step in 1..20_000 {
        // Steps of one to seven packets of all lengths.
        let packets = 1 + step % 7;
        seen.sent_packets += packets;
        seen.sent_bytes += packets * 66 + step * 7919 % 1_400;
        air.step(Time::from_nanos(step * 4_000_000), [seen, Seen::default()]);
    }
    air.step(
        Time::from_nanos(20_100 * 4_000_000),
        [seen, Seen::default()],
    );
    let direction = &air.directions[0];
    assert_eq!(direction.entered_packets, seen.sent_packets);
    let missing = seen.sent_bytes - direction.served_bytes;
    assert!(missing < 7, "{missing} bytes never entered");
}

#[test]
fn the_same_seed_gives_the_same() {
    let run = |seed| {
        let profile = Profile::find("wifi5-80").unwrap();
        let mut world = World::new("wifi5-80", 25.0, 2, [full(), idle()]);
        world.air = Air::new(&profile, 2, seed);
        world.run(1.0, STEP, [1e6, 9_000.0]);
        (world.air.used(), world.queues[0].sent)
    };
    assert_eq!(run(3), run(3));
    assert_ne!(run(3), run(4));
}

#[test]
fn losses_follow_the_model_however_late_the_steps_are() {
    // One that sends all the time, and one that sends now and then.
    for offered in [1700.0, 25.0] {
        let mut world = World::new("wifi5-80", -1.0, 0, [full(), idle()]);
        for _ in 0..200 {
            world.run(0.08, STEP, [offered, 0.0]);
            world.run(0.06, Duration::from_millis(60), [offered, 0.0]);
        }
        let model = world.air.used().lost[0] as f64;
        let kernel = world.lost[0];
        // What is left is what was lost last.
        let allowed = 20.0 + 0.02 * model;
        assert!(model > 50.0, "{model} lost with {offered} a second");
        assert!(
            (kernel - model).abs() < allowed,
            "{kernel:.0} in place of {model}"
        );
    }
}
