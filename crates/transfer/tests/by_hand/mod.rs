//! One end of a transfer whose messages a test chooses freely; connection and handshake are
//! correct.

use airdma::{Device, Endpoint, Operation, Region, Remote, Shared};
use airdma_files::manifest::{Builder, Content, Entry, Kind};
use airdma_files::protocol::{Accept, MESSAGE_BYTES_MAX, Message, Offer, Reason};
use airdma_files::session::{
    Cipher, DataKey, Door, Frames, HandshakeError, Identity, Initiator, Introduction, Sealer,
    Session, TAG_BYTES, frame,
};
use airdma_files::{Limits, Manifest, ManifestId, Modified};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const BYTES: usize = 2 + MESSAGE_BYTES_MAX + TAG_BYTES;
/// Messages that the peer may send before one is handled.
const RECEIVES: usize = 8;
const PIECE_BYTES: usize = 16 << 10;
/// Messages of a peer that never stops sending, far more than the other has receives, and how many
/// are in flight at once.
const CHATTER: usize = 80;
const CHATTER_AT_ONCE: usize = 8;
/// Far more than any step takes, far less than a stuck test.
const PATIENCE: Duration = Duration::from_secs(20);

/// Frames over a connection.
pub struct Line {
    pub device: Device,
    pub endpoint: Endpoint,
    frames: Frames,
    receiving: VecDeque<Operation<airdma::Message>>,
}

impl Line {
    pub fn new(device: Device, endpoint: Endpoint) -> Self {
        let receive = || endpoint.recv(device.allocate(BYTES).unwrap(), ..);
        let receiving = (0..RECEIVES).map(|_| receive()).collect();
        Self {
            device,
            endpoint,
            frames: Frames::default(),
            receiving,
        }
    }

    /// Connects; `None` if no receiver is there.
    pub fn connect(to: SocketAddr) -> Option<Self> {
        let device = Device::towards(to).unwrap().sealed();
        let endpoint = device.connect(to).wait().ok()?;
        Some(Self::new(device, endpoint))
    }

    /// The binding of the sealed connection; `None` when the connection ends before the keys are
    /// exchanged.
    pub fn binding(&mut self) -> Option<[u8; 32]> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(binding) = self.endpoint.binding() {
                return Some(binding);
            }
            assert!(Instant::now() < until, "no keys");
            // No data can arrive before the keys, so a receive that completes has failed.
            let first = self.receiving.front_mut()?;
            if let Some(ended) = first.wait_timeout(Duration::from_millis(1)) {
                assert!(ended.is_err(), "data arrives before the keys");
                return None;
            }
        }
    }

    /// Sends raw bytes; a peer that is gone does not receive them.
    pub fn say(&self, bytes: &[u8]) {
        self.say_at_once(&[bytes.to_vec()]);
    }

    /// Sends frames without a pause.
    pub fn say_at_once(&self, all: &[Vec<u8>]) {
        let send = |bytes: &Vec<u8>| {
            let mut region = self.region(BYTES);
            region[..bytes.len()].copy_from_slice(bytes);
            self.endpoint.send(region, ..bytes.len())
        };
        let under_way: Vec<_> = all.iter().map(send).collect();
        for mut sent in under_way {
            let _ = sent.wait_timeout(PATIENCE).expect("it is heard, or lost");
        }
    }

    /// The next frame; `None` when the connection is over.
    pub fn hear(&mut self) -> Option<Vec<u8>> {
        loop {
            if let Some(frame) = self.frames.take().unwrap() {
                return Some(frame);
            }
            let mut oldest = self.receiving.pop_front()?;
            let message = oldest
                .wait_timeout(PATIENCE)
                .expect("something is said")
                .ok()?;
            self.frames.push(&message);
            let next = self.endpoint.recv(message.into_region(), ..);
            self.receiving.push_back(next);
        }
    }

    fn region(&self, bytes: usize) -> Region {
        self.device.allocate(bytes).unwrap()
    }
}

/// Why there is no session.
#[derive(Debug)]
pub enum Unmet {
    /// The peer is gone.
    Gone,
    Refused(HandshakeError),
}

pub struct ByHand {
    pub line: Line,
    session: Session,
}

impl ByHand {
    /// Runs the handshake as a sender.
    pub fn meet(
        to: SocketAddr,
        identity: &Identity,
        introduction: Introduction,
    ) -> Result<Self, Unmet> {
        let line = Line::connect(to).ok_or(Unmet::Gone)?;
        Self::meet_over(line, identity, introduction)
    }

    /// As [`Self::meet`], over an existing connection.
    pub fn meet_over(
        mut line: Line,
        identity: &Identity,
        introduction: Introduction,
    ) -> Result<Self, Unmet> {
        let binding = line.binding().ok_or(Unmet::Gone)?;
        let (initiator, first) = Initiator::start(identity, introduction, &binding);
        line.say(&frame(&first));
        let answer = line.hear().ok_or(Unmet::Gone)?;
        let (confirming, third) = initiator.prove(&answer).map_err(Unmet::Refused)?;
        line.say(&frame(&third));
        let last = line.hear().ok_or(Unmet::Gone)?;
        let session = confirming.confirm(&last).map_err(Unmet::Refused)?;
        Ok(Self { line, session })
    }

    /// Runs the handshake as a receiver that knows every peer.
    pub fn admit(mut line: Line, door: &mut Door) -> Self {
        let first = line.hear().unwrap();
        let (answer, second) = door.answer(&first, &line.binding().unwrap()).unwrap();
        line.say(&frame(&second));
        let third = line.hear().unwrap();
        let (session, fourth) = door.admit(answer, &third, |_| true).unwrap();
        line.say(&frame(&fourth));
        Self { line, session }
    }

    pub fn say(&mut self, message: &Message) {
        self.say_sealed(&message.encode());
    }

    /// Sends messages without a pause.
    pub fn say_at_once(&mut self, messages: &[Message]) {
        let seal = |message: &Message| self.session.seal(&message.encode());
        let records: Vec<_> = messages.iter().map(seal).collect();
        self.line.say_at_once(&records);
    }

    /// Sends keepalives without a pause; returns whether all were received. `begin` is called at
    /// the first.
    pub fn chatter(&mut self, begin: impl FnOnce()) -> bool {
        let alive = Message::Alive.encode();
        let messages: Vec<Vec<u8>> = (0..CHATTER)
            .map(|_| {
                let count = BYTES / (2 + alive.len() + TAG_BYTES);
                (0..count).flat_map(|_| self.session.seal(&alive)).collect()
            })
            .collect();
        begin();
        let mut under_way = VecDeque::new();
        for bytes in messages {
            let mut region = self.line.region(BYTES);
            region[..bytes.len()].copy_from_slice(&bytes);
            under_way.push_back(self.line.endpoint.send(region, ..bytes.len()));
            if under_way.len() > CHATTER_AT_ONCE {
                let oldest = under_way.pop_front();
                let heard = oldest.and_then(|mut sent| sent.wait_timeout(PATIENCE));
                if !matches!(heard, Some(Ok(_))) {
                    return false;
                }
            }
        }
        true
    }

    /// Sends bytes that need not be a message.
    pub fn say_sealed(&mut self, bytes: &[u8]) {
        let record = self.session.seal(bytes);
        self.line.say(&record);
    }

    /// The next message except keepalives; `None` when the connection is over.
    pub fn hear(&mut self) -> Option<Message> {
        loop {
            let frame = self.line.hear()?;
            let message = Message::decode(&self.session.open(&frame).unwrap()).unwrap();
            if message != Message::Alive {
                return Some(message);
            }
        }
    }

    /// Offers a list of files in arbitrary bytes.
    pub fn offer_bytes(&mut self, offer: Offer, list: &[u8]) {
        self.say(&Message::Offer(offer));
        for piece in list.chunks(PIECE_BYTES) {
            self.say(&Message::Manifest(piece.to_vec()));
        }
    }

    /// Offers a valid list of files.
    pub fn offer(&mut self, manifest: &Manifest, key: &DataKey) {
        let list = manifest.encode();
        let offer = Offer {
            entries: manifest.entries().len() as u32,
            content_bytes: manifest.content_bytes(),
            manifest_id: manifest.id(),
            key: key.clone(),
            ..offer_of(&list)
        };
        self.offer_bytes(offer, &list);
    }

    /// Whether the receiver accepts while the connection lasts.
    pub fn is_accepted(&mut self) -> bool {
        std::iter::from_fn(|| self.hear()).any(|message| matches!(message, Message::Accept(_)))
    }

    /// The terms, once the receiver has accepted and granted chunks.
    pub fn accepted(&mut self) -> Accept {
        let accept = loop {
            let message = self.hear().expect("it is accepted");
            if let Message::Accept(accept) = message {
                break accept;
            }
            assert!(matches!(message, Message::Unwanted(_)), "{message:?}");
        };
        match self.hear() {
            Some(Message::Grant { .. }) => accept,
            other => panic!("nothing is granted: {other:?}"),
        }
    }

    /// Writes a chunk to `slot`, sealed as chunk `number`.
    pub fn write(&self, chunk: &[u8], key: &DataKey, number: u64, accept: &Accept, slot: u64) {
        let mut region = self.line.region(chunk.len() + TAG_BYTES);
        region[..chunk.len()].copy_from_slice(chunk);
        Sealer::new(accept.cipher, key, number).seal(&mut region, chunk.len());
        let at = slot * (airdma_files::CHUNK_BYTES + TAG_BYTES as u64);
        self.write_at(region, &accept.staging, at).unwrap();
    }

    pub fn write_at(&self, region: Region, staging: &[u8], at: u64) -> airdma::Result<Region> {
        let target = Remote::from_bytes(staging).unwrap();
        let mut written = self.line.endpoint.write(region, .., &target, at);
        written
            .wait_timeout(PATIENCE)
            .expect("it is written, or not")
    }

    /// The receiver's abort, if it sends one.
    pub fn last_word(&mut self) -> Option<(Reason, String)> {
        loop {
            if let Message::Abort { reason, text } = self.hear()? {
                return Some((reason, text));
            }
        }
    }
}

impl ByHand {
    /// Receives the sender's offer.
    pub fn take_offer(&mut self) {
        let Some(Message::Offer(offer)) = self.hear() else {
            panic!("an offer comes first");
        };
        let mut rest = offer.manifest_bytes;
        while rest > 0 {
            match self.hear() {
                Some(Message::Manifest(piece)) => rest -= piece.len() as u64,
                other => panic!("a list of files is behind it: {other:?}"),
            }
        }
    }

    /// Accepts all of it without a grant.
    pub fn accept(&mut self, staging: &Shared) {
        self.say(&Message::Accept(Accept {
            first_chunk: 0,
            cipher: Cipher::ChaCha20Poly1305,
            slots: 1,
            staging: staging
                .remote(&self.line.endpoint)
                .unwrap()
                .to_bytes()
                .to_vec(),
        }));
    }
}

/// An offer whose only true field is the length of its list of files.
pub fn offer_of(list: &[u8]) -> Offer {
    Offer {
        entries: 1,
        content_bytes: 0,
        manifest_bytes: list.len() as u64,
        manifest_id: ManifestId([0; 32]),
        key: DataKey::draw(),
        fast_aes: false,
    }
}

/// A list of these files, none of them in a directory.
pub fn manifest(kinds: &[(&str, Kind)]) -> Manifest {
    let mut builder = Builder::new(Limits::default());
    for (name, kind) in kinds {
        builder
            .push(Entry {
                parent: None,
                depth: 0,
                name: name.as_bytes().into(),
                mode: 0o644,
                modified: Modified {
                    seconds: 0,
                    nanos: 0,
                },
                kind: kind.clone(),
            })
            .unwrap();
    }
    builder.finish()
}

/// A file of `size` bytes.
pub fn content(size: u64) -> Kind {
    Kind::File(Content {
        size,
        stamp: 0,
        extents: None,
    })
}
