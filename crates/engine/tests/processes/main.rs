//! Several processes with the same device: docs/design/006-several-processes.md.
#![allow(clippy::unwrap_used)]

#[path = "../common/mod.rs"]
mod common;
mod host;
mod role;

use airdma_port::sharing::{Messenger, MessengerSockets};
use common::{ROLE, TWO_INTERFACES, isolated};
use host::*;
use std::collections::HashSet;
use std::ffi::CStr;
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Not a test: the processes of the others run this.
#[test]
fn in_a_process() {
    if let Ok(interface) = std::env::var(ROLE) {
        role::obey(&interface);
    }
}

/// Starts `count` processes at each of the two addresses, connected in pairs.
fn pairs(count: usize) -> (Vec<Process>, Vec<Process>) {
    pairs_of(count, Process::start_many)
}

fn pairs_of(count: usize, start: fn(&[&str]) -> Vec<Process>) -> (Vec<Process>, Vec<Process>) {
    let mut left = start(&vec!["veth0"; count]);
    let mut right = start(&vec!["veth1"; count]);
    for (left, right) in left.iter_mut().zip(&mut right) {
        connect(left, right);
    }
    (left, right)
}

/// Datagrams over IPv4 and IPv6 that programs of this network namespace have sent.
fn datagrams_sent() -> u64 {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    let v4 = read("snmp").unwrap();
    // The first such line has the names.
    let v4 = v4.lines().filter_map(|line| line.strip_prefix("Udp: "));
    let v4 = v4.skip(1).find_map(|line| line.split(' ').nth(3));
    let v6 = read("snmp6").unwrap();
    let v6 = (v6.lines()).find_map(|line| line.strip_prefix("Udp6OutDatagrams"));
    [v4, v6]
        .map(|it| it.unwrap().trim().parse::<u64>().unwrap())
        .iter()
        .sum()
}

#[test]
fn what_processes_say_to_each_other_does_not_leave_the_host() {
    let setup = "ip link add veth0 type veth peer name veth1\n\
                 ip link set veth0 up\n\
                 ip link set veth1 up\n\
                 ip address add 10.9.0.1/24 dev veth0\n\
                 ip address add 2001:db8::1/64 dev veth0 nodad\n\
                 ip address add fe80::1/64 dev veth0 nodad";
    let name = "what_processes_say_to_each_other_does_not_leave_the_host";
    isolated(name, setup, || {
        // SAFETY: a string with its end.
        let interface_index = unsafe { libc::if_nametoindex(c"veth0".as_ptr()) };
        let messenger = Messenger::new(
            MessengerSockets::open().unwrap().into(),
            interface_index,
            4791,
        );
        for (ours, gone) in [
            ("10.9.0.1", "10.9.0.7"),
            ("2001:db8::1", "2001:db8::7"),
            ("fe80::1", "fe80::7"),
        ] {
            let said = |to: &str| {
                let before = datagrams_sent();
                messenger.probe(to.parse().unwrap(), 1, 7, 0x0123_4567_89ab_cdef);
                datagrams_sent() - before
            };
            assert_eq!(said(ours), 1);
            // The host had that address a moment ago: now it may be another's, or a router's.
            assert_eq!(said(gone), 0, "the secret was sent to {gone}");
        }
    });
}

fn pause(millis: u64) {
    std::thread::sleep(Duration::from_millis(millis));
}

#[test]
fn four_processes_exchange_data_with_four_at_another_address() {
    isolated(
        "four_processes_exchange_data_with_four_at_another_address",
        TWO_INTERFACES,
        || {
            let (mut left, mut right) = pairs(4);
            let ranges: HashSet<_> = left.iter().map(Process::range).collect();
            assert_eq!(ranges.len(), 4);
            for process in left.iter_mut().chain(&mut right) {
                process.tell("run 700");
            }
            for process in left.iter_mut().chain(&mut right) {
                assert!(rounds(&process.hear()) > 1);
            }
            // The program chose right from the beginning.
            for process in left.iter_mut().chain(&mut right) {
                assert_eq!(process.counter("drop_unknown_qp"), 0);
            }
        },
    );
}

#[test]
fn the_others_go_on_when_processes_are_killed() {
    isolated(
        "the_others_go_on_when_processes_are_killed",
        TWO_INTERFACES,
        || {
            // The first, the last, one in the middle, two at once.
            for dead in [&[0][..], &[4], &[2], &[0, 3], &[1, 2, 3]] {
                let (mut left, mut right) = pairs(5);
                for process in left.iter_mut().chain(&mut right) {
                    process.tell("run 1500");
                }
                pause(300);
                for &index in dead {
                    left[index].signal(libc::SIGKILL);
                }
                for index in 0..5 {
                    let said = right[index].hear();
                    if dead.contains(&index) {
                        assert!(said.starts_with("failed"), "{said}");
                    } else {
                        assert!(rounds(&said) > 1, "{dead:?}");
                        assert!(rounds(&left[index].hear()) > 1, "{dead:?}");
                    }
                }
                // Their resources are available to others at once.
                for &index in dead {
                    left[index].kill();
                    left[index] = Process::start("veth0");
                    right[index] = Process::start("veth1");
                    let (left, right) = (&mut left[index], &mut right[index]);
                    connect(left, right);
                    assert!(rounds(&right.ask("run 50")) > 0);
                }
                for process in left.iter_mut() {
                    assert!(rounds(&process.ask("run 20")) > 0);
                }
            }
        },
    );
}

#[test]
fn processes_come_and_go_while_others_transfer() {
    isolated(
        "processes_come_and_go_while_others_transfer",
        TWO_INTERFACES,
        || {
            let (mut left, mut right) = pairs(2);
            for process in left.iter_mut().chain(&mut right) {
                process.tell("run 3000");
            }
            for round in 0..6 {
                let mut guests = Process::start_many(&["veth0", "veth0", "veth1"]);
                let [a, b, c] = &mut guests[..] else {
                    unreachable!()
                };
                connect(if round % 2 == 0 { a } else { b }, c);
                assert!(rounds(&c.ask("run 30")) > 0);
                // In another order each time.
                guests.rotate_left(round % 3);
                guests.iter_mut().for_each(Process::quit);
            }
            for process in left.iter_mut().chain(&mut right) {
                assert!(rounds(&process.hear()) > 1);
            }
        },
    );
}

#[test]
fn processes_at_one_address_reach_each_other_and_themselves() {
    isolated(
        "processes_at_one_address_reach_each_other_and_themselves",
        TWO_INTERFACES,
        || {
            let mut all = Process::start_many(&["veth0"; 3]);
            let [a, b, c] = &mut all[..] else {
                unreachable!()
            };
            connect(a, b);
            connect_to_itself(c);
            for process in [&mut *a, &mut *b, &mut *c] {
                process.tell("run 500");
            }
            for process in [a, b, c] {
                assert!(rounds(&process.hear()) > 1);
                assert_eq!(process.counter("drop_bad_icrc"), 0);
            }
        },
    );
}

#[test]
fn many_processes_share_an_address() {
    isolated("many_processes_share_an_address", TWO_INTERFACES, || {
        let mut all = Process::start_many(&["veth0"; 64]);
        let ranges: HashSet<_> = all.iter().map(Process::range).collect();
        assert_eq!(ranges.len(), 64);
        for pair in all.chunks_mut(2) {
            let [a, b] = pair else { unreachable!() };
            connect(a, b);
        }
        for process in &mut all {
            assert!(rounds(&process.ask("run 5")) > 0);
        }
        // Half of them leave, all at once; no process waits long for the others.
        let (first, second) = all.split_at_mut(32);
        let start = Instant::now();
        first.iter_mut().for_each(|process| process.tell("quit"));
        first.iter_mut().for_each(Process::await_end);
        assert!(start.elapsed() < Duration::from_secs(30));
        for process in &mut *second {
            assert!(rounds(&process.ask("run 5")) > 0);
        }
        let start = Instant::now();
        second
            .iter()
            .for_each(|process| process.signal(libc::SIGKILL));
        let mut last = Process::start("veth0");
        connect_to_itself(&mut last);
        assert!(rounds(&last.ask("run 50")) > 0);
        assert!(start.elapsed() < Duration::from_secs(30));
    });
}

#[test]
fn a_stopped_process_does_not_hold_up_the_others() {
    isolated(
        "a_stopped_process_does_not_hold_up_the_others",
        TWO_INTERFACES,
        || {
            let mut left: Vec<_> = (0..4).map(|_| Process::start("veth0")).collect();
            let mut right: Vec<_> = (0..4).map(|_| Process::start("veth1")).collect();
            for (left, right) in left.iter_mut().zip(&mut right) {
                connect(left, right);
            }
            // The last takes the place of the first; the others cannot tell that they get its
            // packets.
            left[1].stop();
            left[2].stop();
            left[0].kill();
            assert!(rounds(&right[3].ask("run 300")) > 1);
            assert!(rounds(&left[3].ask("run 300")) > 1);
            // One more comes, and the stopped ones continue.
            let mut more = Process::start_many(&["veth0", "veth1"]);
            let [a, b] = &mut more[..] else {
                unreachable!()
            };
            connect(a, b);
            assert!(rounds(&b.ask("run 100")) > 1);
            for index in [1, 2] {
                left[index].signal(libc::SIGCONT);
                assert!(rounds(&right[index].ask("run 100")) > 0);
                assert!(rounds(&left[index].ask("run 100")) > 0);
            }
        },
    );
}

/// The registries of this namespace, and those of former ones with its number.
fn registries() -> Vec<PathBuf> {
    let namespace = std::fs::metadata("/proc/self/ns/net").unwrap().ino();
    let of_ours = format!("-{namespace}-");
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let mut found = Vec::new();
    let user = std::fs::metadata("/proc/self").unwrap().uid();
    let common = ["/run", "/tmp"].map(PathBuf::from);
    let session = PathBuf::from(format!("/run/user/{user}"));
    for place in runtime.into_iter().chain(common).chain([session]) {
        let folders = std::fs::read_dir(place).into_iter().flatten().flatten();
        let folders =
            folders.filter(|folder| folder.file_name().to_string_lossy().starts_with("airdma"));
        let files = folders.filter_map(|folder| std::fs::read_dir(folder.path()).ok());
        for file in files.flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.starts_with("steering-") && name.contains(&of_ours) {
                found.push(file.path());
            }
        }
    }
    found
}

/// More rounds than a period of 100 ms can have if packets wait: a false alarm keeps the progress
/// thread for 26 ms, and each round would wait for several of them.
const MANY: u32 = 6;
/// Alarms of a period that leave no time between them.
const ALARMS_MIN: u32 = 20;

#[test]
fn false_alarms_do_not_hold_up_what_comes() {
    isolated(
        "false_alarms_do_not_hold_up_what_comes",
        TWO_INTERFACES,
        || {
            // A single process at an interface has no watch.
            let (mut left, _right) = pairs(2);
            let left = &mut left[0];
            let (is_over, alarms) = (AtomicBool::new(false), AtomicU32::new(0));
            let registries = registries();
            assert!(registries.len() >= 2);
            let alarm = || {
                while !is_over.load(Ordering::Relaxed) {
                    for registry in &registries {
                        // A writer that closes the registry may be a member that leaves.
                        drop(File::options().write(true).open(registry).unwrap());
                    }
                    alarms.fetch_add(1, Ordering::Relaxed);
                    pause(1);
                }
            };
            let most = std::thread::scope(|scope| {
                scope.spawn(alarm);
                // On a busy machine some periods have fewer than others, of rounds and of alarms.
                let start = Instant::now();
                let mut most = 0;
                while most < MANY && start.elapsed() < Duration::from_secs(30) {
                    let before = alarms.load(Ordering::Relaxed);
                    let now = rounds(&left.ask("run 100"));
                    if alarms.load(Ordering::Relaxed) - before >= ALARMS_MIN {
                        most = most.max(now);
                    }
                }
                is_over.store(true, Ordering::Relaxed);
                most
            });
            assert!(most >= MANY, "{most} rounds in the best period");
        },
    );
}

#[test]
fn after_a_death_no_packet_goes_astray() {
    isolated(
        "after_a_death_no_packet_goes_astray",
        TWO_INTERFACES,
        || {
            // Nothing is in flight, no Hello either: the kernel notifies the others.
            let (mut left, mut right) = pairs_of(5, Process::start_many_silent);
            left[0].kill();
            left[2].kill();
            pause(1000);
            for index in [1, 3, 4] {
                assert!(rounds(&right[index].ask("run 50")) > 0);
                assert!(rounds(&left[index].ask("run 50")) > 0);
                assert_eq!(left[index].counter("rx_misrouted"), 0);
                assert_eq!(left[index].counter("rx_forwarded"), 0);
            }
        },
    );
}

#[test]
fn a_child_does_not_keep_what_its_dead_parent_had() {
    isolated(
        "a_child_does_not_keep_what_its_dead_parent_had",
        TWO_INTERFACES,
        || {
            let (mut left, mut right) = pairs(3);
            assert_eq!(left[0].ask("listen 7000"), "listening");
            let child: i32 = left[0].ask("fork").parse().unwrap();
            left[0].kill();
            assert_eq!(left[1].ask("listen 7000"), "listening");
            for index in [1, 2] {
                assert!(rounds(&right[index].ask("run 200")) > 1);
            }
            // SAFETY: the grandchild sleeps for a minute, so it still exists.
            assert_eq!(unsafe { libc::kill(child, libc::SIGKILL) }, 0);
        },
    );
}

#[test]
fn requests_reach_the_process_that_listens() {
    isolated(
        "requests_reach_the_process_that_listens",
        TWO_INTERFACES,
        || {
            let mut left = Process::start_many(&["veth0"; 4]);
            let mut callers = Process::start_many(&["veth1", "veth1", "veth0"]);
            let listens =
                |process: &mut Process, port: usize| process.ask(&format!("listen {port}"));
            for (index, process) in left.iter_mut().enumerate() {
                assert_eq!(listens(process, 7000 + index), "listening");
            }
            // From any caller, at this address or another.
            for caller in &mut callers {
                for (index, process) in left.iter_mut().enumerate() {
                    process.tell(&format!("refuse number{index}"));
                    let said = caller.ask(&format!("dial 10.9.0.1 {}", 7000 + index));
                    assert_eq!(said, format!("refused by number{index}"));
                    assert_eq!(process.hear(), "refused");
                }
                // There is no listener: 8 is "invalid service id".
                assert_eq!(caller.ask("dial 10.9.0.1 7999"), "refused: 8");
            }
            // A port has one listener on a host.
            let in_use = format!("errno {}", libc::EADDRINUSE);
            assert_eq!(listens(&mut left[1], 7000), in_use);
            assert_eq!(left[0].ask("unlisten"), "closed");
            assert_eq!(listens(&mut left[1], 7000), "listening");
            // The resources of a dead process are free.
            left[2].kill();
            assert_eq!(listens(&mut left[3], 7002), "listening");
            left[3].tell("refuse heir");
            assert_eq!(callers[0].ask("dial 10.9.0.1 7002"), "refused by heir");
        },
    );
}

#[test]
fn every_process_in_a_group_gets_a_copy() {
    isolated(
        "every_process_in_a_group_gets_a_copy",
        TWO_INTERFACES,
        || {
            let mut all = Process::start_many(&["veth0"; 4]);
            for process in &mut all[..3] {
                assert_eq!(process.ask("attach 239.7.7.7"), "attached");
            }
            assert_eq!(all[3].ask("cast 239.7.7.7"), "sent");
            for process in &mut all[..3] {
                assert_eq!(process.ask("copies"), "1");
            }
        },
    );
}

#[test]
fn peers_of_a_killed_process_are_notified_by_other_processes() {
    isolated(
        "peers_of_a_killed_process_are_notified_by_other_processes",
        TWO_INTERFACES,
        || {
            for survivor_is_there in [true, false] {
                let mut left = Process::start("veth0");
                let survivor = survivor_is_there.then(|| Process::start("veth0"));
                let mut right = Process::start("veth1");
                assert_eq!(left.ask("listen 7500"), "listening");
                left.tell("answer");
                assert_eq!(right.ask("call 10.9.0.1 7500"), "established");
                assert_eq!(left.hear(), "established");
                right.tell("event");
                left.kill();
                let successor = (!survivor_is_there).then(|| Process::start("veth0"));
                assert_eq!(right.hear(), "disconnected");
                drop((survivor, successor));
            }
        },
    );
}

/// Gives this thread, and the processes that it starts, an empty `/run` and `/tmp` of their own.
fn with_own_directories() {
    let mount = |what: &CStr, on: &CStr, flags| {
        let (what, on) = (what.as_ptr(), on.as_ptr());
        // SAFETY: strings with their ends, and no data.
        let result = unsafe { libc::mount(what, on, what, flags, std::ptr::null()) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    };
    // SAFETY: a plain integer; other threads keep their namespace.
    let result = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE);
    mount(c"tmpfs", c"/run", 0);
    mount(c"tmpfs", c"/tmp", 0);
}

fn make_directory(path: &str) -> &Path {
    std::fs::create_dir_all(path).unwrap();
    std::fs::set_permissions(path, Permissions::from_mode(0o700)).unwrap();
    Path::new(path)
}

#[test]
fn processes_of_a_user_share_whatever_their_environments_say() {
    let name = "processes_of_a_user_share_whatever_their_environments_say";
    isolated(name, TWO_INTERFACES, || {
        with_own_directories();
        // Another user has made all names in the common directories first.
        for squatted in ["/run/airdma-0", "/tmp/airdma-0"] {
            std::fs::write(squatted, "").unwrap();
        }
        let session = make_directory("/run/user/0");
        let elsewhere = make_directory("/tmp/elsewhere");
        let environments = [
            Some(session),
            None,
            Some(elsewhere),
            Some(Path::new("/nonexistent")),
        ];
        let mut all = environments.map(|runtime| Process::start_with("veth0", runtime));
        let [a, b, ..] = &mut all;
        connect(a, b);
        assert!(rounds(&a.ask("run 20")) > 0);
        assert!(session.join("airdma").exists());
    });
}

#[test]
fn processes_share_although_a_session_came_between_them() {
    let name = "processes_share_although_a_session_came_between_them";
    isolated(name, TWO_INTERFACES, || {
        with_own_directories();
        std::fs::write("/run/airdma-0", "").unwrap();
        let mut before = Process::start_with("veth0", None);
        let session = make_directory("/run/user/0");
        let mut after = Process::start_with("veth0", Some(session));
        connect(&mut before, &mut after);
        assert!(rounds(&before.ask("run 20")) > 0);
        // Processes that start after it has ended are of the session.
        before.kill();
        after.kill();
        std::fs::remove_dir_all("/tmp/airdma-0").unwrap();
        drop(Process::start_with("veth0", None));
        assert!(!Path::new("/tmp/airdma-0").exists());
    });
}

#[test]
fn a_process_without_a_registry_is_told_why() {
    isolated(
        "a_process_without_a_registry_is_told_why",
        TWO_INTERFACES,
        || {
            with_own_directories();
            let mut first = Process::start_with("veth0", None);
            for squatted in ["/run/airdma-0", "/tmp/airdma-0"] {
                drop(std::fs::remove_dir_all(squatted));
                std::fs::write(squatted, "").unwrap();
            }
            let namespace = std::fs::metadata("/proc/self/ns/user").unwrap().ino();
            std::fs::write(format!("/tmp/airdma-0-{namespace}"), "").unwrap();
            let said = Process::refused("veth0");
            assert!(
                said.contains("/tmp/airdma-0 is not a directory (user 0, mode 644)"),
                "{said}"
            );
            first.quit();
        },
    );
}
