//! Two devices in a simulated Wi-Fi cell, and a transfer between them in virtual time: the same figures wherever it runs.
//!
//! All that programs use is there but the sockets: engine, transport, reports, rate control, and a radio that both directions
//! share, with aggregates, retries, a moving rate and a queue in front of it (`docs/design/010-wifi-model.md`).

use airdma_engine::simulated::{Simulated, interface};
use airdma_engine::{
    Access, AttrMask, Cq, Mr, Pd, Qp, QpAttributes, QpCaps, QpInit, QpState, QpType, RateControl,
    SendFlags, SendWr, Sge,
};
use airdma_port::QueueFill;
use airdma_port::sim::{Carrier, Frame, carried};
use airdma_sim::Random;
use airdma_sim::wifi::{Fate, Medium, Profile, StationId};
use airdma_transport::{Operation, Path, Status, Time};
use core::time::Duration;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Of IPv4 and UDP, which a frame of the devices does not have.
const HEADERS: u32 = 28;
const PAYLOAD: u64 = 1024;
/// A middle packet of a WRITE at this path MTU, as the cell gets it: BTH, payload, ICRC.
const PACKET: u32 = HEADERS + 12 + PAYLOAD as u32 + 4;
const MESSAGE: usize = 64 * 1024;
const MESSAGES: u64 = 128;
/// While hosts find each other.
const WARM_UP: Duration = Duration::from_millis(300);
/// While stations learn their rates, before it.
const TEACHING: Duration = Duration::from_millis(500);
const TEACHING_PACKETS: usize = 64;
const MEDIUM_STEP: Duration = Duration::from_micros(100);
/// A transfer that takes longer has failed.
const GIVEN_UP: Duration = Duration::from_secs(60);

/// Which cell, and how packets get lost in it.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Of the radio.
    pub profile: Profile,
    /// Between both stations.
    pub snr_db: f64,
    /// Packets that vanish behind the radio: the residual loss.
    pub loss: f64,
    /// Of chance.
    pub seed: u64,
}

/// What was seen of a sender in a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Seen {
    /// Payload that arrived, in Mb/s.
    pub mbit: f64,
    /// How long a packet was in the queue and on the air, until it arrived or was given up: median and 99 %.
    pub queued_ms: [f64; 2],
    /// Packets that found the queue full.
    pub overflowed: u64,
    /// Datagrams of the other direction for each MB of payload.
    pub answers_per_mb: f64,
}

/// Lets the stations learn their rates by packets that nobody gets.
fn teach(medium: &mut Medium, [from, to]: [StationId; 2], random: &mut Random) -> Time {
    let mut outcomes = Vec::new();
    let mut now = Time::ZERO;
    while now < Time::ZERO + TEACHING
        || medium.backlog(from).packets > 0
        || medium.backlog(to).packets > 0
    {
        for (from, to) in [(from, to), (to, from)] {
            if now < Time::ZERO + TEACHING && medium.backlog(from).packets < TEACHING_PACKETS {
                // What finds the queue full is not missed.
                let _ = medium.enqueue(now, from, to, PACKET, 0);
            }
        }
        now = medium.poll_at().unwrap_or(now + MEDIUM_STEP).max(now);
        medium.advance(now, random, &mut outcomes);
        outcomes.clear();
    }
    now
}

/// What a queue that is always full gets through, in Mb/s of the same packets.
pub fn line_rate(setting: &Setting, time: Duration) -> f64 {
    let mut medium = Medium::new(setting.profile.clone());
    let (from, to) = (medium.add_station(), medium.add_station());
    medium.set_snr(from, to, setting.snr_db);
    let mut random = Random::new(setting.seed);
    let taught = teach(&mut medium, [from, to], &mut random);
    let (mut outcomes, mut now, mut came) = (Vec::new(), taught, 0);
    let begin = taught + WARM_UP;
    let end = begin + time;
    let mut token = 0;
    while now < end {
        while medium.backlog(from).packets < setting.profile.queue_packets_max {
            let taken = medium.enqueue(now, from, to, PACKET, token);
            token += u64::from(taken.is_ok());
        }
        now = medium.poll_at().unwrap_or(end).max(now);
        medium.advance(now, &mut random, &mut outcomes);
        for outcome in outcomes.drain(..) {
            let counts = outcome.fate == Fate::Delivered && outcome.at >= begin && outcome.at < end;
            came += u64::from(counts && !random.chance(setting.loss));
        }
    }
    mbit(came * PAYLOAD, time)
}

/// What a transfer without end gets through. `air`: by the rate control of air mode; else RoCEv2.
pub fn throughput(setting: &Setting, air: Option<RateControl>, time: Duration) -> Seen {
    let mut cell = Cell::new(setting, air);
    cell.run_until(WARM_UP, u64::MAX);
    cell.begin();
    let done = cell.done;
    cell.run_until(WARM_UP + time, u64::MAX);
    cell.seen(done, time)
}

/// How long so many bytes take, from the first request to the last completion. `None`: for ever.
pub fn completion(setting: &Setting, air: Option<RateControl>, bytes: u64) -> Option<Duration> {
    let mut cell = Cell::new(setting, air);
    cell.run_until(WARM_UP, 0);
    cell.begin();
    let messages = bytes.div_ceil(MESSAGE as u64);
    cell.run_until(WARM_UP + GIVEN_UP, messages);
    (cell.done == messages).then(|| cell.now - WARM_UP)
}

fn mbit(bytes: u64, time: Duration) -> f64 {
    bytes as f64 * 8.0 / time.as_secs_f64() / 1e6
}

struct Host {
    device: Simulated,
    carrier: Carrier,
    station: StationId,
    _pd: Arc<Pd>,
    cq: Arc<Cq>,
    qp: Arc<Qp>,
    memory: Box<[u64]>,
    mr: Arc<Mr>,
}

impl Host {
    fn new(index: u8, air: Option<RateControl>, station: StationId) -> Host {
        let address = IpAddr::from([10, 0, 0, index]);
        let info = interface(&format!("cell{index}"), index.into(), address);
        let (port, carrier) = carried(&[address]).expect("a descriptor");
        let seed = index.into();
        let device = Simulated::open(info, Box::new(port), seed).expect("a device in memory");
        if let Some(rate_control) = air {
            device.offer_air(rate_control);
        }
        let pd = device.device().alloc_pd().expect("a domain");
        let cq = device.device().create_cq(1024, None).expect("a queue");
        let caps = QpCaps {
            max_send_wr: MESSAGES as u32,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
        };
        let init = QpInit {
            qp_type: QpType::Rc,
            send_cq: Arc::clone(&cq),
            recv_cq: Arc::clone(&cq),
            srq: None,
            caps,
            signal_all: true,
        };
        let qp = pd.create_qp(init).expect("a queue pair");
        let mut memory = vec![0_u64; MESSAGE / 8].into_boxed_slice();
        let at = memory.as_mut_ptr().expose_provenance() as u64;
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let mr = pd.reg_mr(at, MESSAGE, at, access).expect("a region");
        Host {
            device,
            carrier,
            station,
            _pd: pd,
            cq,
            qp,
            memory,
            mr,
        }
    }

    fn address(&self) -> u64 {
        self.memory.as_ptr().expose_provenance() as u64
    }

    fn connect(&self, peer: &Host) {
        let gid = peer.device.device().info().gids[0].gid;
        let set = |attributes: &QpAttributes, mask| {
            self.qp.modify(attributes, mask).expect("a transition");
        };
        let init = QpAttributes {
            state: QpState::Init,
            port: 1,
            access: Access::LOCAL_WRITE | Access::REMOTE_WRITE,
            ..QpAttributes::default()
        };
        set(
            &init,
            AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | AttrMask::ACCESS_FLAGS,
        );
        let receive = QpAttributes {
            state: QpState::ReadyToReceive,
            path: Path {
                gid,
                hop_limit: 64,
                ..Path::default()
            },
            path_mtu: airdma_engine::PathMtu::M1024,
            dest_qpn: peer.qp.number(),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 1,
            ..init
        };
        let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let limits = AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER;
        set(&receive, AttrMask::STATE | connected | limits);
        let send = QpAttributes {
            state: QpState::ReadyToSend,
            max_rd_atomic: 1,
            retry_count: 7,
            rnr_retry: 7,
            // What perftest has.
            timeout: 14,
            ..receive
        };
        let sending = AttrMask::SQ_PSN | AttrMask::MAX_QP_RD_ATOMIC | AttrMask::TIMEOUT;
        let retries = AttrMask::RETRY_CNT | AttrMask::RNR_RETRY;
        set(&send, AttrMask::STATE | sending | retries);
    }

    fn write(&self, to: &Host) {
        let sge = Sge {
            addr: self.address(),
            length: MESSAGE as u32,
            lkey: self.mr.lkey().0,
        };
        let write = SendWr {
            wr_id: 0,
            operation: Operation::Write {
                va: to.address(),
                rkey: to.mr.rkey(),
            },
            sges: &[sge],
            flags: SendFlags::SIGNALLED,
            datagram: None,
            srqn: 0,
        };
        self.qp.post_send(&write).expect("room for it");
    }
}

/// A packet in the cell.
struct Under {
    frame: Frame,
    from: usize,
    since: Duration,
}

struct Cell {
    hosts: [Host; 2],
    medium: Medium,
    random: Random,
    /// The medium's clock when that of the hosts was zero.
    began: Time,
    loss: f64,
    capacity: u64,
    now: Duration,
    under_way: HashMap<u64, Under>,
    token: u64,
    posted: u64,
    done: u64,
    waits: Vec<Duration>,
    overflowed: u64,
    answers: u64,
}

impl Cell {
    fn new(setting: &Setting, air: Option<RateControl>) -> Cell {
        let mut medium = Medium::new(setting.profile.clone());
        let stations = [medium.add_station(), medium.add_station()];
        medium.set_snr(stations[0], stations[1], setting.snr_db);
        let mut random = Random::new(setting.seed);
        let taught = teach(&mut medium, stations, &mut random);
        let hosts = [
            Host::new(1, air, stations[0]),
            Host::new(2, air, stations[1]),
        ];
        hosts[0].connect(&hosts[1]);
        hosts[1].connect(&hosts[0]);
        Cell {
            hosts,
            medium,
            random,
            began: taught,
            loss: setting.loss,
            capacity: setting.profile.queue_packets_max as u64 * u64::from(PACKET),
            now: Duration::ZERO,
            under_way: HashMap::new(),
            token: 0,
            posted: 0,
            done: 0,
            waits: Vec::new(),
            overflowed: 0,
            answers: 0,
        }
    }

    /// From here on it counts.
    fn begin(&mut self) {
        self.waits.clear();
        self.overflowed = 0;
        self.answers = 0;
    }

    fn seen(mut self, done_before: u64, time: Duration) -> Seen {
        let bytes = (self.done - done_before) * MESSAGE as u64;
        self.waits.sort_unstable();
        let last = self.waits.len().saturating_sub(1);
        let wait = |percent: usize| {
            let place = (self.waits.len() * percent / 100).min(last);
            (self.waits.get(place)).map_or(0.0, |wait| wait.as_secs_f64() * 1e3)
        };
        Seen {
            mbit: mbit(bytes, time),
            queued_ms: [wait(50), wait(99)],
            overflowed: self.overflowed,
            answers_per_mb: self.answers as f64 / (bytes as f64 / 1e6).max(1e-9),
        }
    }

    /// Lets time pass until `end`, or until so many messages are complete.
    fn run_until(&mut self, end: Duration, messages: u64) {
        while self.now < end {
            self.post(messages);
            self.settle();
            if messages > 0 && self.done == messages {
                return;
            }
            let medium = self.medium.poll_at();
            let medium = medium.map(|at| at.duration_since(self.began));
            let devices = self.hosts.iter().filter_map(|host| host.device.deadline());
            let next = medium.into_iter().chain(devices).min().unwrap_or(end);
            self.now = next.clamp(self.now, end);
            self.pass();
        }
    }

    fn post(&mut self, messages: u64) {
        let [from, to] = &self.hosts;
        from.device.move_clock(self.now);
        while self.posted < messages && self.posted - self.done < MESSAGES {
            from.write(to);
            self.posted += 1;
        }
    }

    /// Lets both devices do what they can at this moment.
    fn settle(&mut self) {
        let mut is_moving = true;
        while std::mem::take(&mut is_moving) {
            for from in [0, 1] {
                let host = &self.hosts[from];
                let fill = QueueFill {
                    bytes: self.medium.backlog(host.station).bytes,
                    capacity: Some(self.capacity),
                };
                host.carrier.set_send_queue(Some(fill));
                host.device.run(self.now);
                while let Some(frame) = self.hosts[from].carrier.take() {
                    is_moving = true;
                    self.enqueue(from, frame);
                }
            }
            let before = self.done;
            let done = &mut self.done;
            let polled = self.hosts[0].cq.poll(1024, |completion| {
                assert_eq!(completion.status, Status::Success, "{completion:?}");
                *done += 1;
            });
            polled.expect("a queue that does not overflow");
            is_moving |= self.done > before;
        }
    }

    fn enqueue(&mut self, from: usize, frame: Frame) {
        let bytes = frame.bytes.len() as u32 + HEADERS;
        let now = self.began + self.now;
        let [station, peer] = [from, 1 - from].map(|host| self.hosts[host].station);
        let token = self.token;
        self.token += 1;
        if from == 1 {
            self.answers += 1;
        }
        match self.medium.enqueue(now, station, peer, bytes, token) {
            Ok(()) => {
                let since = self.now;
                self.under_way.insert(token, Under { frame, from, since });
            }
            Err(_) => self.overflowed += 1,
        }
    }

    fn pass(&mut self) {
        let mut outcomes = Vec::new();
        let now = self.began + self.now;
        self.medium.advance(now, &mut self.random, &mut outcomes);
        for outcome in outcomes {
            let under = self.under_way.remove(&outcome.token);
            let Under { frame, from, since } = under.expect("a packet of ours");
            if from == 0 {
                self.waits.push(self.now.saturating_sub(since));
            }
            if outcome.fate == Fate::Delivered && !self.random.chance(self.loss) {
                self.hosts[1 - from].carrier.give(frame);
            }
        }
    }
}
