//! Connections that are lost, silent, or repeated: which one has the seat, and how long each is
//! waited for.
#![allow(clippy::unwrap_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
mod by_hand;
#[path = "connections/forged.rs"]
mod forged;
#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use airdma::{Device, Rights};
use airdma_files::manifest::Kind as EntryKind;
use airdma_files::protocol::{Config, Message, Reason};
use airdma_files::session::{
    Code, DataKey, Door, HandshakeError, Identity, Initiator, Introduction, frame,
};
use airdma_files::{CHUNK_BYTES, Limits, Manifest, Options, Source, Unwanted, Walking, walk};
use airdma_transfer::{
    Ask, Cancel, CodeTries, Destination, Error, Event, Kind, Offered, PORT, ReceiveJob, Received,
    SendJob, Sent, receive, send,
};
use by_hand::{ByHand, Line, Unmet, content, manifest};
use isolated::isolated;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), PORT);
/// Patience where nothing has to happen meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Patience for several connections on a busy machine.
const LONG_PATIENCE: Duration = Duration::from_secs(6);
/// More than any step takes except an endless wait, and less than a handshake may take.
const SOON: Duration = Duration::from_secs(8);

/// A receiver, and the senders that it knows.
struct Bench {
    root: PathBuf,
    receiver: Identity,
    senders: [Identity; 2],
    cancel: Cancel,
    /// How long either end waits for another connection.
    patience: Duration,
    config: Config,
    /// Reports of files that the receiver could not remove.
    remains: Mutex<Vec<String>>,
}

impl Bench {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("airdma-connections-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("out")).unwrap();
        Self {
            root,
            receiver: Identity::draw(),
            senders: [(); 2].map(|()| Identity::draw()),
            cancel: Cancel::default(),
            patience: PATIENCE,
            config: Config::default(),
            remains: Mutex::default(),
        }
    }

    /// Receives while `work` runs, which can wait until a connection is lost.
    fn receive(
        &self,
        ask: &Ask<'_>,
        meanwhile: impl FnOnce(&mpsc::Receiver<()>),
    ) -> Result<Received, Error> {
        let directory = Destination::Directory {
            path: self.root.join("out"),
            options: Options::default(),
        };
        self.receive_to(directory, ask, meanwhile)
    }

    fn receive_to(
        &self,
        destination: Destination,
        ask: &Ask<'_>,
        meanwhile: impl FnOnce(&mpsc::Receiver<()>),
    ) -> Result<Received, Error> {
        let known = self.senders.each_ref().map(Identity::public);
        let job = ReceiveJob {
            identity: &self.receiver,
            code: Some(code()),
            is_known: &|key| known.contains(key),
            destination,
            interfaces: vec![HERE.ip().to_string()],
            port: PORT,
            name: None,
            patience: self.patience,
            config: self.config,
        };
        let (listens, listening) = mpsc::channel();
        let (loses, lost) = mpsc::channel();
        let watch = |event| match event {
            Event::Listening { .. } => listens.send(()).unwrap(),
            // Not every test waits for this event.
            Event::Lost(_) => drop(loses.send(())),
            Event::Remains(what) => self.remains.lock().unwrap().push(what),
            Event::Met { .. }
            | Event::Turned(_)
            | Event::Doors { .. }
            | Event::Hindered(_)
            | Event::Walked(_)
            | Event::Accepted(_)
            | Event::Progress(_)
            | Event::Arrived(_) => {}
        };
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&job, ask, &watch, &self.cancel));
            listening.recv().unwrap();
            meanwhile(&lost);
            receiving.join().unwrap()
        })
    }

    fn meet(&self, sender: usize) -> Result<ByHand, Unmet> {
        let known = Introduction::Known(vec![self.receiver.public()]);
        ByHand::meet(HERE, &self.senders[sender], known)
    }

    /// A sender that is accepted, and lost.
    fn be_lost(&self, lost: &mpsc::Receiver<()>) {
        let mut sender = self.meet(0).unwrap();
        sender.offer(&file("file"), &DataKey::draw());
        assert!(sender.is_accepted());
        drop(sender);
        lost.recv_timeout(SOON).unwrap();
    }

    fn send(&self) -> Result<Sent, Error> {
        let known = Introduction::Known(vec![self.receiver.public()]);
        self.send_to(HERE, known)
    }

    fn send_to(&self, to: SocketAddr, introduction: Introduction) -> Result<Sent, Error> {
        self.send_by(to, introduction, &CodeTries::default())
    }

    fn send_by(
        &self,
        to: SocketAddr,
        introduction: Introduction,
        code_tries: &CodeTries,
    ) -> Result<Sent, Error> {
        let path = self.root.join("file");
        fs::write(&path, "content").unwrap();
        let job = SendJob {
            walking: &Walking::start(&[path], Limits::default()).unwrap(),
            identity: &self.senders[0],
            to: &[to],
            introduction,
            code_tries,
            patience: self.patience,
            config: self.config,
        };
        send(&job, &|_| {}, &self.cancel)
    }

    /// Serves each connection with `serve`, which gets the number of those before, until `work` is
    /// done.
    ///
    /// Returns the number of connections.
    fn serve(&self, serve: impl Fn(u32, Line, &mut Door) + Sync, work: impl FnOnce()) -> u32 {
        let device = Device::open(&HERE.ip().to_string()).unwrap().sealed();
        let listener = device.listen(PORT).unwrap();
        let mut door = Door::new(self.receiver.clone(), None);
        let is_over = Cancel::default();
        thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut count = 0;
                let mut accepting = listener.accept();
                while !is_over.is_cancelled() {
                    if let Some(accepted) = accepting.wait_timeout(Duration::from_millis(50)) {
                        accepting = listener.accept();
                        serve(
                            count,
                            Line::new(device.clone(), accepted.unwrap()),
                            &mut door,
                        );
                        count += 1;
                    }
                }
                count
            });
            work();
            is_over.cancel();
            serving.join().unwrap()
        })
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

fn code() -> Code {
    Code::parse("lusab-babad").unwrap()
}

/// An offer of one file.
fn file(name: &str) -> Manifest {
    manifest(&[(name, content(100))])
}

#[test]
fn a_place_is_kept_for_who_was_accepted_and_lost() {
    isolated("a_place_is_kept_for_who_was_accepted_and_lost", "", || {
        let mut bench = Bench::new("kept");
        bench.patience = LONG_PATIENCE;
        let asked = AtomicU32::new(0);
        let ask = |_: &Offered, _: &Cancel| asked.fetch_add(1, Ordering::Relaxed) < 10;
        let received = bench.receive(&ask, |lost| {
            bench.be_lost(lost);
            let mut other = bench.meet(1).unwrap();
            other.offer(&file("other"), &DataKey::draw());
            assert_eq!(other.last_word().unwrap().0, Reason::Busy);
            bench.be_lost(lost);
        });
        assert_eq!(received.unwrap_err().kind(), Kind::Interrupted);
        assert_eq!(asked.load(Ordering::Relaxed), 1, "nobody is asked again");
    });
}

#[test]
fn a_sender_that_returns_and_moves_nothing_times_out() {
    isolated(
        "a_sender_that_returns_and_moves_nothing_times_out",
        "",
        || {
            let bench = Bench::new("again");
            let start = Instant::now();
            let received = bench.receive(&|_, _| true, |lost| {
                bench.be_lost(lost);
                while start.elapsed() < SOON
                    && let Ok(mut sender) = bench.meet(0)
                {
                    sender.offer(&file("file"), &DataKey::draw());
                    sender.is_accepted();
                    drop(sender);
                    thread::sleep(Duration::from_millis(200));
                }
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Interrupted);
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        },
    );
}

/// As many connections as there is room for, and more, while another host is in its handshake.
#[test]
fn a_host_that_floods_ends_no_handshake_of_another_host() {
    isolated(
        "a_host_that_floods_ends_no_handshake_of_another_host",
        "ip addr add 10.9.9.2/32 dev lo",
        || {
            let bench = Bench::new("flood");
            bench
                .receive(&|_, _| true, |_| {
                    let mut slow = Line::connect(HERE).unwrap();
                    let known = Introduction::Known(vec![bench.receiver.public()]);
                    let (initiator, first) =
                        Initiator::start(&bench.senders[0], known, &slow.binding().unwrap());
                    slow.say(&frame(&first));
                    let second = slow.hear().unwrap();
                    let device = Device::open("10.9.9.2").unwrap();
                    let flood: Vec<_> = (0..20)
                        .filter_map(|_| device.connect(HERE).wait().ok())
                        .collect();
                    assert!(flood.len() > 4, "{}", flood.len());
                    // Connections that were told to end have ended by then.
                    thread::sleep(Duration::from_millis(500));
                    let (confirming, third) = initiator.prove(&second).unwrap();
                    slow.say(&frame(&third));
                    let last = slow.hear().expect("it is still connected");
                    confirming.confirm(&last).unwrap();
                    drop(slow);
                    assert_eq!(bench.send().unwrap().files, 1);
                    drop(flood);
                })
                .unwrap();
        },
    );
}

/// A known sender connects from two addresses, as often as there is room, and offers nothing.
#[test]
fn a_known_key_with_two_addresses_leaves_places_to_others() {
    isolated(
        "a_known_key_with_two_addresses_leaves_places_to_others",
        "ip addr add 10.9.9.2/32 dev lo",
        || {
            let bench = Bench::new("one-key");
            let known = || Introduction::Known(vec![bench.receiver.public()]);
            bench
                .receive(&|_, _| true, |_| {
                    let devices = ["10.9.9.2", "127.0.0.1"].map(|it| Device::open(it).unwrap());
                    let mut held = Vec::new();
                    for number in 0..8 {
                        let device = devices[number % 2].clone().sealed();
                        let endpoint = device.connect(HERE).wait().unwrap();
                        let line = Line::new(device, endpoint);
                        held.extend(ByHand::meet_over(line, &bench.senders[1], known()));
                    }
                    assert_eq!(held.len(), 8);
                    assert_eq!(bench.send().unwrap().files, 1);
                })
                .unwrap();
        },
    );
}

#[test]
fn connections_that_say_nothing_do_not_hold_up_patience() {
    isolated(
        "connections_that_say_nothing_do_not_hold_up_patience",
        "",
        || {
            let bench = Bench::new("silent");
            let mut silent = Vec::new();
            let start = Instant::now();
            let received = bench.receive(&|_, _| true, |lost| {
                bench.be_lost(lost);
                silent.extend([(); 3].map(|()| Line::connect(HERE).unwrap()));
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Interrupted);
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
        },
    );
}

#[test]
fn who_is_stopped_while_a_person_is_asked_has_not_refused() {
    isolated(
        "who_is_stopped_while_a_person_is_asked_has_not_refused",
        "",
        || {
            let bench = Bench::new("stopped");
            let ask = |_: &Offered, _: &Cancel| {
                bench.cancel.cancel();
                false
            };
            let received = bench.receive(&ask, |_| {
                let mut sender = bench.meet(0).unwrap();
                sender.offer(&file("file"), &DataKey::draw());
                assert_eq!(sender.last_word().unwrap().0, Reason::Cancelled);
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Cancelled);
        },
    );
}

#[test]
fn a_connection_lost_in_the_handshake_is_retried_three_times() {
    isolated(
        "a_connection_lost_in_the_handshake_is_retried_three_times",
        "",
        || {
            let bench = Bench::new("handshake");
            let hear_and_go = |_, mut line: Line, _: &mut Door| assert!(line.hear().is_some());
            let came = bench.serve(hear_and_go, || {
                assert_eq!(bench.send().unwrap_err().kind(), Kind::Unreachable);
            });
            assert_eq!(came, 4);
        },
    );
}

#[test]
fn a_receiver_that_accepts_and_moves_nothing_times_out() {
    isolated(
        "a_receiver_that_accepts_and_moves_nothing_times_out",
        "",
        || {
            let mut bench = Bench::new("busy");
            bench.patience = LONG_PATIENCE;
            let start = Instant::now();
            let serve = |before, line: Line, door: &mut Door| {
                let staging = line.device.allocate(2 << 20).unwrap();
                let staging = staging.share(Rights::WRITE).unwrap();
                let mut receiver = ByHand::admit(line, door);
                receiver.take_offer();
                if before == 1 {
                    // As a sender that has not noticed yet that the first connection was lost.
                    receiver.say(&Message::Abort {
                        reason: Reason::Busy,
                        text: "busy".to_owned(),
                    });
                    while receiver.hear().is_some() {}
                } else {
                    receiver.accept(&staging);
                }
            };
            let came = bench.serve(serve, || {
                let error = bench.send().unwrap_err();
                assert_eq!(error.kind(), Kind::Interrupted, "{error}");
            });
            assert!(
                came >= 3 && start.elapsed() < 3 * LONG_PATIENCE,
                "{came}, {:?}",
                start.elapsed()
            );
        },
    );
}

/// A transfer is done, and its sender has not confirmed it: a new connection must not take the
/// place of the result.
#[test]
fn a_sender_during_the_end_of_another_offer_has_to_wait() {
    isolated(
        "a_sender_during_the_end_of_another_offer_has_to_wait",
        "",
        || {
            let bench = Bench::new("unheard");
            // It needs no chunk.
            let empty = manifest(&[("first", airdma_files::manifest::Kind::Directory)]);
            let received = bench.receive(&|_, _| true, |_| {
                let finishes = |offered: &Manifest| {
                    let mut sender = bench.meet(0).unwrap();
                    sender.offer(offered, &DataKey::draw());
                    assert!(sender.is_accepted());
                    let finished = Message::Finished { files: 0, flaws: 0 };
                    assert_eq!(sender.hear(), Some(finished));
                    sender
                };
                let unheard = finishes(&empty);
                for sender in 0..2 {
                    let mut second = bench.meet(sender).unwrap();
                    second.offer(&file("second"), &DataKey::draw());
                    assert_eq!(second.last_word().unwrap().0, Reason::Busy);
                }
                drop(unheard);
                finishes(&empty).say(&Message::Bye);
            });
            assert_eq!(received.unwrap().files, 0);
            assert_eq!(fs::read_dir(bench.root.join("out")).unwrap().count(), 1);
        },
    );
}

/// The sender is killed between the receiver's last message and its own, and returns to a restarted
/// receiver.
#[test]
fn a_sender_that_missed_the_end_learns_it_from_a_restart() {
    isolated(
        "a_sender_that_missed_the_end_learns_it_from_a_restart",
        "",
        || {
            let bench = Bench::new("told-again");
            let names = || fs::read_dir(bench.root.join("out")).unwrap().count();
            let path = bench.root.join("file");
            fs::write(&path, [7; 100]).unwrap();
            let walked = walk(&[path], Limits::default()).unwrap();
            let mut chunk = vec![0; CHUNK_BYTES as usize];
            let length = Source::new(&walked, &Unwanted::default(), 0).read(&mut chunk);
            for is_sent in [false, true] {
                let received = bench.receive(&|_, _| true, |_| {
                    let (mut sender, key) = (bench.meet(0).unwrap(), DataKey::draw());
                    sender.offer(&walked.manifest, &key);
                    if is_sent {
                        assert!(sender.is_accepted());
                    } else {
                        let accept = sender.accepted();
                        sender.write(&chunk[..length], &key, 0, &accept, 0);
                        sender.say(&Message::Arrived { until: 1 });
                    }
                    let mut heard = std::iter::from_fn(|| sender.hear());
                    let last = heard.find(|message| !matches!(message, Message::Grant { .. }));
                    assert_eq!(last, Some(Message::Finished { files: 1, flaws: 0 }));
                    if is_sent {
                        sender.say(&Message::Bye);
                    }
                });
                assert_eq!(received.unwrap().files, 1);
                let journal = usize::from(!is_sent);
                assert_eq!(names(), 1 + journal);
            }
            assert_eq!(fs::read(bench.root.join("out/file")).unwrap(), [7; 100]);
        },
    );
}

/// Both ends know that everything arrived.
#[test]
fn files_left_after_the_end_are_reported_and_no_error() {
    isolated(
        "files_left_after_the_end_are_reported_and_no_error",
        "",
        || {
            let bench = Bench::new("remains");
            let received = bench.receive(&|_, _| true, |_| {
                let mut sender = bench.meet(0).unwrap();
                let directory = manifest(&[("tree", EntryKind::Directory)]);
                sender.offer(&directory, &DataKey::draw());
                let mut heard = std::iter::from_fn(|| sender.hear());
                let is_last = |message: &Message| matches!(message, Message::Finished { .. });
                assert!(heard.any(|message| is_last(&message)));
                let key = bench.receiver.journal_key();
                let staging = format!("out/{}", key.staging_name(directory.id()));
                fs::write(bench.root.join(staging).join(".nfs0001"), "").unwrap();
                sender.say(&Message::Bye);
            });
            assert_eq!(received.unwrap().files, 0);
            let remains = bench.remains.lock().unwrap();
            assert!(
                matches!(&remains[..], [what] if what.contains("cannot clean up .airdma-")),
                "{remains:?}"
            );
        },
    );
}

#[test]
fn a_sender_replaces_its_own_stale_connection() {
    isolated("a_sender_replaces_its_own_stale_connection", "", || {
        let bench = Bench::new("replaced");
        let asked = AtomicU32::new(0);
        let ask = |_: &Offered, _: &Cancel| asked.fetch_add(1, Ordering::Relaxed) < 10;
        let received = bench.receive(&ask, |_| {
            let [mut first, mut second] = [(); 2].map(|()| {
                let mut sender = bench.meet(0).unwrap();
                sender.offer(&file("file"), &DataKey::draw());
                assert!(sender.is_accepted());
                sender
            });
            assert_eq!(first.last_word().unwrap().0, Reason::Busy);
            bench.cancel.cancel();
            assert_eq!(second.last_word().unwrap().0, Reason::Cancelled);
        });
        assert_eq!(received.unwrap_err().kind(), Kind::Cancelled);
        assert_eq!(asked.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn who_does_not_hear_the_last_word_keeps_nobody_from_the_disk() {
    isolated(
        "who_does_not_hear_the_last_word_keeps_nobody_from_the_disk",
        "",
        || {
            let mut bench = Bench::new("deaf");
            bench.config.alive_every = Duration::from_millis(5);
            let received = bench.receive(&|_, _| true, |_| {
                let accepted = || {
                    let mut sender = bench.meet(0).unwrap();
                    sender.offer(&file("file"), &DataKey::draw());
                    assert!(sender.is_accepted());
                    sender
                };
                let deaf = accepted();
                // Keepalives use up all the memory that it receives into.
                thread::sleep(Duration::from_millis(300));
                let start = Instant::now();
                drop((accepted(), deaf));
                assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
                bench.cancel.cancel();
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Cancelled);
        },
    );
}

#[test]
fn what_arrived_before_a_sender_was_stopped_is_kept() {
    isolated(
        "what_arrived_before_a_sender_was_stopped_is_kept",
        "",
        || {
            const ROUNDS: u64 = 10;
            let bench = Bench::new("kept-chunks");
            let offered = manifest(&[("file", content((ROUNDS + 1) * CHUNK_BYTES))]);
            for round in 0..ROUNDS {
                let received = bench.receive(&|_, _| true, |_| {
                    let (mut sender, key) = (bench.meet(0).unwrap(), DataKey::draw());
                    sender.offer(&offered, &key);
                    let accept = sender.accepted();
                    assert_eq!(accept.first_chunk, round);
                    let chunk = vec![7; CHUNK_BYTES as usize];
                    sender.write(
                        &chunk,
                        &key,
                        round,
                        &accept,
                        round % u64::from(accept.slots),
                    );
                    let arrived = Message::Arrived { until: round + 1 };
                    let stopped = Message::Abort {
                        reason: Reason::Cancelled,
                        text: "stopped".to_owned(),
                    };
                    sender.say_at_once(&[arrived, stopped]);
                });
                assert_eq!(received.unwrap_err().kind(), Kind::Interrupted);
            }
        },
    );
}

#[test]
fn a_lost_peer_that_used_the_code_returns_without_it() {
    isolated(
        "a_lost_peer_that_used_the_code_returns_without_it",
        "",
        || {
            let bench = Bench::new("met");
            let [guest, stranger] = [(); 2].map(|()| Identity::draw());
            let known = || Introduction::Known(vec![bench.receiver.public()]);
            let received = bench.receive(&|_, _| true, |lost| {
                let mut sender = ByHand::meet(HERE, &guest, Introduction::Code(code())).unwrap();
                sender.offer(&file("file"), &DataKey::draw());
                assert!(sender.is_accepted());
                drop(sender);
                lost.recv_timeout(SOON).unwrap();
                let refused = ByHand::meet(HERE, &stranger, known()).err();
                let expected = HandshakeError::NotKnownThere;
                assert!(matches!(refused, Some(Unmet::Refused(error)) if error == expected));
                let mut again = ByHand::meet(HERE, &guest, known()).unwrap();
                again.offer(&file("file"), &DataKey::draw());
                assert!(again.is_accepted());
                bench.cancel.cancel();
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Cancelled);
        },
    );
}

#[test]
fn a_sender_that_came_by_a_code_needs_none_when_it_comes_again() {
    isolated(
        "a_sender_that_came_by_a_code_needs_none_when_it_comes_again",
        "",
        || {
            let bench = Bench::new("code");
            let serve = |before, line: Line, _: &mut Door| {
                // The code is valid once: a second use is refused.
                let mut door = Door::new(bench.receiver.clone(), (before == 0).then(code));
                let staging = line.device.allocate(2 << 20).unwrap();
                let staging = staging.share(Rights::WRITE).unwrap();
                let mut receiver = ByHand::admit(line, &mut door);
                receiver.take_offer();
                receiver.accept(&staging);
            };
            let came = bench.serve(serve, || {
                let sent = bench.send_to(HERE, Introduction::Code(code()));
                assert_eq!(sent.unwrap_err().kind(), Kind::Interrupted);
            });
            assert!(came >= 2, "{came}");
        },
    );
}

#[test]
fn a_sender_to_whom_nobody_answers_can_be_stopped() {
    isolated(
        "a_sender_to_whom_nobody_answers_can_be_stopped",
        "ip link add nobody type veth peer name beyond
         ip addr add 192.0.2.1/24 dev nobody
         ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev nobody
         ip link set nobody up
         ip link set beyond up",
        || {
            let bench = Bench::new("nobody");
            let nobody = SocketAddr::from(([192, 0, 2, 2], PORT));
            let start = Instant::now();
            let sent = thread::scope(|scope| {
                let sending = scope.spawn(|| bench.send_to(nobody, Introduction::Code(code())));
                thread::sleep(Duration::from_millis(200));
                bench.cancel.cancel();
                sending.join().unwrap()
            });
            assert_eq!(sent.unwrap_err().kind(), Kind::Cancelled);
            assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
        },
    );
}

/// A peer that never stops sending does not keep a receiver from being stopped.
#[test]
fn a_receiver_can_be_stopped_under_endless_messages() {
    isolated(
        "a_receiver_can_be_stopped_under_endless_messages",
        "",
        || {
            let bench = Bench::new("talking");
            thread::scope(|scope| {
                let mut talking = None;
                let received = bench.receive(&|_, _| true, |_| {
                    let mut sender = bench.meet(0).unwrap();
                    let (begin, begins) = mpsc::channel();
                    let talk = move || sender.chatter(|| begin.send(()).unwrap());
                    talking = Some(scope.spawn(talk));
                    begins.recv().unwrap();
                    bench.cancel.cancel();
                });
                assert_eq!(received.unwrap_err().kind(), Kind::Cancelled);
                let all_was_heard = talking.unwrap().join().unwrap();
                assert!(!all_was_heard, "it ended when the sender did");
            });
        },
    );
}

/// Before any offer is accepted.
#[test]
fn one_long_list_of_files_is_held_at_a_time() {
    isolated("one_long_list_of_files_is_held_at_a_time", "", || {
        let bench = Bench::new("lists");
        let received = bench.receive(&|_, _| true, |_| {
            let long = vec![0; 1 << 20];
            let begin = |sender: usize| {
                let mut sender = bench.meet(sender).unwrap();
                sender.say(&Message::Offer(by_hand::offer_of(&long)));
                sender
            };
            let first = begin(0);
            // The same offer of the same sender takes over, and disconnects.
            let second = begin(0);
            let mut other = begin(1);
            assert_eq!(other.last_word().unwrap().0, Reason::Busy);
            drop((first, second));
            // A short list is not limited.
            let mut short = bench.meet(1).unwrap();
            short.offer(
                &manifest(&[("a", airdma_files::manifest::Kind::Directory)]),
                &DataKey::draw(),
            );
            assert!(short.is_accepted());
            let finished = Message::Finished { files: 0, flaws: 0 };
            assert_eq!(short.hear(), Some(finished));
            short.say(&Message::Bye);
        });
        received.unwrap();
    });
}

#[test]
fn a_stream_is_shown_with_its_holes_and_none_is_filled_before() {
    isolated(
        "a_stream_is_shown_with_its_holes_and_none_is_filled_before",
        "",
        || {
            let bench = Bench::new("holes");
            let written = std::sync::Arc::new(AtomicU32::new(0));
            let holes = airdma_files::manifest::Kind::File(airdma_files::manifest::Content {
                size: i64::MAX as u64,
                stamp: 0,
                extents: Some([].into()),
            });
            let shown = Mutex::new(Vec::new());
            let ask = |offered: &Offered, _: &Cancel| {
                shown.lock().unwrap().push(offered.bytes);
                false
            };
            let stream = airdma_transfer::Stream::new(Counting(written.clone()));
            let received = bench.receive_to(Destination::Stream(stream), &ask, |_| {
                let mut sender = bench.meet(0).unwrap();
                sender.offer(&manifest(&[("file", holes)]), &DataKey::draw());
                assert_eq!(sender.last_word().unwrap().0, Reason::Refused);
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Refused);
            assert_eq!(*shown.lock().unwrap(), [i64::MAX as u64]);
            assert_eq!(written.load(Ordering::Relaxed), 0);
        },
    );
}

/// Counts writes.
struct Counting(std::sync::Arc<AtomicU32>);

impl std::io::Write for Counting {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
