//! Each stage, measured.

use airdma_sim::{GilbertElliott, Link, LinkCounters, Marking, Network, Node, gbit};
use airdma_transport::Time;

use crate::scene::{CE, ECT, OVERHEAD, deliveries, frame, ns, stream, us};

fn over(link: Link) -> Network {
    Network::pair(11, link, Link::new())
}

fn counters(network: &Network) -> LinkCounters {
    network.counters(Node::Host(0), Node::Host(1))
}

/// Asserts that a count of successes is within five standard deviations of its mean.
fn assert_binomial(count: usize, trials: usize, probability: f64) {
    let mean = trials as f64 * probability;
    let deviation = (mean * (1.0 - probability)).sqrt();
    assert!(
        (count as f64 - mean).abs() < 5.0 * deviation,
        "{count} of {trials}, not about {mean}"
    );
}

#[test]
fn a_million_frames_take_as_long_as_they_should_at_400_gbit() {
    let mut network = over(Link::new().rate(gbit(400)));
    let mut last = Time::ZERO;
    let mut arrived = 0;
    let mut now = Time::ZERO;
    for sent in 0..1_000_000u64 {
        now = now.max(network.ready_at(0));
        network.deliver(now, &mut |delivery| {
            last = delivery.at;
            arrived += 1;
        });
        // 1023 + 66 bytes take 21.78 ns.
        let frame = frame(&network, 0, 1, 1023);
        network.send(now, 0, frame);
        if sent % 100_000 == 0 {
            let exact = (sent + 1) * 2178;
            assert!(network.next_event().is_some());
            assert!(last.as_nanos() <= exact.div_ceil(100));
        }
    }
    network.deliver(Time::from_nanos(u64::MAX), &mut |delivery| {
        last = delivery.at;
        arrived += 1;
    });
    assert_eq!(arrived, 1_000_000);
    assert_eq!(last.as_nanos(), 21_780_000, "21.78 ns each");
}

#[test]
fn a_rate_makes_the_sender_wait_and_loses_nothing() {
    let mut network = over(Link::new().rate(gbit(10)).delay(us(3)));
    let arrived = stream(&mut network, 1000, 1024);
    assert_eq!(arrived.len(), 1000);
    for (number, at, _) in arrived {
        let bits = u64::from(number + 1) * (1024 + OVERHEAD as u64) * 8;
        assert_eq!(at.as_nanos(), bits.div_ceil(10) + 3000);
    }
}

#[test]
fn jitter_keeps_the_order_if_asked_to_and_reaches_its_bounds() {
    for keeps_order in [true, false] {
        let link = Link::new().rate(gbit(1));
        let link = if keeps_order {
            link.jitter(us(50))
        } else {
            link.jitter_reordering(us(50))
        };
        let arrived = stream(&mut over(link), 5000, 934);
        assert_eq!(arrived.len(), 5000);
        let in_order = arrived.windows(2).all(|pair| pair[0].0 < pair[1].0);
        assert_eq!(in_order, keeps_order);
        let late = |(number, at, _): &(u32, Time, _)| at.as_nanos() - u64::from(number + 1) * 8000;
        let least = arrived.iter().map(late).min().unwrap();
        let most = arrived.iter().map(late).max().unwrap();
        assert!(least < 1000 && (49_000..=50_000).contains(&most));
        if !keeps_order {
            let mean = arrived.iter().map(late).sum::<u64>() / 5000;
            assert!((24_000..26_000).contains(&mean));
        }
    }
}

#[test]
fn loss_duplication_and_holding_back_are_as_likely_as_asked() {
    let trials = 30_000;
    for probability in [0.001, 0.1, 0.5] {
        let link = Link::new().drop(probability);
        let arrived = stream(&mut over(link), trials as u32, 64).len();
        assert_binomial(trials - arrived, trials, probability);

        let link = Link::new().duplicate(probability);
        let mut network = over(link);
        let arrived = stream(&mut network, trials as u32, 64).len();
        assert_binomial(arrived - trials, trials, probability);
        assert_eq!(counters(&network).duplicated as usize, arrived - trials);

        let mut network = over(Link::new().reorder_by(probability, us(10)));
        stream(&mut network, trials as u32, 64);
        assert_binomial(counters(&network).held_back as usize, trials, probability);
        assert!(network.path(0, 1).longest < us(10));
    }
}

#[test]
fn gilbert_elliott_loses_its_share_in_bursts_of_its_length() {
    let trials = 150_000;
    for (share, mean_len) in [(0.01, 5.0), (0.1, 20.0), (0.05, 1.2)] {
        let link = Link::new().drop_in_bursts(GilbertElliott::bursts(share, mean_len));
        let arrived = stream(&mut over(link), trials, 64);
        let lost = trials as usize - arrived.len();
        let bursts = arrived.windows(2).filter(|pair| pair[1].0 - pair[0].0 > 1);
        let bursts = bursts.count();
        let measured = lost as f64 / f64::from(trials);
        assert!(
            (measured / share - 1.0).abs() < 0.15,
            "{measured} not {share}"
        );
        let measured = lost as f64 / bursts as f64;
        assert!(
            (measured / mean_len - 1.0).abs() < 0.1,
            "{measured} not {mean_len}"
        );
    }
    // Both states lose packets.
    let channel = GilbertElliott {
        p: 0.02,
        r: 0.1,
        h: 0.4,
        k: 0.99,
    };
    let arrived = stream(&mut over(Link::new().drop_in_bursts(channel)), trials, 64);
    let share = 1.0 - arrived.len() as f64 / f64::from(trials);
    let expected = (channel.p * 0.6 + channel.r * 0.01) / (channel.p + channel.r);
    assert!(
        (share / expected - 1.0).abs() < 0.05,
        "{share} not {expected}"
    );
}

#[test]
fn a_full_queue_drops_and_the_rest_keeps_its_order() {
    // 1000 bytes on the line take 8 us; one is on the line, five wait.
    let mut network = over(Link::new().bottleneck(gbit(1), 5_500));
    for _ in 0..20 {
        let frame = frame(&network, 0, 1, 1000 - OVERHEAD);
        network.send(Time::ZERO, 0, frame);
    }
    let arrived = deliveries(&mut network);
    let times: Vec<_> = arrived.iter().map(|d| d.at.as_nanos() / 1000).collect();
    assert_eq!(times, [8, 16, 24, 32, 40, 48]);
    let counters = counters(&network);
    assert_eq!((counters.overflowed, counters.dropped), (14, 14));
    assert_eq!(counters.queue_longest_bytes, 5000);
    assert_eq!(network.path(0, 1).lost, 14);
    // A small packet still fits where a large one does not.
    let mut network = over(Link::new().bottleneck(gbit(1), 1_500));
    for len in [934, 934, 934, 434] {
        let frame = frame(&network, 0, 1, len);
        network.send(Time::ZERO, 0, frame);
    }
    let lens: Vec<_> = deliveries(&mut network)
        .iter()
        .map(|d| d.frame.bytes.len())
        .collect();
    assert_eq!(lens, [934, 934, 434]);
}

/// Number of 100 simultaneous frames that arrive, and the indices of marked ones.
fn marked(marking: Marking, tos: u8, ipv6: bool) -> (usize, Vec<usize>) {
    let link = Link::new().marking_bottleneck(gbit(1), 50_000, marking);
    let mut network = over(link);
    if ipv6 {
        network = network.with_ipv6();
    }
    let len = 1000 - OVERHEAD - if ipv6 { 20 } else { 0 };
    for _ in 0..100 {
        let mut frame = frame(&network, 0, 1, len);
        frame.tos = tos;
        network.send(Time::ZERO, 0, frame);
    }
    let arrived = deliveries(&mut network);
    let all = arrived.iter().enumerate();
    let marked = all.filter(|(_, d)| d.frame.tos & 3 == CE && tos & 3 != CE);
    let marked: Vec<_> = marked.map(|(index, _)| index).collect();
    assert!(
        arrived
            .iter()
            .all(|d| d.frame.tos & !3 == tos & !3 && !d.damaged)
    );
    (arrived.len(), marked)
}

#[test]
fn ecn_capable_frames_are_marked_and_others_are_not() {
    for ipv6 in [false, true] {
        for tos in [ECT, 1, 0b1011_1001] {
            let (arrived, marks) = marked(Marking::Above(10_000), tos, ipv6);
            assert_eq!(arrived, 51);
            // The first is on the line at once, and the next eleven find at most 10,000 bytes.
            assert_eq!(marks, (12..51).collect::<Vec<_>>());
        }
        assert_eq!(marked(Marking::Above(10_000), 0, ipv6), (51, vec![]));
        assert_eq!(marked(Marking::Never, ECT, ipv6), (51, vec![]));
    }
}

#[test]
fn marks_become_more_likely_along_the_ramp() {
    let ramp = Marking::Ramp {
        kmin: 10_000,
        kmax: 40_000,
        pmax: 0.2,
    };
    let mut at = [0; 51];
    let link = || Link::new().marking_bottleneck(gbit(1), 50_000, ramp);
    let rounds = 2000;
    for seed in 0..rounds {
        let mut network = Network::pair(seed, link(), Link::new());
        for _ in 0..51 {
            let frame = frame(&network, 0, 1, 1000 - OVERHEAD);
            network.send(Time::ZERO, 0, frame);
        }
        for (index, delivery) in deliveries(&mut network).iter().enumerate() {
            at[index] += usize::from(delivery.frame.tos == CE);
        }
    }
    // Frame n finds n - 1 thousand bytes.
    assert_eq!(at[..=11], [0; 12]);
    assert_binomial(at[26], rounds as usize, 0.1);
    assert_binomial(at[41], rounds as usize, 0.2);
    assert_eq!(at[42..], [rounds as usize; 9]);
}

#[test]
fn the_mtu_is_that_of_ip_and_can_change() {
    let mut network = over(Link::new().mtu(1500));
    let fits = frame(&network, 0, 1, 1500 - 28);
    let large = frame(&network, 0, 1, 1500 - 27);
    network.send(Time::ZERO, 0, fits.clone());
    network.send(Time::ZERO, 0, large.clone());
    assert_eq!(deliveries(&mut network).len(), 1);
    network.set_mtu(Some(1400));
    network.send(Time::ZERO, 0, fits.clone());
    network.set_mtu(None);
    network.send(Time::ZERO, 0, large);
    assert_eq!(deliveries(&mut network).len(), 1);
    let counters = counters(&network);
    assert_eq!((counters.too_large, counters.dropped), (2, 2));
    assert_eq!(network.path(0, 1).lost, 2);
}

#[test]
fn a_queue_behind_disorder_sees_frames_in_order_of_time() {
    // Queued in order of departure, an early one would wait for a late one before it.
    let link = Link::new()
        .jitter_reordering(us(1000))
        .bottleneck(gbit(10), 1 << 20);
    let mut network = over(link);
    for _ in 0..100 {
        let frame = frame(&network, 0, 1, 1250 - OVERHEAD);
        network.send(Time::ZERO, 0, frame);
    }
    let arrived = deliveries(&mut network);
    assert_eq!(arrived.len(), 100);
    let first = arrived[0].at.duration_since(Time::ZERO);
    assert!(first < us(60), "{first:?}");
    let gaps = arrived
        .windows(2)
        .map(|pair| pair[1].at.duration_since(pair[0].at));
    assert!(gaps.min().unwrap() >= ns(1000));
}
