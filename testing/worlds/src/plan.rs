//! A world and its actions, as plain data: decoded from bytes, printed, and shortened when it
//! fails.
//!
//! Operands are numbers without a meaning of their own; an action takes them modulo what exists
//! when it runs. So every list of actions can be run, and any part of a failing one may be left
//! out.

use crate::choices::Choices;
use core::time::Duration;

/// A world.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Seed of all that the bytes do not choose: lost packets, keys, contents.
    pub seed: u64,
    /// The network between the hosts.
    pub network: NetworkPlan,
    /// Number of hosts.
    pub hosts: usize,
    /// Whether addresses are IPv6.
    pub v6: bool,
    /// Pairs of queue pairs.
    pub connections: Vec<Connection>,
    /// Without deliberate faults: everything must succeed.
    pub careful: bool,
    /// Actions, in order.
    pub actions: Vec<Action>,
    /// A third host that forges datagrams, if there is one.
    pub attacker: Option<AttackerPlan>,
    /// Whether connections are sealed.
    pub sealed: bool,
    /// A host on the path of sealed connections, whose hosts then share a secret.
    pub on_path: Option<OnPathPlan>,
    /// Whether the first two hosts are processes of one host, and share memory.
    pub one_host: bool,
    /// Whether hosts write records to each other.
    pub records: bool,
}

/// Behaviour of a host on the path.
#[derive(Clone, Copy, Debug)]
pub struct OnPathPlan {
    /// Most datagrams that it forges.
    pub datagrams: u32,
    /// Whether it withholds packets.
    pub withholds: bool,
    /// Whether it delays packets.
    pub delays: bool,
}

/// Activity of the attacker.
#[derive(Clone, Copy, Debug)]
pub struct AttackerPlan {
    /// Most datagrams that it sends.
    pub datagrams: u32,
    /// The mean time between its bursts.
    pub pause: Duration,
}

/// The network between the hosts.
#[derive(Clone, Copy, Debug)]
pub struct NetworkPlan {
    /// A Wi-Fi cell instead of links: its profile, as a number, and the SNR of its stations in dB.
    pub wifi: Option<(u8, u8)>,
    /// One switch, instead of a link between any two.
    pub star: bool,
    /// Behaviour of every link.
    pub link: LinkPlan,
}

/// One link. Probabilities are in 1/10,000.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct LinkPlan {
    pub delay: Duration,
    pub gbit: Option<u64>,
    pub queue_bytes: Option<u64>,
    pub loss: u32,
    pub bursts: bool,
    pub duplicate: u32,
    pub reorder: u32,
    pub held: Duration,
    pub corrupt: u32,
    pub truncate: u32,
    pub jitter: Duration,
}

/// Services, in the order of their numbers here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Service {
    Rc,
    Uc,
    Ud,
}

/// Two connected queue pairs.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Connection {
    pub service: Service,
    /// Hosts; both ends may be on one.
    pub hosts: [usize; 2],
    pub mtu: u8,
    pub timeout: u8,
    pub retry_count: u8,
    pub rnr_retry: u8,
    pub min_rnr_timer: u8,
    pub answers_max: u8,
    /// Bits of the rights that each side grants: read, write, atomic.
    pub rights: [u8; 2],
    pub signal_all: bool,
    /// Whether each side takes its receives from its host's shared queue.
    pub shared: [bool; 2],
    /// Depth of its queues.
    pub depth: u32,
    /// Starting PSNs.
    pub psns: [u32; 2],
    /// Whether completions go to the host's second queue: sends, receives.
    pub cqs: [u8; 2],
    /// Rate limit of each side in kilobits per second; 0 is none.
    pub rates_kbps: [u32; 2],
}

/// One end of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Whom {
    /// Index of the connection.
    pub connection: u8,
    /// Side of the connection.
    pub side: u8,
}

/// An action.
#[derive(Clone, Debug)]
#[allow(missing_docs)]
pub enum Action {
    Send {
        whom: Whom,
        requests: Vec<Job>,
    },
    Receive {
        whom: Whom,
        count: u8,
        length: u16,
        fault: Option<Fault>,
    },
    Poll {
        host: u8,
        cq: u8,
    },
    Arm {
        host: u8,
        cq: u8,
        solicited: bool,
    },
    Event {
        host: u8,
    },
    Pass {
        time: Duration,
    },
    Store {
        host: u8,
        at: u16,
        length: u8,
    },
    Fail {
        whom: Whom,
    },
    Drain {
        whom: Whom,
    },
    Resume {
        whom: Whom,
    },
    Destroy {
        whom: Whom,
    },
    Reconnect {
        whom: Whom,
        at_once: bool,
    },
    Deregister {
        host: u8,
        region: u8,
    },
    Register {
        host: u8,
        region: u8,
    },
    Cut {
        from: u8,
        to: u8,
        both: bool,
    },
    Heal,
    Kill {
        host: u8,
    },
    /// Sets the limit of the shared queue, below which an event comes.
    Limit {
        host: u8,
        receives: u8,
    },
    /// Changes attributes of a running connection: RNR timer, and rights (bits as in
    /// [`Connection::rights`]).
    Tune {
        whom: Whom,
        min_rnr_timer: u8,
        rights: u8,
    },
    /// A step of the programs that write records, beside the connections.
    Record {
        step: RecordStep,
    },
    /// Limits the rate of a running connection, or ends the limit.
    LimitRate {
        whom: Whom,
        kbps: u32,
        burst_max: u32,
    },
}

/// A step of the programs that write records.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub enum RecordStep {
    Write {
        from: u8,
        to: u8,
        place: u8,
        length: u16,
        fault: Option<RecordFault>,
    },
    /// Takes the records that ended, and frees those that were taken before unless it keeps them.
    Take { host: u8, keep: bool },
    /// Closes a message that is arriving.
    Close { host: u8, place: u8 },
    /// Takes the memory for records back, or registers it again.
    Withdraw { host: u8 },
    /// Reads memory of a host by datagrams.
    Read {
        from: u8,
        of: u8,
        place: u8,
        length: u16,
        at: u16,
        /// Which deadline, and how many tries.
        patience: u8,
        fault: Option<RecordFault>,
    },
    /// Takes the memory that peers read back, or shares it again.
    WithdrawRead { host: u8 },
}

/// A deliberate fault of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordFault {
    /// A key that opens nothing.
    Key,
    /// The key of a region for WRITEs.
    OtherKey,
    /// One byte beyond the region.
    End,
    /// One byte before the region.
    Start,
    /// The Q_Key of another queue pair.
    Qkey,
}

const RECORD_FAULTS: [RecordFault; 5] = [
    RecordFault::Key,
    RecordFault::OtherKey,
    RecordFault::End,
    RecordFault::Start,
    RecordFault::Qkey,
];

/// Operation of a send request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Verb {
    Send,
    SendImmediate,
    SendInvalidate,
    Write,
    WriteImmediate,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Flush,
    Bind,
    Invalidate,
    /// A READ, and a fenced WRITE of its result.
    Echo,
}

/// A send request.
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs)]
pub struct Job {
    pub verb: Verb,
    pub length: u16,
    /// Offset in the peer's memory, atomic cell or window.
    pub place: u16,
    /// Elements of the scatter list.
    pub pieces: u8,
    pub signalled: bool,
    pub solicited: bool,
    pub fence: bool,
    pub inline: bool,
    /// Uses a window's key, if the peer has one.
    pub window: bool,
    pub fault: Option<Fault>,
}

/// A deliberate fault of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// A local key that opens nothing.
    LocalKey,
    /// A local range beyond its region.
    LocalBounds,
    /// A local region without write access.
    LocalRight,
    /// A remote key that opens nothing.
    RemoteKey,
    /// A remote range beyond its region.
    RemoteBounds,
    /// A remote region without the required right.
    RemoteRight,
    /// A misaligned address.
    Misaligned,
}

const FAULTS: [Fault; 7] = [
    Fault::LocalKey,
    Fault::LocalBounds,
    Fault::LocalRight,
    Fault::RemoteKey,
    Fault::RemoteBounds,
    Fault::RemoteRight,
    Fault::Misaligned,
];

/// Lengths around packet boundaries, for path MTUs of 256 to 4,096 bytes, in multiples of 1/8 of
/// it.
const LENGTHS: [u16; 16] = [
    0, 1, 2, 3, 7, 8, 9, 64, 255, 256, 257, 511, 512, 513, 1024, 2049,
];

/// Rate limits: packets that are far apart, and ones that leave in bursts.
const RATES_KBPS: [u32; 4] = [20_000, 100_000, 1_000_000, 40_000_000];

/// Longest message.
pub const LENGTH_MAX: u16 = 4096;

/// Most actions of one world.
const ACTIONS_MAX: usize = 400;

impl Plan {
    /// Decodes a world. Any bytes make one.
    pub fn decode(bytes: &[u8]) -> Plan {
        let mut from = Choices::new(bytes);
        let seed = from.word();
        let hosts = from.pick(&[2, 2, 2, 3, 4]);
        let v6 = from.chance(64);
        let network = network(&mut from);
        let mut connections: Vec<_> = (0..=from.below(4))
            .map(|_| connection(&mut from, hosts))
            .collect();
        for (index, connection) in connections.iter_mut().enumerate() {
            if unforeseen(seed, index as u64).is_multiple_of(8) {
                connection.hosts[1] = connection.hosts[0];
            }
            connection.rates_kbps = rates_kbps(seed, index as u64);
        }
        let records = unforeseen(seed, 60_000).is_multiple_of(8);
        let mut actions = Vec::new();
        let faults = from.chance(100);
        while !from.is_empty() && actions.len() < ACTIONS_MAX {
            let index = actions.len() as u64;
            let mut next = action(&mut from, faults, unforeseen(seed, 100 + index));
            if let Action::Receive { fault, .. } = &mut next
                && faults
                && unforeseen(seed, 1000 + index).is_multiple_of(6)
            {
                *fault = fault.or(Some(Fault::LocalKey));
            }
            if let Action::Send { requests, .. } = &mut next {
                for (job, number) in requests.iter_mut().zip(0..) {
                    let chance = unforeseen(seed, 40_000 + 8 * index + number);
                    if job.verb == Verb::Read && chance.is_multiple_of(3) {
                        job.verb = Verb::Flush;
                    }
                }
            }
            actions.push(next);
            if records {
                let chance = unforeseen(seed, 61_000 + index);
                actions.extend(record_step(chance, faults).map(|step| Action::Record { step }));
            }
        }
        let sealed = unforeseen(seed, 20_001).is_multiple_of(8);
        let on_path = on_path(seed).filter(|_| sealed);
        let one_host = unforeseen(seed, 50_000).is_multiple_of(8);
        let one_host = one_host && on_path.is_none() && network.wifi.is_none();
        Plan {
            seed,
            network,
            hosts,
            v6,
            connections,
            careful: !faults,
            actions,
            // It must know which PSNs are in use, and sees no ring.
            attacker: attacker(seed).filter(|_| !one_host),
            sealed,
            on_path,
            one_host,
            records,
        }
    }

    /// The process of the host with two that writes garbage into its rings before this action, and
    /// how far that is beyond them.
    pub fn damage_before(&self, action: usize) -> Option<(usize, u32)> {
        let chance = unforeseen(self.seed, 51_000 + action as u64);
        let is_due = self.one_host && chance.is_multiple_of(DAMAGED_ONE_IN);
        is_due.then_some((chance as usize >> 8 & 1, chance as u32 >> 9))
    }
}

/// Actions for each that follows damage to a ring.
const DAMAGED_ONE_IN: u64 = 50;

/// Attacker of a third of the worlds.
fn attacker(seed: u64) -> Option<AttackerPlan> {
    let chance = unforeseen(seed, 10_000);
    let datagrams = [8, 32, 64, 128][(chance >> 8) as usize % 4];
    let micros = [1, 10, 100, 1000][(chance >> 16) as usize % 4];
    chance.is_multiple_of(3).then_some(AttackerPlan {
        datagrams,
        pause: Duration::from_micros(micros),
    })
}

/// Host on the path of half of the worlds; in half of those it only forges.
fn on_path(seed: u64) -> Option<OnPathPlan> {
    let chance = unforeseen(seed, 20_002);
    let only_forges = chance & 2 == 0;
    chance.is_multiple_of(2).then_some(OnPathPlan {
        datagrams: [16, 64, 256, 1024][(chance >> 8) as usize % 4],
        withholds: !only_forges && chance & 4 == 0,
        delays: !only_forges && chance & 8 == 0,
    })
}

/// Rate limits of a sixth of the connections, on one side or both.
fn rates_kbps(seed: u64, connection: u64) -> [u32; 2] {
    let chance = unforeseen(seed, 30_000 + connection);
    if !chance.is_multiple_of(6) {
        return [0, 0];
    }
    let rate = |shift: u32| [0, RATES_KBPS[(chance >> shift) as usize % 4]];
    [8, 16].map(|shift| rate(shift)[usize::from(chance >> (shift + 4) & 3 != 0)])
}

/// Derives later additions from the seed: they take no bytes, so earlier bytes keep their meaning.
fn unforeseen(seed: u64, of: u64) -> u64 {
    let mixed = (seed ^ of).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32
}

/// A step with records behind half of the actions.
fn record_step(chance: u64, faults: bool) -> Option<RecordStep> {
    let byte = |index: u32| (chance >> (8 * index)) as u8;
    let fault = RECORD_FAULTS[usize::from(byte(1)) % RECORD_FAULTS.len()];
    let step = match byte(0) & 31 {
        0..=8 => RecordStep::Write {
            from: byte(1),
            to: byte(1) >> 4,
            place: byte(2),
            length: u16::from(byte(3)) * 12 + u16::from(byte(2) >> 4),
            fault: (faults && byte(2) & 0x38 == 0x38).then_some(fault),
        },
        9..=13 => RecordStep::Take {
            host: byte(1),
            keep: byte(2) & 3 == 0,
        },
        14 => RecordStep::Close {
            host: byte(1),
            place: byte(2),
        },
        15 if faults && byte(2) & 1 == 0 => RecordStep::Withdraw { host: byte(1) },
        16..=20 => RecordStep::Read {
            from: byte(1),
            of: byte(1) >> 4,
            place: byte(2),
            length: u16::from(byte(3)) * 12 + u16::from(byte(2) >> 4),
            at: u16::from(byte(3) ^ byte(2)) * 24,
            patience: byte(2) >> 2,
            fault: (faults && byte(2) & 0x38 == 0x38).then_some(fault),
        },
        21 if faults && byte(2) & 3 == 0 => RecordStep::WithdrawRead { host: byte(1) },
        _ => return None,
    };
    Some(step)
}

fn network(from: &mut Choices<'_>) -> NetworkPlan {
    let star = from.chance(60);
    let micros = |n: u64| Duration::from_micros(n);
    let calm = from.chance(80);
    let mut rarely = |of: u32| {
        if calm || !from.chance(100) {
            0
        } else {
            from.below(of as usize) as u32
        }
    };
    let (loss, duplicate, reorder) = (rarely(2000), rarely(1000), rarely(2000));
    let (corrupt, truncate) = (rarely(500), rarely(200));
    let link = LinkPlan {
        delay: micros(from.pick(&[0, 1, 5, 20, 100])),
        gbit: from.pick(&[None, Some(1), Some(10), Some(100), Some(400)]),
        queue_bytes: from.pick(&[None, None, Some(16 << 10), Some(64 << 10)]),
        loss,
        bursts: from.chance(80),
        duplicate,
        reorder,
        held: micros(from.pick(&[10, 100, 1000, 5000])),
        corrupt,
        truncate,
        jitter: micros(from.pick(&[0, 0, 2, 50])),
    };
    let wifi = from
        .chance(16)
        .then(|| (from.byte(), 10 + from.below(30) as u8));
    NetworkPlan { wifi, star, link }
}

fn connection(from: &mut Choices<'_>, hosts: usize) -> Connection {
    let first = from.below(hosts);
    let second = (first + 1 + from.below(hosts - 1)) % hosts;
    let near_the_end = from.chance(128);
    let mut psn = || {
        let psn = from.word() as u32 & 0x00ff_ffff;
        if near_the_end {
            0x00ff_fff0 | psn & 0xf
        } else {
            psn
        }
    };
    let psns = [psn(), psn()];
    Connection {
        service: from.pick(&[
            Service::Rc,
            Service::Rc,
            Service::Rc,
            Service::Uc,
            Service::Ud,
        ]),
        hosts: [first, second],
        mtu: from.pick(&[1, 1, 2, 3]),
        timeout: from.pick(&[8, 9, 10]),
        retry_count: from.pick(&[7, 7, 6, 3, 1, 0]),
        rnr_retry: from.pick(&[7, 7, 7, 3, 1, 0]),
        min_rnr_timer: from.pick(&[1, 5, 12, 14]),
        answers_max: from.pick(&[16, 4, 2, 1, 0]),
        rights: [
            from.pick(&[7, 7, 7, 7, 3, 5, 0]),
            from.pick(&[7, 7, 7, 7, 3, 5, 0]),
        ],
        signal_all: from.chance(60),
        shared: [from.chance(60), from.chance(60)],
        depth: from.pick(&[16, 16, 4, 1]),
        psns,
        cqs: [from.below(2) as u8, from.below(2) as u8],
        rates_kbps: [0, 0],
    }
}

fn whom(from: &mut Choices<'_>) -> Whom {
    let byte = from.byte();
    Whom {
        connection: byte >> 1,
        side: byte & 1,
    }
}

fn action(from: &mut Choices<'_>, faults: bool, chance: u64) -> Action {
    match from.below(100) {
        0..=29 => Action::Send {
            whom: whom(from),
            requests: (0..=from.below(4)).map(|_| send(from, faults)).collect(),
        },
        30..=46 => Action::Receive {
            whom: whom(from),
            count: 1 + from.below(4) as u8,
            length: length(from).max(if from.chance(200) { 2048 } else { 0 }),
            fault: fault(from, faults),
        },
        47..=61 => Action::Poll {
            host: from.byte(),
            cq: from.byte(),
        },
        62..=65 => Action::Arm {
            host: from.byte(),
            cq: from.byte(),
            solicited: from.chance(90),
        },
        66..=68 => Action::Event { host: from.byte() },
        69..=85 => Action::Pass {
            time: Duration::from_nanos(
                from.pick(&[1, 1000, 10_000, 100_000, 1_000_000, 5_000_000]),
            ),
        },
        86..=89 => Action::Store {
            host: from.byte(),
            at: from.word() as u16,
            length: from.byte(),
        },
        90 if faults => Action::Fail { whom: whom(from) },
        91 => Action::Drain { whom: whom(from) },
        92..=93 => Action::Resume { whom: whom(from) },
        94 if faults => Action::Destroy { whom: whom(from) },
        95 if faults => Action::Deregister {
            host: from.byte(),
            region: from.byte(),
        },
        96 => Action::Register {
            host: from.byte(),
            region: from.byte(),
        },
        97 if faults => Action::Cut {
            from: from.byte(),
            to: from.byte(),
            both: from.chance(128),
        },
        98 if from.chance(128) => Action::Reconnect {
            whom: whom(from),
            at_once: from.chance(128),
        },
        98 => Action::Heal,
        99 if faults && from.chance(64) => Action::Kill { host: from.byte() },
        _ => unusual(chance),
    }
}

fn unusual(chance: u64) -> Action {
    let byte = |index: u32| (chance >> (8 * index)) as u8;
    match byte(0) % 4 {
        0 => Action::Limit {
            host: byte(1),
            receives: 1 + byte(2) % 12,
        },
        1 => Action::Tune {
            whom: Whom {
                connection: byte(1) >> 1,
                side: byte(1) & 1,
            },
            min_rnr_timer: [1, 5, 12, 14][usize::from(byte(2) % 4)],
            rights: byte(3) % 8,
        },
        2 => Action::LimitRate {
            whom: Whom {
                connection: byte(1) >> 1,
                side: byte(1) & 1,
            },
            kbps: [0, RATES_KBPS[usize::from(byte(3) % 4)]][usize::from(byte(2) & 1)],
            burst_max: [0, 0, 1, 3000][usize::from(byte(2) >> 1 & 3)],
        },
        _ => Action::Pass {
            time: Duration::from_micros(50),
        },
    }
}

fn length(from: &mut Choices<'_>) -> u16 {
    if from.chance(200) {
        from.pick(&LENGTHS)
    } else {
        from.below(usize::from(LENGTH_MAX) + 1) as u16
    }
}

fn fault(from: &mut Choices<'_>, faults: bool) -> Option<Fault> {
    (faults && from.chance(12)).then(|| from.pick(&FAULTS))
}

fn send(from: &mut Choices<'_>, faults: bool) -> Job {
    const VERBS: [Verb; 16] = [
        Verb::Send,
        Verb::Send,
        Verb::Echo,
        Verb::SendImmediate,
        Verb::Write,
        Verb::Write,
        Verb::Write,
        Verb::WriteImmediate,
        Verb::Read,
        Verb::Read,
        Verb::CompareSwap,
        Verb::FetchAdd,
        Verb::AtomicWrite,
        Verb::Bind,
        Verb::Invalidate,
        Verb::SendInvalidate,
    ];
    Job {
        verb: from.pick(&VERBS),
        length: length(from),
        place: from.word() as u16,
        pieces: 1 + from.below(4) as u8,
        signalled: from.chance(180),
        solicited: from.chance(60),
        fence: from.chance(40),
        inline: from.chance(40),
        window: from.chance(80),
        fault: fault(from, faults),
    }
}
