//! `airdma recv` against a sender that has the code and lies.
//!
//! Nothing is written outside of the directory, no incomplete file has its name, and both ends
//! report the reason.
#![allow(clippy::unwrap_used)]

// Other tests use the rest of it.
#[allow(dead_code)]
#[path = "../../transfer/tests/by_hand/mod.rs"]
mod by_hand;
#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use airdma_files::manifest::Kind;
use airdma_files::protocol::{Config, Message, Offer, Reason};
use airdma_files::session::{Code, DataKey, Identity, Introduction};
use airdma_files::{CHUNK_BYTES, Limits, TRAILER_BYTES, Walking};
use airdma_transfer::{Cancel, CodeTries, PORT, SendJob, send};
use by_hand::{ByHand, content, manifest, offer_of};
use isolated::isolated;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const CODE: &str = "lusab-babad";
const REFUSED: i32 = 5;
const FILES: i32 = 6;
const FLAWED: i32 = 7;
const INTERRUPTED: i32 = 8;
const PROTOCOL: i32 = 9;
/// Most growth of a receiver's memory: its staging memory of 32 MiB is freed again.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

/// A directory to receive into, and files next to it that must not change.
struct Bench {
    root: PathBuf,
    sender: Identity,
}

impl Bench {
    fn new(name: &str) -> Self {
        let name = format!("airdma-hostile-{name}-{}", std::process::id());
        let root = std::env::temp_dir().join(name);
        fs::create_dir_all(root.join("out")).unwrap();
        fs::create_dir(root.join("outside")).unwrap();
        fs::write(root.join("up"), "mine").unwrap();
        Self {
            root,
            sender: Identity::draw(),
        }
    }

    fn recv(&self) -> Recv {
        // Killed when this test ends.
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL", env!("CARGO_BIN_EXE_airdma"), "recv"])
            .args(["--json", "--yes", "--no-name", "--patience", "1"])
            .args(["--symlinks", "refuse"])
            .args(["--code", CODE, "--on", "127.0.0.1"])
            .arg(self.root.join("out"))
            .env("AIRDMA_HOME", self.root.join("home"))
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        let mut first = String::new();
        output.read_line(&mut first).unwrap();
        assert!(first.contains("listening"), "{first}");
        Recv { child, output }
    }

    fn meet(&self) -> ByHand {
        let introduction = Introduction::Code(Code::parse(CODE).unwrap());
        ByHand::meet(here(), &self.sender, introduction).unwrap()
    }

    /// Offers a list of files in arbitrary bytes; checks what both ends report, and that nothing
    /// was written.
    fn is_refused(&self, offer: Offer, list: &[u8], reason: Reason, status: i32, words: &str) {
        let recv = self.recv();
        let mut sender = self.meet();
        sender.offer_bytes(offer, list);
        let (told, text) = sender.last_word().unwrap();
        assert!(told == reason && text.contains(words), "{told:?}: {text}");
        recv.ends(status, words);
        self.is_untouched();
        assert_eq!(fs::read_dir(self.root.join("out")).unwrap().count(), 0);
    }

    /// Checks that no file has its name, and nothing outside was changed.
    fn is_untouched(&self) {
        let names = |directory: &Path| -> Vec<String> {
            let entries = fs::read_dir(directory).unwrap();
            let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
            let mut names: Vec<String> =
                names.filter(|name| !name.starts_with(".airdma-")).collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.root), ["home", "out", "outside", "up"]);
        assert!(names(&self.root.join("out")).is_empty());
        assert!(names(&self.root.join("outside")).is_empty());
        assert_eq!(fs::read_to_string(self.root.join("up")).unwrap(), "mine");
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// The command under test.
struct Recv {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Recv {
    /// Checks its exit status and these words; returns its output.
    fn ends(mut self, status: i32, words: &str) -> String {
        let mut said = String::new();
        self.output.read_to_string(&mut said).unwrap();
        let ended = self.child.wait().unwrap();
        assert_eq!(ended.code(), Some(status), "{said}");
        assert!(said.contains(words), "not said: {words}\n{said}");
        said
    }

    fn resident_bytes(&self) -> u64 {
        let statm = fs::read_to_string(format!("/proc/{}/statm", self.child.id())).unwrap();
        let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        pages * 4096
    }
}

fn here() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, PORT).into()
}

/// An entry as encoded on the wire, valid or not.
fn entry(tag: u8, depth: u8, name: &[u8], rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag, depth, name.len() as u8];
    bytes.extend_from_slice(name);
    bytes.extend_from_slice(&0o755_u16.to_be_bytes());
    bytes.extend_from_slice(&[0; 12]);
    bytes.extend_from_slice(rest);
    bytes
}

fn directory(depth: u8, name: &[u8]) -> Vec<u8> {
    entry(1, depth, name, &[])
}

fn file(depth: u8, name: &[u8], size: u64) -> Vec<u8> {
    entry(2, depth, name, &[size.to_be_bytes(), [0; 8]].concat())
}

fn link(depth: u8, name: &[u8], target: &[u8]) -> Vec<u8> {
    let length = (target.len() as u16).to_be_bytes();
    entry(4, depth, name, &[&length[..], target].concat())
}

fn list(entries: &[Vec<u8>]) -> Vec<u8> {
    let count = (entries.len() as u32).to_be_bytes();
    [&b"airdma-m\x01"[..], &*entries.concat(), &[0], &count].concat()
}

#[test]
fn forged_lists_of_files_are_refused_and_nothing_is_written() {
    isolated(
        "forged_lists_of_files_are_refused_and_nothing_is_written",
        "",
        || {
            let bench = Bench::new("lists");
            let name = "a name that is not allowed";
            let reserved = "kept for unfinished transfers";
            let (order, parent) = ("out of order, or has a name twice", "not a directory");
            let size = "a size that no file can have";
            for (entries, words) in [
                (vec![file(0, b"..", 1)], name),
                (vec![file(0, b"../up", 1)], name),
                (vec![file(0, b"/etc/cron.d/evil", 1)], name),
                (vec![directory(0, b"a"), file(1, b"../../up", 1)], name),
                (vec![file(0, b"", 1)], name),
                (vec![file(0, b"up\0.txt", 1)], name),
                (vec![directory(0, b".airdma-0123456789abcdef")], reserved),
                // The top of one transfer may clash with the next.
                (
                    vec![
                        directory(0, b"a"),
                        directory(1, b".airdma-0123456789abcdef"),
                    ],
                    reserved,
                ),
                (vec![directory(0, b"a"), file(1, b".AIRDMA-0", 1)], reserved),
                (
                    vec![
                        directory(0, b"a"),
                        directory(1, ".air\u{200d}dma-0".as_bytes()),
                    ],
                    reserved,
                ),
                // A link, then an entry below it or in its place.
                (
                    vec![link(0, b"a", b"../outside"), file(1, b"evil", 1)],
                    parent,
                ),
                (
                    vec![
                        link(0, b"a", b"../outside"),
                        directory(0, b"a"),
                        file(1, b"evil", 1),
                    ],
                    order,
                ),
                (vec![file(0, b"a", 1 << 63)], size),
                (
                    vec![file(0, b"a", (1 << 63) - 1), file(0, b"b", (1 << 63) - 1)],
                    size,
                ),
            ] {
                let list = list(&entries);
                bench.is_refused(offer_of(&list), &list, Reason::Refused, REFUSED, words);
            }
            let list = list(&[file(0, b"a", 1)]);
            for offer in [
                Offer {
                    entries: u32::MAX,
                    ..offer_of(&list)
                },
                Offer {
                    manifest_bytes: u64::MAX,
                    ..offer_of(&list)
                },
            ] {
                bench.is_refused(
                    offer,
                    &[],
                    Reason::Refused,
                    REFUSED,
                    "more than 1048576 files",
                );
            }
        },
    );
}

#[test]
fn unwanted_links_and_impossible_sizes_are_refused() {
    isolated(
        "unwanted_links_and_impossible_sizes_are_refused",
        "",
        || {
            let bench = Bench::new("links");
            let link = |target: &[u8]| Kind::Symlink(target.into());
            let lead_out = "`airdma recv --symlinks refuse` takes none";
            for (kind, reason, words) in [
                (link(b"/etc/passwd"), Reason::Clash, lead_out),
                (link(b"../up"), Reason::Clash, lead_out),
                (link(b"a/../../up"), Reason::Clash, lead_out),
                (content((1 << 62) - 1), Reason::NoSpace, "no space left"),
            ] {
                let offered = manifest(&[("b", kind)]);
                let list = offered.encode();
                let offer = Offer {
                    content_bytes: offered.content_bytes(),
                    manifest_id: offered.id(),
                    ..offer_of(&list)
                };
                bench.is_refused(offer, &list, reason, FILES, words);
            }
        },
    );
}

/// A step of an accepted sender, with its key and the next chunk.
type Trick = fn(&mut ByHand, &DataKey, &[u8]);

#[test]
fn forged_repeated_or_ungranted_chunks_end_the_transfer() {
    isolated(
        "forged_repeated_or_ungranted_chunks_end_the_transfer",
        "",
        || {
            let forged = "a chunk arrived that the sender did not send";
            let tricks: [(Trick, i32, &str); 5] = [
                // One of them may be forged, so the receiver waits for the sender.
                (under_another_key, INTERRUPTED, forged),
                (the_same_twice, INTERRUPTED, forged),
                (
                    beyond_what_was_granted,
                    PROTOCOL,
                    "chunks that were not granted",
                ),
                (with_another_hash, FLAWED, "it arrived damaged"),
                (
                    beyond_the_memory_that_was_given,
                    INTERRUPTED,
                    "run the same command to resume",
                ),
            ];
            for (number, (trick, status, words)) in tricks.into_iter().enumerate() {
                let bench = Bench::new(&format!("chunks-{number}"));
                let recv = bench.recv();
                let mut sender = bench.meet();
                // Two chunks, the first of which is full.
                let size = CHUNK_BYTES;
                let key = DataKey::draw();
                sender.offer(&manifest(&[("file", content(size))]), &key);
                trick(&mut sender, &key, &vec![7; size as usize]);
                sender.last_word();
                drop(sender);
                recv.ends(status, words);
                bench.is_untouched();
            }
        },
    );
}

fn under_another_key(sender: &mut ByHand, _: &DataKey, chunk: &[u8]) {
    let accept = sender.accepted();
    sender.write(chunk, &DataKey::draw(), 0, &accept, 0);
    sender.say(&Message::Arrived { until: 1 });
}

fn the_same_twice(sender: &mut ByHand, key: &DataKey, chunk: &[u8]) {
    let accept = sender.accepted();
    sender.write(chunk, key, 0, &accept, 0);
    sender.write(&chunk[..TRAILER_BYTES as usize], key, 0, &accept, 1);
    sender.say(&Message::Arrived { until: 2 });
}

fn beyond_what_was_granted(sender: &mut ByHand, _: &DataKey, _: &[u8]) {
    sender.accepted();
    sender.say(&Message::Arrived { until: u64::MAX });
}

fn with_another_hash(sender: &mut ByHand, key: &DataKey, chunk: &[u8]) {
    let accept = sender.accepted();
    sender.write(chunk, key, 0, &accept, 0);
    sender.write(&[0; TRAILER_BYTES as usize], key, 1, &accept, 1);
    sender.say(&Message::Arrived { until: 2 });
    while !matches!(sender.hear(), Some(Message::Finished { .. }) | None) {}
    sender.say(&Message::Bye);
}

fn beyond_the_memory_that_was_given(sender: &mut ByHand, _: &DataKey, _: &[u8]) {
    let mut staging = sender.accepted().staging;
    let length = u64::from_be_bytes(staging[16..].try_into().unwrap());
    // The sender's own end must not be what prevents it.
    staging[16..].copy_from_slice(&u64::MAX.to_be_bytes());
    let region = sender.line.device.allocate(4096).unwrap();
    assert!(sender.write_at(region, &staging, length).is_err());
}

#[test]
fn a_sender_that_breaks_the_protocol_early_leaves_nothing() {
    isolated(
        "a_sender_that_breaks_the_protocol_early_leaves_nothing",
        "",
        || {
            let bench = Bench::new("turned");
            let recv = bench.recv();
            let mut before = 0;
            for round in 0..8 {
                for trick in 0..5 {
                    let mut sender = bench.meet();
                    nonsense(&mut sender, trick);
                    assert!(
                        sender
                            .last_word()
                            .is_none_or(|(reason, _)| reason == Reason::Protocol)
                    );
                }
                if round == 1 {
                    before = recv.resident_bytes();
                }
            }
            let grown = recv.resident_bytes().saturating_sub(before);
            assert!(grown < GROWTH_BYTES_MAX, "it grew by {grown} bytes");
            bench.is_untouched();
            let path = bench.root.join("honest");
            fs::write(&path, "content").unwrap();
            let job = SendJob {
                code_tries: &CodeTries::default(),
                walking: &Walking::start(&[&path], Limits::default()).unwrap(),
                identity: &bench.sender,
                to: &[here()],
                introduction: Introduction::Code(Code::parse(CODE).unwrap()),
                patience: Duration::from_secs(1),
                config: Config::default(),
            };
            assert_eq!(send(&job, &|_| {}, &Cancel::default()).unwrap().files, 1);
            let said = recv.ends(0, r#""event":"end""#);
            // There were 40; this many are printed in a minute.
            assert_eq!(said.matches(r#""event":"turned""#).count(), 10, "{said}");
            assert_eq!(fs::read(bench.root.join("out/honest")).unwrap(), b"content");
        },
    );
}

/// Sends something that violates the protocol.
fn nonsense(sender: &mut ByHand, which: u32) {
    let list = list(&[file(0, b"a", 1)]);
    match which {
        // A record that is not the session's.
        0 => sender
            .line
            .say(&[&1000_u16.to_be_bytes()[..], &[7; 1000]].concat()),
        // An overlong frame.
        1 => sender.line.say(&[0xff; 100]),
        // Not a message.
        2 => sender.say_sealed(&[77; 1000]),
        // A message out of order.
        3 => sender.say(&Message::Arrived { until: 1 }),
        // A list that differs from the offered one.
        _ => sender.offer_bytes(offer_of(&list), &list),
    }
}
