//! Whole transfers between a sender and a receiver in one process, over the loopback interface of a
//! new network namespace.
#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use airdma::Device;
use airdma_files::Options;
use airdma_files::protocol::Config;
use airdma_files::session::{Code, Identity, Introduction, Pin, Place, PublicKey, Role};
use airdma_files::{Limits, Walking};
use airdma_transfer::{
    Cancel, CodeTries, Destination, Error, Event, Home, Kind, Offered, PORT, ReceiveJob, Received,
    SendJob, Sent, Stream, Waits, receive, send,
};
use isolated::isolated;
use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

const CODE: &str = "lusab-babad";
/// More than fits the receiver's staging memory.
const LARGE: usize = 80 << 20;
/// Less than that.
const SMALL: usize = 20 << 20;

/// The name that all peers are known under.
const MET_AS: &str = "peer";

fn met(key: PublicKey, role: Role) -> Pin {
    Pin::new(key, role, Place::Anywhere, MET_AS)
}

/// Two users with a directory each.
struct World {
    root: PathBuf,
    sender: Home,
    receiver: Home,
}

/// Events of the receiver.
#[derive(Default)]
struct Seen {
    offered: Mutex<Vec<Offered>>,
    turned: Mutex<Vec<String>>,
    waits: Mutex<Vec<Waits>>,
    lost: Mutex<Vec<String>>,
}

impl World {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("airdma-transfer-{name}-{}", std::process::id()));
        fs::create_dir_all(root.join("in/tree/empty")).unwrap();
        fs::create_dir_all(root.join("out")).unwrap();
        let home = |name| Home::at(&root.join(name)).unwrap();
        Self {
            sender: home("sender"),
            receiver: home("receiver"),
            root,
        }
    }

    fn write(&self, name: &str, bytes: usize) -> PathBuf {
        let path = self.root.join("in").join(name);
        let content: Vec<u8> = (0..bytes)
            .map(|at| (at % 251) as u8 ^ (at >> 13) as u8)
            .collect();
        fs::write(&path, content).unwrap();
        path
    }

    fn arrived(&self, name: &str) -> bool {
        fs::read(self.root.join("in").join(name)).unwrap()
            == fs::read(self.root.join("out").join(name)).unwrap_or_default()
    }

    fn out(&self) -> usize {
        fs::read_dir(self.root.join("out")).unwrap().count()
    }

    fn send(
        &self,
        paths: &[&Path],
        identity: &Identity,
        introduction: Introduction,
        watch: &dyn Fn(Event),
        cancel: &Cancel,
    ) -> Result<Sent, Error> {
        let walking = Walking::start(paths, Limits::default()).unwrap();
        self.send_walk(&walking, identity, introduction, watch, cancel)
    }

    fn send_walk(
        &self,
        walking: &Walking,
        identity: &Identity,
        introduction: Introduction,
        watch: &dyn Fn(Event),
        cancel: &Cancel,
    ) -> Result<Sent, Error> {
        let job = SendJob {
            code_tries: &CodeTries::default(),
            walking,
            identity,
            to: &[SocketAddr::from(([127, 0, 0, 1], PORT))],
            introduction,
            patience: Duration::from_secs(5),
            config: Config::default(),
        };
        send(&job, watch, cancel)
    }

    fn send_by_code(&self, path: &Path, code: &str) -> Result<Sent, Error> {
        let introduction = Introduction::Code(Code::parse(code).unwrap());
        let pin = |event| {
            if let Event::Met { peer, .. } = event {
                self.sender.pin(met(peer, Role::Receiver), true).unwrap();
            }
        };
        self.send(
            &[path],
            self.sender.identity(),
            introduction,
            &pin,
            &Cancel::default(),
        )
    }

    fn receive(
        &self,
        seen: &Seen,
        ask: &(dyn Fn(&Cancel) -> bool + Sync),
        while_it_waits: impl FnOnce(),
    ) -> Result<Received, Error> {
        let destination = Destination::Directory {
            path: self.root.join("out"),
            options: Options::default(),
        };
        self.receive_to(destination, seen, ask, while_it_waits)
    }

    fn receive_to(
        &self,
        destination: Destination,
        seen: &Seen,
        ask: &(dyn Fn(&Cancel) -> bool + Sync),
        while_it_waits: impl FnOnce(),
    ) -> Result<Received, Error> {
        let job = ReceiveJob {
            identity: self.receiver.identity(),
            code: Code::parse(CODE).ok(),
            is_known: &|key| self.receiver.knows(key, Role::Sender),
            destination,
            interfaces: vec!["127.0.0.1".to_owned()],
            port: PORT,
            name: None,
            patience: Duration::from_secs(5),
            config: Config::default(),
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let watch = |event| match event {
            Event::Listening { .. } => ready.send(()).unwrap(),
            Event::Met { peer, .. } => {
                self.receiver.pin(met(peer, Role::Sender), false).unwrap();
            }
            Event::Turned(why) => seen.turned.lock().unwrap().push(why),
            Event::Progress(progress) => seen.waits.lock().unwrap().push(progress.waits),
            Event::Lost(why) => seen.lost.lock().unwrap().push(why),
            Event::Accepted(_)
            | Event::Doors { .. }
            | Event::Hindered(_)
            | Event::Walked(_)
            | Event::Arrived(_)
            | Event::Remains(_) => {}
        };
        let ask = |offered: &Offered, over: &Cancel| {
            seen.offered.lock().unwrap().push(offered.clone());
            ask(over)
        };
        thread::scope(|scope| {
            let receiving = scope.spawn(|| receive(&job, &ask, &watch, &Cancel::default()));
            is_ready.recv().unwrap();
            while_it_waits();
            receiving.join().unwrap()
        })
    }
}

impl Drop for World {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

#[test]
fn a_tree_arrives_by_a_code_and_the_next_one_without() {
    isolated(
        "a_tree_arrives_by_a_code_and_the_next_one_without",
        "",
        || {
            let world = World::new("tree");
            let (small, large) = (
                world.write("tree/small", 10),
                world.write("tree/large", 5 << 20),
            );
            let again = world.write("again", 3_000_000);
            let tree = small.parent().unwrap();
            let seen = Seen::default();
            let received = world.receive(&seen, &|_| true, || {
                let sent = world.send_by_code(tree, CODE).unwrap();
                assert_eq!((sent.files, sent.reconnects, sent.flaws.len()), (2, 0, 0));
            });
            assert_eq!(received.unwrap().files, 2);
            assert!(world.arrived("tree/small") && world.arrived("tree/large"));
            assert!(world.root.join("out/tree/empty").is_dir() && large.exists());
            assert_eq!(seen.offered.lock().unwrap()[0].names, ["tree"]);
            let received = world.receive(&seen, &|_| true, || {
                // Other peers that are known under the same name do not interfere.
                for stranger in [(); 3].map(|()| Identity::draw().public()) {
                    let pin = met(stranger, Role::Receiver);
                    world.sender.pin(pin, false).unwrap();
                }
                let keys = world.sender.keys(Role::Receiver, &Place::Anywhere, MET_AS);
                let known = Introduction::Known(keys);
                let identity = world.sender.identity();
                let sent = world.send(&[&again], identity, known, &|_| {}, &Cancel::default());
                assert_eq!(sent.unwrap().files, 1);
            });
            received.unwrap();
            assert!(world.arrived("again"));
        },
    );
}

/// A sender that is killed after that cannot ask again: its offer would be refused, as its names
/// exist.
#[test]
fn that_all_arrived_is_told_here_before_the_receiver_forgets_it() {
    isolated(
        "that_all_arrived_is_told_here_before_the_receiver_forgets_it",
        "",
        || {
            let world = World::new("told");
            let file = world.write("file", 3_000_000);
            let told = Cell::new(None);
            let received = world.receive(&Seen::default(), &|_| true, || {
                let watch = |event| {
                    if let Event::Arrived(sent) = event {
                        thread::sleep(Duration::from_millis(500));
                        told.set(Some((sent.files, sent.bytes, world.out())));
                    }
                };
                let code = Introduction::Code(Code::parse(CODE).unwrap());
                let identity = world.sender.identity();
                let sent = world.send(&[&file], identity, code, &watch, &Cancel::default());
                assert_eq!(sent.unwrap().files, 1);
            });
            assert_eq!(received.unwrap().files, 1);
            assert_eq!(
                told.get(),
                Some((1, 3_000_000, 2)),
                "the file, and its journal"
            );
            assert_eq!(world.out(), 1);
        },
    );
}

#[test]
fn a_failed_walk_is_reported_and_the_receiver_waits_on() {
    isolated(
        "a_failed_walk_is_reported_and_the_receiver_waits_on",
        "",
        || {
            let world = World::new("walk");
            let file = world.write("tree/file", 10);
            let few = Limits {
                entries_max: 1,
                ..Limits::default()
            };
            let seen = Seen::default();
            let received = world.receive(&seen, &|_| true, || {
                let walking = Walking::start(&[file.parent().unwrap()], few).unwrap();
                let code = Introduction::Code(Code::parse(CODE).unwrap());
                let identity = world.sender.identity();
                let failed = world.send_walk(&walking, identity, code, &|_| {}, &Cancel::default());
                assert_eq!(failed.unwrap_err().kind(), Kind::Files);
                let known = Introduction::Known(vec![world.receiver.identity().public()]);
                let sent = world.send(&[&file], identity, known, &|_| {}, &Cancel::default());
                assert_eq!(sent.unwrap().bytes, 10);
            });
            assert_eq!(received.unwrap().files, 1);
            let turned = seen.turned.lock().unwrap();
            assert!(
                matches!(&turned[..], [why] if why.contains("cannot read")),
                "{turned:?}"
            );
        },
    );
}

#[test]
fn the_third_wrong_code_ends_the_receiver_without_a_write() {
    isolated(
        "the_third_wrong_code_ends_the_receiver_without_a_write",
        "",
        || {
            let world = World::new("codes");
            let file = world.write("file", 10);
            let seen = Seen::default();
            let received = world.receive(&seen, &|_| true, || {
                for _ in 0..3 {
                    let error = world.send_by_code(&file, "babad-babad").unwrap_err();
                    assert_eq!(error.kind(), Kind::Unknown, "{error}");
                }
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Unknown);
            assert_eq!(seen.turned.lock().unwrap().len(), 2);
            assert!(seen.offered.lock().unwrap().is_empty());
            assert_eq!(world.out(), 0);
        },
    );
}

#[test]
fn nothing_is_written_before_the_offer_is_accepted() {
    isolated(
        "nothing_is_written_before_the_offer_is_accepted",
        "",
        || {
            let world = World::new("refused");
            let file = world.write("file", 100);
            let refuse = |_: &Cancel| {
                thread::sleep(Duration::from_millis(300));
                assert_eq!(world.out(), 0);
                false
            };
            let received = world.receive(&Seen::default(), &refuse, || {
                let error = world.send_by_code(&file, CODE).unwrap_err();
                assert_eq!(error.kind(), Kind::Refused, "{error}");
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Refused);
            assert_eq!(world.out(), 0);
        },
    );
}

#[test]
fn a_second_sender_is_told_that_the_first_one_is_not_done() {
    isolated(
        "a_second_sender_is_told_that_the_first_one_is_not_done",
        "",
        || {
            let world = World::new("two");
            let (file, other) = (world.write("file", 100), world.write("other", 100));
            let (asked, second) = (std::sync::Barrier::new(2), Identity::draw());
            let pin = met(second.public(), Role::Sender);
            world.receiver.pin(pin, false).unwrap();
            let known = Introduction::Known(vec![world.receiver.identity().public()]);
            let accept = |_: &Cancel| {
                asked.wait();
                asked.wait();
                true
            };
            let seen = Seen::default();
            let received = world.receive(&seen, &accept, || {
                thread::scope(|scope| {
                    let first = scope.spawn(|| world.send_by_code(&file, CODE));
                    asked.wait();
                    let late = world.send(&[&other], &second, known, &|_| {}, &Cancel::default());
                    assert_eq!(late.unwrap_err().kind(), Kind::Refused);
                    asked.wait();
                    assert_eq!(first.join().unwrap().unwrap().files, 1);
                });
            });
            received.unwrap();
            assert!(world.arrived("file") && !world.arrived("other"));
            assert_eq!(seen.offered.lock().unwrap().len(), 1);
        },
    );
}

#[test]
fn wrong_codes_do_not_end_a_transfer_that_is_under_way() {
    isolated(
        "wrong_codes_do_not_end_a_transfer_that_is_under_way",
        "",
        || {
            let world = World::new("guesses");
            let (file, other) = (world.write("file", 100), world.write("other", 100));
            let asked = std::sync::Barrier::new(2);
            let accept = |_: &Cancel| {
                asked.wait();
                asked.wait();
                true
            };
            let received = world.receive(&Seen::default(), &accept, || {
                thread::scope(|scope| {
                    let first = scope.spawn(|| world.send_by_code(&file, CODE));
                    asked.wait();
                    let stranger = Identity::draw();
                    for _ in 0..3 {
                        let wrong = Introduction::Code(Code::parse("babad-babad").unwrap());
                        let cancel = Cancel::default();
                        let sent = world.send(&[&other], &stranger, wrong, &|_| {}, &cancel);
                        assert_eq!(sent.unwrap_err().kind(), Kind::Unknown);
                    }
                    asked.wait();
                    assert_eq!(first.join().unwrap().unwrap().files, 1);
                });
            });
            received.unwrap();
            assert!(world.arrived("file"));
        },
    );
}

#[test]
fn connections_that_say_nothing_keep_no_sender_out() {
    isolated(
        "connections_that_say_nothing_keep_no_sender_out",
        "",
        || {
            let world = World::new("idle");
            let file = world.write("file", 100);
            let received = world.receive(&Seen::default(), &|_| true, || {
                let to = SocketAddr::from(([127, 0, 0, 1], PORT));
                let device = Device::towards(to).unwrap().sealed();
                // Those beyond four end earlier ones, or end themselves where the threads of
                // these have not ended yet, perhaps before `connect` returns.
                let idle: Vec<_> = (0..10)
                    .filter_map(|_| device.connect(to).wait().ok())
                    .collect();
                assert!(idle.len() >= 4, "{} connections", idle.len());
                assert_eq!(world.send_by_code(&file, CODE).unwrap().files, 1);
                drop(idle);
            });
            received.unwrap();
            assert!(world.arrived("file"));
        },
    );
}

#[test]
fn a_sender_that_was_stopped_goes_on_where_it_was() {
    isolated("a_sender_that_was_stopped_goes_on_where_it_was", "", || {
        let world = World::new("stopped");
        let file = world.write("file", LARGE);
        let code = || Introduction::Code(Code::parse(CODE).unwrap());
        let cancel = Cancel::default();
        let reached = Cell::new(0);
        let stop = |event| {
            if let Event::Progress(progress) = event {
                reached.set(progress.bytes);
                if progress.bytes > 0 {
                    cancel.cancel();
                }
            }
        };
        let seen = Seen::default();
        let identity = world.sender.identity();
        let received = world.receive(&seen, &|_| true, || {
            let error = world
                .send(&[&file], identity, code(), &stop, &cancel)
                .unwrap_err();
            assert_eq!(error.kind(), Kind::Cancelled, "{error}");
        });
        assert_eq!(received.unwrap_err().kind(), Kind::Interrupted);
        assert!(reached.get() > 0 && !world.arrived("file"));
        let received = world.receive(&seen, &|_| true, || {
            world
                .send(&[&file], identity, code(), &|_| {}, &Cancel::default())
                .unwrap();
        });
        received.unwrap();
        assert!(world.arrived("file"));
        assert_eq!(world.out(), 1);
        let offered = seen.offered.lock().unwrap();
        assert!(
            offered[1].goes_on
                && offered[1].bytes_to_come <= offered[0].bytes_to_come - reached.get()
        );
    });
}

const ENOSPC: i32 = 28;

/// A disk with room for this many bytes.
struct FullDisk(usize);

impl Write for FullDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let left = self.0.checked_sub(bytes.len());
        self.0 = left.ok_or_else(|| io::Error::from_raw_os_error(ENOSPC))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_disk_that_fills_up_under_data_breaks_no_connection() {
    let name = "a_disk_that_fills_up_under_data_breaks_no_connection";
    isolated(name, "", || {
        let world = World::new("full");
        let file = world.write("file", LARGE);
        for _ in 0..20 {
            let seen = Seen::default();
            let destination = Destination::Stream(Stream::new(FullDisk(2_000_000)));
            let received = world.receive_to(destination, &seen, &|_| true, || {
                let code = Introduction::Code(Code::parse(CODE).unwrap());
                let note = |event| {
                    if let Event::Lost(why) = event {
                        seen.lost
                            .lock()
                            .unwrap()
                            .push(format!("by the sender: {why}"));
                    }
                };
                let identity = world.sender.identity();
                let sent = world.send(&[&file], identity, code, &note, &Cancel::default());
                let error = sent.unwrap_err();
                let lost = seen.lost.lock().unwrap();
                assert!(
                    error.to_string().contains("no space left"),
                    "{error}, {lost:?}"
                );
            });
            assert_eq!(received.unwrap_err().kind(), Kind::Files);
            let lost = seen.lost.lock().unwrap();
            assert!(lost.is_empty(), "{lost:?}");
        }
    });
}

/// A disk that writes `mb_per_s`, and not a third as fast as data comes to it: on a busy machine,
/// too, it is what the transfer waits for.
struct SlowDisk {
    mb_per_s: u64,
    wrote: Option<Instant>,
}

impl SlowDisk {
    fn new(mb_per_s: u64) -> Self {
        Self {
            mb_per_s,
            wrote: None,
        }
    }
}

impl Write for SlowDisk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let waited = self.wrote.map_or(Duration::ZERO, |wrote| wrote.elapsed());
        let time = Duration::from_micros(bytes.len() as u64 / self.mb_per_s);
        thread::sleep(time.max(3 * waited));
        self.wrote = Some(Instant::now());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A transfer of `bytes` to a slow disk: both ends report that they wait for it.
fn waits_for_the_disk(name: &'static str, setup: &str, bytes: usize, disk: SlowDisk) {
    isolated(name, setup, move || {
        let world = World::new("slow");
        let file = world.write("file", bytes);
        let (seen, sender) = (Seen::default(), Cell::new(Waits::default()));
        let destination = Destination::Stream(Stream::new(disk));
        let received = world.receive_to(destination, &seen, &|_| true, || {
            let code = Introduction::Code(Code::parse(CODE).unwrap());
            let note = |event| {
                if let Event::Progress(progress) = event {
                    sender.set(progress.waits);
                }
            };
            let identity = world.sender.identity();
            let sent = world.send(&[&file], identity, code, &note, &Cancel::default());
            sent.unwrap();
        });
        received.unwrap();
        let receiver = *seen.waits.lock().unwrap().last().unwrap();
        for waits in [sender.get(), receiver] {
            let others = waits.reading + waits.network;
            assert!(waits.writing > others, "{waits:?}");
        }
    });
}

#[test]
fn a_slow_disk_at_the_receiver_is_said_to_be_slow_by_both_ends() {
    waits_for_the_disk(
        "a_slow_disk_at_the_receiver_is_said_to_be_slow_by_both_ends",
        "",
        LARGE,
        SlowDisk::new(40),
    );
}

#[test]
fn a_slow_disk_is_said_to_be_slow_though_the_rate_follows_it() {
    waits_for_the_disk(
        "a_slow_disk_is_said_to_be_slow_though_the_rate_follows_it",
        "export AIRDMA_AIR=1",
        LARGE,
        SlowDisk::new(40),
    );
}

#[test]
fn a_slow_disk_is_reported_even_if_all_fits_its_memory() {
    waits_for_the_disk(
        "a_slow_disk_is_reported_even_if_all_fits_its_memory",
        "export AIRDMA_AIR=1",
        SMALL,
        SlowDisk::new(10),
    );
}
