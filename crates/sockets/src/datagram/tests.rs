#![allow(clippy::unwrap_used)]
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use airdma::Device;

use super::words::{Hello, Note};
use super::*;

const HELLO: Hello = Hello {
    nonce: [1; 16],
    proof_port: 2,
    port: 3,
};
const LANE: u64 = 7;
const LONG: usize = 20_000;

fn finish<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let start = Instant::now();
    loop {
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
        assert!(start.elapsed() < Duration::from_secs(10), "no answer");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The two ends of a lane.
fn lane(port: u16) -> (Sending, Receiving) {
    let device = Device::open("127.0.0.1").unwrap();
    let listener = device.listen(port).unwrap();
    let mut connecting = device.connect(("127.0.0.1", port));
    let accepted = listener.accept().wait().unwrap();
    let connected = connecting.wait_timeout(Duration::from_secs(10)).unwrap();
    // As it runs for the tasks of the agent.
    device.start().unwrap();
    let mut sending = Sending::new(&device, connected.unwrap(), FRAME).unwrap();
    let mut receiving = Receiving::new(&device, accepted, LANE).unwrap();
    sending.hello(&HELLO);
    assert_eq!(finish(receiving.hello()), Some(HELLO));
    receiving.welcome();
    assert!(finish(sending.welcomed()));
    (sending, receiving)
}

fn part(bytes: &[u8]) -> [iovec; 1] {
    crate::stream::part(bytes.as_ptr().cast(), bytes.len())
}

fn send(sending: &mut Sending, fill: u8) -> Note {
    let bytes = vec![fill; LONG];
    assert!(sending.takes(LONG));
    // SAFETY: the bytes above.
    unsafe { sending.send(&part(&bytes), LONG).unwrap() }
}

fn read(receiving: &mut Receiving, note: &Note, peek: bool) -> Option<u8> {
    let bytes = vec![0u8; LONG];
    // SAFETY: the bytes above, which nothing else refers to.
    let has = unsafe { receiving.read(note, &part(&bytes), peek) };
    has.then(|| {
        assert!(bytes.iter().all(|byte| *byte == bytes[0]));
        bytes[0]
    })
}

/// Lets what was told arrive.
fn hear(sending: &mut Sending) {
    std::thread::sleep(Duration::from_millis(50));
    sending.progress();
}

#[test]
fn a_note_has_the_payload_of_its_datagram() {
    let (mut sending, mut receiving) = lane(7661);
    assert!(!sending.takes(FRAME) && sending.takes(FRAME + 1));
    assert!(sending.takes(LONGEST) && !sending.takes(LONGEST + 1));
    let note = send(&mut sending, 1);
    assert_eq!(note.lane, LANE);
    assert_eq!(read(&mut receiving, &note, true), Some(1));
    assert_eq!(read(&mut receiving, &note, false), Some(1));
    assert_eq!(read(&mut receiving, &note, false), None);
}

#[test]
fn one_datagram_is_on_the_way_until_the_peer_reads() {
    let (mut sending, mut receiving) = lane(7662);
    let first = send(&mut sending, 1);
    hear(&mut sending);
    assert!(!sending.takes(LONG));
    assert_eq!(read(&mut receiving, &first, false), Some(1));
    hear(&mut sending);
    for fill in 0..WINDOW {
        let note = send(&mut sending, fill as u8);
        assert_eq!(note.sequence, fill as u64 + 1);
        sending.progress();
    }
    assert!(!sending.takes(LONG));
}

#[test]
fn payloads_whose_notes_are_lost_leave_room() {
    let (mut sending, mut receiving) = lane(7663);
    let first = send(&mut sending, 0);
    assert_eq!(read(&mut receiving, &first, false), Some(0));
    hear(&mut sending);
    let notes: Vec<Note> = (1..8).map(|fill| send(&mut sending, fill)).collect();
    assert_eq!(read(&mut receiving, &notes[6], false), Some(7));
    // A note that was overtaken.
    assert_eq!(read(&mut receiving, &notes[5], false), None);
    hear(&mut sending);
    for _ in 0..WINDOW {
        send(&mut sending, 9);
    }
    // None of those is ever told of.
    hear(&mut sending);
    receiving.drop_orphans();
    std::thread::sleep(Duration::from_millis(1100));
    receiving.drop_orphans();
    hear(&mut sending);
    assert!(sending.takes(LONG));
}

#[test]
fn a_note_without_payload_is_lost_soon() {
    let (mut sending, mut receiving) = lane(7664);
    let forged = Note {
        lane: LANE,
        sequence: 5,
        length: LONG as u32,
    };
    let start = Instant::now();
    assert_eq!(read(&mut receiving, &forged, false), None);
    assert!(start.elapsed() < Duration::from_secs(1));
    let note = send(&mut sending, 3);
    let other_length = Note { length: 1, ..note };
    assert_eq!(read(&mut receiving, &other_length, false), None);
    assert_eq!(read(&mut receiving, &note, false), Some(3));
}

#[test]
fn an_end_that_is_gone_is_noticed() {
    let (mut sending, receiving) = lane(7665);
    assert!(!sending.failed);
    drop(receiving);
    let start = Instant::now();
    while !sending.failed && start.elapsed() < Duration::from_secs(5) {
        hear(&mut sending);
    }
    assert!(
        start.elapsed() < Duration::from_secs(1),
        "{:?}",
        start.elapsed()
    );
}

#[test]
fn what_was_sent_is_read_after_its_sender_has_gone() {
    let (mut sending, mut receiving) = lane(7666);
    let note = send(&mut sending, 4);
    sending.flush(Instant::now() + Duration::from_secs(2));
    drop(sending);
    assert_eq!(read(&mut receiving, &note, false), Some(4));
}
