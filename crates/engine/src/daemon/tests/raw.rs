//! A client that speaks the protocol of a daemon itself, and writes what it likes to the memory
//! that it shares.

use crate::common::{CAPS, steps_to_rtr};
use crate::control::{
    Control, MemoryControl, QueueControl, QueuePairControl, QueuePairInit, ReceivesFrom, Reply,
    encoding,
};
use crate::index::{CqHandle, DOORBELLS, PdIndex, QpHandle, Serial, first_serial_of};
use crate::progress::eventfd::EventFd;
use crate::queues::shared_page::SharedPage;
use crate::remote::protocol::{self, Extent, Hello, Welcome};
use crate::remote::socket::Socket;
use crate::sharing::runtime_dir;
use crate::{
    Access, AttrMask, CqOptions, Error, Path, PathMtu, QpAttributes, QpState, QpType, Qpn,
};
use airdma_shm::{
    Arena, Block, Cqe, Doorbells, RecvWqe, RingConsumer, RingProducer, SendWqe, ring,
};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path as FilePath;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bound of each wait for the daemon: one that does not answer by then is blocked.
const ANSWER_TIME: Duration = Duration::from_secs(10);

pub struct Raw {
    pub arena: Arena,
    pub page: SharedPage,
    pub doorbells: Doorbells,
    pub control: Socket,
    pub wake_us: Socket,
    pub wake_daemon: EventFd,
    pub events: Socket,
    serials: AtomicU64,
}

/// A completion queue, of which the client has both ends.
pub struct RawCq {
    pub handle: CqHandle,
    pub producer: RingProducer,
    pub consumer: RingConsumer,
}

/// A queue pair, of whose rings the client has both ends.
pub struct RawQp {
    pub handle: QpHandle,
    pub number: Qpn,
    pub send: (RingProducer, RingConsumer),
    pub recv: (RingProducer, RingConsumer),
}

/// What a client passes beside its greeting.
pub struct Passed {
    pub memory: OwnedFd,
    pub page: SharedPage,
    pub doorbells: Doorbells,
}

impl Passed {
    pub fn new(arena: &Arena) -> Self {
        let memory = File::options()
            .read(true)
            .write(true)
            .open("/proc/self/mem");
        Passed {
            memory: memory.unwrap().into(),
            page: SharedPage::new(arena).unwrap(),
            doorbells: Doorbells::new(arena, DOORBELLS).unwrap(),
        }
    }

    pub fn hello(&self, interface_index: u32) -> Hello {
        Hello {
            network: runtime_dir::network_namespace().unwrap(),
            interface_index,
            page: extent(self.page.block()),
            doorbells: extent(self.doorbells.block()),
        }
    }

    pub fn beside(&self) -> [BorrowedFd<'_>; 3] {
        [
            self.memory.as_fd(),
            self.page.block().fd(),
            self.doorbells.block().fd(),
        ]
    }
}

pub fn connect(socket: &FilePath) -> Socket {
    Socket::connect(socket, ANSWER_TIME).unwrap()
}

/// Sends a greeting, and returns the answer.
pub fn greet(
    control: &Socket,
    hello: &Hello,
    beside: &[BorrowedFd<'_>],
) -> (Welcome, Vec<OwnedFd>) {
    control.send(&hello.encode(), beside, true).unwrap();
    let mut buffer = [0; protocol::WELCOME_BYTES_MAX];
    let got = control.receive(&mut buffer, true).unwrap().unwrap();
    let welcome = Welcome::decode(&buffer[..got.length]).unwrap();
    (welcome, got.descriptors)
}

impl Raw {
    pub fn connect(socket: &FilePath, interface_index: u32) -> Self {
        let arena = Arena::new();
        let passed = Passed::new(&arena);
        let control = connect(socket);
        let hello = passed.hello(interface_index);
        let (welcome, beside) = greet(&control, &hello, &passed.beside());
        let Welcome::Accepted(number) = welcome else {
            panic!("{welcome:?}");
        };
        let [wake_us, wake_daemon, events]: [OwnedFd; 3] = beside.try_into().unwrap();
        Raw {
            arena,
            page: passed.page,
            doorbells: passed.doorbells,
            control,
            wake_us: Socket::from_other(wake_us),
            wake_daemon: EventFd::from_other(wake_daemon),
            events: Socket::from_other(events),
            serials: AtomicU64::new(first_serial_of(number)),
        }
    }

    pub fn serial(&self) -> Serial {
        self.serials.fetch_add(1, Ordering::Relaxed)
    }

    pub fn domain(&self) -> PdIndex {
        PdIndex::new(self.serial())
    }

    pub fn ask(&self, control: &Control<'_>, blocks: &[&Arc<Block>]) -> Result<Reply, Error> {
        let extents: Vec<Extent> = blocks.iter().map(|block| extent(block)).collect();
        let files: Vec<BorrowedFd<'_>> = blocks.iter().map(|block| block.fd()).collect();
        let mut packet = protocol::put_blocks(&extents);
        packet.extend(encoding::encode(control));
        self.control.send(&packet, &files, true).unwrap();
        let mut buffer = vec![0; protocol::PACKET_BYTES_MAX];
        let answer = self.control.receive(&mut buffer, true);
        let got = answer
            .expect("the daemon answers in time")
            .expect("an answer");
        encoding::decode::<Reply>(&buffer[..got.length])
            .unwrap()
            .into()
    }

    pub fn memory(&self, call: MemoryControl) -> Result<Reply, Error> {
        self.ask(&Control::Memory { call }, &[])
    }

    pub fn queue(&self, call: QueueControl) -> Result<Reply, Error> {
        self.ask(&Control::Queue { call }, &[])
    }

    pub fn queue_pair(&self, qp: &RawQp, call: QueuePairControl) -> Result<Reply, Error> {
        let qp = qp.handle;
        self.ask(&Control::QueuePair { qp, call }, &[])
    }

    pub fn flush(&self) -> Result<Reply, Error> {
        self.ask(&Control::Flush, &[])
    }

    /// Registers `bytes` bytes from `address` on, with all rights. Returns the key.
    pub fn register(&self, pd: PdIndex, address: u64, bytes: usize) -> u32 {
        let reply = self.memory(MemoryControl::Register {
            pd,
            address,
            length: bytes,
            iova: address,
            access: Access::LOCAL_WRITE
                | Access::REMOTE_READ
                | Access::REMOTE_WRITE
                | Access::REMOTE_ATOMIC
                | Access::MW_BIND,
            can_be_cut: false,
        });
        key_of(&reply.unwrap())
    }

    pub fn create_cq(&self, arena: &Arena, slots: u32) -> Result<RawCq, Error> {
        let (producer, consumer) = ring(arena, slots, Cqe::STRIDE).unwrap();
        let serial = self.serial();
        let call = QueueControl::CreateCompletions {
            serial,
            cookie: 0,
            options: CqOptions::default(),
        };
        let reply = self.ask(&Control::Queue { call }, &[producer.block()])?;
        let Reply::CompletionQueue { index } = reply else {
            panic!("{reply:?}");
        };
        Ok(RawCq {
            handle: CqHandle { index, serial },
            producer,
            consumer,
        })
    }

    pub fn create_qp(
        &self,
        arena: &Arena,
        pd: PdIndex,
        cq: &RawCq,
        slots: u32,
    ) -> Result<RawQp, Error> {
        let send = ring(
            arena,
            slots,
            SendWqe::stride(CAPS.max_send_sge, CAPS.max_inline),
        )
        .unwrap();
        let recv = ring(arena, slots, RecvWqe::stride(CAPS.max_recv_sge)).unwrap();
        let serial = self.serial();
        let init = QueuePairInit {
            serial,
            qp_type: QpType::Rc,
            caps: CAPS,
            signal_all: true,
            receives: ReceivesFrom::Own,
            pd,
            send_cq: Some(cq.handle),
            recv_cq: Some(cq.handle),
            port_mtu: PathMtu::M1024,
        };
        let blocks = [send.0.block(), recv.0.block()];
        let reply = self.ask(&Control::CreateQueuePair { init }, &blocks)?;
        let Reply::QueuePair { index, number } = reply else {
            panic!("{reply:?}");
        };
        Ok(RawQp {
            handle: QpHandle { index, serial },
            number,
            send,
            recv,
        })
    }

    pub fn modify(&self, qp: &RawQp, attributes: QpAttributes, mask: AttrMask) {
        let call = QueuePairControl::Modify {
            attributes,
            mask,
            source: None,
        };
        self.queue_pair(qp, call).unwrap();
    }

    pub fn to_rtr(&self, qp: &RawQp, peer: Qpn, path: Path) {
        for (attributes, mask) in steps_to_rtr(peer, path, PathMtu::M1024) {
            self.modify(qp, attributes, mask);
        }
    }

    pub fn to_error(&self, qp: &RawQp) {
        let attributes = QpAttributes {
            state: QpState::Error,
            ..QpAttributes::default()
        };
        self.modify(qp, attributes, AttrMask::STATE);
    }

    pub fn destroy_qp(&self, qp: &RawQp) {
        for call in [QueuePairControl::Retire, QueuePairControl::Destroy] {
            self.queue_pair(qp, call).unwrap();
        }
    }

    pub fn destroy_cq(&self, cq: &RawCq) -> Result<Reply, Error> {
        let cq = cq.handle;
        self.queue(QueueControl::DestroyCompletions { cq })
    }

    /// As the library does after it has posted.
    pub fn ring(&self, qp: QpHandle) {
        self.doorbells.ring(qp.index.get());
        if self.page.must_wake_daemon() {
            self.wake_daemon.signal();
        }
    }
}

pub fn key_of(reply: &Reply) -> u32 {
    let Reply::Key { key } = *reply else {
        panic!("{reply:?}");
    };
    key
}

pub fn extent(block: &Block) -> Extent {
    Extent {
        offset: block.offset(),
        length: block.len() as u64,
    }
}

/// The word of 32 bits that lies `at` bytes from the start of a block.
pub fn word(block: &Block, at: usize) -> &AtomicU32 {
    assert!(at.is_multiple_of(4) && at + 4 <= block.len());
    // SAFETY: within the block, aligned, and only ever touched as atomics.
    unsafe { AtomicU32::from_ptr(block.ptr().as_ptr().add(at).cast()) }
}

/// Where a ring has its words: capacity and stride, and the two indices.
pub const STRIDE: usize = 0;
pub const CAPACITY: usize = 4;
pub const PUBLISHED: usize = 128;
pub const RELEASED: usize = 256;

/// Says that as much is published as a consumer believes.
pub fn fill(block: &Block, capacity: u32) {
    let released = word(block, RELEASED).load(Ordering::Acquire);
    word(block, PUBLISHED).store(released.wrapping_add(capacity), Ordering::Release);
}

/// Says that all was taken.
pub fn drain(block: &Block) {
    let published = word(block, PUBLISHED).load(Ordering::Acquire);
    word(block, RELEASED).store(published, Ordering::Release);
}
