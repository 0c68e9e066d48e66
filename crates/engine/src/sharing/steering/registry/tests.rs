#![allow(clippy::unwrap_used)]

use super::*;
use crate::sharing::alone;
use std::path::PathBuf;

struct Directory(PathBuf);

impl Directory {
    fn new(name: &str) -> Self {
        let name = format!("airdma-test-{}-{name}", std::process::id());
        Directory(std::env::temp_dir().join(name))
    }

    fn join(&self) -> Registry {
        Registry::join_at(&self.0).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_file(&self.0).ok();
    }
}

const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 1));
const THERE: IpAddr = IpAddr::V6(Ipv6Addr::LOCALHOST);

/// Runs `body` in a child that is then killed.
fn in_a_killed_child(body: impl FnOnce()) {
    // SAFETY: the child only uses what it makes itself, and is killed.
    let child = unsafe { libc::fork() };
    if child == 0 {
        body();
        // SAFETY: no memory is touched.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    let mut status = 0;
    // SAFETY: a child of this process and a local integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status));
}

#[test]
fn members_have_numbers_and_ranges_of_their_own() {
    let _alone = alone();
    let file = Directory::new("members");
    let (a, b) = (file.join(), file.join());
    assert_ne!(a.me(), b.me());
    assert_eq!(a.secret(), b.secret());
    let (first, second) = (a.lease().unwrap(), b.lease().unwrap());
    assert_ne!(first, second);
    assert_eq!(b.owner(first), Some(a.me()));
    assert_eq!(a.owners().count(), 2);
    a.leave();
    assert_eq!(b.owner(first), None);
    assert_eq!(b.remove_dead(), 0);
    assert_eq!(b.owner(second), Some(b.me()));
}

#[test]
fn ranges_run_out_and_those_that_rested_longest_come_first() {
    let _alone = alone();
    let file = Directory::new("ranges");
    let (a, b) = (file.join(), file.join());
    let early: Vec<_> = (0..100).map(|_| a.lease().unwrap()).collect();
    a.leave();
    let late: Vec<_> = (0..RANGES).map(|_| b.lease().unwrap()).collect();
    assert_eq!(b.lease(), None);
    // Never used ranges first, then those of the other.
    let (fresh, used) = late.split_at(RANGES - 100);
    assert!(fresh.iter().all(|range| !early.contains(range)));
    assert!(used.iter().all(|range| early.contains(range)));
}

#[test]
fn what_a_killed_member_had_is_free_at_once() {
    let _alone = alone();
    let file = Directory::new("killed");
    let survivor = file.join();
    in_a_killed_child(|| {
        let dead = file.join();
        for _ in 0..RANGES {
            dead.lease();
        }
        dead.add_socket(HERE, 0);
        dead.add_socket(THERE, 0);
        dead.listen(7, None).ok();
        // In the middle of a change, with the lock held.
        assert!(dead.try_lock());
        dead.begin();
        std::mem::forget(dead);
    });
    assert!(survivor.try_lock());
    assert!(survivor.begin(), "the change was not finished");
    assert_eq!(survivor.remove_dead(), 2);
    assert!(survivor.lease().is_some());
    assert_eq!(survivor.seated(HERE).count(), 0);
    survivor.listen(7, None).unwrap();
    survivor.finish();
    survivor.unlock();
    assert!(!survivor.begin());
    survivor.finish();
    // A new member detects dead ones without a notification.
    in_a_killed_child(|| {
        let dead = file.join();
        dead.add_socket(HERE, 0);
        std::mem::forget(dead);
    });
    assert_eq!(survivor.seated(HERE).count(), 1);
    let next = file.join();
    assert_eq!(next.seated(HERE).count(), 0);
    assert!(next.begin(), "places have moved");
}

#[test]
fn a_file_of_dead_members_is_as_good_as_new() {
    let _alone = alone();
    let file = Directory::new("stale");
    for _ in 0..3 {
        in_a_killed_child(|| {
            for _ in 0..MEMBERS_MAX {
                let member = file.join();
                assert!(member.lease().is_some());
                std::mem::forget(member);
            }
            assert!(Registry::join_at(&file.0).is_err(), "there are too many");
        });
    }
    let member = file.join();
    assert_eq!(member.owners().count(), 0);
    assert!(member.lease().is_some());
}

/// A join that waits for the lock, which `a` holds.
fn join_beside<'a>(
    scope: &'a std::thread::Scope<'a, '_>,
    file: &'a Directory,
) -> std::thread::ScopedJoinHandle<'a, (Result<Registry, JoinError>, Duration)> {
    let began = std::time::Instant::now();
    scope.spawn(move || (Registry::join_at(&file.0), began.elapsed()))
}

#[test]
fn a_stopped_process_that_keeps_the_lock_is_reported() {
    let _alone = alone();
    let file = Directory::new("lock");
    let (a, b) = (file.join(), file.join());
    assert!(a.try_lock());
    let mut child = std::process::Command::new("sleep").arg("60").spawn();
    let stopped = child.as_mut().unwrap();
    // SAFETY: a signal to a child of this process.
    assert_eq!(unsafe { libc::kill(stopped.id() as i32, libc::SIGSTOP) }, 0);
    let id = u64::from(stopped.id());
    a.layout().changing.store(id, Ordering::SeqCst);
    assert!(!b.try_lock());
    let refused = Registry::join_at(&file.0).err();
    stopped.kill().unwrap();
    stopped.wait().unwrap();
    assert!(matches!(refused, Some(JoinError::Locked(process)) if u64::from(process) == id));
    a.unlock();
    assert!(b.try_lock());
}

#[test]
fn a_process_that_is_slow_with_its_change_is_waited_for() {
    let _alone = alone();
    let file = Directory::new("slow");
    let a = file.join();
    assert!(a.try_lock());
    a.begin();
    std::thread::scope(|scope| {
        let joined = join_beside(scope, &file);
        std::thread::sleep(Duration::from_millis(1500));
        a.finish();
        a.unlock();
        let (joined, after) = joined.join().unwrap();
        assert!(joined.is_ok());
        assert!(after >= Duration::from_millis(1500));
    });
}

#[test]
fn processes_that_change_one_after_the_other_are_waited_for() {
    let _alone = alone();
    let file = Directory::new("queue");
    let a = file.join();
    assert!(a.try_lock());
    std::thread::scope(|scope| {
        let joined = join_beside(scope, &file);
        // Ids that no process has: such as of another pid namespace.
        for id in 0..15 {
            let id = u64::from(u32::MAX - id);
            a.layout().changing.store(id, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(100));
        }
        a.finish();
        a.unlock();
        assert!(joined.join().unwrap().0.is_ok());
    });
}

#[test]
fn where_there_is_no_place_for_a_registry_there_is_none() {
    for path in ["/proc/self/steering", "/nonexistent/steering", "/dev/null"] {
        let refused = Registry::join_at(Path::new(path)).err().unwrap();
        assert!(matches!(refused, JoinError::Impossible(_)), "{path}");
    }
}

#[test]
fn the_last_takes_the_place_of_one_that_leaves() {
    let _alone = alone();
    let file = Directory::new("places");
    let members: Vec<_> = (0..4).map(|_| file.join()).collect();
    let seats: Vec<_> = (0..)
        .zip(&members)
        .map(|(place, member)| member.add_socket(HERE, place).unwrap())
        .collect();
    members[0].add_socket(THERE, 0).unwrap();
    let places = || -> Vec<_> {
        let place = |member: &Registry| members[0].place_of(member.me(), HERE);
        members.iter().map(place).collect()
    };
    members[1].remove_socket(seats[1], HERE);
    assert_eq!(places(), [Some(0), None, Some(2), Some(1)]);
    members[2].remove_socket(seats[2], HERE);
    assert_eq!(places(), [Some(0), None, None, Some(1)]);
    assert_eq!(members[1].place_of(members[0].me(), THERE), Some(0));
}

#[test]
fn the_lowest_probe_of_the_last_round_counts() {
    let _alone = alone();
    let file = Directory::new("probes");
    let member = file.join();
    let (here, there) = (
        member.add_socket(HERE, 0).unwrap(),
        member.add_socket(THERE, 0).unwrap(),
    );
    let epoch = member.next_epoch();
    assert_eq!(member.answer(here, epoch), None);
    for place in [5, 3, 9] {
        member.probed(HERE, place, epoch);
    }
    member.probed(HERE, 1, epoch - 1);
    assert_eq!(member.answer(here, epoch), Some(3));
    assert_eq!(member.answer(there, epoch), None);
    let next = member.next_epoch();
    member.probed(HERE, 1, epoch);
    assert_eq!(member.answer(here, next), None);
    member.probed(HERE, 7, next);
    assert_eq!(member.answer(here, next), Some(7));
}

#[test]
fn a_service_has_one_listener_at_an_address() {
    let _alone = alone();
    let file = Directory::new("listeners");
    let (a, b) = (file.join(), file.join());
    a.listen(1, None).unwrap();
    a.listen(2, Some(HERE)).unwrap();
    assert_eq!(b.listen(1, None), Err(ListenError::InUse));
    assert_eq!(b.listen(2, Some(HERE)), Err(ListenError::InUse));
    // All addresses include this one.
    assert_eq!(b.listen(1, Some(THERE)), Err(ListenError::InUse));
    assert_eq!(b.listen(2, None), Err(ListenError::InUse));
    b.listen(2, Some(THERE)).unwrap();
    assert_eq!(b.listeners(HERE), [(1, a.me()), (2, a.me())]);
    assert_eq!(b.listeners(THERE), [(1, a.me()), (2, b.me())]);
    // A closed listener is still returned, until another one takes the service.
    a.close_listener(1, None);
    assert_eq!(b.listeners(HERE), [(2, a.me()), (1, a.me())]);
    b.listen(1, Some(THERE)).unwrap();
    b.listen(1, None).unwrap();
    assert_eq!(b.listeners(HERE)[0], (1, b.me()));
}

#[test]
fn all_addresses_of_a_family_are_not_those_of_the_other() {
    let _alone = alone();
    let file = Directory::new("families");
    let (a, b) = (file.join(), file.join());
    let all = |like: IpAddr| match like {
        IpAddr::V4(_) => Some(IpAddr::V4(Ipv4Addr::UNSPECIFIED)),
        IpAddr::V6(_) => Some(IpAddr::V6(Ipv6Addr::UNSPECIFIED)),
    };
    a.listen(1, all(HERE)).unwrap();
    b.listen(1, all(THERE)).unwrap();
    assert_eq!(a.listeners(HERE), [(1, a.me())]);
    assert_eq!(a.listeners(THERE), [(1, b.me())]);
    assert_eq!(b.listen(1, Some(HERE)), Err(ListenError::InUse));
    assert_eq!(a.listen(1, None), Err(ListenError::InUse));
    // Listeners of one member may overlap: the most specific is first.
    b.listen(2, None).unwrap();
    b.listen(2, all(THERE)).unwrap();
    b.close_listener(2, None);
    assert_eq!(a.listeners(THERE), [(1, b.me()), (2, b.me())]);
    assert_eq!(a.listen(2, all(THERE)), Err(ListenError::InUse));
    a.listen(2, all(HERE)).unwrap();
}

#[test]
fn closed_listeners_make_room_for_open_ones() {
    let _alone = alone();
    let file = Directory::new("closed");
    let (a, b) = (file.join(), file.join());
    for service in 0..3 * LISTENERS_MAX as u64 {
        a.listen(service, None).unwrap();
        a.close_listener(service, None);
    }
    b.listen(7, None).unwrap();
    assert_eq!(a.listeners(HERE)[0], (7, b.me()));
    let open = (1..).map(|service| b.listen(1 << 32 | service, None));
    assert_eq!(open.take_while(Result::is_ok).count(), LISTENERS_MAX - 1);
}

#[test]
fn a_child_that_closes_its_copy_does_not_keep_a_member_alive() {
    let _alone = alone();
    let file = Directory::new("child");
    let survivor = file.join();
    for closes in [true, false] {
        let member = file.join();
        let life = member.life();
        // SAFETY: the child only closes and sleeps.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above; it is killed.
            unsafe {
                if closes {
                    libc::close(life);
                }
                loop {
                    libc::pause();
                }
            }
        }
        member.add_socket(HERE, 0);
        std::thread::sleep(std::time::Duration::from_millis(50));
        drop(member);
        assert_eq!(survivor.remove_dead(), usize::from(closes));
        // SAFETY: a child of this process.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
        survivor.remove_dead();
    }
}

#[test]
fn departures_are_heard_of() {
    let _alone = alone();
    let file = Directory::new("departures");
    let survivor = file.join();
    let heard = survivor.departures().unwrap();
    assert!(heard.watch().unwrap());
    let other = file.join();
    assert!(!heard.take());
    drop(other);
    assert!(heard.take());
    assert!(!heard.take());
    in_a_killed_child(|| std::mem::forget(file.join()));
    assert!(heard.take());
}

/// Bytes of a process that went mad.
fn rubbish(seed: u64) -> Vec<u8> {
    let mut state = seed;
    let step = |state: &mut u64| {
        *state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (*state >> 33) as u8
    };
    (0..BYTES).map(|_| step(&mut state)).collect()
}

#[test]
fn a_file_of_rubbish_becomes_a_registry() {
    let _alone = alone();
    let file = Directory::new("rubbish");
    for bytes in [
        rubbish(1),
        vec![0xff; BYTES],
        vec![7; 100],
        vec![0x80; 2 * BYTES],
    ] {
        std::fs::write(&file.0, bytes).unwrap();
        let member = file.join();
        assert_eq!(member.owners().count(), 0);
        assert_eq!(member.seated(HERE).count(), 0);
        let ranges: Vec<_> = (0..RANGES).map(|_| member.lease().unwrap()).collect();
        assert_eq!(ranges.len(), RANGES);
        member.listen(7, None).unwrap();
        assert!(member.add_socket(HERE, 0).is_some());
        std::fs::remove_file(&file.0).unwrap();
    }
}

#[test]
fn rows_of_rubbish_end_nothing() {
    let _alone = alone();
    let file = Directory::new("garbled");
    for seed in 0..20 {
        let member = file.join();
        let mut bytes = rubbish(seed);
        bytes[..8].copy_from_slice(&MAGIC.to_ne_bytes());
        std::os::unix::fs::FileExt::write_all_at(&member.file, &bytes, 0).unwrap();
        member.begin();
        member.changer();
        member.remove_dead();
        for (_, owner) in member.owners() {
            assert!(usize::from(owner.number()) < MEMBERS_MAX);
        }
        for range in 0..=u8::MAX {
            member.owner(range);
        }
        member.lease();
        for address in [HERE, THERE] {
            let seats: Vec<_> = member.seated(address).collect();
            assert!(seats.len() <= SEATS_MAX);
            assert!(member.listeners(address).len() <= LISTENERS_MAX);
            member.manager(address);
            let epoch = member.next_epoch();
            member.probed(address, 3, epoch);
            if let Some(seat) = member.add_socket(address, 0) {
                member.answer(seat, epoch);
                member.remove_socket(seat, address);
            }
        }
        member.listen(7, None).ok();
        member.close_listener(7, None);
        member.finish();
        member.leave();
    }
}

#[test]
fn long_unused_registries_are_removed_and_others_stay() {
    let _alone = alone();
    let name = format!("airdma-test-{}-unused", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    let long_ago = std::time::SystemTime::now() - 2 * UNUSED_MAX;
    let make = |name: &str| {
        let file = File::create(directory.join(name)).unwrap();
        file.set_modified(long_ago).unwrap();
        file
    };
    for name in ["steering-4-1-1", "will-1-1-12345678", "other"] {
        make(name);
    }
    let will = make("will-1-1-87654321");
    assert!(try_lock(&will).unwrap());
    let used = directory.join("steering-4-2-1");
    let member = Registry::join_at(&used).unwrap();
    member.file.set_modified(long_ago).unwrap();
    let recent = directory.join("steering-4-3-1");
    drop(Registry::join_at(&recent).unwrap());
    // What is there already needs no room.
    make_room(&used);
    assert!(directory.join("steering-4-1-1").exists());
    make_room(&directory.join("steering-4-4-1"));
    let left = std::fs::read_dir(&directory).unwrap();
    let mut left: Vec<_> = left
        .map(|it| it.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(
        left,
        [
            "other",
            "steering-4-2-1",
            "steering-4-3-1",
            "will-1-1-87654321"
        ]
    );
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn old_registries_are_removed_some_at_a_time() {
    let name = format!("airdma-test-{}-many", std::process::id());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir(&directory).unwrap();
    let long_ago = std::time::SystemTime::now() - 2 * UNUSED_MAX;
    for number in 0..LOOKS_MAX + 100 {
        let file = File::create(directory.join(format!("steering-4-{number}-1")));
        file.unwrap().set_modified(long_ago).unwrap();
    }
    for left in [100, 0] {
        make_room(&directory.join("steering-4-0-2"));
        assert_eq!(std::fs::read_dir(&directory).unwrap().count(), left);
    }
    std::fs::remove_dir(&directory).unwrap();
}
