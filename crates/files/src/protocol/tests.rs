//! Conversations, message by message.

use super::*;
use crate::manifest::{Builder, Content, Entry, Kind, ManifestId};
use crate::session::{Cipher, DataKey};
use crate::{CHUNK_BYTES, Flaw, Manifest, Modified, Report, Unwanted};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;

const fn at(seconds: u64) -> Time {
    Time::from_secs(seconds)
}

/// A file of `chunks` chunks, and `small` small files.
fn manifest(chunks: u64, small: usize) -> Arc<Manifest> {
    let mut builder = Builder::new(Limits::default());
    let mut push = |name: String, size| {
        let (modified, name) = (
            Modified {
                seconds: 0,
                nanos: 0,
            },
            name.into_bytes().into(),
        );
        let kind = Kind::File(Content {
            size,
            stamp: 0,
            extents: None,
        });
        builder
            .push(Entry {
                parent: None,
                depth: 0,
                name,
                mode: 0o600,
                modified,
                kind,
            })
            .unwrap();
    };
    push("large".into(), chunks * CHUNK_BYTES - 100);
    (0..small).for_each(|number| push(format!("small {number:06}"), 0));
    Arc::new(builder.finish())
}

struct Pair {
    now: Time,
    sender: Sender,
    receiver: Receiver,
}

impl Pair {
    fn new(manifest: &Arc<Manifest>) -> Self {
        let now = at(0);
        let key = DataKey::new([3; 32]);
        let sender = Sender::new(now, Config::default(), Arc::clone(manifest), key);
        Self {
            now,
            sender,
            receiver: Receiver::new(now, Config::default()),
        }
    }

    /// Delivers all messages, and returns their names in order.
    fn talk(&mut self) -> Vec<&'static str> {
        let mut said = Vec::new();
        loop {
            if let Some(message) = self.sender.poll_message(self.now) {
                said.push(name(&message));
                self.receiver
                    .handle_message(self.now, through_bytes(message));
            } else if let Some(message) = self.receiver.poll_message(self.now) {
                said.push(name(&message));
                self.sender.handle_message(self.now, through_bytes(message));
            } else {
                return said;
            }
        }
    }

    fn accept(&mut self, slots: u32) {
        let terms = Terms {
            unwanted: Unwanted::default(),
            first_chunk: 0,
            slots,
            staging: b"there".to_vec(),
        };
        self.receiver.accept(terms);
    }

    fn given(&mut self) -> Vec<u64> {
        std::iter::from_fn(|| self.sender.next_chunk())
            .map(|(chunk, _)| chunk)
            .collect()
    }
}

fn through_bytes(message: Message) -> Message {
    assert_eq!(Message::decode(&message.encode()), Ok(message.clone()));
    message
}

fn name(message: &Message) -> &'static str {
    match message {
        Message::Offer(_) => "offer",
        Message::Manifest(_) => "manifest",
        Message::Unwanted(_) => "unwanted",
        Message::Accept(_) => "accept",
        Message::Grant { .. } => "grant",
        Message::Arrived { .. } => "arrived",
        Message::Flawed(_) => "flawed",
        Message::Finished { .. } => "finished",
        Message::Bye => "bye",
        Message::Alive => "alive",
        Message::Abort { .. } => "abort",
    }
}

#[test]
fn a_transfer_from_the_offer_to_the_end() {
    let manifest = manifest(3, 1);
    let mut pair = Pair::new(&manifest);
    assert_eq!(pair.talk(), ["offer", "manifest"]);
    let id = manifest.id();
    let key = DataKey::new([3; 32]);
    assert_eq!(
        pair.receiver.poll_event(),
        Some(ReceiverEvent::Offered {
            manifest: Arc::clone(&manifest),
            id,
            key
        })
    );
    assert_eq!(pair.given(), [], "nothing before it is accepted");
    pair.accept(2);
    assert_eq!(pair.talk(), ["accept", "grant"]);
    let cipher = pair.receiver.cipher();
    let (unwanted, staging) = (Unwanted::default(), b"there".to_vec());
    let accepted = SenderEvent::Accepted {
        unwanted,
        first_chunk: 0,
        cipher,
        slots: 2,
        staging,
    };
    assert_eq!(pair.sender.poll_event(), Some(accepted));
    let none_taken = SenderEvent::Taken { chunks: 0 };
    assert_eq!(pair.sender.poll_event(), Some(none_taken));
    assert_eq!(pair.given(), [0, 1], "as many as there are slots");
    assert_eq!(pair.receiver.next_chunk(), None, "nothing has arrived yet");
    pair.sender.chunks_written(2);
    assert_eq!(pair.talk(), ["arrived"]);
    assert_eq!(
        (pair.receiver.next_chunk(), pair.receiver.next_chunk()),
        (Some((0, 0)), Some((1, 1)))
    );
    pair.receiver.chunks_taken(1, 1);
    assert_eq!(pair.talk(), ["grant"]);
    let events = [(); 2].map(|()| pair.sender.poll_event());
    let expected = [
        SenderEvent::Taken { chunks: 1 },
        SenderEvent::Durable { chunks: 1 },
    ];
    assert_eq!(events, expected.map(Some));
    assert_eq!(pair.given(), [2]);
    pair.sender.chunks_written(3);
    assert_eq!(pair.talk(), ["arrived"]);
    assert_eq!(pair.receiver.next_chunk(), Some((2, 0)));
    pair.receiver.chunks_taken(2, 1);
    assert_eq!(pair.talk(), ["grant"]);
    let taken = SenderEvent::Taken { chunks: 2 };
    assert_eq!(pair.sender.poll_event(), Some(taken), "to the end");
    assert_eq!(pair.given(), [], "there is no fourth");
    pair.receiver.chunks_taken(3, 3);
    assert_eq!(pair.receiver.poll_event(), Some(ReceiverEvent::Complete));
    pair.receiver.finished(&Report {
        files: 1,
        flaws: vec![(1, Flaw::Changed)],
        unkept: crate::Unkept::default(),
    });
    assert_eq!(pair.talk(), ["flawed", "finished", "bye"]);
    let finished = SenderEvent::Finished {
        files: 1,
        flaws: vec![(1, Flaw::Changed)],
    };
    assert_eq!(
        (pair.sender.poll_event(), pair.receiver.poll_event()),
        (Some(finished), Some(ReceiverEvent::Over))
    );
    assert_eq!(
        (pair.sender.poll_timeout(), pair.receiver.poll_timeout()),
        (None, None)
    );
}

#[test]
fn an_offer_of_which_nothing_is_wanted_is_over_at_once() {
    let mut pair = Pair::new(&manifest(1, 0));
    pair.talk();
    pair.receiver.poll_event();
    let mut unwanted = Unwanted::default();
    unwanted.push(0);
    pair.receiver.accept(Terms {
        unwanted,
        first_chunk: 0,
        slots: 2,
        staging: Vec::new(),
    });
    assert_eq!(pair.receiver.poll_event(), Some(ReceiverEvent::Complete));
    pair.receiver.finished(&Report {
        files: 0,
        flaws: Vec::new(),
        unkept: crate::Unkept::default(),
    });
    assert_eq!(pair.talk(), ["unwanted", "accept", "finished", "bye"]);
}

#[test]
fn thousands_of_files_cost_no_messages_of_their_own() {
    let manifest = manifest(1, 20_000);
    let mut pair = Pair::new(&manifest);
    let said = pair.talk();
    assert_eq!(
        (said.len(), said[0]),
        (1 + manifest.encode().len().div_ceil(16 << 10), "offer")
    );
    pair.accept(64);
    assert_eq!(pair.talk(), ["accept", "grant"]);
    assert_eq!(pair.given(), [0, 1]);
}

#[test]
fn a_refusal_reaches_the_sender_with_its_reason() {
    let mut pair = Pair::new(&manifest(1, 0));
    pair.talk();
    pair.receiver.abort(Reason::NoSpace, "no room for 1 MiB");
    assert_eq!(pair.talk(), ["abort"]);
    let text = "no room for 1 MiB".to_owned();
    let failure = Failure::Peer {
        reason: Reason::NoSpace,
        text,
    };
    assert_eq!(pair.sender.poll_event(), Some(SenderEvent::Failed(failure)));
    assert_eq!(pair.given(), []);
}

#[test]
fn what_a_peer_says_moves_no_cursor() {
    let failure = Failure::Peer {
        reason: Reason::Files,
        text: "\u{1b}[2Jall arrived\r\u{202e}".to_owned(),
    };
    let said = "the other end stopped: \\u{1b}[2Jall arrived\\r\\u{202e}";
    assert_eq!(failure.to_string(), said);
}

#[test]
fn a_receiver_that_never_accepts_is_waited_for_ten_minutes() {
    let mut pair = Pair::new(&manifest(1, 0));
    let mut alive = 0;
    while pair.now < at(600) {
        let said = pair.talk();
        alive += said.iter().filter(|said| **said == "alive").count();
        pair.now = pair
            .sender
            .poll_timeout()
            .unwrap()
            .min(pair.receiver.poll_timeout().unwrap());
        pair.sender.handle_timeout(pair.now);
        pair.receiver.handle_timeout(pair.now);
    }
    assert_eq!(pair.now, at(600));
    assert!((230..250).contains(&alive), "{alive}");
    assert_eq!(
        pair.sender.poll_event(),
        Some(SenderEvent::Failed(Failure::NotAccepted))
    );
    pair.receiver.poll_event();
    assert!(pair.talk().contains(&"abort"));
    assert!(matches!(
        pair.receiver.poll_event(),
        Some(ReceiverEvent::Failed(Failure::Peer { .. }))
    ));
}

#[test]
fn a_peer_that_says_nothing_is_gone_after_twenty_seconds() {
    let mut pair = Pair::new(&manifest(1, 0));
    pair.talk();
    pair.accept(2);
    pair.talk();
    for seconds in [5, 10, 15, 19] {
        pair.sender.handle_timeout(at(seconds));
        pair.receiver.handle_timeout(at(seconds));
    }
    while pair.sender.poll_event().is_some() || pair.receiver.poll_event().is_some() {}
    pair.sender.handle_timeout(at(20));
    pair.receiver.handle_timeout(at(20));
    assert_eq!(
        pair.sender.poll_event(),
        Some(SenderEvent::Failed(Failure::Silent))
    );
    assert_eq!(
        pair.receiver.poll_event(),
        Some(ReceiverEvent::Failed(Failure::Silent))
    );
}

#[test]
fn a_sender_that_lives_on_and_takes_no_leave_is_not_waited_for() {
    let mut pair = Pair::new(&manifest(1, 0));
    pair.talk();
    pair.accept(2);
    pair.talk();
    pair.given();
    pair.sender.chunks_written(1);
    pair.talk();
    assert_eq!(pair.receiver.next_chunk(), Some((0, 0)));
    pair.receiver.chunks_taken(1, 1);
    pair.receiver.finished(&Report {
        files: 1,
        flaws: Vec::new(),
        unkept: crate::Unkept::default(),
    });
    while pair.receiver.poll_event().is_some() {}
    for seconds in 1..=20 {
        pair.receiver.handle_message(at(seconds), Message::Alive);
        pair.receiver.handle_timeout(at(seconds));
    }
    assert_eq!(pair.receiver.poll_event(), Some(ReceiverEvent::Over));
}

/// The failure of a receiver that gets these messages.
fn received(messages: &[Message]) -> Option<Failure> {
    let mut receiver = Receiver::new(at(0), Config::default());
    for message in messages {
        receiver.handle_message(at(0), message.clone());
    }
    std::iter::from_fn(|| receiver.poll_event()).find_map(|event| match event {
        ReceiverEvent::Failed(failure) => Some(failure),
        ReceiverEvent::Offered { .. } | ReceiverEvent::Complete | ReceiverEvent::Over => None,
    })
}

fn offer_of(manifest: &Manifest) -> Offer {
    Offer {
        entries: manifest.entries().len() as u32,
        content_bytes: manifest.content_bytes(),
        manifest_bytes: manifest.encode().len() as u64,
        manifest_id: manifest.id(),
        key: DataKey::new([0; 32]),
        fast_aes: false,
    }
}

#[test]
fn a_sender_that_does_not_offer_what_it_says_is_found_out() {
    let manifest = manifest(1, 2);
    let list = Message::Manifest(manifest.encode());
    let offer = offer_of(&manifest);
    assert_eq!(
        received(&[Message::Offer(offer.clone()), list.clone()]),
        None
    );
    for other in [
        Offer {
            entries: 2,
            ..offer.clone()
        },
        Offer {
            content_bytes: 1,
            ..offer.clone()
        },
        Offer {
            manifest_id: ManifestId([0; 32]),
            ..offer.clone()
        },
    ] {
        let failure = received(&[Message::Offer(other), list.clone()]);
        assert!(matches!(failure, Some(Failure::Protocol(_))), "{failure:?}");
    }
    for bytes in [5, offer.manifest_bytes + 1] {
        let shorter = Offer {
            manifest_bytes: bytes,
            ..offer.clone()
        };
        let more = Message::Manifest(b"x".to_vec());
        assert!(received(&[Message::Offer(shorter), list.clone(), more]).is_some());
    }
    for large in [
        Offer {
            entries: u32::MAX,
            ..offer.clone()
        },
        Offer {
            manifest_bytes: 1 << 40,
            ..offer.clone()
        },
    ] {
        let failure = received(&[Message::Offer(large)]);
        assert!(
            matches!(
                failure,
                Some(Failure::Here {
                    reason: Reason::Refused,
                    ..
                })
            ),
            "{failure:?}"
        );
    }
}

#[test]
fn messages_out_of_turn_end_it_at_either_end() {
    let manifest = manifest(3, 0);
    let (offer, list) = (
        Message::Offer(offer_of(&manifest)),
        Message::Manifest(manifest.encode()),
    );
    let arrived = Message::Arrived { until: 0 };
    for (before, message) in [
        (0, &list),
        (0, &arrived),
        (0, &Message::Bye),
        (1, &offer),
        (1, &arrived),
        (2, &list),
        (2, &Message::Bye),
        (2, &Message::Finished { files: 0, flaws: 0 }),
    ] {
        let mut messages = vec![offer.clone(), list.clone()];
        messages.truncate(before);
        messages.push(message.clone());
        assert!(
            matches!(received(&messages), Some(Failure::Protocol(_))),
            "{before} {message:?}"
        );
    }
}

#[test]
fn chunks_that_were_not_granted_end_it() {
    for (slots, until) in [(2, 3), (2, u64::MAX), (16, 10)] {
        let mut pair = Pair::new(&manifest(9, 0));
        pair.talk();
        pair.receiver.poll_event();
        pair.accept(slots);
        pair.talk();
        pair.receiver
            .handle_message(at(0), Message::Arrived { until });
        let failure = pair.receiver.poll_event();
        assert!(
            matches!(failure, Some(ReceiverEvent::Failed(Failure::Protocol(_)))),
            "{failure:?}"
        );
        assert_eq!(pair.receiver.next_chunk(), None);
        assert_eq!(pair.talk(), ["abort"]);
    }
}

#[test]
fn a_receiver_that_makes_no_sense_is_found_out() {
    let accept = |first_chunk, slots| {
        let (cipher, staging) = (Cipher::ChaCha20Poly1305, Vec::new());
        Message::Accept(Accept {
            first_chunk,
            cipher,
            slots,
            staging,
        })
    };
    let grant = |until, durable| Message::Grant { until, durable };
    let not_wanted = |start, end| Message::Unwanted(vec![Range { start, end }]);
    for messages in [
        vec![accept(10, 1)],
        vec![accept(0, u32::MAX)],
        vec![grant(1, 0)],
        vec![not_wanted(0, 2)],
        vec![not_wanted(0, 1), not_wanted(0, 1)],
        vec![accept(0, 2), accept(0, 2)],
        vec![accept(0, 2), grant(3, 0)],
        vec![accept(0, 2), grant(2, 1)],
        vec![accept(5, 2), grant(7, 4)],
        vec![accept(5, 2), grant(4, 5)],
        vec![accept(9, 2), grant(12, 9)],
        vec![accept(9, 2), grant(11, 9), grant(12, 9)],
        vec![accept(0, 2), Message::Finished { files: 1, flaws: 0 }],
        vec![accept(9, 2), Message::Finished { files: 1, flaws: 1 }],
        vec![accept(0, 2), Message::Flawed(vec![(1, Flaw::Damaged)])],
        vec![
            accept(0, 2),
            Message::Flawed(vec![(0, Flaw::Damaged), (0, Flaw::Damaged)]),
        ],
    ] {
        let mut sender = Sender::new(at(0), Config::default(), manifest(9, 0), DataKey::draw());
        while sender.poll_message(at(0)).is_some() {}
        for message in &messages {
            sender.handle_message(at(0), message.clone());
        }
        let failure = std::iter::from_fn(|| sender.poll_event()).last();
        assert!(
            matches!(failure, Some(SenderEvent::Failed(Failure::Protocol(_)))),
            "{messages:?}: {failure:?}"
        );
        assert_eq!(sender.next_chunk(), None);
    }
}

#[test]
fn a_sender_without_an_offer_yet_keeps_the_session_alive() {
    let mut pair = Pair::new(&manifest(1, 0));
    pair.sender = Sender::preparing(at(0), Config::default(), DataKey::draw());
    assert!(pair.talk().is_empty());
    for second in 1..=60 {
        pair.now = at(second);
        pair.sender.handle_timeout(pair.now);
        pair.receiver.handle_timeout(pair.now);
        let said = pair.talk();
        assert!(said.iter().all(|name| *name == "alive"), "{said:?}");
        assert!(!said.is_empty() || second % 5 != 0, "{second}");
    }
    pair.sender.offer(pair.now, manifest(1, 0));
    assert_eq!(pair.talk()[..2], ["offer", "manifest"]);
    assert!(matches!(
        pair.receiver.poll_event(),
        Some(ReceiverEvent::Offered { .. })
    ));
    // A second offer has no effect.
    pair.sender.offer(pair.now, manifest(2, 0));
    assert!(pair.talk().is_empty());
}

#[test]
fn a_sender_without_an_offer_notices_a_lost_receiver() {
    let preparing = || Sender::preparing(at(0), Config::default(), DataKey::draw());
    let mut sender = preparing();
    let (until, durable) = (0, 0);
    sender.handle_message(at(0), Message::Grant { until, durable });
    let failure = sender.poll_event();
    assert!(matches!(
        failure,
        Some(SenderEvent::Failed(Failure::Protocol(_)))
    ));
    sender.offer(at(0), manifest(1, 0));
    let said = std::iter::from_fn(|| sender.poll_message(at(0)));
    assert_eq!(
        said.map(|message| name(&message)).collect::<Vec<_>>(),
        ["abort"]
    );
    let mut sender = preparing();
    assert_eq!(sender.poll_timeout(), Some(at(5)));
    sender.handle_timeout(at(20));
    assert_eq!(
        sender.poll_event(),
        Some(SenderEvent::Failed(Failure::Silent))
    );
}

#[test]
fn nobody_accepts_what_was_not_listed_yet() {
    let mut sender = Sender::new(at(0), Config::default(), manifest(1, 0), DataKey::draw());
    assert_eq!(sender.poll_message(at(0)).as_ref().map(name), Some("offer"));
    let (cipher, staging) = (Cipher::ChaCha20Poly1305, Vec::new());
    sender.handle_message(
        at(0),
        Message::Accept(Accept {
            first_chunk: 0,
            cipher,
            slots: 1,
            staging,
        }),
    );
    assert!(matches!(
        sender.poll_event(),
        Some(SenderEvent::Failed(Failure::Protocol(_)))
    ));
}

#[test]
fn a_text_is_cut_between_characters() {
    let text = "\u{20ac}".repeat(1000);
    let abort = Message::Abort {
        reason: Reason::Files,
        text,
    };
    let Ok(Message::Abort { text, .. }) = Message::decode(&abort.encode()) else {
        unreachable!()
    };
    assert_eq!(text, "\u{20ac}".repeat(170));
}

proptest! {
    #[test]
    fn any_bytes_are_no_message_or_what_it_is_encoded_as(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        for tag in 0..=12 {
            let bytes = [&[tag], &bytes[..]].concat();
            if let Ok(message) = Message::decode(&bytes) {
                prop_assert_eq!(message.encode(), bytes);
            }
        }
    }
}
