use super::*;
use std::net::Ipv4Addr;
use std::thread::sleep;
use std::time::Instant;

/// An address that no other test listens at, nor one of another process.
fn address(test: u8) -> IpAddr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, test, high, low).into()
}

const RANGE: u8 = 7;

/// The device is of the loopback interface.
fn presence() -> Presence {
    Presence::new(1)
}

/// Whether `peer` learns that the process with a range at an address exists, if it asks for two
/// seconds.
fn learns(peer: &mut Presence, of: IpAddr, range: u8) -> bool {
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(2) {
        let now = Time::from_nanos(started.elapsed().as_nanos() as u64);
        if peer.exists(Ipv4Addr::LOCALHOST.into(), (of, range), now) {
            return true;
        }
        sleep(Duration::from_millis(10));
    }
    false
}

#[test]
fn a_process_that_listens_exists_as_long_as_its_listener() {
    let (mut process, at) = (presence(), address(1));
    process.listen(at, RANGE);
    assert!(learns(&mut presence(), at, RANGE));
    drop(process);
    assert!(!learns(&mut presence(), at, RANGE));
}

#[test]
fn processes_at_an_address_are_told_apart() {
    let at = address(2);
    let mut processes = [presence(), presence()];
    for (process, range) in processes.iter_mut().zip([0, u8::MAX]) {
        process.listen(at, range);
        process.listen(at, range);
    }
    let [first, second] = processes;
    drop(first);
    assert!(!learns(&mut presence(), at, 0));
    assert!(learns(&mut presence(), at, u8::MAX));
    // The next process of the range.
    let mut next = presence();
    next.listen(at, 0);
    assert!(learns(&mut presence(), at, 0));
    drop(second);
}

#[test]
fn a_stopped_process_is_found_by_any_number_of_questions() {
    let (mut process, at) = (presence(), address(3));
    process.listen(at, RANGE);
    // It accepts nothing, as if it were stopped.
    for _ in 0..500 {
        assert!(learns(&mut presence(), at, RANGE));
    }
    let listener = process.listeners[&SocketAddr::new(at, port_of(RANGE))]
        .as_ref()
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    let accepted = listener.accept().unwrap_err();
    assert_eq!(accepted.kind(), io::ErrorKind::WouldBlock);
}

#[test]
fn an_answer_is_believed_for_three_seconds() {
    let (mut process, mut peer, at) = (presence(), presence(), address(4));
    let ours = Ipv4Addr::LOCALHOST.into();
    let at_ms = |ms: u64| Time::from_nanos(ms * 1_000_000);
    process.listen(at, RANGE);
    while !peer.exists(ours, (at, RANGE), at_ms(0)) {
        sleep(Duration::from_millis(1));
    }
    drop(process);
    // A question within a second of the last is not asked.
    assert!(peer.exists(ours, (at, RANGE), at_ms(999)));
    let until = Instant::now() + Duration::from_secs(2);
    while peer.exists(ours, (at, RANGE), at_ms(1000)) {
        assert!(Instant::now() < until, "the refusal is noted");
        sleep(Duration::from_millis(1));
    }
    assert!(!peer.exists(ours, (at, RANGE), at_ms(2500)));
}

#[test]
fn an_old_answer_is_not_believed() {
    let (mut process, mut peer, at) = (presence(), presence(), address(5));
    let ours = Ipv4Addr::LOCALHOST.into();
    process.listen(at, RANGE);
    while !peer.exists(ours, (at, RANGE), Time::ZERO) {
        sleep(Duration::from_millis(1));
    }
    let question = peer
        .questions
        .get_mut(&(SocketAddr::new(at, port_of(RANGE)), ours))
        .unwrap();
    assert!(question.is_answered(Time::ZERO + BELIEVED_FOR / 2));
    assert!(!question.is_answered(Time::ZERO + BELIEVED_FOR));
}

#[test]
fn questions_to_many_peers_are_bounded_and_make_room() {
    let mut peer = presence();
    let ours = Ipv4Addr::LOCALHOST.into();
    let ask_all = |peer: &mut Presence, now: Time| {
        for last in 0..=u8::MAX {
            peer.exists(ours, (Ipv4Addr::new(127, 99, 99, last).into(), RANGE), now);
        }
    };
    ask_all(&mut peer, Time::ZERO);
    assert_eq!(peer.questions.len(), PEERS_MAX);
    let of_first = peer.questions.keys().next().copied();
    let last = IpAddr::from(Ipv4Addr::new(127, 99, 99, u8::MAX));
    let of_last = (SocketAddr::new(last, port_of(RANGE)), ours);
    assert!(of_first.is_some() && !peer.questions.contains_key(&of_last));
    peer.exists(ours, (last, RANGE), Time::ZERO + ANSWER_BY);
    assert!(peer.questions.contains_key(&of_last));
}

#[test]
fn connections_with_data_are_held_up_to_the_backlog() {
    let (mut process, at) = (presence(), address(6));
    process.listen(at, RANGE);
    let to = SocketAddr::new(at, port_of(RANGE));
    let strangers: Vec<_> = (0..8)
        .map(|_| {
            let mut stranger =
                std::net::TcpStream::connect_timeout(&to, Duration::from_millis(300))?;
            io::Write::write_all(&mut stranger, b"data")?;
            Ok::<_, io::Error>(stranger)
        })
        .collect();
    let listener = process.listeners[&SocketAddr::new(at, port_of(RANGE))]
        .as_ref()
        .unwrap();
    listener.set_nonblocking(true).unwrap();
    sleep(Duration::from_millis(100));
    let held = std::iter::from_fn(|| listener.accept().ok()).count();
    let connected = strangers.iter().filter(|stranger| stranger.is_ok()).count();
    assert_eq!((held, connected), (2, 2), "the backlog, and one");
    // Then there is room for questions again.
    assert!(learns(&mut presence(), at, RANGE));
}
