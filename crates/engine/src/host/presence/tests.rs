use super::*;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread::sleep;
use std::time::Instant;

const RANGE: u8 = 7;
const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// An address that no other test listens at, nor one of another process.
fn address(test: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, test, high, low).into()
}

/// The device is of the loopback interface.
fn presence() -> Presence {
    Presence::new(1, Arc::new(PollSet::new().unwrap()))
}

/// Whether `peer` finds a process stopped, if it looks for a second and a half. The process runs
/// meanwhile if it is given.
fn finds(peer: &mut Presence, of: (IpAddr, u8), mut running: Option<&mut Presence>) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(1500) {
        let now = Time::from_nanos(started.elapsed().as_nanos() as u64);
        if peer.is_stopped(OURS, of, now) {
            return true;
        }
        if let Some(process) = &mut running {
            process.answer();
        }
        sleep(Duration::from_millis(5));
    }
    false
}

#[test]
fn a_stopped_process_is_told_from_one_that_runs_or_ended() {
    let (mut process, at) = (presence(), address(1));
    process.listen(at, RANGE);
    process.listen(at, RANGE);
    assert_eq!(process.listeners.len(), 1);
    assert!(finds(&mut presence(), (at, RANGE), None));
    assert!(!finds(&mut presence(), (at, RANGE), Some(&mut process)));
    drop(process);
    assert!(!finds(&mut presence(), (at, RANGE), None));
}

#[test]
fn processes_at_an_address_are_told_apart() {
    let at = address(2);
    let (mut first, mut second) = (presence(), presence());
    first.listen(at, 0);
    second.listen(at, u8::MAX);
    drop(first);
    assert!(!finds(&mut presence(), (at, 0), None));
    assert!(finds(&mut presence(), (at, u8::MAX), None));
    // The next process of the range.
    let mut next = presence();
    next.listen(at, 0);
    assert!(finds(&mut presence(), (at, 0), None));
}

#[test]
fn a_port_that_a_service_has_is_tried_again() {
    let (mut process, at) = (presence(), address(5));
    let service = TcpListener::bind((at, port_of(RANGE))).unwrap();
    process.listen(at, RANGE);
    assert!(process.listeners.is_empty());
    drop(service);
    process.listen(at, RANGE);
    assert!(finds(&mut presence(), (at, RANGE), None));
}

#[test]
fn a_process_that_runs_again_or_ends_is_not_stopped_any_more() {
    let at = address(3);
    for ends in [false, true] {
        let (mut process, mut peer) = (presence(), presence());
        process.listen(at, RANGE);
        assert!(finds(&mut peer, (at, RANGE), None));
        // Readable, so that the progress thread wakes.
        assert_eq!(process.callers.ready().unwrap().count(), 1);
        if ends {
            drop(process);
        } else {
            process.answer();
            assert_eq!(process.callers.ready().unwrap().count(), 0);
        }
        let until = Instant::now() + Duration::from_secs(2);
        while peer.is_stopped(OURS, (at, RANGE), Time::from_nanos(900_000_000)) {
            assert!(Instant::now() < until, "it is noted");
            sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn one_question_waits_however_long_a_process_is_stopped() {
    let (mut process, mut peer, at) = (presence(), presence(), address(4));
    process.listen(at, RANGE);
    for second in 0..60 {
        for tenth in 0..10 {
            let now = Time::from_nanos((second * 10 + tenth) * 100_000_000);
            let is_stopped = peer.is_stopped(OURS, (at, RANGE), now);
            assert_eq!(is_stopped, second > 0 || is_stopped);
            sleep(Duration::from_micros(100));
        }
    }
    let listener = process.listeners.values().next().unwrap();
    let waiting = std::iter::from_fn(|| listener.accept().ok()).count();
    assert_eq!(waiting, 1);
}

#[test]
fn questions_to_many_processes_are_bounded_and_make_room() {
    let mut peer = presence();
    let of = |last: u8| (IpAddr::from(Ipv4Addr::new(127, 99, 99, last)), RANGE);
    for last in 0..=u8::MAX {
        peer.is_stopped(OURS, of(last), Time::ZERO);
    }
    assert_eq!(peer.questions.len(), QUESTIONS_MAX);
    let last = of(u8::MAX);
    let key = (SocketAddr::new(last.0, port_of(RANGE)), OURS);
    assert!(!peer.questions.contains_key(&key));
    peer.is_stopped(OURS, last, Time::ZERO + ASK_AGAIN);
    assert!(peer.questions.contains_key(&key));
}

#[test]
fn connections_are_held_up_to_the_backlog() {
    let (mut process, at) = (presence(), address(6));
    process.listen(at, RANGE);
    let to = SocketAddr::new(at, port_of(RANGE));
    let strangers: Vec<_> = (0..BACKLOG + 8)
        .map(|_| {
            let mut stranger = TcpStream::connect_timeout(&to, Duration::from_millis(50))?;
            stranger.write_all(b"data")?;
            Ok::<_, io::Error>(stranger)
        })
        .collect();
    sleep(Duration::from_millis(100));
    let listener = process.listeners.values().next().unwrap();
    let held = std::iter::from_fn(|| listener.accept().ok()).count();
    assert_eq!(held as i32, BACKLOG + 1);
    drop(strangers);
    // Then there is room for questions again.
    assert!(finds(&mut presence(), (at, RANGE), None));
}

#[test]
fn without_descriptors_a_listener_is_closed() {
    let (mut process, at) = (presence(), address(7));
    process.listen(at, RANGE);
    let to = SocketAddr::new(at, port_of(RANGE));
    let mut peer = TcpStream::connect(to).unwrap();
    peer.write_all(b"x").unwrap();
    // A descriptor that is no listener stands for a limit that is reached.
    let (other, _) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
    process.listeners.insert(to, other);
    process.answer();
    assert!(process.listeners.is_empty());
    process.listen(at, RANGE);
    assert_eq!(process.listeners.len(), 1);
}
