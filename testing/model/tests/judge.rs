//! The judge on valid histories, and on the same with one fault.

use airdma_model::contract::QueuePair;
use airdma_model::{
    Atomic, Contract, Done, Kind, Life, Memory, Opcode, Owner, Path, Recv, Region, Request, Rights,
    Service, Sge, Span, Status,
};
use core::time::Duration;
use std::net::IpAddr;

const KEY: u32 = 0x100;
const VA: u64 = 0x1000;
const BYTES: usize = 256;
const CALM: Path = Path {
    now: Duration::from_millis(1),
    lost: 0,
    astray: 0,
    slow: None,
    haunted: None,
    disorderly: false,
};
/// The state after all timeouts and timers.
const LATER: Path = Path {
    now: Duration::from_millis(100),
    ..CALM
};

/// Two hosts, a connection, and the actual bytes of the hosts.
struct Scene {
    judge: Contract,
    bytes: [Vec<u8>; 2],
    last: u64,
}

impl Scene {
    fn new(service: Service) -> Scene {
        let mut judge = Contract::default();
        let bytes = [vec![0; BYTES], vec![0; BYTES]];
        for (host, bytes) in bytes.iter().enumerate() {
            judge.addresses.push(IpAddr::from([10, 0, 0, host as u8]));
            judge.memories.push(Memory::new(bytes));
            judge.grants.add(Region {
                host,
                domain: 0,
                key: KEY,
                va: VA,
                length: BYTES as u64 - 64,
                at: 0,
                rights: Rights(15),
                owner: Owner::Domain,
                span: Span::since(0),
                closers: 0,
            });
        }
        for host in 0..2 {
            let queue = judge.add_queue(false);
            let mut qp = QueuePair::new(host, 0, service, queue);
            qp.peer = Some(1 - host);
            qp.rights = Rights(14);
            qp.rights_surely = qp.rights;
            qp.timeout = Duration::from_millis(4);
            qp.retry_count = 2;
            qp.rnr_timer = Duration::from_millis(2);
            qp.rnr_retry = 3;
            qp.answers_max = 4;
            qp.mtu = 1024;
            judge.queue_pairs.push(qp);
        }
        Scene {
            judge,
            bytes,
            last: 0,
        }
    }

    /// Host 0 posts a request whose memory begins at `at`.
    fn post(&mut self, kind: Kind, at: usize, payload: &[u8]) -> u64 {
        self.post_by(0, kind, at, payload, true)
    }

    fn post_by(
        &mut self,
        qp: usize,
        kind: Kind,
        at: usize,
        payload: &[u8],
        signalled: bool,
    ) -> u64 {
        self.last += 1;
        self.judge.now += 1;
        let request = Request {
            id: self.last,
            kind,
            sges: vec![sge(at, payload.len())],
            payload: payload.to_vec(),
            inline: false,
            signalled,
            solicited: false,
            to: None,
            after: None,
        };
        self.judge.post_send(qp, request, CALM);
        self.last
    }

    /// Host 0 posts a datagram.
    fn send_to(&mut self, to: usize, payload: &[u8]) -> u64 {
        self.last += 1;
        self.judge.now += 1;
        let request = Request {
            id: self.last,
            kind: SEND,
            sges: vec![sge(0, payload.len())],
            payload: payload.to_vec(),
            inline: false,
            signalled: true,
            solicited: false,
            to: Some(to),
            after: None,
        };
        self.judge.post_send(0, request, CALM);
        self.last
    }

    /// Host 1 posts a receive.
    fn receive(&mut self, at: usize, length: usize) -> u64 {
        self.last += 1;
        self.judge.now += 1;
        let sges = vec![sge(at, length)];
        self.judge.post_receive(
            1,
            Recv {
                id: self.last,
                sges,
            },
        );
        self.last
    }

    /// Changes bytes on a host, and lets the judge check them.
    fn change(&mut self, host: usize, at: usize, bytes: &[u8]) -> Result<(), String> {
        self.judge.now += 1;
        self.bytes[host][at..at + bytes.len()].copy_from_slice(bytes);
        self.judge.memories[host].observe(&self.bytes[host])
    }

    fn sent(&mut self, done: Done) -> Result<(), String> {
        self.judge.now += 1;
        self.judge.sent(0, &done, CALM)
    }

    fn received(&mut self, done: Done) -> Result<(), String> {
        self.judge.now += 1;
        self.judge.received(1, &done, CALM)
    }
}

fn sge(at: usize, length: usize) -> Sge {
    Sge {
        key: KEY,
        va: VA + at as u64,
        length: length as u32,
    }
}

fn write(at: usize) -> Kind {
    Kind::Write {
        key: KEY,
        va: VA + at as u64,
        immediate: None,
    }
}

const SEND: Kind = Kind::Send {
    immediate: None,
    invalidate: None,
};

fn done(id: u64, status: Status, opcode: Opcode, bytes: u32) -> Done {
    Done {
        id,
        status,
        opcode,
        bytes,
        immediate: None,
        invalidated: None,
        solicited: false,
        source: None,
    }
}

fn ok(id: u64, opcode: Opcode, bytes: u32) -> Done {
    done(id, Status::Success, opcode, bytes)
}

fn refused(verdict: Result<(), String>, why: &str) {
    let said = verdict.expect_err(why);
    assert!(said.contains(why), "said: {said}");
}

#[test]
fn a_write_is_placed_before_it_succeeds_and_nowhere_else() {
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(8), 0, b"abcd");
    refused(scene.sent(ok(id, Opcode::Write, 4)), "succeeded, yet byte");

    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(8), 0, b"abcd");
    assert_eq!(scene.change(1, 8, b"abcd"), Ok(()));
    assert_eq!(scene.sent(ok(id, Opcode::Write, 4)), Ok(()));
    refused(scene.sent(ok(id, Opcode::Write, 4)), "not outstanding");
    // A repetition must be reported.
    scene.judge.memories[1].store(8, b"wxyz", 9);
    scene.bytes[1][8..12].copy_from_slice(b"wxyz");
    refused(scene.change(1, 8, b"abcd"), "nothing under way brings that");

    let mut scene = Scene::new(Service::Rc);
    scene.post(write(8), 0, b"abcd");
    refused(scene.change(1, 12, b"e"), "nothing under way brings that");
    let mut scene = Scene::new(Service::Rc);
    scene.post(write(8), 0, b"abcd");
    refused(scene.change(1, 8, b"b"), "nothing under way brings that");
    refused(scene.change(0, 8, b"a"), "nothing under way brings that");
}

#[test]
fn a_write_to_what_is_not_granted_changes_nothing_and_fails() {
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(190), 0, b"abcd");
    refused(scene.sent(ok(id, Opcode::Write, 4)), "nothing explains");
    refused(scene.change(1, 190, b"ab"), "nothing under way brings that");
    let failed = done(id, Status::RemoteAccess, Opcode::Write, 0);
    assert_eq!(scene.sent(failed), Ok(()));
    assert_eq!(scene.judge.queue_pairs[0].life, Life::Failed);

    // A granted access may not be refused.
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(8), 0, b"abcd");
    let failed = done(id, Status::RemoteAccess, Opcode::Write, 0);
    refused(scene.sent(failed), "nothing explains");
}

#[test]
fn after_deregistration_nothing_lands_any_more() {
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(8), 0, b"abcd");
    assert_eq!(scene.change(1, 8, b"ab"), Ok(()));
    scene.judge.now += 1;
    scene.judge.deregister(1, KEY);
    refused(scene.change(1, 10, b"cd"), "nothing under way brings that");
    let failed = done(id, Status::RemoteAccess, Opcode::Write, 0);
    assert_eq!(scene.sent(failed), Ok(()));
}

#[test]
fn retries_run_out_for_a_reason_only() {
    let status = Status::RetryExceeded;
    let with = |path: Path| {
        let mut scene = Scene::new(Service::Rc);
        let id = scene.post(write(8), 0, b"abcd");
        scene
            .judge
            .sent(0, &done(id, status, Opcode::Write, 0), path)
    };
    refused(with(LATER), "nothing explains");
    refused(with(Path { lost: 2, ..LATER }), "nothing explains");
    assert_eq!(with(Path { lost: 3, ..LATER }), Ok(()));
    let both = |astray| Path {
        lost: 2,
        astray,
        ..LATER
    };
    assert_eq!(with(both(1)), Ok(()));
    let slow = |slow| Path {
        slow: Some(slow),
        ..LATER
    };
    assert_eq!(with(slow(CALM.now)), Ok(()));
    // That was before it was posted.
    let before = CALM.now - Duration::from_nanos(1);
    refused(with(slow(before)), "nothing explains");
    let haunted = Path {
        haunted: Some(CALM.now),
        ..CALM
    };
    assert_eq!(with(haunted), Ok(()));
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(write(8), 0, b"abcd");
    scene.judge.queue_pairs[1].life = Life::Gone;
    let failed = done(id, status, Opcode::Write, 0);
    assert_eq!(scene.judge.sent(0, &failed, LATER), Ok(()));
}

#[test]
fn retries_take_their_time() {
    let since_posted = |millis, lost| Path {
        now: CALM.now + Duration::from_millis(millis),
        lost,
        ..CALM
    };
    // Two retries, three timeouts of 4 ms; the retry that a lost packet costs takes no timeout.
    let dead = |path: Path| {
        let mut scene = Scene::new(Service::Rc);
        let id = scene.post(write(8), 0, b"abcd");
        scene.judge.queue_pairs[1].life = Life::Gone;
        let failed = done(id, Status::RetryExceeded, Opcode::Write, 0);
        scene.judge.sent(0, &failed, path)
    };
    refused(dead(since_posted(11, 0)), "nothing explains");
    assert_eq!(dead(since_posted(12, 0)), Ok(()));
    refused(dead(since_posted(7, 1)), "nothing explains");
    assert_eq!(dead(since_posted(8, 1)), Ok(()));
    // Three retries of a peer with an RNR timer of 2 ms.
    let not_ready = |path: Path| {
        let mut scene = Scene::new(Service::Rc);
        let id = scene.post(SEND, 0, b"abc");
        let failed = done(id, Status::RnrRetryExceeded, Opcode::Send, 0);
        scene.judge.sent(0, &failed, path)
    };
    refused(not_ready(since_posted(5, 0)), "nothing explains");
    assert_eq!(not_ready(since_posted(6, 0)), Ok(()));
}

#[test]
fn a_request_may_be_refused_after_its_queue_pair_is_gone() {
    let mut scene = Scene::new(Service::Rc);
    scene.post(write(8), 0, b"abcd");
    let receive = scene.receive(64, 8);
    scene.judge.destroy(0);
    let flush = done(receive, Status::Flush, Opcode::Receive, 0);
    refused(scene.received(flush), "nothing explains");
    scene.judge.now += 1;
    scene.judge.deregister(1, KEY);
    assert_eq!(scene.received(flush), Ok(()));
}

#[test]
fn requests_complete_in_order_and_are_flushed_after_a_failure() {
    let mut scene = Scene::new(Service::Rc);
    let first = scene.post(write(8), 0, b"a");
    let second = scene.post(write(9), 0, b"b");
    assert_eq!(scene.change(1, 8, b"ab"), Ok(()));
    refused(
        scene.sent(ok(second, Opcode::Write, 1)),
        "before the signalled send",
    );
    let flushed = done(first, Status::Flush, Opcode::Write, 0);
    refused(scene.sent(flushed), "nothing explains");
    scene.judge.fail(0);
    assert_eq!(scene.sent(flushed), Ok(()));
    refused(scene.sent(ok(second, Opcode::Write, 1)), "nothing explains");
}

#[test]
fn messages_arrive_once_in_order_and_whole() {
    let scene = |sent: &[&[u8]]| {
        let mut scene = Scene::new(Service::Rc);
        for payload in sent {
            scene.post(SEND, 0, payload);
        }
        let receive = scene.receive(64, 8);
        (scene, receive)
    };
    let (mut right, id) = scene(&[b"abc", b"xyz"]);
    assert_eq!(right.change(1, 64, b"abc"), Ok(()));
    assert_eq!(right.received(ok(id, Opcode::Receive, 3)), Ok(()));

    let (mut second_first, id) = scene(&[b"abc", b"xyz"]);
    assert_eq!(second_first.change(1, 64, b"xyz"), Ok(()));
    refused(
        second_first.received(ok(id, Opcode::Receive, 3)),
        "not those of the message",
    );
    let (mut too_long, id) = scene(&[b"abc"]);
    assert_eq!(too_long.change(1, 64, b"abc"), Ok(()));
    refused(too_long.received(ok(id, Opcode::Receive, 4)), "it says");
    let (mut behind, id) = scene(&[b"abc"]);
    assert_eq!(behind.change(1, 64, b"abcd"), Ok(()));
    refused(
        behind.received(ok(id, Opcode::Receive, 3)),
        "bytes behind the message",
    );
    let (mut from_nowhere, id) = scene(&[]);
    refused(
        from_nowhere.received(ok(id, Opcode::Receive, 0)),
        "without a message",
    );
    let (mut flushed, id) = scene(&[b"abc"]);
    let flush = done(id, Status::Flush, Opcode::Receive, 0);
    refused(flushed.received(flush), "was flushed, and nothing explains");
}

#[test]
fn receiver_not_ready_needs_a_receiver_that_was_not() {
    let mut scene = Scene::new(Service::Rc);
    scene.receive(64, 8);
    let id = scene.post(SEND, 0, b"abc");
    let failed = done(id, Status::RnrRetryExceeded, Opcode::Send, 0);
    let verdict = scene.judge.sent(0, &failed, LATER);
    refused(verdict, "nothing explains");
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(SEND, 0, b"abc");
    let failed = done(id, Status::RnrRetryExceeded, Opcode::Send, 0);
    assert_eq!(scene.judge.sent(0, &failed, LATER), Ok(()));
}

#[test]
fn a_read_returns_what_was_there_meanwhile() {
    let read = Kind::Read { key: KEY, va: VA };
    let reads = |before: &[u8], after: &[u8], returned: &[u8]| {
        let mut scene = Scene::new(Service::Rc);
        scene.judge.memories[1].store(0, before, 0);
        scene.bytes[1][..4].copy_from_slice(before);
        let id = scene.post(read, 64, &[0; 4]);
        scene.judge.now += 1;
        scene.judge.memories[1].store(0, after, 2);
        scene.bytes[1][..4].copy_from_slice(after);
        scene.change(0, 64, returned)?;
        scene.sent(ok(id, Opcode::Read, 4))
    };
    assert_eq!(reads(b"aaaa", b"bbbb", b"aaaa"), Ok(()));
    assert_eq!(reads(b"aaaa", b"bbbb", b"abab"), Ok(()));
    refused(reads(b"aaaa", b"bbbb", b"aaac"), "did not hold");

    // Bytes of a write were there even if no check saw them before the next one.
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(read, 64, &[0; 4]);
    scene.judge.now += 1;
    scene.post(write(0), 128, b"new!");
    scene.post(write(0), 132, b"more");
    assert_eq!(scene.change(1, 0, b"more"), Ok(()));
    assert_eq!(scene.change(0, 64, b"new!"), Ok(()));
    assert_eq!(scene.sent(ok(id, Opcode::Read, 4)), Ok(()));

    // It comes after an earlier write of the same queue pair.
    let mut scene = Scene::new(Service::Rc);
    scene.post(write(0), 128, b"new!");
    let id = scene.post(read, 64, &[0; 4]);
    assert_eq!(scene.change(1, 0, b"new!"), Ok(()));
    assert_eq!(scene.sent(ok(1, Opcode::Write, 4)), Ok(()));
    assert_eq!(scene.change(0, 64, b"\0\0\0\0"), Ok(()));
    refused(scene.sent(ok(id, Opcode::Read, 4)), "did not hold");
}

#[test]
fn an_atomic_happens_once_and_returns_what_it_found() {
    let add = |add| Kind::Atomic {
        key: KEY,
        va: VA,
        atomic: Atomic::Add(add),
    };
    let result = |returned: u64, happens: &[u64]| {
        let mut scene = Scene::new(Service::Rc);
        let id = scene.post(add(5), 64, &[0; 8]);
        for value in happens {
            scene.change(1, 0, &value.to_ne_bytes())?;
        }
        scene.change(0, 64, &returned.to_ne_bytes())?;
        scene.sent(ok(id, Opcode::FetchAdd, 8))
    };
    assert_eq!(result(0, &[5]), Ok(()));
    refused(result(0, &[]), "never seen to happen");
    refused(result(5, &[5]), "it found");
    refused(result(0, &[5, 10]), "nothing under way brings that");

    // Two at once: each found the other's result, in one order or the other.
    let both = |first: u64, second: u64, value: u64| {
        let mut scene = Scene::new(Service::Rc);
        let ids = [
            scene.post(add(5), 64, &[0; 8]),
            scene.post(add(7), 72, &[0; 8]),
        ];
        scene.change(1, 0, &value.to_ne_bytes())?;
        for (id, at, found) in [(ids[0], 64, first), (ids[1], 72, second)] {
            scene.change(0, at, &u64::to_ne_bytes(found))?;
            scene.sent(ok(id, Opcode::FetchAdd, 8))?;
        }
        Ok(())
    };
    assert_eq!(both(0, 5, 12), Ok(()));
    refused(both(0, 0, 12), "it found");
    refused(both(0, 5, 13), "nothing under way brings that");
}

#[test]
fn datagrams_may_be_lost_but_not_made_up() {
    let mut scene = Scene::new(Service::Uc);
    scene.post(SEND, 0, b"abc");
    scene.post(SEND, 0, b"xyz");
    let (first, second) = (scene.receive(64, 8), scene.receive(72, 8));
    assert_eq!(scene.change(1, 64, b"xyz"), Ok(()));
    assert_eq!(scene.received(ok(first, Opcode::Receive, 3)), Ok(()));
    // On a network that keeps the order, the first one cannot come any more.
    assert_eq!(scene.change(1, 72, b"abc"), Ok(()));
    refused(
        scene.received(ok(second, Opcode::Receive, 3)),
        "no message is like it",
    );
}

#[test]
fn a_skipped_unsignalled_request_must_be_able_to_succeed() {
    let passed_over = |at: usize| {
        let mut scene = Scene::new(Service::Rc);
        scene.post_by(0, write(at), 0, b"ab", false);
        let last = scene.post(write(8), 0, b"cd");
        if at < 190 {
            scene.change(1, at, b"ab")?;
        }
        scene.change(1, 8, b"cd")?;
        scene.sent(ok(last, Opcode::Write, 2))
    };
    assert_eq!(passed_over(100), Ok(()));
    refused(passed_over(191), "cannot have succeeded");
}

#[test]
fn an_invalidated_window_is_closed_once_that_is_known() {
    const WINDOW: u32 = 0x205;
    let by_window = Kind::Write {
        key: WINDOW,
        va: VA + 16,
        immediate: None,
    };
    let bind = Kind::Bind(airdma_model::Bind {
        window: 0x200,
        key: WINDOW,
        part: sge(16, 32),
        rights: Rights(2),
    });
    let mut scene = Scene::new(Service::Rc);
    // Right to bind, which the scene does not grant otherwise.
    let region = scene.judge.grants.find(1, KEY).expect("it is there");
    region.rights = Rights(31);
    let bound = scene.post_by(1, bind, 0, b"", true);
    scene.judge.now += 1;
    let done_bind = ok(bound, Opcode::Bind, 0);
    assert_eq!(scene.judge.sent(1, &done_bind, CALM), Ok(()));
    let id = scene.post(by_window, 0, b"in");
    assert_eq!(scene.change(1, 16, b"in"), Ok(()));
    assert_eq!(scene.sent(ok(id, Opcode::Write, 2)), Ok(()));

    let invalidate = Kind::Invalidate { key: WINDOW };
    let closed = scene.post_by(1, invalidate, 0, b"", true);
    scene.judge.now += 1;
    let done_closing = ok(closed, Opcode::Invalidate, 0);
    assert_eq!(scene.judge.sent(1, &done_closing, CALM), Ok(()));
    let id = scene.post(by_window, 0, b"no");
    refused(scene.change(1, 16, b"no"), "nothing under way brings that");
    refused(scene.sent(ok(id, Opcode::Write, 2)), "nothing explains");
}

#[test]
fn a_posted_receive_ends_with_the_registration_of_its_memory() {
    let mut scene = Scene::new(Service::Rc);
    scene.receive(64, 8);
    scene.post(SEND, 0, b"abcdef");
    assert_eq!(scene.change(1, 64, b"abc"), Ok(()));
    scene.judge.now += 1;
    scene.judge.deregister(1, KEY);
    refused(scene.change(1, 67, b"def"), "nothing under way brings that");
}

#[test]
fn who_hears_of_a_message_finds_all_that_was_written_before() {
    let heard = |lands: &[u8], lands_too: &[u8]| {
        let mut scene = Scene::new(Service::Rc);
        scene.post(write(100), 0, b"early");
        let notify = Kind::Write {
            key: KEY,
            va: VA + 120,
            immediate: Some(7),
        };
        scene.post(notify, 8, b"late");
        let receive = scene.receive(64, 8);
        scene.change(1, 100, lands)?;
        scene.change(1, 120, lands_too)?;
        scene.received(Done {
            immediate: Some(7),
            ..ok(receive, Opcode::ReceiveImmediate, 4)
        })
    };
    assert_eq!(heard(b"early", b"late"), Ok(()));
    refused(heard(b"early", b"lat"), "came before its data");
    refused(heard(b"ear", b"late"), "came before its data");
}

#[test]
fn a_message_that_succeeds_has_taken_a_receive_and_is_heard_of() {
    let mut scene = Scene::new(Service::Rc);
    let id = scene.post(SEND, 0, b"abc");
    refused(scene.sent(ok(id, Opcode::Send, 3)), "has posted 0 receives");

    let mut scene = Scene::new(Service::Rc);
    let receive = scene.receive(64, 8);
    let id = scene.post(SEND, 0, b"abc");
    assert_eq!(scene.sent(ok(id, Opcode::Send, 3)), Ok(()));
    scene.judge.fail(1);
    let flush = done(receive, Status::Flush, Opcode::Receive, 0);
    refused(scene.received(flush), "has not come");
}

#[test]
fn windows_are_bound_when_free_and_closed_when_bound() {
    const FIRST: u32 = 0x201;
    let bind = |window, key| {
        Kind::Bind(airdma_model::Bind {
            window,
            key,
            part: sge(16, 32),
            rights: Rights(2),
        })
    };
    let close = |key| Kind::Invalidate { key };
    let scene = || {
        let mut scene = Scene::new(Service::Rc);
        let region = scene.judge.grants.find(0, KEY).expect("it is there");
        region.rights = Rights(31);
        scene
    };
    let says = |scene: &mut Scene, kind: Kind, opcode: Opcode, status: Status| {
        let id = scene.post(kind, 0, b"");
        scene.sent(done(id, status, opcode, 0))
    };
    let (success, failure) = (Status::Success, Status::MwBind);
    let bound = || {
        let mut scene = scene();
        assert_eq!(
            says(&mut scene, bind(0x200, FIRST), Opcode::Bind, success),
            Ok(())
        );
        scene
    };

    let free = says(&mut scene(), bind(0x200, FIRST), Opcode::Bind, failure);
    refused(free, "nothing explains");
    let twice = says(&mut bound(), bind(FIRST, 0x202), Opcode::Bind, success);
    refused(twice, "nothing explains");
    let twice = says(&mut bound(), bind(FIRST, 0x202), Opcode::Bind, failure);
    assert_eq!(twice, Ok(()));
    let unknown = says(&mut bound(), close(0x777), Opcode::Invalidate, success);
    refused(unknown, "nothing explains");
    let open = says(&mut bound(), close(FIRST), Opcode::Invalidate, failure);
    refused(open, "nothing explains");
    let mut closed = bound();
    assert_eq!(
        says(&mut closed, close(FIRST), Opcode::Invalidate, success),
        Ok(())
    );
    let again = says(&mut closed, close(FIRST), Opcode::Invalidate, success);
    refused(again, "nothing explains");
}

#[test]
fn where_nothing_is_wrong_only_the_network_makes_requests_fail() {
    // Beyond the granted rights: a failure, if the program may make mistakes.
    let says = |careful: bool, status: Status, lost: u64| {
        let mut scene = Scene::new(Service::Rc);
        scene.judge.careful = careful;
        let id = scene.post(write(190), 0, b"abcd");
        let path = Path { lost, ..LATER };
        scene
            .judge
            .sent(0, &done(id, status, Opcode::Write, 0), path)
    };
    assert_eq!(says(false, Status::RemoteAccess, 0), Ok(()));
    refused(says(true, Status::RemoteAccess, 0), "nothing explains");
    assert_eq!(says(true, Status::RetryExceeded, 3), Ok(()));
    refused(says(true, Status::RetryExceeded, 0), "nothing explains");
    refused(says(true, Status::Flush, 0), "nothing explains");
}

#[test]
fn what_nobody_acknowledges_arrives_where_nothing_is_lost() {
    let silent = |receives: bool, path: Path| {
        let mut scene = Scene::new(Service::Uc);
        if receives {
            scene.receive(64, 8);
        }
        let id = scene.post(SEND, 0, b"abc");
        scene.sent(ok(id, Opcode::Send, 3))?;
        scene.judge.now += 1;
        scene.judge.settle(0, 1, path)
    };
    refused(silent(true, LATER), "has not arrived");
    assert_eq!(silent(false, LATER), Ok(()));
    assert_eq!(silent(true, Path { lost: 1, ..LATER }), Ok(()));
    assert_eq!(silent(true, Path { astray: 1, ..LATER }), Ok(()));

    // A settled message no longer arrives.
    let mut scene = Scene::new(Service::Uc);
    scene.post(SEND, 0, b"abc");
    assert_eq!(scene.judge.settle(0, 1, LATER), Ok(()));
    let receive = scene.receive(64, 8);
    assert_eq!(scene.change(1, 64, b"abc"), Ok(()));
    let late = scene.received(ok(receive, Opcode::Receive, 3));
    refused(late, "no message is like it");

    // Which of two equal messages was received does not matter.
    let mut scene = Scene::new(Service::Uc);
    scene.post(SEND, 0, b"");
    let receive = scene.receive(64, 8);
    scene.judge.now += 1;
    scene
        .judge
        .settle(0, 1, LATER)
        .expect("there was no receive");
    scene.post(SEND, 0, b"");
    let heard = scene.received(ok(receive, Opcode::Receive, 0));
    assert_eq!(heard, Ok(()));
    assert_eq!(scene.judge.settle(0, 1, LATER), Ok(()));
}

#[test]
fn writes_of_unreliable_connections_land_where_nothing_is_lost() {
    let lands = |bytes: &[u8], path: Path| {
        let mut scene = Scene::new(Service::Uc);
        let id = scene.post(write(8), 0, b"abcd");
        scene.change(1, 8, bytes)?;
        scene.sent(ok(id, Opcode::Write, 4))?;
        scene.judge.now += 1;
        scene.judge.settle(0, 1, path)?;
        // It changes nothing any more.
        scene.judge.memories[1].store(8, b"wxyz", 9);
        scene.bytes[1][8..12].copy_from_slice(b"wxyz");
        let late = scene.change(1, 8, b"abcd");
        refused(late, "nothing under way brings that");
        Ok(())
    };
    assert_eq!(lands(b"abcd", LATER), Ok(()));
    refused(lands(b"ab", LATER), "instead of");
    assert_eq!(lands(b"ab", Path { lost: 1, ..LATER }), Ok(()));
}

#[test]
fn before_a_datagram_stands_where_it_came_from() {
    // The header of the packet of three bytes from 10.0.0.0 to 10.0.0.1, as captured by hand.
    let head = |last: u8| {
        let mut head = [0; 40];
        head[20..24].copy_from_slice(&[0x45, 0, 0, 56]);
        head[26..30].copy_from_slice(&[0x40, 0, 64, 17]);
        head[32..40].copy_from_slice(&[10, 0, 0, 0, 10, 0, 0, last]);
        let words = head[20..].chunks(2);
        let sum: u32 = words
            .map(|word| u32::from(word[0]) << 8 | u32::from(word[1]))
            .sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        head[30..32].copy_from_slice(&sum.to_be_bytes());
        head
    };
    let received = |head: &[u8]| {
        let mut scene = Scene::new(Service::Ud);
        scene.judge.queue_pairs[0].peer = None;
        scene.judge.queue_pairs[1].peer = None;
        let receive = scene.receive(64, 64);
        scene.send_to(1, b"abc");
        scene.change(1, 64, head)?;
        scene.change(1, 104, b"abc")?;
        scene.received(Done {
            source: Some(0),
            ..ok(receive, Opcode::Receive, 43)
        })
    };
    assert_eq!(received(&head(1)), Ok(()));
    refused(received(&head(2)), "the bytes before it");
    let mut other_protocol = head(1);
    other_protocol[29] = 6;
    refused(received(&other_protocol), "the bytes before it");
    refused(received(&[0; 40]), "the bytes before it");
}

#[test]
fn rights_that_changed_may_hold_or_not() {
    let status = |granted: u32, status: Status| {
        let mut scene = Scene::new(Service::Rc);
        scene.judge.grant(1, Rights(granted));
        let id = scene.post(write(8), 0, b"abcd");
        scene.change(1, 8, b"abcd")?;
        scene.sent(done(id, status, Opcode::Write, 4))
    };
    let refusal = Status::RemoteInvalidRequest;
    assert_eq!(status(0, Status::Success), Ok(()));
    assert_eq!(status(0, refusal), Ok(()));
    assert_eq!(status(14, Status::Success), Ok(()));
    refused(status(14, refusal), "nothing explains");
}

#[test]
fn a_send_queue_that_runs_again_completes_again() {
    let mut scene = Scene::new(Service::Uc);
    let beyond = scene.post(SEND, 190, b"abc");
    let failed = done(beyond, Status::LocalProtection, Opcode::Send, 0);
    assert_eq!(scene.sent(failed), Ok(()));
    let next = scene.post(SEND, 0, b"abc");
    refused(scene.sent(ok(next, Opcode::Send, 3)), "nothing explains");
    scene.judge.restart(0);
    assert_eq!(scene.sent(ok(next, Opcode::Send, 3)), Ok(()));
}
