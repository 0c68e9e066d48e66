//! Both ends complete, joined by a connection that is lost at any moment.
//!
//! They have the handshake, the session, the state machines, a staging memory that the other end
//! writes to, the encryption of chunks, and files.

use crate::kept::everything;
use crate::scratch::{self, Scratch, contents, noise};
use airdma_files::protocol::{
    Config, Message, Receiver, ReceiverEvent, Sender, SenderEvent, Terms, Time,
};
use airdma_files::session::{
    Code, DataKey, Door, Frames, Identity, Initiator, Introduction, Opener, PublicKey, Sealer,
    Session, TAG_BYTES,
};
use airdma_files::{
    CHUNK_BYTES, Limits, ManifestId, Options, Report, Sink, Source, Unwanted, walk::Walked,
};
use proptest::prelude::*;
use std::collections::{HashMap, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;

/// Binding of the underlying connection.
const BINDING: &[u8] = b"binding";

const SLOT_BYTES: usize = CHUNK_BYTES as usize + TAG_BYTES;
const SLOTS: u32 = 2;

/// Messages and writes in flight, in order, as on a reliable connection.
enum Way {
    Bytes(Vec<u8>),
    /// A one-sided write.
    Write {
        slot: u32,
        sealed: Vec<u8>,
    },
}

/// State that the sending user keeps between connections.
struct SendingHost {
    identity: Identity,
    walked: Walked,
    /// Pinned at the first contact.
    peer: Option<PublicKey>,
    finished: Option<u64>,
}

/// State that the receiving user keeps between connections.
struct ReceivingHost {
    door: Door,
    known: Vec<PublicKey>,
    directory: PathBuf,
    /// Completed offers: they stay so when asked again.
    done: HashMap<ManifestId, (Report, Unwanted)>,
    /// Chunks that were durable when the connection was lost, for the test.
    durable: u64,
}

struct SendingEnd {
    session: Session,
    frames: Frames,
    machine: Sender,
    key: DataKey,
    data: Option<(Source, Sealer)>,
}

struct ReceivingEnd {
    session: Session,
    frames: Frames,
    machine: Receiver,
    staging: Vec<Vec<u8>>,
    id: Option<ManifestId>,
    data: Option<(Sink, Opener)>,
}

/// A connection: both ends, and what is in flight between them.
struct Connection {
    now: Time,
    sending: SendingEnd,
    receiving: ReceivingEnd,
    there: VecDeque<Way>,
    back: VecDeque<Way>,
}

fn connect(sender: &mut SendingHost, receiver: &mut ReceivingHost, code: &Code) -> Connection {
    let introduction = sender
        .peer
        .map_or(Introduction::Code(code.clone()), |peer| {
            Introduction::Known(vec![peer])
        });
    let (initiator, first) = Initiator::start(&sender.identity, introduction, BINDING);
    let (answer, second) = receiver.door.answer(&first, BINDING).unwrap();
    let (confirming, third) = initiator.prove(&second).unwrap();
    let known = |key: &PublicKey| receiver.known.contains(key);
    let (there, fourth) = receiver.door.admit(answer, &third, known).unwrap();
    let here = confirming.confirm(&fourth).unwrap();
    sender.peer = Some(here.peer());
    receiver.known.push(there.peer());
    let (now, key) = (Time::ZERO, DataKey::draw());
    let manifest = Arc::clone(&sender.walked.manifest);
    let sending = SendingEnd {
        session: here,
        frames: Frames::default(),
        machine: Sender::new(now, Config::default(), manifest, key.clone()),
        key,
        data: None,
    };
    let receiving = ReceivingEnd {
        session: there,
        frames: Frames::default(),
        machine: Receiver::new(now, Config::default()),
        staging: vec![vec![0; SLOT_BYTES]; SLOTS as usize],
        id: None,
        data: None,
    };
    Connection {
        now,
        sending,
        receiving,
        there: VecDeque::new(),
        back: VecDeque::new(),
    }
}

impl Connection {
    /// Does one of the things that can happen now; returns whether there was one.
    fn step(&mut self, sender: &mut SendingHost, receiver: &mut ReceivingHost, choice: u8) -> bool {
        for offset in 0..6 {
            let done = match choice.wrapping_add(offset) % 6 {
                0 => self.say(),
                1 => self.say_back(),
                2 => self.deliver(),
                3 => self.deliver_back(sender),
                4 => self.write_chunk(),
                _ => self.take_chunk(receiver, choice >= 128),
            };
            if done {
                return true;
            }
        }
        false
    }

    fn say(&mut self) -> bool {
        let end = &mut self.sending;
        let Some(message) = end.machine.poll_message(self.now) else {
            return false;
        };
        self.there
            .push_back(Way::Bytes(end.session.seal(&message.encode())));
        true
    }

    fn say_back(&mut self) -> bool {
        let end = &mut self.receiving;
        let Some(message) = end.machine.poll_message(self.now) else {
            return false;
        };
        self.back
            .push_back(Way::Bytes(end.session.seal(&message.encode())));
        true
    }

    fn deliver(&mut self) -> bool {
        let Some(way) = self.there.pop_front() else {
            return false;
        };
        let end = &mut self.receiving;
        match way {
            Way::Bytes(bytes) => bytes.chunks(1000).for_each(|piece| end.frames.push(piece)),
            Way::Write { slot, sealed } => {
                end.staging[slot as usize][..sealed.len()].copy_from_slice(&sealed)
            }
        }
        while let Some(frame) = end.frames.take().unwrap() {
            let message = Message::decode(&end.session.open(&frame).unwrap()).unwrap();
            end.machine.handle_message(self.now, message);
        }
        true
    }

    fn deliver_back(&mut self, host: &mut SendingHost) -> bool {
        let Some(Way::Bytes(bytes)) = self.back.pop_front() else {
            return false;
        };
        let end = &mut self.sending;
        end.frames.push(&bytes);
        while let Some(frame) = end.frames.take().unwrap() {
            let message = Message::decode(&end.session.open(&frame).unwrap()).unwrap();
            end.machine.handle_message(self.now, message);
        }
        while let Some(event) = end.machine.poll_event() {
            match event {
                SenderEvent::Accepted {
                    unwanted,
                    first_chunk,
                    cipher,
                    slots,
                    staging,
                } => {
                    assert_eq!((slots, &*staging), (SLOTS, &b"key and address"[..]));
                    let source = Source::new(&host.walked, &unwanted, first_chunk);
                    end.data = Some((source, Sealer::new(cipher, &end.key, first_chunk)));
                }
                SenderEvent::Taken { .. } | SenderEvent::Durable { .. } => {}
                SenderEvent::Finished { files, flaws } => {
                    assert_eq!(flaws, []);
                    host.finished = Some(files);
                }
                SenderEvent::Failed(failure) => panic!("{failure}"),
            }
        }
        true
    }

    fn write_chunk(&mut self) -> bool {
        let end = &mut self.sending;
        let Some((chunk, slot)) = end.machine.next_chunk() else {
            return false;
        };
        let (source, sealer) = end.data.as_mut().expect("it was accepted");
        assert_eq!(source.next(), chunk);
        let mut sealed = vec![0; SLOT_BYTES];
        let length = source.read(&mut sealed);
        sealer.seal(&mut sealed, length);
        sealed.truncate(length + TAG_BYTES);
        self.there.push_back(Way::Write { slot, sealed });
        end.machine.chunks_written(chunk + 1);
        true
    }

    fn take_chunk(&mut self, host: &mut ReceivingHost, checkpoint: bool) -> bool {
        let end = &mut self.receiving;
        if let Some(event) = end.machine.poll_event() {
            end.handle(event, host);
            return true;
        }
        let Some((chunk, slot)) = end.machine.next_chunk() else {
            return false;
        };
        let (sink, opener) = end.data.as_mut().expect("it was accepted");
        let length = sink.plan().chunk_bytes(chunk) + TAG_BYTES;
        let bytes = opener
            .open(&mut end.staging[slot as usize][..length])
            .unwrap();
        sink.write(bytes).unwrap();
        if checkpoint {
            sink.checkpoint().unwrap();
        }
        host.durable = sink.durable();
        end.machine.chunks_taken(chunk + 1, host.durable);
        true
    }
}

impl ReceivingEnd {
    fn handle(&mut self, event: ReceiverEvent, host: &mut ReceivingHost) {
        match event {
            ReceiverEvent::Offered { manifest, id, key } => {
                self.id = Some(id);
                let (unwanted, first_chunk) = if let Some((_, unwanted)) = host.done.get(&id) {
                    (
                        unwanted.clone(),
                        airdma_files::Plan::new(&manifest, unwanted).chunks(),
                    )
                } else {
                    let sink = Sink::open(
                        &host.directory,
                        manifest,
                        id,
                        Options::default(),
                        &scratch::key(),
                    )
                    .unwrap();
                    assert_eq!(
                        sink.next(),
                        host.durable,
                        "nothing that is durable is sent again"
                    );
                    let (unwanted, first_chunk) = (sink.unwanted().clone(), sink.next());
                    let opener = Opener::new(self.machine.cipher(), &key, first_chunk);
                    self.data = Some((sink, opener));
                    (unwanted, first_chunk)
                };
                let staging = b"key and address".to_vec();
                self.machine.accept(Terms {
                    unwanted,
                    first_chunk,
                    slots: SLOTS,
                    staging,
                });
            }
            ReceiverEvent::Complete => {
                let id = self.id.expect("it was offered");
                if let Some((sink, _)) = self.data.take() {
                    let unwanted = sink.unwanted().clone();
                    host.done.insert(id, (sink.finish().unwrap(), unwanted));
                }
                self.machine.finished(&host.done[&id].0);
            }
            ReceiverEvent::Over => {}
            ReceiverEvent::Failed(failure) => panic!("{failure}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4, max_shrink_iters: 0, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_transfer_that_loses_twenty_connections_arrives_once(
        lives in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 20),
    ) {
        let scratch = Scratch::new();
        let tree = everything(&scratch);
        scratch.write("in/tree/larger", noise(7, 6 * CHUNK_BYTES as usize));
        let walked = airdma_files::walk(&[&tree], Limits::default()).unwrap();
        let code = Code::draw();
        let mut sender = SendingHost { identity: Identity::draw(), walked, peer: None, finished: None };
        let mut receiver = ReceivingHost {
            door: Door::new(Identity::draw(), Some(code.clone())),
            known: Vec::new(),
            directory: scratch.directory("out"),
            done: HashMap::new(),
            durable: 0,
        };
        for life in lives {
            let mut connection = connect(&mut sender, &mut receiver, &code);
            for choice in life {
                connection.step(&mut sender, &mut receiver, choice);
            }
        }
        let mut connection = connect(&mut sender, &mut receiver, &code);
        let steps = (0..10_000).take_while(|choice| connection.step(&mut sender, &mut receiver, (*choice % 128) as u8));
        prop_assert!(steps.count() < 10_000);
        prop_assert_eq!(sender.finished, Some(309));
        prop_assert_eq!(contents(&scratch.join("in")), contents(&scratch.join("out")));
    }
}
