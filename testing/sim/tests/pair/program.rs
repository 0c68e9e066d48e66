//! A random program and its model: what both sides post, when, and the expected results.
//!
//! A reliable connection executes requests in order, so the model executes them as they are
//! generated. What a READ sees is never written, because a READ that is repeated after a loss may
//! see later writes; everything else overlaps freely.

use core::ops::Range;
use core::time::Duration;

use airdma_sim::{Pair, Random, Region, SendWr, Sge, Side};
use airdma_transport::{
    Access, Bind, Completion, CompletionOpcode, Operation, QpType, Status, Time,
};
use airdma_wire::{Lkey, Qpn, Rkey};

use crate::area::{Area, Pieces};
use crate::scene::outcomes;

/// One request, before memory has addresses.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Kind {
    Send,
    SendImm,
    SendInvalidate,
    Write,
    WriteImm,
    Read,
    CompareSwap,
    FetchAdd,
    AtomicWrite,
    Bind,
    LocalInvalidate,
}

const KINDS: [Kind; 11] = [
    Kind::Send,
    Kind::SendImm,
    Kind::SendInvalidate,
    Kind::Write,
    Kind::WriteImm,
    Kind::Read,
    Kind::CompareSwap,
    Kind::FetchAdd,
    Kind::AtomicWrite,
    Kind::Bind,
    Kind::LocalInvalidate,
];

impl Kind {
    /// Whether the answer fills memory of the requester.
    fn returns_data(self) -> bool {
        match self {
            Kind::Read | Kind::CompareSwap | Kind::FetchAdd => true,
            Kind::Send
            | Kind::SendImm
            | Kind::SendInvalidate
            | Kind::Write
            | Kind::WriteImm
            | Kind::AtomicWrite
            | Kind::Bind
            | Kind::LocalInvalidate => false,
        }
    }

    /// Whether it completes without a packet.
    fn is_local(self) -> bool {
        matches!(self, Kind::Bind | Kind::LocalInvalidate)
    }

    fn consumes_receive(self) -> bool {
        match self {
            Kind::Send | Kind::SendImm | Kind::SendInvalidate | Kind::WriteImm => true,
            Kind::Write
            | Kind::Read
            | Kind::CompareSwap
            | Kind::FetchAdd
            | Kind::AtomicWrite
            | Kind::Bind
            | Kind::LocalInvalidate => false,
        }
    }
}

struct Step {
    at: Time,
    wr_id: u64,
    kind: Kind,
    length: u32,
    signalled: bool,
    solicited: bool,
    fence: bool,
    imm: [u8; 4],
    /// Local memory: source of the bytes or, for READs and atomics, their destination.
    local: Pieces,
    /// Offset on the peer's side: of the target, the shelf or the word.
    remote: u32,
    /// The peer's receive, and when it is posted.
    receive: Option<(Time, Pieces)>,
    operands: [u64; 2],
}

impl Step {
    fn remote_range(&self) -> Range<u32> {
        self.remote..self.remote + self.length
    }
}

/// All requests that one side posts to one queue pair.
struct Half {
    qp: usize,
    side: Side,
    steps: Vec<Step>,
    source: Area,
    landing: Area,
    target: Area,
    shelf: Area,
    inbox: Area,
    words: Area,
    /// The window of this side, and its bound range.
    window: (Rkey, Option<Bind>),
    sends: Vec<Completion>,
    unsignalled: u64,
    receives: Vec<Completion>,
    invalidated: Vec<(Side, u32)>,
    messages_sent: u64,
    messages_received: u64,
}

const WORDS: u32 = 4;
const SOURCE_BYTES: u32 = 150_000;
const TARGET_BYTES: u32 = 150_000;

/// A READ is asked for in pieces of this size, each a message of its own for the responder.
const READ_PIECE_BYTES: u32 = 64 << 10;

/// Parameters of a random program.
pub struct Shape {
    /// Requests of each side on each queue pair, at most.
    pub requests_max: u64,
    /// Path MTU in bytes, the edge around which sizes lie.
    pub mtu: u32,
    /// Chance that a receive is posted late.
    pub late_receives: f64,
}

fn draw_length(random: &mut Random, mtu: u32) -> u32 {
    let mtu = u64::from(mtu);
    let length = match random.below(10) {
        0 => random.below(5),
        1..=4 => random.below(2 * mtu),
        5..=7 => {
            let edge = mtu * random.between(1, 8);
            random.between(edge - 1, edge + 1)
        }
        8 => random.below(32 << 10),
        _ => random.between(60 << 10, 140 << 10),
    };
    u32::try_from(length).unwrap()
}

impl Half {
    fn draw(random: &mut Random, qp: usize, side: Side, shape: &Shape) -> Half {
        let mut half = Half {
            qp,
            side,
            steps: Vec::new(),
            source: Area::default(),
            landing: Area::default(),
            target: Area::default(),
            shelf: Area::default(),
            inbox: Area::default(),
            words: Area::default(),
            window: (Rkey(0), None),
            sends: Vec::new(),
            unsignalled: 0,
            receives: Vec::new(),
            invalidated: Vec::new(),
            messages_sent: 0,
            messages_received: 0,
        };
        half.source.grow(random, SOURCE_BYTES as usize);
        half.shelf.grow(random, SOURCE_BYTES as usize);
        half.target.grow(random, TARGET_BYTES as usize);
        half.words.grow(random, WORDS as usize * 8);
        let (mut at, mut receive_at) = (Time::ZERO, Time::ZERO);
        for wr_id in 0..random.between(1, shape.requests_max) {
            if random.chance(0.3) {
                at = at + Duration::from_nanos(random.below(300_000));
            }
            let mut step = half.draw_step(random, wr_id, at, shape);
            if step.kind.consumes_receive() {
                if random.chance(shape.late_receives) {
                    let late = at + Duration::from_nanos(random.below(1_000_000));
                    receive_at = receive_at.max(late);
                }
                let spare = random.below(20) as u32;
                let capacity = if step.kind == Kind::WriteImm {
                    spare
                } else {
                    step.length + spare
                };
                let pieces = half.inbox.allocate(random, capacity);
                step.receive = Some((receive_at, pieces));
            }
            half.steps.push(step);
        }
        half
    }

    fn draw_step(&mut self, random: &mut Random, wr_id: u64, at: Time, shape: &Shape) -> Step {
        let kind = random.pick(&KINDS);
        let mut length = draw_length(random, shape.mtu);
        let mut remote = random.below(u64::from(TARGET_BYTES - length) + 1) as u32;
        let local = match kind {
            Kind::Read => self.landing.allocate(random, length),
            Kind::CompareSwap | Kind::FetchAdd => {
                length = 8;
                remote = random.below(u64::from(WORDS)) as u32 * 8;
                self.landing.allocate(random, length)
            }
            Kind::AtomicWrite => {
                length = 8;
                remote = random.below(u64::from(WORDS)) as u32 * 8;
                self.source.choose(random, length)
            }
            Kind::Bind | Kind::LocalInvalidate => {
                length = 0;
                Pieces::new()
            }
            Kind::Send | Kind::SendImm | Kind::SendInvalidate | Kind::Write | Kind::WriteImm => {
                self.source.choose(random, length)
            }
        };
        Step {
            at,
            wr_id,
            kind,
            length,
            signalled: random.chance(0.6),
            solicited: random.chance(0.3),
            fence: random.chance(0.1),
            imm: (random.next_u64() as u32).to_be_bytes(),
            local,
            remote,
            receive: None,
            operands: [random.next_u64(), random.next_u64()],
        }
    }

    fn register(&mut self, pair: &mut Pair) {
        let peer = self.side.other();
        self.source.register(pair, self.side, Access::MW_BIND);
        self.landing.register(pair, self.side, Access::LOCAL_WRITE);
        self.target.register(pair, peer, Access::REMOTE_WRITE);
        self.shelf.register(pair, peer, Access::REMOTE_READ);
        self.inbox.register(pair, peer, Access::LOCAL_WRITE);
        let words_access = Access::REMOTE_ATOMIC | Access::REMOTE_WRITE;
        self.words.register(pair, peer, words_access);
        self.window.0 = pair[self.side].create_window();
        for area in [
            &mut self.source,
            &mut self.landing,
            &mut self.target,
            &mut self.shelf,
            &mut self.inbox,
            &mut self.words,
        ] {
            area.start_model();
        }
    }

    /// Executes step `index` in the model and returns the request that stands for it.
    fn model(&mut self, pair: &mut Pair, index: usize) -> SendWr {
        let qpns = [self.side, self.side.other()].map(|side| pair[side].queue_pair(self.qp).qpn());
        let step = &self.steps[index];
        let doomed_of = if step.kind.is_local() {
            self.side
        } else {
            self.side.other()
        };
        let doomed = pair[doomed_of].register(&[], Access::empty());
        let area = if step.kind.returns_data() {
            &self.landing
        } else {
            &self.source
        };
        let sges = area.sges(&step.local);
        let data = area.read(&step.local);
        let wr = SendWr::new(step.wr_id, Operation::Send, sges).signalled_if(step.signalled);
        let wr = if step.solicited { wr.solicited() } else { wr };
        let wr = if step.fence { wr.fenced() } else { wr };
        let kind = step.kind;
        let (operation, opcode) = match kind {
            Kind::Send | Kind::SendImm | Kind::SendInvalidate => {
                (self.send(index, &data, &doomed), CompletionOpcode::Send)
            }
            Kind::Write | Kind::WriteImm => (self.write(index, &data), CompletionOpcode::Write),
            Kind::Read => (self.read(index), CompletionOpcode::Read),
            Kind::CompareSwap => (self.compare_swap(index), CompletionOpcode::CompareSwap),
            Kind::FetchAdd => (self.fetch_add(index), CompletionOpcode::FetchAdd),
            Kind::AtomicWrite => (
                self.atomic_write(index, &data),
                CompletionOpcode::AtomicWrite,
            ),
            Kind::Bind => (self.bind(index), CompletionOpcode::BindWindow),
            Kind::LocalInvalidate => (
                self.local_invalidate(index, &doomed),
                CompletionOpcode::LocalInvalidate,
            ),
        };
        let invalidated = (kind == Kind::SendInvalidate).then_some(doomed.key);
        if let Some(key) = invalidated {
            self.invalidated.push((doomed_of, key));
        }
        self.expect(index, opcode, invalidated, qpns);
        wr.with_operation(operation)
    }

    fn send(&mut self, index: usize, data: &[u8], doomed: &Region) -> Operation {
        let step = &self.steps[index];
        if let Some((_, pieces)) = &step.receive {
            self.inbox.write_front(pieces, data);
        }
        match step.kind {
            Kind::SendImm => Operation::SendImm(step.imm),
            Kind::SendInvalidate => Operation::SendInvalidate(doomed.rkey()),
            Kind::Send
            | Kind::Write
            | Kind::WriteImm
            | Kind::Read
            | Kind::CompareSwap
            | Kind::FetchAdd
            | Kind::AtomicWrite
            | Kind::Bind
            | Kind::LocalInvalidate => Operation::Send,
        }
    }

    fn write(&mut self, index: usize, data: &[u8]) -> Operation {
        let step = &self.steps[index];
        self.target.write(&[step.remote_range()], data);
        let (va, rkey) = self.target.address(step.remote);
        let imm = step.imm;
        if step.kind == Kind::WriteImm {
            Operation::WriteImm { va, rkey, imm }
        } else {
            Operation::Write { va, rkey }
        }
    }

    fn read(&mut self, index: usize) -> Operation {
        let step = &self.steps[index];
        let data = self.shelf.read(&[step.remote_range()]);
        self.landing.write(&step.local, &data);
        let (va, rkey) = self.shelf.address(step.remote);
        Operation::Read { va, rkey }
    }

    fn atomic_write(&mut self, index: usize, data: &[u8]) -> Operation {
        let step = &self.steps[index];
        self.words.write(&[step.remote_range()], data);
        let (va, rkey) = self.words.address(step.remote);
        Operation::AtomicWrite { va, rkey }
    }

    /// Binds the window to any part of the source, under its next key.
    fn bind(&mut self, index: usize) -> Operation {
        let [offset, length] = self.steps[index].operands.map(|n| n % 1000);
        let (key, _) = self.window;
        let (va, region) = self.source.address(offset as u32);
        let bind = Bind {
            window: key,
            new_key: Rkey(key.0 & !0xff | key.0.wrapping_add(1) & 0xff),
            region: Lkey(region.0),
            va,
            length,
            access: Access::REMOTE_READ,
        };
        self.window = (bind.new_key, Some(bind));
        Operation::BindWindow(bind)
    }

    /// Invalidates the window if it is bound, else a key that is good for nothing else.
    fn local_invalidate(&mut self, index: usize, doomed: &Region) -> Operation {
        let (key, opens) = &mut self.window;
        if self.steps[index].operands[0] & 1 == 0 && opens.take().is_some() {
            return Operation::LocalInvalidate(*key);
        }
        self.invalidated.push((self.side, doomed.key));
        Operation::LocalInvalidate(doomed.rkey())
    }

    fn fetch_add(&mut self, index: usize) -> Operation {
        let add = self.steps[index].operands[0];
        self.atomic(index, |original| original.wrapping_add(add));
        let (va, rkey) = self.words.address(self.steps[index].remote);
        Operation::FetchAdd { va, rkey, add }
    }

    /// Compares with the present value half of the time.
    fn compare_swap(&mut self, index: usize) -> Operation {
        let [other, swap] = self.steps[index].operands;
        let mut compare = other;
        self.atomic(index, |original| {
            if other & 1 == 0 {
                compare = original;
            }
            if compare == original { swap } else { original }
        });
        let (va, rkey) = self.words.address(self.steps[index].remote);
        Operation::CompareSwap {
            va,
            rkey,
            compare,
            swap,
        }
    }

    fn atomic(&mut self, index: usize, change: impl FnOnce(u64) -> u64) {
        let step = &self.steps[index];
        let original = self.words.read(&[step.remote_range()]);
        self.landing.write(&step.local, &original);
        let value = change(u64::from_ne_bytes(original.try_into().unwrap()));
        let word = step.remote_range();
        self.words.write(&[word], &value.to_ne_bytes());
    }

    /// Notes the completions that step `index` must have.
    fn expect(
        &mut self,
        index: usize,
        opcode: CompletionOpcode,
        invalidated: Option<u32>,
        [own, peer]: [Qpn; 2],
    ) {
        let step = &self.steps[index];
        let done = Completion {
            byte_len: step.length,
            ..Completion::with_status(step.wr_id, opcode, Status::Success, own)
        };
        if step.signalled {
            self.sends.push(done);
        } else {
            self.unsignalled += 1;
        }
        if step.kind.is_local() {
            return;
        }
        self.messages_sent += 1;
        self.messages_received += if step.kind == Kind::Read {
            u64::from(step.length.div_ceil(READ_PIECE_BYTES).max(1))
        } else {
            1
        };
        let (opcode, imm) = match step.kind {
            Kind::Send | Kind::SendInvalidate => (CompletionOpcode::Receive, None),
            Kind::SendImm => (CompletionOpcode::Receive, Some(step.imm)),
            Kind::WriteImm => (CompletionOpcode::ReceiveWriteImm, Some(step.imm)),
            Kind::Write
            | Kind::Read
            | Kind::CompareSwap
            | Kind::FetchAdd
            | Kind::AtomicWrite
            | Kind::Bind
            | Kind::LocalInvalidate => return,
        };
        self.receives.push(Completion {
            byte_len: step.length,
            imm,
            invalidated: invalidated.map(Rkey),
            solicited: step.solicited,
            ..Completion::with_status(step.wr_id, opcode, Status::Success, peer)
        });
    }

    fn check(&self, pair: &Pair) {
        let (side, peer) = (self.side, self.side.other());
        let own = pair[side].rings(self.qp);
        let found = outcomes(&own.send_completions);
        assert_eq!(found, outcomes(&self.sends), "{side:?}");
        assert!(own.send_completions == self.sends, "{side:?}");
        assert_eq!(own.unsignalled, self.unsignalled);
        let other = pair[peer].rings(self.qp);
        let found = outcomes(&other.receive_completions);
        assert_eq!(found, outcomes(&self.receives), "{peer:?}");
        assert!(other.receive_completions == self.receives, "{peer:?}");
        assert_eq!(other.receives_outstanding(), 0);
        assert_eq!(other.events, []);
        use airdma_transport::Counter::{MessagesReceived, MessagesSent};
        assert_eq!(own.count(MessagesSent), self.messages_sent);
        assert_eq!(other.count(MessagesReceived), self.messages_received);
        self.source.assert_as_modelled(pair, side, "source");
        self.landing.assert_as_modelled(pair, side, "landing");
        self.target.assert_as_modelled(pair, peer, "target");
        self.shelf.assert_as_modelled(pair, peer, "shelf");
        self.inbox.assert_as_modelled(pair, peer, "inbox");
        self.words.assert_as_modelled(pair, peer, "words");
        for (side, key) in &self.invalidated {
            assert!(!pair[*side].is_valid(*key));
        }
        let (key, opens) = self.window;
        assert_eq!(pair[side].window(key), opens);
    }
}

enum Post {
    Send(SendWr),
    Receive(u64, Vec<Sge>),
}

/// Everything that both sides post, in the order of time.
pub struct Program {
    halves: Vec<Half>,
    posts: Vec<(Time, Side, usize, Post)>,
}

impl Program {
    /// Draws a program for the queue pairs of `pair` and registers its memory.
    pub fn draw(random: &mut Random, pair: &mut Pair, qps: &[usize], shape: &Shape) -> Program {
        let mut halves = Vec::new();
        let mut posts = Vec::new();
        for &qp in qps {
            for side in Side::BOTH {
                if pair[side].queue_pair(qp).qp_type() == QpType::XrcReceive {
                    continue;
                }
                let mut half = Half::draw(random, qp, side, shape);
                half.register(pair);
                for index in 0..half.steps.len() {
                    let wr = half.model(pair, index);
                    let step = &half.steps[index];
                    posts.push((step.at, side, qp, Post::Send(wr)));
                    if let Some((at, pieces)) = &step.receive {
                        let receive = Post::Receive(step.wr_id, half.inbox.sges(pieces));
                        posts.push((*at, side.other(), qp, receive));
                    }
                }
                halves.push(half);
            }
        }
        // The sort is stable: the posts of one queue stay in order. Receives go first, so that
        // none of those that are posted in time comes late.
        posts.sort_by_key(|(at, _, _, post)| (*at, matches!(post, Post::Send(_))));
        Program { halves, posts }
    }

    /// Posts everything at its time and runs to the end.
    pub fn run(&mut self, pair: &mut Pair) {
        for (at, side, qp, post) in self.posts.drain(..) {
            pair.run_for(at.duration_since(pair.now()));
            match post {
                Post::Send(wr) => pair[side].post_send(qp, wr),
                Post::Receive(wr_id, sges) => pair[side].post_receive(qp, wr_id, sges),
            }
        }
        pair.run_until_idle();
    }

    /// Compares the results with the model.
    pub fn check(&self, pair: &Pair) {
        pair.assert_nothing_left();
        for half in &self.halves {
            half.check(pair);
        }
    }
}
