//! Two hosts, made and removed. One thread runs all: without root the kernel permits a user
//! namespace only to such a process.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use airdma_lab::{Cable, Lab, LabError, Listening, Server, enter};

const CHILD: &str = "AIRDMA_LAB_TEST_CHILD";
const LIMIT: Duration = Duration::from_secs(10);

fn main() {
    if let Err(error) = enter() {
        println!("skipped: {error}");
        return;
    }
    if std::env::var_os(CHILD).is_some() {
        be_killed();
    }
    type Check = fn();
    let checks: [(&str, Check); 7] = [
        ("bytes_cross_the_cable", bytes_cross_the_cable),
        ("the_cable_is_as_asked", the_cable_is_as_asked),
        ("a_lossy_cable_loses", a_lossy_cable_loses),
        ("a_pair_says_what_it_cost", a_pair_says_what_it_cost),
        ("failures_are_explained", failures_are_explained),
        ("ctrl_c_ends_what_runs", ctrl_c_ends_what_runs),
        ("sigkill_leaves_nothing", sigkill_leaves_nothing),
    ];
    for (name, check) in checks {
        check();
        println!("test {name} ... ok");
    }
    println!("{} passed, 0 failed", checks.len());
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

fn shell(script: &str) -> Vec<String> {
    vec!["sh".into(), "-c".into(), script.into()]
}

fn bytes_cross_the_cable() {
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = descriptors();
    let lab = Lab::new(Cable::default()).unwrap();
    let server = shell("cat /sys/class/net/eth0/mtu; exec sleep 1");
    let server = Server {
        command: &server,
        listening: Listening::Idle,
        stays: true,
    };
    let pair = lab.run_pair(server, &words("cat /proc/net/dev"), LIMIT);
    let pair = pair.unwrap();
    // /sys shows this host's interface, not those of the machine.
    assert_eq!(pair.server.stdout, "1500\n");
    assert!(pair.output().unwrap().contains("eth0:"));
    drop(lab);
    assert_eq!(descriptors(), before);
}

fn the_cable_is_as_asked() {
    for mtu in [1500, 4200, 9000] {
        let cable = Cable {
            mtu,
            segmented: mtu != 4200,
            lost_one_in: 0,
        };
        let lab = Lab::new(cable).unwrap();
        let script = "cat /sys/class/net/eth0/mtu /sys/class/net/eth0/operstate";
        let outcome = lab.run_alone(&shell(script), LIMIT).unwrap();
        assert_eq!(outcome.stdout, format!("{mtu}\nup\n"));
        exchange(&lab);
    }
}

/// A TCP connection from a to b over each family carries a byte.
fn exchange(lab: &Lab) {
    for (client, server) in [(lab.a.ipv4, lab.b.ipv4), (lab.a.ipv6, lab.b.ipv6)] {
        let listener = lab.on_b(|| TcpListener::bind((server, 7)));
        let listener = listener.unwrap();
        let stream = lab.on_a(|| TcpStream::connect((server, 7)));
        let mut stream = stream.unwrap();
        let (mut accepted, from) = listener.accept().unwrap();
        assert_eq!(from.ip(), client);
        stream.write_all(b"x").unwrap();
        accepted.read_exact(&mut [0]).unwrap();
    }
}

fn a_lossy_cable_loses() {
    let cable = Cable {
        lost_one_in: 4,
        ..Cable::default()
    };
    let lab = match Lab::new(cable) {
        Ok(lab) => lab,
        Err(error) => {
            assert!(error.to_string().contains("nftables"), "{error}");
            return;
        }
    };
    let receiver = lab.on_b(|| UdpSocket::bind((lab.b.ipv4, 7))).unwrap();
    let sender = lab.on_a(|| UdpSocket::bind((lab.a.ipv4, 0))).unwrap();
    receiver.set_nonblocking(true).unwrap();
    let to = SocketAddr::new(lab.b.ipv4, 7);
    // Until each end knows the other's address; neighbour requests may be lost, too.
    let deadline = Instant::now() + LIMIT;
    while receiver.recv(&mut [0]).is_err() {
        assert!(Instant::now() < deadline);
        let _ = sender.send_to(b"x", to);
        thread::sleep(Duration::from_millis(50));
    }
    thread::sleep(Duration::from_millis(100));
    while receiver.recv(&mut [0]).is_ok() {}
    let arrived = (0..1000)
        .filter(|_| sender.send_to(b"x", to).is_ok() && receiver.recv(&mut [0]).is_ok())
        .count();
    assert!((600..900).contains(&arrived), "{arrived} of 1,000");
}

fn a_pair_says_what_it_cost() {
    let lab = Lab::new(Cable::default()).unwrap();
    assert!(lab.cores() >= 1);
    let busy = shell("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done");
    let outcome = lab.run_alone(&busy, LIMIT).unwrap();
    assert!(outcome.ok && outcome.cpu_s > 0.02, "{outcome:?}");
    assert!(outcome.wall_s >= outcome.cpu_s * 0.9, "{outcome:?}");
    let affinity = "grep Cpus_allowed_list /proc/self/status";
    let outcome = lab.run_alone(&shell(affinity), LIMIT).unwrap();
    let core = outcome.stdout.split_ascii_whitespace().nth(1).unwrap();
    assert_eq!(core, lab.a.core.to_string());
}

fn failures_are_explained() {
    let lab = Lab::new(Cable::default()).unwrap();
    let outcome = lab.run_alone(&shell("echo out; echo err >&2; exit 3"), LIMIT);
    let outcome = outcome.unwrap();
    assert!(!outcome.ok);
    let text = outcome.explain();
    assert!(
        text.contains("exit status: 3") && text.contains("out\nerr\n"),
        "{text}"
    );
    let outcome = lab.run_alone(&words("sleep 100"), Duration::from_millis(200));
    assert!(outcome.unwrap().explain().contains("still running, killed"));
    let server = shell("echo no >&2; exit 1");
    let server = Server {
        command: &server,
        listening: Listening::Tcp(7),
        stays: false,
    };
    let pair = lab.run_pair(server, &words("true"), LIMIT).unwrap();
    assert_eq!((pair.client.is_none(), pair.output()), (true, None));
    assert!(pair.explain().contains("no\n"));
    let missing = lab.run_alone(&words("airdma-no-such-program"), LIMIT);
    let error = missing.unwrap_err().to_string();
    assert!(error.contains("starting airdma-no-such-program"), "{error}");
}

fn ctrl_c_ends_what_runs() {
    let lab = Lab::new(Cable::default()).unwrap();
    let process = std::process::id();
    let sleeper = shell(&format!(
        "kill -INT {process}; echo $$ > /proc/self/comm; exec sleep 100"
    ));
    let started = Instant::now();
    let stopped = lab.run_alone(&sleeper, LIMIT);
    assert!(
        matches!(stopped, Err(LabError::Interrupted(libc::SIGINT))),
        "{stopped:?}"
    );
    assert!(started.elapsed() < LIMIT);
    drop(lab);
    // The next lab waits for the next signal.
    let lab = Lab::new(Cable::default()).unwrap();
    assert!(lab.run_alone(&words("true"), LIMIT).unwrap().ok);
}

fn sigkill_leaves_nothing() {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    output.read_line(&mut said).unwrap();
    let program = Path::new("/proc").join(said.trim());
    assert!(program.exists(), "{said:?}");
    child.kill().unwrap();
    child.wait().unwrap();
    let deadline = Instant::now() + LIMIT;
    let is_gone =
        || fs::read_to_string(program.join("stat")).map_or(true, |stat| stat.contains(") Z "));
    while !is_gone() {
        assert!(
            Instant::now() < deadline,
            "{} still runs",
            program.display()
        );
        thread::sleep(Duration::from_millis(10));
    }
}

fn be_killed() -> ! {
    let lab = Lab::new(Cable::default()).unwrap();
    let program = lab.a.start(&words("sleep 1000")).unwrap();
    println!("{}", program.id());
    io::stdout().flush().unwrap();
    thread::sleep(Duration::from_secs(60));
    panic!("nobody killed us")
}
