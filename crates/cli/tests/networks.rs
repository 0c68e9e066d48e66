//! `airdma recv` on changing or unusual networks: many interfaces, ports in use, addresses that
//! come and go.
#![allow(clippy::unwrap_used)]

#[path = "../../engine/tests/common/isolated.rs"]
mod isolated;

use isolated::isolated;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

const CODE: &str = "lusab-babad";
const SOON: Duration = Duration::from_secs(20);

/// Two interfaces of a host, each with one address.
const SETUP: &str = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
    ip link add one type veth peer name two
    ip link set one up; ip link set two up
    ip address add 10.9.1.1/24 dev one
    ip address add 10.9.2.1/24 dev two";

fn ip(arguments: &str) {
    let mut command = Command::new("ip");
    let status = command.args(arguments.split_whitespace()).status();
    assert!(status.unwrap().success(), "ip {arguments}");
}

/// `airdma recv --keep` and its output, ended with the test.
struct Recv {
    child: Child,
    events: Receiver<Value>,
    name: String,
    directory: PathBuf,
}

impl Recv {
    fn start(name: &str, before: &[&str]) -> Self {
        let called = format!("{} here", Self::directory(name));
        Self::start_with(name, before, &["--name", &called])
    }

    fn directory(name: &str) -> String {
        format!("airdma-networks-{name}-{}", std::process::id())
    }

    fn start_with(name: &str, before: &[&str], options: &[&str]) -> Self {
        let name = Self::directory(name);
        let directory = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(directory.join("in")).unwrap();
        let mut command = Command::new("setpriv");
        command
            .args(["--pdeathsig", "KILL"])
            .args(before)
            .args([env!("CARGO_BIN_EXE_airdma"), "recv"])
            .args(["--json", "--yes", "--keep", "--code", CODE])
            .args(options)
            .arg(directory.join("in"))
            .env("AIRDMA_HOME", directory.join("home"))
            .stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (sender, events) = mpsc::channel();
        thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if sender.send(serde_json::from_str(&line).unwrap()).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            events,
            name,
            directory,
        }
    }

    /// The next event of a kind.
    fn next(&self, kind: &str) -> Value {
        let until = Instant::now() + SOON;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let event = self.events.recv_timeout(left);
            let event = event.unwrap_or_else(|_| panic!("no {kind}"));
            if event["event"] == kind {
                return event;
            }
        }
    }

    /// Waits until peers can, or cannot, connect to an address.
    fn until(&self, address: &str, is_there: bool) {
        while addresses(&self.next("addresses")).contains(&address.to_owned()) != is_there {}
    }

    fn ended(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Recv {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

fn addresses(event: &Value) -> Vec<String> {
    let addresses = event["addresses"].as_array().unwrap().iter();
    addresses
        .map(|it| it.as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn who_has_too_few_descriptors_for_all_interfaces_says_so_once() {
    let name = "who_has_too_few_descriptors_for_all_interfaces_says_so_once";
    isolated(name, SETUP, || {
        // Room for only some of what three interfaces need: something else is missing each time.
        for limit in 28..=55 {
            let limit = format!("--nofile={limit}:{limit}");
            let recv = Recv::start("few", &["prlimit", &limit]);
            let first = recv.events.recv_timeout(SOON).unwrap();
            thread::sleep(Duration::from_millis(100));
            let said = recv.events.try_iter().count();
            assert!(said < 10, "{limit}: {said} events: {first}");
        }
    });
}

#[test]
fn a_receiver_may_exceed_the_soft_limit_of_descriptors() {
    let name = "a_receiver_may_exceed_the_soft_limit_of_descriptors";
    let many = "echo 1 > /proc/sys/net/ipv6/conf/default/disable_ipv6
        for number in $(seq 15); do
            ip link add one$number type veth peer name two$number
            ip address add 10.9.1.$number/32 dev one$number
            ip address add 10.9.2.$number/32 dev two$number
            ip link set one$number up; ip link set two$number up
        done";
    isolated(name, many, || {
        let recv = Recv::start("many", &["prlimit", "--nofile=128:4096"]);
        let here = addresses(&recv.next("listening"));
        let of_others = here.iter().filter(|address| address.starts_with("10.9."));
        assert_eq!(of_others.count(), 30, "{here:?}");
        let threads = std::fs::read_dir(format!("/proc/{}/task", recv.child.id())).unwrap();
        assert!(threads.count() <= 10, "idle devices share their threads");
    });
}

#[test]
fn an_unreachable_receiver_does_not_wait() {
    let name = "an_unreachable_receiver_does_not_wait";
    isolated(name, SETUP, || {
        let taken = ["10.9.1.1:4791", "10.9.2.1:4791"].map(|at| UdpSocket::bind(at).unwrap());
        let mut recv = Recv::start("taken", &[]);
        let error = recv.next("error");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains("4791"), "{message}");
        assert_eq!(recv.ended().code(), Some(1));
        drop(taken);
    });
}

#[test]
fn a_receiver_says_where_nobody_can_connect_until_it_is_free() {
    let name = "a_receiver_says_where_nobody_can_connect_until_it_is_free";
    isolated(name, SETUP, || {
        let taken = UdpSocket::bind("10.9.2.1:4791").unwrap();
        let recv = Recv::start("one", &[]);
        let here = addresses(&recv.next("listening"));
        let shut = recv.next("shut");
        assert_eq!(shut["interface"], "two");
        assert!(here.contains(&"10.9.1.1".to_owned()), "{here:?}");
        assert!(!here.contains(&"10.9.2.1".to_owned()), "{here:?}");
        drop(taken);
        recv.until("10.9.2.1", true);
    });
}

#[test]
fn a_receiver_follows_interfaces_and_addresses() {
    let name = "a_receiver_follows_interfaces_and_addresses";
    isolated(name, SETUP, || {
        let recv = Recv::start("follows", &[]);
        let here = addresses(&recv.next("listening"));
        assert!(here.contains(&"10.9.1.1".to_owned()), "{here:?}");
        ip("address add 10.9.1.2/24 dev one");
        recv.until("10.9.1.2", true);
        ip("address del 10.9.1.1/24 dev one");
        recv.until("10.9.1.1", false);
        ip("link del one");
        recv.until("10.9.1.2", false);
        ip("link add one type veth peer name two");
        ip("link set one up");
        ip("address add 10.9.1.3/24 dev one");
        recv.until("10.9.1.3", true);
        // The event is true.
        send_to("10.9.1.3", &recv.directory);
    });
}

/// Sends a file there, and checks that it arrives.
fn send_to(to: &str, directory: &Path) {
    let (said, status) = sent(to, directory);
    assert!(status.success(), "{to}: {said}");
    let arrived = directory.join("in/file");
    assert_eq!(std::fs::read_to_string(&arrived).unwrap(), to);
    std::fs::remove_file(arrived).unwrap();
}

/// Output and exit status of `airdma send`.
fn sent(to: &str, directory: &Path) -> (String, ExitStatus) {
    std::fs::write(directory.join("file"), to).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_airdma"));
    command
        .args(["send", "--json", "--code", CODE])
        .arg(directory.join("file"))
        .args(["--to", to])
        .env("AIRDMA_HOME", directory.join("sender"))
        .stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    let mut output = child.stdout.take().unwrap();
    output.read_to_string(&mut said).unwrap();
    (said, child.wait().unwrap())
}

#[test]
fn two_receivers_of_one_name_are_told_apart() {
    let name = "two_receivers_of_one_name_are_told_apart";
    isolated(name, SETUP, || {
        let recv = Recv::start_with("twin", &[], &["--on", "one", "--name", "anna"]);
        recv.next("listening");
        let other = Recv::start_with("other", &[], &["--on", "two", "--name", "anna"]);
        other.next("listening");
        let until = Instant::now() + SOON;
        loop {
            // Until both have announced their names.
            let (said, status) = sent("anna", &recv.directory);
            if status.code() == Some(2) {
                assert!(said.contains("10.9.1.1, 10.9.2.1"), "{said}");
                break;
            }
            assert!(Instant::now() < until, "{said}");
            for receiver in [&recv, &other] {
                std::fs::remove_file(receiver.directory.join("in/file")).ok();
            }
            // From then on the known receiver is meant.
            std::fs::remove_dir_all(recv.directory.join("sender")).ok();
        }
        drop(other);
    });
}

/// A host with link-local addresses only.
const LINK_LOCAL: &str = "echo 0 > /proc/sys/net/ipv6/conf/default/accept_dad
    echo 1 > /proc/sys/net/ipv6/conf/default/addr_gen_mode
    ip link add one type veth peer name two
    ip link set one up; ip link set two up
    ip address add fe80::1/64 dev one nodad
    ip address add fe80::2/64 dev two nodad
    ip link set lo down";

#[test]
fn link_local_addresses_are_enough() {
    let name = "link_local_addresses_are_enough";
    isolated(name, LINK_LOCAL, || {
        let recv = Recv::start("link", &[]);
        let here = addresses(&recv.next("listening"));
        assert!(here.contains(&"fe80::2".to_owned()), "{here:?}");
        send_to("fe80::2%one", &recv.directory);
        send_to("[fe80::1%two]:7479", &recv.directory);
        send_to(&format!("{} here", recv.name), &recv.directory);
    });
}
