//! The control messages of file transfers: messages of a peer that may send anything, in any
//! order.

use std::sync::Arc;

use airdma_files::manifest::{Builder, Content, Entry, Kind};
use airdma_files::protocol::{
    Config, Message, Offer, Receiver, ReceiverEvent, Sender, SenderEvent, Terms, Time,
};
use airdma_files::session::{DataKey, Door, Frames, Identity};
use airdma_files::{Limits, Manifest, Modified, Plan, Report, Unwanted};

/// Binding of the underlying connection.
const BINDING: &[u8] = b"binding";

/// Most answers to one message: parts of a list, and an end.
const ANSWERS_MAX: usize = 4;

const SLOTS: u32 = 3;

/// The first byte chooses whom the rest is said to. Each message has its length in front, in one
/// byte.
pub fn run(data: &[u8]) {
    let Some((&whom, rest)) = data.split_first() else {
        return;
    };
    match whom % 8 {
        0..=3 => receiver(rest, whom & 0x80 != 0),
        4..=6 => sender(rest),
        _ => strangers(rest),
    }
}

/// Before anything is agreed: bytes to whoever listens.
fn strangers(data: &[u8]) {
    let mut frames = Frames::default();
    let mut whole = Vec::new();
    for piece in data.chunks(7) {
        frames.push(piece);
        while let Ok(Some(frame)) = frames.take() {
            whole.push(frame);
        }
    }
    let mut door = Door::new(Identity::draw(), None);
    for frame in whole.iter().take(3) {
        assert!(door.answer(frame, BINDING).is_err() || frame.len() >= 10 + 32);
    }
    let hello = [b"airdma-f\x01\x02", data].concat();
    if let Ok((answer, _)) = door.answer(&hello, BINDING) {
        assert!(door.admit(answer, data, |_| true).is_err());
    }
}

/// To a receiver, of which `accepts` says whether it takes an offer.
fn receiver(data: &[u8], accepts: bool) {
    let offered = manifest();
    let mut machine = Receiver::new(Time::ZERO, config());
    let mut granted = 0;
    let mut plan = None;
    for message in messages(data, &offered) {
        machine.handle_message(Time::ZERO, message);
        let mut answers = 0;
        while let Some(event) = machine.poll_event() {
            match event {
                ReceiverEvent::Offered { manifest, .. } => {
                    plan = Some(Plan::new(&manifest, &Unwanted::default()));
                    if accepts {
                        let unwanted = Unwanted::default();
                        machine.accept(Terms {
                            unwanted,
                            first_chunk: 0,
                            slots: SLOTS,
                            staging: Vec::new(),
                        });
                    }
                }
                ReceiverEvent::Complete => machine.finished(&Report {
                    files: 0,
                    flaws: Vec::new(),
                    unkept: airdma_files::Unkept::default(),
                }),
                ReceiverEvent::Over => {}
                ReceiverEvent::Failed(_) => assert_eq!(machine.poll_timeout(), None),
            }
        }
        while let Some((chunk, slot)) = machine.next_chunk() {
            assert!(accepts && chunk < granted && slot < SLOTS);
            assert!(plan.as_ref().is_some_and(|plan| chunk < plan.chunks()));
            machine.chunks_taken(chunk + 1, chunk);
        }
        while let Some(message) = machine.poll_message(Time::ZERO) {
            answers += 1;
            if let Message::Grant { until, .. } = message {
                granted = until;
            }
            assert_eq!(Message::decode(&message.encode()), Ok(message));
        }
        assert!(answers <= ANSWERS_MAX, "{answers}");
    }
}

fn sender(data: &[u8]) {
    let offered = manifest();
    let mut machine = Sender::new(
        Time::ZERO,
        config(),
        Arc::clone(&offered),
        DataKey::new([0; 32]),
    );
    while machine.poll_message(Time::ZERO).is_some() {}
    let mut limit = None;
    for message in messages(data, &offered) {
        if let Message::Grant { until, .. } = &message {
            limit = limit.max(Some(*until));
        }
        machine.handle_message(Time::ZERO, message);
        let mut ended = false;
        while let Some(event) = machine.poll_event() {
            assert!(!ended, "nothing after the end");
            match event {
                SenderEvent::Accepted {
                    first_chunk,
                    unwanted,
                    ..
                } => {
                    assert!(first_chunk <= Plan::new(&offered, &unwanted).chunks());
                }
                SenderEvent::Taken { .. } | SenderEvent::Durable { .. } => {}
                SenderEvent::Finished { .. } | SenderEvent::Failed(_) => ended = true,
            }
        }
        let mut given = 0;
        while let Some((chunk, _)) = machine.next_chunk() {
            assert!(limit.is_some_and(|limit| chunk < limit) && !ended);
            machine.chunks_written(chunk + 1);
            given += 1;
        }
        let answers = std::iter::from_fn(|| machine.poll_message(Time::ZERO)).count();
        assert!(answers <= ANSWERS_MAX + given, "{answers}");
        assert!(!ended || machine.poll_timeout().is_none());
    }
}

/// Parses bytes as messages. One of no bytes stands for the next part of an offer in order.
fn messages(data: &[u8], offered: &Manifest) -> Vec<Message> {
    let encoded = offered.encode();
    let offer = Message::Offer(Offer {
        entries: offered.entries().len() as u32,
        content_bytes: offered.content_bytes(),
        manifest_bytes: encoded.len() as u64,
        manifest_id: offered.id(),
        key: DataKey::new([0; 32]),
        fast_aes: true,
    });
    let mut in_order = [offer, Message::Manifest(encoded)].into_iter();
    let mut found = Vec::new();
    let mut rest = data;
    while let Some((&length, bytes)) = rest.split_first() {
        let (message, after) = bytes.split_at(bytes.len().min(usize::from(length)));
        rest = after;
        match Message::decode(message) {
            Ok(message) => found.push(message),
            Err(_) if message.is_empty() => found.extend(in_order.next()),
            Err(_) => {}
        }
    }
    found
}

fn manifest() -> Arc<Manifest> {
    let mut builder = Builder::new(Limits::default());
    for (name, size) in [("a", 5 << 20), ("b", 0), ("c", 100)] {
        let entry = Entry {
            parent: None,
            depth: 0,
            name: name.as_bytes().into(),
            mode: 0o644,
            modified: Modified {
                seconds: 0,
                nanos: 0,
            },
            kind: Kind::File(Content {
                size,
                stamp: 0,
                extents: None,
            }),
        };
        builder
            .push(entry)
            .expect("three files are no hostile offer");
    }
    Arc::new(builder.finish())
}

fn config() -> Config {
    Config {
        slots_max: 64,
        ..Config::default()
    }
}
