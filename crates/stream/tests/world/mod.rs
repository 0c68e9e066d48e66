//! A sender and a receiver in one process.
#![allow(dead_code)] // each test uses a part

#[path = "../../../airdma/tests/common/mod.rs"]
pub mod common;

use airdma::{Device, Endpoint, Listener};
use airdma_stream::{
    Counts, Description, Frame, Incoming, Pool, Received, Receiver, Sender, SenderConfig,
};
use common::{PATIENCE, PORT, pattern};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Two devices that stand for two programs.
pub struct World {
    pub here: Device,
    pub there: Device,
    pub listener: Listener,
}

impl World {
    pub fn new() -> World {
        let [here, there] = [(); 2].map(|()| Device::open("127.0.0.1").unwrap());
        let listener = there.listen(PORT).unwrap();
        World {
            here,
            there,
            listener,
        }
    }

    /// The sender's end, and the receiver's.
    pub fn connect(&self) -> (Endpoint, Endpoint) {
        let mut accepting = self.listener.accept();
        let connecting = self.here.connect(("127.0.0.1", PORT));
        std::thread::scope(|scope| {
            let near = scope.spawn(|| connecting.wait().unwrap());
            let far = accepting.wait_timeout(PATIENCE).unwrap().unwrap();
            (near.join().unwrap(), far)
        })
    }

    pub fn sender(&self, blocks: u32, frame_bytes: usize, epoch: u32) -> Sender {
        let config = SenderConfig {
            blocks,
            frame_bytes,
            epoch,
        };
        Sender::new(&self.here, config).unwrap()
    }

    pub fn pool(&self, blocks: u32, frame_bytes: usize) -> Pool {
        let pool = Pool::new(&self.there, blocks, frame_bytes).unwrap();
        pool.with_checksums().unwrap()
    }

    pub fn open(&self, sender: &mut Sender, pool: &Pool) -> Receiver {
        let (near, far) = self.connect();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| Receiver::open(self.hear(far), pool).unwrap());
            sender.open(near).unwrap();
            receiver.join().unwrap()
        })
    }

    pub fn hear(&self, far: Endpoint) -> Incoming {
        Incoming::hear(&self.there, far).unwrap()
    }

    pub fn reopen(&self, sender: &mut Sender, receiver: &mut Receiver, pool: &Pool) {
        let (near, far) = self.connect();
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| receiver.reopen(self.hear(far), pool).unwrap());
            sender.open(near).unwrap();
            receiver.join().unwrap();
        });
    }
}

/// The bytes of a frame.
pub fn content(device: u32, sequence: u64, length: usize) -> Vec<u8> {
    pattern(length, (device as u8).wrapping_mul(7) ^ sequence as u8)
}

pub fn send(sender: &mut Sender, device: u32, sequence: u64, length: usize) {
    let mut block = sender.wait_for_block(device, length).unwrap();
    block.copy_from_slice(&content(device, sequence, length));
    sender.send(block, Description::now());
}

pub fn next(receiver: &mut Receiver) -> Frame {
    receiver.next(PATIENCE).unwrap().expect("a frame in time")
}

/// The next frame, of a sender that this thread runs as well.
pub fn exchange(sender: &mut Sender, receiver: &mut Receiver) -> Frame {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no frame in time");
        sender.poll(Waker::noop()).unwrap();
        if let Some(frame) = receiver.next(Duration::from_millis(1)).unwrap() {
            return frame;
        }
    }
}

pub fn is_intact(frame: &Frame) -> bool {
    frame[..] == content(frame.device(), frame.sequence(), frame.len())
}

pub fn received(receiver: &Receiver, device: u32) -> Received {
    let mut all = receiver.sequences().iter();
    all.find(|(number, _)| *number == device).unwrap().1
}

pub fn counts(sender: &Sender, device: u32) -> Counts {
    sender.counts().find(|(it, _)| *it == device).unwrap().1
}
