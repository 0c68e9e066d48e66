#![allow(clippy::unwrap_used)]
use super::*;
use crate::config::Window;
use airdma_wire::Qkey;

const LEN: usize = 1468;
const INSTANCE: Psn = Psn::new(3);

fn at(us: u64) -> Time {
    Time::from_nanos(us * 1_000)
}

fn way(last: u16) -> Way {
    let [high, low] = last.to_be_bytes();
    Way {
        local: [192, 0, 2, 1].into(),
        remote: [198, 51, high, low].into(),
    }
}

struct Bench {
    peers: RecordPeers,
    windows: Peers,
    sent: u32,
}

impl Bench {
    fn new() -> Self {
        Bench {
            peers: RecordPeers::default(),
            windows: Peers::new(Window::default()),
            sent: 0,
        }
    }

    /// Sends as much as may leave; returns the packets and the questions among them.
    fn send(&mut self, way: Way, most: usize, now: Time) -> (usize, Vec<u32>) {
        let (index, _) = self.peers.find_or_add(way, &mut self.windows, now);
        let mut asked = Vec::new();
        for packets in 0..most {
            let Some(asks) = self.peers.admit(index, &self.windows) else {
                return (packets, asked);
            };
            self.sent += 1;
            let question = asks.then(|| Question {
                from: Qpn::new(7),
                to: Qpn::new(9),
                instance: INSTANCE,
                part: (self.sent, 0),
            });
            asked.extend(asks.then_some(self.sent));
            let packet = SentRecord {
                len: LEN,
                begins: None,
                question,
            };
            self.peers.note_sent(index, packet, now, &mut self.windows);
        }
        (most, asked)
    }

    fn answer(&mut self, way: Way, id: u32, socket: [u32; 2], now: Time) -> bool {
        self.answer_to(INSTANCE, way, id, socket, now)
    }

    fn answer_to(&mut self, instance: Psn, way: Way, id: u32, socket: [u32; 2], now: Time) -> bool {
        let echo = RecordEcho {
            dest_qpn: Qpn::new(7),
            instance,
            qkey: Qkey(0),
            src_qpn: Qpn::new(9),
            id,
            offset: 0,
            socket_bytes: socket[0],
            socket_bytes_max: socket[1],
            entries: None,
            asks: false,
        };
        let taken = self.peers.take_answer(way, &echo, now, &mut self.windows);
        taken.is_some()
    }

    fn expire(&mut self, now: Time) -> usize {
        let mut room = Vec::new();
        (self.peers).expire(now, &mut self.windows, &mut room, &mut Vec::new());
        room.len()
    }
}

#[test]
fn a_window_leaves_and_asks_several_times() {
    let mut bench = Bench::new();
    let (packets, asked) = bench.send(way(1), 1000, at(0));
    // 64 KiB, of 2,236 bytes each.
    assert_eq!(packets, 30);
    assert!(asked.len() >= 4, "{asked:?}");
    assert_eq!(asked.last(), Some(&30), "the last one asks");
    assert_eq!(bench.send(way(1), 1000, at(1)).0, 0);
    assert_eq!(
        bench.send(way(2), 1000, at(1)).0,
        30,
        "another host has its own"
    );
}

#[test]
fn an_answer_makes_room_for_all_that_was_sent_before() {
    let mut bench = Bench::new();
    let (_, asked) = bench.send(way(1), 1000, at(0));
    let third = asked[2];
    let former = Psn::new(4);
    assert!(!bench.answer_to(former, way(1), third, [0, 0], at(90)));
    assert!(bench.answer(way(1), third, [0, 0], at(100)));
    assert!(
        !bench.answer(way(1), asked[0], [0, 0], at(110)),
        "it is over"
    );
    let (packets, _) = bench.send(way(1), 1000, at(120));
    assert!(packets >= third as usize, "{packets} after {third}");
}

#[test]
fn the_window_grows_with_answers_to_its_ceiling() {
    let mut bench = Bench::new();
    let mut most = 0;
    for round in 0..20 {
        let now = at(round * 200);
        let (packets, asked) = bench.send(way(1), 1000, now);
        most = most.max(packets);
        assert!(bench.answer(way(1), asked[asked.len() - 1], [0, 0], now));
    }
    assert_eq!(
        most,
        (256 * 1024_usize).div_ceil(LEN + PACKET_BYTES as usize)
    );
}

#[test]
fn no_more_is_in_flight_than_three_quarters_of_the_socket() {
    let mut bench = Bench::new();
    let (_, asked) = bench.send(way(1), 3, at(0));
    assert!(asked.is_empty());
    let (_, asked) = bench.send(way(1), 1000, at(0));
    assert!(bench.answer(way(1), asked[asked.len() - 1], [0, 40_000], at(100)));
    let (packets, asked) = bench.send(way(1), 1000, at(200));
    assert_eq!(packets, 30_000_usize.div_ceil(LEN + PACKET_BYTES as usize));
    assert!(bench.answer(way(1), asked[asked.len() - 1], [39_000, 400_000], at(300)));
}

#[test]
fn a_full_socket_halves_the_window() {
    let mut bench = Bench::new();
    let (_, asked) = bench.send(way(1), 1000, at(0));
    assert!(bench.answer(way(1), asked[asked.len() - 1], [390_000, 400_000], at(200)));
    let (packets, _) = bench.send(way(1), 1000, at(300));
    assert!(packets < 30, "{packets}");
}

#[test]
fn a_silent_host_gets_a_window_every_ten_milliseconds() {
    let mut bench = Bench::new();
    for ms in (0..100).step_by(10) {
        let (packets, _) = bench.send(way(1), 1000, at(ms * 1_000));
        assert_eq!(packets, 30, "at {ms} ms");
        assert_eq!(bench.expire(at(ms * 1_000 + 9_999)), 0);
        assert_eq!(bench.peers.due(), at((ms + 10) * 1_000));
        assert_eq!(bench.expire(at((ms + 10) * 1_000)), 1);
    }
}

#[test]
fn one_that_ceases_to_answer_gets_less_once() {
    let mut bench = Bench::new();
    let (_, asked) = bench.send(way(1), 1000, at(0));
    assert!(bench.answer(way(1), asked[asked.len() - 1], [0, 0], at(100)));
    let before = bench.send(way(1), 1000, at(200)).0;
    assert_eq!(bench.expire(at(10_200)), 1);
    let after = bench.send(way(1), 1000, at(10_300)).0;
    assert!(after <= before / 2 + 1, "{after} after {before}");
    assert_eq!(bench.expire(at(20_300)), 1);
    assert_eq!(bench.send(way(1), 1000, at(20_400)).0, after);
}

#[test]
fn a_long_round_trip_is_waited_for() {
    let mut bench = Bench::new();
    let (_, asked) = bench.send(way(1), 1000, at(0));
    assert_eq!(bench.expire(at(10_000)), 1);
    // The first answers come late, and are measured all the same.
    assert!(bench.answer(way(1), asked[0], [0, 0], at(80_000)));
    bench.send(way(1), 1000, at(80_000));
    assert_eq!(bench.expire(at(300_000)), 0);
    assert_eq!(bench.expire(at(400_000)), 1);
}

#[test]
fn an_unused_host_is_forgotten() {
    let mut bench = Bench::new();
    bench.send(way(1), 1, at(0));
    assert_eq!(bench.windows.count(), 1);
    assert_eq!(bench.expire(at(10_000)), 1);
    assert_eq!(bench.send(way(1), 1000, at(10_000)).0, 30);
    bench.expire(at(20_000));
    bench.expire(at(1_010_000));
    assert_eq!((bench.peers.count(), bench.windows.count()), (0, 0));
    assert_eq!(bench.peers.due(), Time::NEVER);
}

#[test]
fn the_table_is_bounded() {
    let mut bench = Bench::new();
    for host in 0..3 * RECORD_PEERS_MAX as u16 {
        assert_eq!(bench.send(way(host), 2, at(0)).0, 2);
    }
    assert_eq!(bench.peers.count(), RECORD_PEERS_MAX);
    assert_eq!(bench.peers.by_way.len(), RECORD_PEERS_MAX);
    assert_eq!(bench.windows.count(), RECORD_PEERS_MAX);
    for (at, peer) in bench.peers.peers.iter().enumerate() {
        assert_eq!(bench.peers.by_way[&peer.way] as usize, at);
    }
}
