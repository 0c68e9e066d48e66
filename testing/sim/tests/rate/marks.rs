//! DCQCN and DCTCP at one marking queue.

use std::time::Duration;

use airdma_sim::Marking;
use airdma_transport::rate::{Dcqcn, Dctcp, RateController};

use crate::flows::{Flows, LINE, PAYLOAD, Shares};
use crate::path::ms;

const DELAY: Duration = Duration::from_micros(2);
const QUEUE_BYTES: u64 = 2 << 20;

fn report(name: &str, shares: &Shares) {
    let gbit: Vec<f64> = shares.delivered.iter().map(|&bytes| bytes as f64).collect();
    let sum: f64 = gbit.iter().sum();
    let percent: Vec<String> = gbit
        .iter()
        .map(|x| format!("{:.0}", x / sum * 100.0))
        .collect();
    eprintln!(
        "{name:12} used {:5.1} %, shares {} %, Jain {:.3}, queue mean {:6.0} B, p99 {} B, longest {} B, dropped {}",
        shares.utilisation * 100.0,
        percent.join("/"),
        shares.fairness(),
        shares.queue_mean,
        shares.queue_p99,
        shares.queue_longest,
        shares.dropped,
    );
}

fn dcqcn(flows: usize) -> Flows {
    let controllers = (0..flows).map(|_| Box::new(Dcqcn::new(LINE)) as Box<dyn RateController>);
    // The paper's ramp, 5.2.
    let marking = Marking::Ramp {
        kmin: 5_000,
        kmax: 200_000,
        pmax: 0.01,
    };
    Flows::new(controllers.collect(), marking, QUEUE_BYTES, DELAY, ms(5))
}

fn dctcp(flows: usize, k: u64) -> Flows {
    let controllers = (0..flows)
        .map(|_| Box::new(Dctcp::new(PAYLOAD as u32, 1 << 20)) as Box<dyn RateController>);
    let delay = Duration::from_micros(10);
    Flows::new(
        controllers.collect(),
        Marking::Above(k),
        QUEUE_BYTES,
        delay,
        ms(5),
    )
}

#[test]
fn dcqcn_flows_reach_fair_shares_of_a_bounded_queue() {
    for count in 2..=4 {
        let mut flows = dcqcn(count);
        flows.run(ms(100));
        let shares = flows.run(ms(200));
        report(&format!("DCQCN, {count}"), &shares);
        assert!(shares.fairness() > 0.95, "{shares:?}");
        assert!(shares.utilisation > 0.85, "{shares:?}");
        assert!(
            shares.queue_p99 < 400_000 && shares.dropped == 0,
            "{shares:?}"
        );
    }
}

#[test]
fn dctcp_flows_share_fairly_with_a_queue_near_the_threshold() {
    let k = 100_000;
    for count in 2..=4 {
        let mut flows = dctcp(count, k);
        flows.run(ms(50));
        let shares = flows.run(ms(100));
        report(&format!("DCTCP, {count}"), &shares);
        assert!(shares.fairness() > 0.95, "{shares:?}");
        assert!(shares.utilisation > 0.97, "{shares:?}");
        let mean = shares.queue_mean / k as f64;
        assert!((0.5..1.3).contains(&mean), "{shares:?}");
        assert!(
            shares.queue_p99 < 2 * k && shares.dropped == 0,
            "{shares:?}"
        );
    }
}
