//! Selective ACK packets instead of reports.

use crate::common::*;
use crate::wires::{Wires, reset};
use crate::{MS, is_middle};
use airdma_engine::*;

const LEN: usize = 400 * 1024;

/// Two hosts that offer it, and have agreed.
fn wires(offers: [bool; 2]) -> Wires {
    let mut wires = Wires::with([None; 2], LEN);
    for (host, offers) in wires.hosts.iter().zip(offers) {
        if offers {
            host.device.offer_sack();
        }
    }
    wires.connect_again();
    wires
}

#[test]
fn hosts_with_nothing_in_common_send_a_few_hellos() {
    // One offers selective repeat in both ways, the other none.
    let mut wires = Wires::new([true, false], LEN);
    wires.hosts[1].device.offer_bundles();
    wires.connect_again();
    wires.quietly(100 * MS);
    let messages = [wires.messages(0), wires.messages(1)];
    assert!(messages.iter().all(|&count| count > 0));
    wires.quietly(2000 * MS);
    assert_eq!([wires.messages(0), wires.messages(1)], messages);
    for host in &wires.hosts {
        assert_eq!(host.count("air_agreed"), 0);
    }
}

/// Writes with one packet of `n` from the middle lost each time; returns the number of losses.
fn lossy_write(wires: &mut Wires, n: u64) -> u64 {
    let data = pattern(LEN, 3);
    wires.ends[0].memory.fill(0, &data);
    let write = wires.ends[0].write(&wires.ends[1], 0, LEN);
    wires.ends[0].qp.post_send(&write).unwrap();
    let (mut middle, mut lost) = (0, 0);
    wires.pass(500 * MS, &mut |from, bytes| {
        let is_lost = is_middle(from, bytes) && {
            middle += 1;
            middle % n == 0
        };
        lost += u64::from(is_lost);
        is_lost
    });
    wires.ends[0].ok();
    assert!(wires.ends[1].memory.bytes(0, LEN) == data);
    lost
}

#[test]
fn only_lost_packets_are_resent_and_no_reports_are_sent() {
    let mut wires = wires([true, true]);
    let messages = [wires.messages(0), wires.messages(1)];
    let lost = lossy_write(&mut wires, 9);
    assert!(lost >= 10, "{lost}");
    let again = wires.hosts[0].count("retransmits");
    assert!(
        (lost..=lost + lost / 3).contains(&again),
        "{again} for {lost} lost"
    );
    assert_eq!(wires.hosts[1].count("naks_sent"), 0);
    assert!(wires.hosts[1].count("acks_sent") > 0);
    assert_eq!(wires.hosts[0].count("timeouts"), 0);
    assert_eq!([wires.messages(0), wires.messages(1)], messages);
}

#[test]
fn with_a_host_that_does_not_offer_it_it_is_roce() {
    let mut wires = wires([true, false]);
    wires.quietly(1000 * MS);
    lossy_write(&mut wires, 100);
    assert!(wires.hosts[1].count("naks_sent") > 0);
    // An ACK packet with ICRC and nothing more.
    let acks = wires.sent.iter().filter(|(_, bytes)| bytes[0] == 0x11);
    assert!(acks.clone().count() > 0);
    assert!(acks.clone().all(|(_, bytes)| bytes.len() == 20));
}

#[test]
fn reports_are_preferred_and_acks_suffice() {
    for left_reports in [true, false] {
        let mut wires = Wires::with([None; 2], LEN);
        let [left, right] = wires.hosts.each_ref().map(|host| &host.device);
        left.offer_sack();
        right.offer_sack();
        right.offer_air(RateControl::Window);
        if left_reports {
            left.offer_air(RateControl::Window);
        }
        let (left, right) = crate::rate::pair(&wires);
        wires.quietly(5 * MS);
        left.qp.post_send(&left.write(&right, 0, LEN)).unwrap();
        wires.quietly(100 * MS);
        left.ok();
        let acks = wires.hosts[1].count("acks_sent");
        assert_eq!(acks == 0, left_reports, "{acks}");
        assert_eq!(wires.hosts[1].count("naks_sent"), 0);
    }
}

/// On a network that loses, repeats, reorders and damages packets, from the beginning.
#[test]
fn on_a_bad_network_everything_arrives() {
    const LEN: usize = 300_000;
    for seed in 1..=60u32 {
        let spec = |seed| format!("drop=2%,dup=2%,reorder=2%,corrupt=1%,seed={seed}");
        let specs = [spec(seed), spec(1_000 + seed)];
        let mut wires = Wires::impaired(specs.each_ref().map(String::as_str), LEN);
        for host in &wires.hosts {
            host.device.offer_wired(RateControl::Buffers);
        }
        wires.away = [1, 5][seed as usize % 2];
        wires.ends.iter().for_each(reset);
        wires.ends[0].connect(&wires.ends[1]);
        wires.ends[1].connect(&wires.ends[0]);
        let peer = &wires.ends[1].memory;
        let (va, rkey) = (peer.address(), peer.mr.rkey());
        for round in 0..4 {
            let all = [
                Operation::Write { va, rkey },
                Operation::Read { va, rkey },
                Operation::FetchAdd { va, rkey, add: 1 },
            ];
            for (operation, length) in all.into_iter().zip([LEN, LEN, 8]) {
                wires.ends[0].send(operation, 0, length);
                let begun = wires.now();
                let completion = loop {
                    if let Some(completion) = wires.ends[0].try_complete() {
                        break completion;
                    }
                    wires.quietly(MS);
                    let waited = wires.now() - begun;
                    assert!(waited < 3000 * MS, "seed {seed}, round {round}: {length}");
                };
                assert_eq!(completion.status, Status::Success);
            }
        }
    }
}
