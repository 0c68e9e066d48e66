//! The examples as separate programs, and peers that die.
#![allow(clippy::unwrap_used)]

mod common;

use airdma::{Blame, Device, Endpoint};
use common::*;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// One of the examples, which `cargo test -p airdma` builds.
fn example(name: &str) -> Command {
    let tests = std::env::current_exe().unwrap();
    let program = tests
        .ancestors()
        .nth(2)
        .unwrap()
        .join("examples")
        .join(name);
    assert!(
        program.exists(),
        "no {program:?}: `cargo build -p airdma --examples` makes it"
    );
    Command::new(program)
}

/// An example that is listening.
struct Listening(Child);

impl Listening {
    fn start(name: &str, arguments: &[&str]) -> Listening {
        let mut command = example(name);
        command
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert!(line.starts_with("listening"), "{name}: {line}");
        Listening(child)
    }

    fn signal(&self, signal: i32) {
        // SAFETY: our own child, not reaped yet, so the pid is valid.
        unsafe { libc::kill(self.0.id() as i32, signal) };
    }

    fn output(mut self) -> String {
        let status = self.0.wait().unwrap();
        assert!(status.success());
        std::io::read_to_string(self.0.stdout.take().unwrap()).unwrap()
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

fn said(output: &Output) -> String {
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{error}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn hello_is_answered_with_welcome() {
    isolated("hello_is_answered_with_welcome", "", || {
        let listening = Listening::start("hello", &["listen", "127.0.0.1"]);
        let greeted = example("hello")
            .args(["greet", "127.0.0.1"])
            .output()
            .unwrap();
        assert_eq!(said(&greeted), "127.0.0.1 says: welcome\n");
        assert_eq!(listening.output(), "127.0.0.1 says: hello\n");
    });
}

#[test]
fn ping_pong_measures() {
    isolated("ping_pong_measures", "", || {
        let listening = Listening::start("ping_pong", &["listen", "127.0.0.1"]);
        let measured = example("ping_pong")
            .args(["measure", "127.0.0.1", "512", "200"])
            .output()
            .unwrap();
        let line = said(&measured);
        let numbers: Vec<f64> = line
            .lines()
            .nth(1)
            .unwrap()
            .split(' ')
            .map(|word| word.parse().unwrap())
            .collect();
        assert_eq!(numbers[..2], [512.0, 200.0]);
        assert!(numbers[2] > 0.0 && numbers[2..].is_sorted(), "{line}");
        listening.output();
    });
}

#[test]
fn bandwidth_measures_writes_and_messages() {
    isolated("bandwidth_measures_writes_and_messages", "", || {
        for verb in ["write", "send"] {
            let listening = Listening::start("bandwidth", &["listen", "127.0.0.1"]);
            let measured = example("bandwidth")
                .args([verb, "127.0.0.1", "4096", "1"])
                .output()
                .unwrap();
            let line = said(&measured);
            let mut words = line.lines().nth(1).unwrap().split(' ');
            assert_eq!(words.next(), Some("4096"));
            assert!(
                words.next().unwrap().parse::<u64>().unwrap() > 128,
                "{line}"
            );
            assert!(
                words.next().unwrap().parse::<f64>().unwrap() > 0.0,
                "{line}"
            );
            listening.output();
        }
    });
}

#[test]
fn several_programs_add_to_one_counter() {
    isolated("several_programs_add_to_one_counter", "", || {
        let owner = Listening::start("counter", &["own", "127.0.0.1", "3"]);
        let adding: Vec<_> = ["100", "200", "345"]
            .map(|times| {
                example("counter")
                    .args(["add", "127.0.0.1", times])
                    .spawn()
                    .unwrap()
            })
            .into_iter()
            .collect();
        for mut program in adding {
            assert!(program.wait().unwrap().success());
        }
        assert_eq!(owner.output(), "645\n");
    });
}

#[test]
fn a_hundred_sensors_write_to_one_endpoint() {
    isolated("a_hundred_sensors_write_to_one_endpoint", "", || {
        for drops in ["0%", "10%"] {
            let watcher = Listening::start("sensors", &["watch", "127.0.0.1"]);
            let field = example("sensors")
                .args(["measure", "127.0.0.1", "12"])
                .env("AIRDMA_IMPAIR", format!("drop={drops},seed=6"))
                .output()
                .unwrap();
            assert_eq!(said(&field), "1200 readings of 100 sensors\n");
            let told = watcher.output();
            let (readings, rest) = told.split_once(' ').unwrap();
            assert!(
                rest.starts_with("of 1200 readings, of 100 sensors\n"),
                "{told}"
            );
            let readings: u32 = readings.parse().unwrap();
            if drops == "0%" {
                assert_eq!(readings, 1200);
                assert!(told.ends_with("Some(11) to Some(11)\n"), "{told}");
            } else {
                // 120 are lost on average, with a deviation of 10.
                assert!((1020..1140).contains(&readings), "{told}");
            }
        }
    });
}

/// A connection to a program that answers every message, after one answer.
fn connected() -> (Listening, Device, Endpoint) {
    let program = Listening::start("ping_pong", &["listen", "127.0.0.1"]);
    let device = Device::open("127.0.0.1").unwrap();
    let endpoint = device.connect("127.0.0.1:7472").wait().unwrap();
    let receiving = endpoint.recv(device.allocate(8).unwrap(), ..);
    endpoint.send(filled(&device, b"ping"), ..).wait().unwrap();
    receiving.wait().unwrap();
    (program, device, endpoint)
}

#[test]
fn waiting_for_a_killed_program_fails_within_seconds() {
    isolated(
        "waiting_for_a_killed_program_fails_within_seconds",
        "",
        || {
            let (program, device, endpoint) = connected();
            let receiving = endpoint.recv(device.allocate(8).unwrap(), ..);
            let start = Instant::now();
            program.signal(libc::SIGKILL);
            let error = receiving.wait().unwrap_err();
            assert!(
                start.elapsed() < Duration::from_secs(10),
                "{:?}",
                start.elapsed()
            );
            assert!(
                matches!(error.blame(), Blame::Peer | Blame::Network),
                "{error}"
            );
            assert!(error.into_region().is_some());
            let error = endpoint
                .send(filled(&device, b"ping"), ..)
                .wait()
                .unwrap_err();
            assert!(
                matches!(error.blame(), Blame::Peer | Blame::Network),
                "{error}"
            );
        },
    );
}

#[test]
fn a_network_that_is_gone_is_noticed_by_a_mere_receiver() {
    isolated(
        "a_network_that_is_gone_is_noticed_by_a_mere_receiver",
        "",
        || {
            let (_program, device, endpoint) = connected();
            let receiving = endpoint.recv(device.allocate(8).unwrap(), ..);
            let start = Instant::now();
            let mut down = Command::new("ip");
            let down = down.args(["link", "set", "lo", "down"]).status();
            assert!(down.unwrap().success());
            let error = receiving.wait().unwrap_err();
            assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
            assert_eq!(error.blame(), Blame::Network, "{error}");
            assert!(error.to_string().contains("does not answer"), "{error}");
        },
    );
}

#[test]
fn a_peer_that_is_stopped_is_waited_for() {
    isolated("a_peer_that_is_stopped_is_waited_for", "", || {
        let (program, device, endpoint) = connected();
        let mut receiving = endpoint.recv(device.allocate(8).unwrap(), ..);
        program.signal(libc::SIGSTOP);
        // Longer than a peer of which nothing is known may be silent.
        let stopped = Duration::from_secs(12);
        assert!(receiving.wait_timeout(stopped).is_none());
        program.signal(libc::SIGCONT);
        endpoint.send(filled(&device, b"ping"), ..).wait().unwrap();
        assert_eq!(receiving.wait().unwrap().len(), 4);
    });
}

#[test]
fn a_peer_that_is_well_is_waited_for() {
    isolated("a_peer_that_is_well_is_waited_for", "", || {
        let (_program, device, endpoint) = connected();
        let mut receiving = endpoint.recv(device.allocate(8).unwrap(), ..);
        // Keepalives go on meanwhile.
        assert!(receiving.wait_timeout(Duration::from_secs(5)).is_none());
        endpoint.send(filled(&device, b"ping"), ..).wait().unwrap();
        assert_eq!(receiving.wait().unwrap().len(), 4);
    });
}

#[test]
fn errors_before_a_connection_say_what_to_do() {
    let veth = "ip link add a0 type veth peer name b0\nip addr add 192.0.2.1/24 dev a0\nip link set a0 up\nip link set b0 up";
    isolated("errors_before_a_connection_say_what_to_do", veth, || {
        let device = Device::open("127.0.0.1").unwrap();
        let refused = |to: &str| device.connect(to).wait().unwrap_err();

        let error = refused("127.0.0.1:9999");
        assert_eq!(error.blame(), Blame::Peer, "{error}");
        assert!(error.to_string().contains("no program listens"), "{error}");

        let error = refused("no port");
        assert_eq!(error.blame(), Blame::You, "{error}");
        assert!(error.to_string().contains("HOST:PORT"), "{error}");

        let error = refused("[2001:db8::1]:1");
        assert_eq!(error.blame(), Blame::You, "{error}");
        assert!(error.to_string().contains("no IPv6 address"), "{error}");

        let error = Device::open("eth7").unwrap_err();
        assert_eq!(error.blame(), Blame::You, "{error}");
        assert!(error.to_string().contains("lo (127.0.0.1)"), "{error}");

        let listener = device.listen(PORT).unwrap();
        let error = device.listen(PORT).unwrap_err();
        assert_eq!(error.blame(), Blame::System, "{error}");
        assert_eq!(listener.port(), PORT);

        let start = Instant::now();
        let far = Device::open("192.0.2.1").unwrap();
        let error = far.connect("192.0.2.77:1").wait().unwrap_err();
        assert_eq!(error.blame(), Blame::Network, "{error}");
        assert!(
            error.to_string().contains("192.0.2.77 does not answer"),
            "{error}"
        );
        assert!(start.elapsed() < PATIENCE, "{:?}", start.elapsed());
    });
}

#[test]
fn an_accept_that_is_given_up_loses_no_connection() {
    isolated("an_accept_that_is_given_up_loses_no_connection", "", || {
        let device = Device::open("127.0.0.1").unwrap();
        let listener = device.listen(PORT).unwrap();
        let mut accepting = listener.accept();
        assert!(accepting.wait_timeout(Duration::ZERO).is_none());
        let connecting = device.connect(("127.0.0.1", PORT));
        drop(accepting);
        let server = listener.accept().wait().unwrap();
        let client = connecting.wait().unwrap();
        drop(client);
        let end = server.recv(device.allocate(1).unwrap(), ..).wait();
        assert!(end.unwrap_err().is_closed());
    });
}
