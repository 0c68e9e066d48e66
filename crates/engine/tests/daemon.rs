//! Devices of a daemon: docs/design/034-daemon.md. The daemon is a process of its own, and so are
//! clients that are killed or hostile; the others are this process.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::io::{Read, Write};
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The test that the processes of the others run.
const PROCESS: &str = "in_a_process";
/// Bound of what must be noticed soon: a second on a machine that has nothing else to do.
const SOON: Duration = Duration::from_secs(5);

/// Not a test: the processes of the others run this.
#[test]
fn in_a_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    match role.as_str() {
        "daemon" => serve(&socket),
        "target" => {
            let end = End::new(&open("veth1", Some(&socket)), QpType::Rc, 4096);
            let path = open_path("veth0");
            to_rtr(&end.qp, Qpn::new(number_from_parent()), path);
            let (qpn, key) = (end.qp.number().get(), end.memory.mr.rkey().0);
            say(&format!("{qpn} {key} {}", end.memory.address()));
            loop {
                std::thread::park();
            }
        }
        "scribbler" => scribble(&open("veth1", Some(&socket))),
        other => panic!("no such role: {other}"),
    }
}

fn start(name: &str) -> Running {
    Running::start_by(PROCESS, name)
}

impl Running {
    fn pair(&self) -> (End, End) {
        let [left, right] = ["veth0", "veth1"].map(|interface| {
            let device = open(interface, Some(&self.socket));
            End::new(&device, QpType::Rc, 1 << 20)
        });
        left.connect(&right);
        right.connect(&left);
        (left, right)
    }
}

fn open_path(interface: &str) -> Path {
    Path {
        gid: info_of(interface).gids[0].gid,
        hop_limit: 64,
        ..Path::default()
    }
}

fn number_from_parent() -> u32 {
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    line.trim().parse().unwrap()
}

/// Sends, writes, reads and atomics, of one packet and of many.
fn exchange(left: &End, right: &End) {
    let length = 100_000;
    let pattern: Vec<u8> = (0..length).map(|at| (at * 31 % 251) as u8).collect();
    left.memory.fill(0, &pattern);
    right.recv(5, 0, length);
    left.send(Operation::Send, 0, length);
    assert_eq!(left.ok().wr_id, 7);
    let received = right.ok();
    assert_eq!((received.wr_id, received.byte_len as usize), (5, length));
    assert_eq!(right.memory.bytes(0, length), pattern);

    let to = 200_000;
    left.qp.post_send(&left.write(right, to, 8)).unwrap();
    left.ok();
    assert_eq!(right.memory.bytes(to, 8), left.memory.bytes(to, 8));
    let (va, rkey) = (right.memory.address(), right.memory.mr.rkey());
    left.send(Operation::Read { va, rkey }, 400_000, length);
    left.ok();
    assert_eq!(left.memory.bytes(400_000, length), pattern);
    let before = right.memory.word(0);
    left.send(Operation::FetchAdd { va, rkey, add: 3 }, 8, 8);
    left.ok();
    assert_eq!(left.memory.word(8), before);
    assert_eq!(right.memory.word(0), before.wrapping_add(3));
}

/// Waits for an asynchronous event that is `wanted`.
fn await_event(end: &End, wanted: impl Fn(&AsyncEvent) -> bool) {
    let start = Instant::now();
    let fd = end.device.async_fd();
    // SAFETY: plain integers.
    unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) };
    loop {
        match end.device.wait_async_event() {
            Ok(event) if wanted(&event) => return,
            Ok(_) => {}
            Err(_) => {
                assert!(start.elapsed() < SOON, "no such event");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
    }
}

#[test]
fn clients_of_a_daemon_reach_each_other_and_other_processes() {
    isolated(
        "clients_of_a_daemon_reach_each_other_and_other_processes",
        TWO_INTERFACES,
        || {
            let running = start("exchange");
            let (left, right) = running.pair();
            exchange(&left, &right);
            exchange(&right, &left);
            drop(right);
            // The same address, in this process and in the daemon's.
            let right = End::new(&open("veth1", None), QpType::Rc, 1 << 20);
            let again = End::new(&left.device, QpType::Rc, 1 << 20);
            again.connect(&right);
            right.connect(&again);
            exchange(&again, &right);
            exchange(&right, &again);
        },
    );
}

#[test]
fn a_client_that_sleeps_is_woken_for_its_events() {
    isolated(
        "a_client_that_sleeps_is_woken_for_its_events",
        TWO_INTERFACES,
        || {
            let running = start("sleep");
            let (left, right) = running.pair();
            for round in 0..50 {
                right.recv(round, 0, 64);
                right.cq.arm(false).unwrap();
                // Long enough for all to sleep, now and then.
                let pause = Duration::from_millis(if round % 10 == 0 { 30 } else { 0 });
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        std::thread::sleep(pause);
                        left.send(Operation::Send, 0, 64);
                        left.ok();
                    });
                    assert_eq!(right.channel.wait_event().unwrap(), 42);
                });
                assert_eq!(right.ok().wr_id, round);
            }
        },
    );
}

#[test]
fn a_key_that_is_gone_opens_nothing_and_events_arrive() {
    isolated(
        "a_key_that_is_gone_opens_nothing_and_events_arrive",
        TWO_INTERFACES,
        || {
            let running = start("keys");
            let (left, right) = running.pair();
            let write = left.write(&right, 0, 8);
            right.memory.mr.deregister().unwrap();
            left.qp.post_send(&write).unwrap();
            assert_eq!(left.complete().status, Status::RemoteAccessError);
            let number = right.qp.number();
            await_event(
                &right,
                |event| matches!(*event, AsyncEvent::Qp { number: of, event: QpEvent::AccessError, .. } if of == number),
            );
            // Receives that are posted now are flushed, though no thread here knows the state.
            let memory = Memory::new(&right.pd, 64, ALL);
            let sges = [memory.sge(0, 8)];
            let wr = RecvWr {
                wr_id: 9,
                sges: &sges,
            };
            right.qp.post_recv(&wr).unwrap();
            assert_eq!(right.complete().status, Status::WrFlushError);
            assert_eq!(right.qp.state(), QpState::Error);
        },
    );
}

#[test]
fn memory_that_is_unmapped_is_an_error_and_not_a_fault() {
    isolated(
        "memory_that_is_unmapped_is_an_error_and_not_a_fault",
        TWO_INTERFACES,
        || {
            let running = start("unmapped");
            let (left, right) = running.pair();
            let bytes = 1 << 16;
            // SAFETY: a new mapping, where the kernel likes it.
            let at = unsafe {
                let (rights, how) = (
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                );
                libc::mmap(std::ptr::null_mut(), bytes, rights, how, -1, 0)
            };
            let address = at.expose_provenance() as u64;
            let mr = left.pd.reg_mr(address, bytes, address, ALL).unwrap();
            // SAFETY: the mapping from above, to which nothing refers.
            unsafe { libc::munmap(at, bytes) };
            let sge = Sge {
                addr: address,
                length: 5000,
                lkey: mr.lkey().0,
            };
            right.recv(1, 0, 5000);
            let wr = signalled(Operation::Send, sge);
            left.qp.post_send(&wr).unwrap();
            assert_eq!(left.complete().status, Status::LocalProtectionError);
            let unmapped = left.pd.reg_mr(address, bytes, address, ALL);
            assert_eq!(unmapped.err().unwrap().errno(), libc::EFAULT);
            drop((left, right));
            let (left, right) = running.pair();
            exchange(&left, &right);
        },
    );
}

#[test]
fn what_a_killed_daemon_leaves_is_flushed() {
    isolated(
        "what_a_killed_daemon_leaves_is_flushed",
        TWO_INTERFACES,
        || {
            let mut running = start("killed");
            let (left, right) = running.pair();
            exchange(&left, &right);
            for wr_id in 0..3 {
                right.recv(wr_id, 0, 64);
            }
            let start = Instant::now();
            running.daemon.kill();
            for wr_id in 0..3 {
                let flushed = right.complete();
                assert_eq!(
                    (flushed.wr_id, flushed.status),
                    (wr_id, Status::WrFlushError)
                );
            }
            await_event(&left, |event| matches!(event, AsyncEvent::DeviceFatal));
            await_event(&right, |event| matches!(event, AsyncEvent::DeviceFatal));
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            left.send(Operation::Send, 0, 8);
            assert_eq!(left.complete().status, Status::WrFlushError);
            right.recv(8, 0, 64);
            assert_eq!(right.complete().wr_id, 8);
            let refused = left.pd.reg_mr(left.memory.address(), 8, 0, ALL);
            assert_eq!(refused.err().unwrap().errno(), libc::ENODEV);
            left.qp.destroy().unwrap();
            left.memory.mr.deregister().unwrap();
            left.cq.destroy().unwrap();
            drop((left, right));
            // The next daemon takes the place of its socket.
            let mut again = Process::start(PROCESS, "daemon", &running.socket);
            assert_eq!(again.line(), "ready");
            let (left, right) = running.pair();
            exchange(&left, &right);
        },
    );
}

#[test]
fn a_thread_that_waits_learns_of_the_end_of_the_daemon() {
    isolated(
        "a_thread_that_waits_learns_of_the_end_of_the_daemon",
        TWO_INTERFACES,
        || {
            let mut running = start("waits");
            let (_left, right) = running.pair();
            right.recv(3, 0, 64);
            right.cq.arm(false).unwrap();
            std::thread::scope(|scope| {
                let waiting = scope.spawn(|| {
                    right.channel.wait_event().unwrap();
                    Instant::now()
                });
                std::thread::sleep(Duration::from_millis(50));
                let start = Instant::now();
                running.daemon.kill();
                assert!(waiting.join().unwrap() - start < SOON);
            });
            assert_eq!(right.complete().status, Status::WrFlushError);
        },
    );
}

#[test]
fn peers_of_a_killed_client_get_errors() {
    isolated(
        "peers_of_a_killed_client_get_errors",
        TWO_INTERFACES,
        || {
            let running = start("client");
            let left = End::new(&open("veth0", Some(&running.socket)), QpType::Rc, 4096);
            let mut target = Process::start(PROCESS, "target", &running.socket);
            let number = left.qp.number().get();
            writeln!(target.child.stdin.take().unwrap(), "{number}").unwrap();
            let line = target.line();
            let mut words = line.split(' ').map(|word| word.parse::<u64>().unwrap());
            let mut word = || words.next().unwrap();
            let (qpn, rkey, va) = (word() as u32, Rkey(word() as u32), word());
            to_rtr(&left.qp, Qpn::new(qpn), open_path("veth1"));
            // Its own retries would take 6 s.
            to_rts(&left.qp, 14);
            let write = Operation::Write { va, rkey };
            left.send(write, 0, 8);
            left.ok();
            let start = Instant::now();
            target.kill();
            let status = loop {
                left.send(write, 0, 8);
                let status = left.complete().status;
                if status != Status::Success {
                    break status;
                }
            };
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            let is_refused = [Status::RemoteAccessError, Status::RemoteOperationError];
            assert!(is_refused.contains(&status), "{status:?}");
        },
    );
}

/// Writes random bytes to all memory that it shares with the daemon, while it posts and asks.
fn scribble(device: &Arc<Device>) {
    let end = End::new(device, QpType::Rc, 4096);
    let number = end.qp.number();
    connect(&end.qp, number, open_path("veth1"));
    say("1");
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let shared = maps
        .lines()
        .filter(|line| line.contains("memfd:airdma-shm"));
    let shared: Vec<(usize, usize)> = shared
        .map(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            let number = |digits| usize::from_str_radix(digits, 16).unwrap();
            (number(from), number(to))
        })
        .collect();
    assert!(!shared.is_empty());
    let mut random: u64 = 0x9e37_79b9_7f4a_7c15;
    loop {
        for _ in 0..10_000 {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (from, to) = shared[random as usize % shared.len()];
            // The front of the arena is where the rings are.
            let span = if random & 1 == 0 { to - from } else { 1 << 16 };
            let at = from + (random >> 8) as usize % span.min(to - from);
            // SAFETY: within a mapping of the engine's, which is read as atomics alone; the test is
            // about what becomes of it.
            unsafe { std::ptr::with_exposed_provenance_mut::<u8>(at).write_volatile(random as u8) };
        }
        end.qp
            .post_recv(&RecvWr {
                wr_id: 1,
                sges: &[],
            })
            .ok();
        end.qp.query().ok();
    }
}

#[test]
fn a_client_that_scribbles_harms_itself_alone() {
    isolated(
        "a_client_that_scribbles_harms_itself_alone",
        TWO_INTERFACES,
        || {
            let mut running = start("hostile");
            let (left, right) = running.pair();
            let mut hostile = Process::start(PROCESS, "scribbler", &running.socket);
            assert_eq!(hostile.line(), "1");
            let start = Instant::now();
            while start.elapsed() < Duration::from_secs(3) {
                exchange(&left, &right);
                if !hostile.is_alive() {
                    hostile = Process::start(PROCESS, "scribbler", &running.socket);
                }
            }
            hostile.kill();
            exchange(&right, &left);
            assert!(running.daemon.is_alive());
        },
    );
}

#[test]
fn greetings_that_are_none_are_refused_and_harm_nothing() {
    isolated(
        "greetings_that_are_none_are_refused_and_harm_nothing",
        TWO_INTERFACES,
        || {
            let mut running = start("greetings");
            let mut other_version = b"airdma-d".to_vec();
            other_version.extend([0xee; 60]);
            for greeting in [&b""[..], b"x", &other_version, &[0; 200], &[7; 5000]] {
                let mut answer = raw_greeting(&running.socket, greeting);
                // One packet.
                let mut said = [0; 4096];
                let length = answer.read(&mut said).unwrap_or(0);
                if greeting == other_version {
                    let said = String::from_utf8_lossy(&said[..length]);
                    assert!(said.contains("speaks version"), "{said}");
                }
            }
            let elsewhere = DeviceConfig {
                daemon: Some(running.socket.with_file_name("nothing")),
                ..DeviceConfig::default()
            };
            let refused = Device::open_with(&info_of("veth0"), &elsewhere);
            let said = refused.err().unwrap().to_string();
            assert!(said.contains("start `airdma daemon`"), "{said}");
            let (left, right) = running.pair();
            exchange(&left, &right);
            let srq = left.pd.create_srq(
                SrqAttributes {
                    max_wr: 8,
                    max_sge: 1,
                    limit: 0,
                },
                None,
            );
            assert_eq!(srq.err().unwrap().errno(), libc::EOPNOTSUPP);
            assert!(running.daemon.is_alive());
        },
    );
}

/// Connects and sends one packet.
fn raw_greeting(socket: &FilePath, greeting: &[u8]) -> std::fs::File {
    use std::os::fd::FromRawFd;
    use std::os::unix::ffi::OsStrExt;
    // SAFETY: a socket of this test's own, an address with its length, and bytes with theirs.
    unsafe {
        let fd = libc::socket(libc::AF_UNIX, libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC, 0);
        let mut address: libc::sockaddr_un = std::mem::zeroed();
        address.sun_family = libc::AF_UNIX as u16;
        for (to, from) in address
            .sun_path
            .iter_mut()
            .zip(socket.as_os_str().as_bytes())
        {
            *to = *from as libc::c_char;
        }
        let length = size_of::<libc::sockaddr_un>() as u32;
        assert_eq!(libc::connect(fd, (&raw const address).cast(), length), 0);
        libc::send(
            fd,
            greeting.as_ptr().cast(),
            greeting.len(),
            libc::MSG_NOSIGNAL,
        );
        libc::shutdown(fd, libc::SHUT_WR);
        std::fs::File::from_raw_fd(fd)
    }
}
