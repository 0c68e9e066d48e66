//! Connections that greet late, wrongly or never, and the place of the socket.

use super::in_network;
use super::raw::{Passed, Raw, connect, greet};
use crate::common::{Running, folder, info_of, skipped};
use crate::daemon::{Daemon, GREETING_TIME_MAX, NEWCOMERS_MAX, Place};
use crate::remote::protocol::Welcome;
use crate::remote::socket::Socket;
use crate::{DeviceConfig, DeviceInfo};
use airdma_shm::Arena;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

/// A user that this one is not.
const NOBODY: u32 = 65_534;

fn bind(path: &Path) -> io::Result<Daemon> {
    Daemon::bind(path, DeviceConfig::default(), |_| {})
}

fn refusal_of(path: &Path) -> (io::ErrorKind, String) {
    let refused = bind(path).err().expect("a refusal");
    (refused.kind(), refused.to_string())
}

#[test]
fn connections_that_stay_silent_delay_nobody() {
    in_network(
        "greetings::connections_that_stay_silent_delay_nobody",
        || {
            let running = Running::start("silent");
            let mut silent: Vec<Socket> = Vec::new();
            let start = Instant::now();
            for _ in 0..NEWCOMERS_MAX + 20 {
                silent.push(connect(&running.socket));
            }
            running.raw("veth1").flush().unwrap();
            assert!(
                start.elapsed() < GREETING_TIME_MAX / 2,
                "{:?}",
                start.elapsed()
            );
            // The oldest had to go at once, and the others go in time; each is told.
            for socket in &silent {
                let mut buffer = [0; 1024];
                let got = socket.receive(&mut buffer, true).unwrap().unwrap();
                let welcome = Welcome::decode(&buffer[..got.length]).unwrap();
                assert!(
                    matches!(
                        welcome,
                        Welcome::Refused {
                            errno: libc::ETIMEDOUT,
                            ..
                        }
                    ),
                    "{welcome:?}"
                );
            }
            assert!(start.elapsed() < 2 * GREETING_TIME_MAX + Duration::from_secs(5));
        },
    );
}

#[test]
fn what_is_passed_is_checked() {
    in_network("greetings::what_is_passed_is_checked", || {
        let running = Running::start("passed");
        let info = info_of("veth1");
        let arena = Arena::new();
        let memfd = |seals: i32| {
            // SAFETY: a name, and plain integers.
            let fd = unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_ALLOW_SEALING) };
            assert!(fd >= 0);
            // SAFETY: the call above just opened it.
            let fd: OwnedFd = unsafe { std::os::fd::FromRawFd::from_raw_fd(fd) };
            File::from(fd.try_clone().unwrap())
                .set_len(1 << 22)
                .unwrap();
            let raw = std::os::fd::AsRawFd::as_raw_fd(&fd);
            // SAFETY: plain integers.
            assert_eq!(unsafe { libc::fcntl(raw, libc::F_ADD_SEALS, seals) }, 0);
            fd
        };
        let (loose, cut) = (memfd(0), memfd(libc::F_SEAL_SHRINK | libc::F_SEAL_GROW));
        File::from(cut.try_clone().unwrap()).set_len(1).unwrap_err();
        let file: OwnedFd = File::open("/proc/self/exe").unwrap().into();
        let parent = format!("/proc/{}/mem", running.daemon.child.id());
        let other: OwnedFd = File::open(parent).unwrap().into();
        let passed = Passed::new(&arena);
        let [memory, page, doorbells] = passed.beside();
        let hello = passed.hello(info.interface_index);
        let refused = |hello, beside: &[_]| {
            let control = connect(&running.socket);
            let (welcome, _) = greet(&control, &hello, beside);
            let Welcome::Refused { errno, message } = welcome else {
                panic!("{welcome:?}");
            };
            (errno, message)
        };
        for instead in [&file, &other, &loose] {
            let (errno, said) = refused(hello, &[instead.as_fd(), page, doorbells]);
            assert!(
                errno == libc::EINVAL && said.contains("in place of"),
                "{said}"
            );
        }
        for instead in [&file, &loose] {
            let (errno, said) = refused(hello, &[memory, instead.as_fd(), doorbells]);
            assert_eq!(errno, libc::EINVAL, "{said}");
        }
        let (errno, said) = refused(hello, &[memory, page]);
        assert!(
            errno == libc::EPROTO && said.contains("descriptors"),
            "{said}"
        );
        let mut beyond = hello;
        beyond.doorbells.offset = 1 << 40;
        assert_eq!(refused(beyond, &passed.beside()).0, libc::EINVAL);
        let mut short = hello;
        short.page.length = 8;
        assert_eq!(refused(short, &passed.beside()).0, libc::EPROTO);
        let mut elsewhere = hello;
        elsewhere.network ^= 1;
        assert_eq!(refused(elsewhere, &passed.beside()).0, libc::ENODEV);
        running.raw("veth1").flush().unwrap();
    });
}

#[test]
fn a_program_gets_the_number_of_a_refusal() {
    in_network("greetings::a_program_gets_the_number_of_a_refusal", || {
        let running = Running::start("number");
        let config = DeviceConfig {
            daemon: Some(running.socket.clone()),
            ..DeviceConfig::default()
        };
        let nowhere = DeviceInfo {
            interface_index: 4711,
            ..info_of("veth1")
        };
        let refused = crate::Device::open_with(&nowhere, &config).err().unwrap();
        assert_eq!(crate::errno_of(&refused), Some(libc::ENODEV), "{refused}");
        let config = DeviceConfig {
            daemon: Some(running.socket.with_file_name("nothing")),
            ..config
        };
        let refused = crate::Device::open_with(&info_of("veth0"), &config);
        assert_eq!(crate::errno_of(&refused.err().unwrap()), Some(libc::ENODEV));
    });
}

#[test]
fn one_daemon_has_a_place_at_a_time() {
    in_network("greetings::one_daemon_has_a_place_at_a_time", || {
        let running = Running::start("place");
        let (kind, said) = refusal_of(&running.socket);
        assert_eq!(
            (kind, said.contains("a daemon listens")),
            (io::ErrorKind::AddrInUse, true)
        );
        let raw: Raw = running.raw("veth1");
        raw.flush().unwrap();
        let mode = std::fs::metadata(&running.socket).unwrap().mode();
        assert_eq!(mode & 0o777, 0o600);
    });
}

#[test]
fn a_daemon_that_starts_keeps_others_from_its_place() {
    let path = folder("starting").join("socket");
    // What a daemon that was killed leaves behind.
    drop(UnixListener::bind(&path).unwrap());
    let starting = Place::take(&path).unwrap();
    assert_eq!(refusal_of(&path).0, io::ErrorKind::AddrInUse);
    assert!(path.exists());
    drop(starting);
    drop(bind(&path).unwrap());
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_listener_that_accepts_nothing_is_not_waited_for() {
    let path = folder("deaf").join("socket");
    let listener = Socket::listen(&path, 0).unwrap();
    let waiting: Vec<_> = (0..4)
        .map(|_| Socket::connect(&path, Duration::from_millis(10)))
        .collect();
    assert!(waiting.iter().any(Result::is_err), "there is room");
    let start = Instant::now();
    let (kind, said) = refusal_of(&path);
    assert_eq!(
        (kind, said.contains("accepts nothing")),
        (io::ErrorKind::AddrInUse, true)
    );
    assert!(start.elapsed() < Duration::from_secs(5));
    drop(listener);
    std::fs::remove_dir_all(path.parent().unwrap()).unwrap();
}

#[test]
fn a_lock_that_is_no_file_of_this_user_is_refused() {
    let folder = folder("lock");
    let path = folder.join("socket");
    let lock = folder.join("socket.lock");
    let victim = folder.join("victim");
    std::fs::write(&victim, "as it was").unwrap();
    symlink(&victim, &lock).unwrap();
    let (_, said) = refusal_of(&path);
    assert!(
        said.contains("socket.lock") && said.contains("--socket"),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&victim).unwrap(), "as it was");
    std::fs::remove_file(&lock).unwrap();
    // A pipe that nothing reads would block, and one that is read would be locked as a file is.
    let name = std::ffi::CString::new(lock.to_str().unwrap()).unwrap();
    // SAFETY: a name that ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    assert!(refusal_of(&path).1.contains("--socket"));
    let both_ends = File::options().read(true).write(true).open(&lock).unwrap();
    let (_, said) = refusal_of(&path);
    assert!(said.contains("no file of this user"), "{said}");
    drop(both_ends);
    std::fs::remove_file(&lock).unwrap();
    drop(bind(&path).unwrap());
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_lock_of_another_user_is_refused() {
    let folder = folder("lock-of-another");
    let path = folder.join("socket");
    drop(bind(&path).unwrap());
    let lock = folder.join("socket.lock");
    match chown(&lock, Some(NOBODY), None) {
        Ok(()) => {
            let (_, said) = refusal_of(&path);
            assert!(said.contains("no file of this user"), "{said}");
        }
        Err(_) => skipped("only root gives files away"),
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
