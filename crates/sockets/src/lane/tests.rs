#![allow(clippy::unwrap_used)]
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;
use crate::hand_back::Need;
use crate::next;

/// Both lanes of a connection, and its sockets: first those of the end that connected.
struct Ends {
    lanes: [Lane; 2],
    sockets: [TcpStream; 2],
}

impl Ends {
    fn new(port: u16) -> Ends {
        let device = Device::open("127.0.0.1").unwrap();
        let listener = device.listen(port).unwrap();
        let mut connecting = device.connect(("127.0.0.1", port));
        let accepted = listener.accept().wait().unwrap();
        let connected = connecting.wait_timeout(Duration::from_secs(10)).unwrap();
        let lane = |endpoint| Lane::new(&device, endpoint, Waker::noop().clone()).unwrap();
        let lanes = [lane(connected.unwrap()), lane(accepted)];
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let active = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (passive, _) = listener.accept().unwrap();
        Ends {
            lanes,
            sockets: [active, passive],
        }
    }

    fn fd(&self, end: usize) -> i32 {
        self.sockets[end].as_raw_fd()
    }

    /// Both lanes are open and have their tokens. `in_kernel` bytes of each stream went before.
    fn opened(port: u16, in_kernel: usize) -> Ends {
        let mut ends = Ends::new(port);
        for end in 0..2 {
            let before = [pattern(0, in_kernel)].concat();
            assert_eq!(tcp::send_some(ends.fd(end), &before), in_kernel);
        }
        for end in 0..2 {
            let fd = ends.fd(end);
            ends.lanes[end].peer_switches(in_kernel as u64);
            ends.lanes[end].open();
            ends.lanes[end].switched();
            ends.lanes[end].settle_read_gate(fd);
        }
        if in_kernel == 0 {
            ends.all_until(|lanes| lanes.iter().all(|lane| lane.heard.drained));
        }
        ends
    }

    /// Writes as a program does; how many bytes.
    fn write(&mut self, end: usize, bytes: &[u8]) -> usize {
        let (fd, lane) = (self.fd(end), &mut self.lanes[end]);
        if !lane.is_back() {
            return lane.write(fd, bytes, false);
        }
        lane.progress(fd);
        if lane.rest_bytes() > 0 {
            return 0;
        }
        tcp::send_some(fd, bytes)
    }

    /// Reads as a program does.
    fn read(&mut self, end: usize, most: usize) -> Vec<u8> {
        let (fd, lane) = (self.fd(end), &mut self.lanes[end]);
        let mut bytes = vec![0; most];
        let got = match lane.source() {
            Source::Kernel(left) => {
                let got = receive(fd, &mut bytes[..most.min(left)]);
                lane.read_from_kernel(fd, got);
                got
            }
            Source::Lane => match lane.read(fd, &mut [&mut bytes], false) {
                0 if lane.is_back() && lane.read_due_tokens(fd).is_ok() => receive(fd, &mut bytes),
                got => got,
            },
        };
        bytes.truncate(got);
        bytes
    }

    /// Reads `bytes` of the stream from `at` on, with both ends at work.
    fn check(&mut self, end: usize, at: usize, bytes: usize) {
        let (mut got, started) = (Vec::new(), Instant::now());
        while got.len() < bytes {
            got.extend(self.read(end, bytes - got.len()));
            self.progress();
            assert!(
                started.elapsed() < Duration::from_secs(10),
                "{} bytes",
                got.len()
            );
        }
        assert!(got == pattern(at, bytes), "the stream is damaged");
    }

    /// Reads the first `bytes` of the stream, with this end alone at work.
    fn check_alone(&mut self, end: usize, bytes: usize) {
        let (mut got, started) = (Vec::new(), Instant::now());
        while got.len() < bytes {
            got.extend(self.read(end, bytes - got.len()));
            assert!(started.elapsed() < Duration::from_secs(10));
        }
        assert!(got == pattern(0, bytes), "the stream is damaged");
    }

    fn progress(&mut self) {
        for end in 0..2 {
            let fd = self.fd(end);
            self.lanes[end].progress(fd);
        }
    }

    fn all_until(&mut self, happened: impl Fn(&[Lane; 2]) -> bool) {
        let started = Instant::now();
        while !happened(&self.lanes) {
            self.progress();
            let far = || self.lanes.each_ref().map(Lane::describe);
            assert!(started.elapsed() < Duration::from_secs(10), "{:?}", far());
        }
    }

    fn progress_until(&mut self, end: usize, happened: impl Fn(&Lane) -> bool) {
        let (fd, started) = (self.fd(end), Instant::now());
        while !happened(&self.lanes[end]) {
            self.lanes[end].progress(fd);
            assert!(started.elapsed() < Duration::from_secs(10));
        }
    }

    fn read_until(&mut self, end: usize, happened: impl Fn(&Heard) -> bool) {
        let (fd, started) = (self.fd(end), Instant::now());
        while !happened(&self.lanes[end].heard) {
            assert_eq!(self.lanes[end].read(fd, &mut [&mut [0; 8]], false), 0);
            assert!(started.elapsed() < Duration::from_secs(10));
        }
    }
}

/// What the kernel has.
fn receive(fd: i32, to: &mut [u8]) -> usize {
    // SAFETY: that many bytes.
    let got = unsafe { next::recv(fd, to.as_mut_ptr().cast(), to.len(), libc::MSG_DONTWAIT) };
    usize::try_from(got).unwrap_or(0)
}

/// Bytes of a stream: each has the number of its place.
fn pattern(at: usize, bytes: usize) -> Vec<u8> {
    (at..at + bytes).map(|at| (at ^ at >> 8) as u8).collect()
}

#[test]
fn a_message_of_the_negotiation_is_kept_whichever_call_takes_it() {
    let mut ends = Ends::new(7591);
    // Reads of the program take them one by one, before the task that negotiates looks.
    ends.lanes[0].tell(Kind::Ready, 7, &[]);
    ends.read_until(1, |heard| heard.ready.is_some());
    ends.lanes[0].tell(Kind::Go, 0, &[]);
    ends.read_until(1, |heard| heard.go);
    let heard = ends.lanes[1].heard;
    assert_eq!((heard.ready, heard.go), (Some(7), true));
}

#[test]
fn what_is_written_before_a_lane_is_open_fits_the_kernel() {
    let mut ends = Ends::new(7592);
    let fd = ends.fd(0);
    assert_eq!(ends.lanes[0].write(fd, b"first", false), 5);
    let more = vec![b'x'; 2 * UNOPENED_MAX];
    assert_eq!(ends.lanes[0].write(fd, &more, false), UNOPENED_MAX - 5);
    assert_eq!(ends.lanes[0].write(fd, b"none", false), 0);
    let unopened = ends.lanes[0].unopened();
    assert_eq!(
        (unopened.len(), &unopened[..6]),
        (UNOPENED_MAX, &b"firstx"[..])
    );
    // The lane opens: it leaves by the lane, and the kernel gets nothing of it.
    ends.lanes[0].open();
    assert!(ends.lanes[0].unopened().is_empty());
    ends.lanes[1].peer_switches(0);
    ends.progress_until(1, |lane| lane.readable() == UNOPENED_MAX);
    assert_eq!(tcp::count(ends.fd(1), libc::FIONREAD), Some(0));
}

#[test]
fn a_peer_that_sends_beyond_its_credits_ends_the_lane() {
    let mut ends = Ends::new(7593);
    ends.lanes[0].open();
    ends.lanes[1].peer_switches(0);
    ends.lanes[0].sending.credits = CREDITS + 1;
    ends.lanes[0].heard.drained = true;
    let message = vec![b'x'; MESSAGE_BYTES - HEADER_BYTES];
    let fd = ends.fd(0);
    for _ in 0..=CREDITS {
        assert_eq!(ends.lanes[0].write(fd, &message, false), message.len());
    }
    ends.progress_until(1, |lane| lane.failed);
    assert_eq!(ends.lanes[1].receiving.arrived.len(), CREDITS);
}

/// Less than a lane takes before the peer has read what was the kernel's, and too much to be sent
/// again for nothing.
const SOME: usize = 200_000;
/// More than there are credits for.
const MUCH: usize = (CREDITS + 1) * (MESSAGE_BYTES - HEADER_BYTES) + 1000;

#[test]
fn a_lane_that_is_handed_back_loses_nothing_at_either_end() {
    for (port, asks) in [(7594, &[0][..]), (7595, &[0, 1])] {
        let mut ends = Ends::opened(port, 0);
        for end in 0..2 {
            assert_eq!(ends.write(end, &pattern(0, MUCH)), MUCH);
        }
        // Some bytes of the first message are read.
        ends.check(0, 0, 100);
        ends.check(1, 0, 200);
        for end in asks {
            let fd = ends.fd(*end);
            ends.lanes[*end].ask_back(fd, Need::All);
        }
        ends.all_until(|lanes| lanes.iter().all(Lane::is_back));
        // An end that asked reads from the kernel alone.
        assert_eq!(ends.lanes[0].readable(), 0);
        assert_eq!(ends.lanes[1].readable() > 0, asks.len() == 1);
        ends.check(0, 100, MUCH - 100);
        ends.check(1, 200, MUCH - 200);
        ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
        for end in 0..2 {
            assert_eq!(ends.write(end, &pattern(MUCH, 9)), 9);
        }
        ends.check(0, MUCH, 9);
        ends.check(1, MUCH, 9);
    }
}

#[test]
fn tokens_of_the_write_gate_do_not_reach_the_program() {
    let mut ends = Ends::opened(7596, 0);
    // One that the kernel sends 200 ms later, unless it is pushed.
    let more = vec![b'x'; 2 * MUCH];
    let written = ends.write(0, &more);
    assert!(written < more.len() && ends.lanes[0].sending.tokens == 2);
    let fd = ends.fd(1);
    ends.lanes[1].ask_back(fd, Need::All);
    let started = Instant::now();
    ends.all_until(|lanes| lanes[1].is_over());
    assert!(started.elapsed() < Duration::from_millis(150));
    assert!(tcp::is_writable(ends.fd(0)));
    let mut got = 0;
    while got < written {
        let bytes = ends.read(1, MUCH);
        assert!(bytes.iter().all(|byte| *byte == b'x'));
        got += bytes.len();
        ends.progress();
    }
    ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
    assert_eq!(ends.read(1, 1), []);
}

#[test]
fn bytes_that_were_the_kernels_are_read_before() {
    let mut ends = Ends::opened(7597, 5000);
    assert_eq!(ends.write(0, &pattern(5000, SOME)), SOME);
    assert_eq!(ends.write(1, &pattern(5000, 10)), 10);
    let fd = ends.fd(0);
    ends.check(0, 0, 5010);
    ends.lanes[0].ask_back(fd, Need::All);
    ends.all_until(|lanes| lanes[0].is_over());
    // The end that answers has not read them, and then the lane's.
    ends.check(1, 0, 5000 + SOME);
    ends.all_until(|lanes| lanes[1].is_over());
}

#[test]
fn bytes_that_were_the_kernels_need_not_be_read_before() {
    let mut ends = Ends::opened(7641, 5000);
    assert_eq!(ends.write(0, &pattern(5000, SOME)), SOME);
    let fd = ends.fd(1);
    ends.lanes[1].ask_back(fd, Need::All);
    ends.all_until(|lanes| lanes[1].is_over());
    let (mut got, started) = (Vec::<u8>::new(), Instant::now());
    while got.len() < 5000 + SOME {
        let mut bytes = [0; 3000];
        let count = receive(fd, &mut bytes);
        got.extend(&bytes[..count]);
        ends.progress();
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert!(got == pattern(0, 5000 + SOME), "the stream is damaged");
}

#[test]
fn ends_that_ask_at_once_need_not_read_what_was_the_kernels() {
    let mut ends = Ends::opened(7644, 5000);
    for end in 0..2 {
        assert_eq!(ends.write(end, &pattern(5000, 100)), 100);
    }
    for end in 0..2 {
        let fd = ends.fd(end);
        ends.lanes[end].ask_back(fd, Need::All);
    }
    ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
    for end in 0..2 {
        ends.check(end, 0, 5100);
    }
}

#[test]
fn an_end_without_a_token_keeps_nothing() {
    let mut ends = Ends::opened(7645, 5000);
    assert_eq!(ends.write(0, &pattern(5000, SOME)), SOME);
    ends.progress_until(1, |lane| lane.readable() == SOME);
    let fd = ends.fd(0);
    ends.lanes[0].ask_back(fd, Need::All);
    ends.all_until(|lanes| lanes[1].is_back());
    assert_eq!(ends.lanes[1].readable(), 0);
    ends.check(1, 0, 5000 + SOME);
    ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
}

#[test]
fn a_lane_takes_less_until_what_was_the_kernels_is_read() {
    let mut ends = Ends::opened(7646, 5000);
    let most = (CREDITS + WAITING - RESERVE) * (MESSAGE_BYTES - HEADER_BYTES);
    assert_eq!(ends.write(0, &pattern(5000, MUCH)), most);
    assert_eq!(ends.write(0, &pattern(0, 1)), 0);
    ends.check(1, 0, 5000);
    ends.all_until(|lanes| lanes[0].heard.drained);
    assert!(ends.write(0, &pattern(5000 + most, 100)) == 100);
    ends.check(1, 5000, most + 100);
}

#[test]
fn what_waits_for_a_lane_that_is_lost_is_woken() {
    let mut ends = Ends::new(7647);
    let fd = ends.fd(0);
    let lane = &mut ends.lanes[0];
    lane.peer_switches(0);
    lane.switched();
    lane.settle_read_gate(fd);
    let wait = move || {
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        let ready = unsafe { next::poll(&raw mut entry, 1, 5000) };
        (ready, entry.revents & libc::POLLERR)
    };
    let waits = std::thread::spawn(wait);
    lane.failed = true;
    while !lane.ends_if_lost(fd) {
        lane.progress(fd);
    }
    assert_eq!(waits.join().unwrap(), (1, libc::POLLERR));
    let mut byte = [0];
    let read = std::io::Read::read(&mut &ends.sockets[1], &mut byte);
    let reset = std::io::ErrorKind::ConnectionReset;
    assert_eq!(read.map_err(|error| error.kind()), Err(reset));
}

#[test]
fn a_direction_is_shut_behind_what_was_written() {
    let mut ends = Ends::opened(7648, 0);
    assert_eq!(ends.write(0, &pattern(0, MUCH)), MUCH);
    let fd = ends.fd(0);
    ends.lanes[0].ask_back(fd, Need::All);
    ends.lanes[0].shut_later(fd, libc::SHUT_WR);
    assert!(ends.lanes[0].is_shut_for_writing());
    ends.check(1, 0, MUCH);
    ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
    assert!(!ends.lanes[0].is_shut_for_writing());
    let mut byte = [0];
    let read = std::io::Read::read(&mut &ends.sockets[1], &mut byte);
    assert_eq!(read.unwrap(), 0);
    // The other direction is open.
    assert_eq!(ends.write(1, &pattern(0, 9)), 9);
    ends.check(0, 0, 9);
}

#[test]
fn the_write_gate_opens_with_the_lane() {
    let mut ends = Ends::new(7642);
    let fd = ends.fd(0);
    let more = vec![b'x'; 2 * UNOPENED_MAX];
    assert_eq!(ends.lanes[0].write(fd, &more, false), UNOPENED_MAX);
    ends.lanes[0].progress(fd);
    assert!(ends.lanes[0].sending.gate_shut && ends.lanes[0].has_no_gate());
    ends.lanes[0].open();
    ends.lanes[0].progress(fd);
    assert!(!ends.lanes[0].sending.gate_shut);
}

#[test]
fn a_peer_that_names_a_byte_out_of_range_ends_the_lane() {
    for (port, from) in [(7598, 101), (7599, u64::MAX)] {
        let mut ends = Ends::opened(port, 0);
        assert_eq!(ends.write(0, &pattern(0, 100)), 100);
        ends.lanes[1].tell(Kind::Back, from, &[]);
        ends.progress_until(0, |lane| lane.failed);
        assert!(!ends.lanes[0].is_back());
    }
}

#[test]
fn a_peer_that_is_gone_before_it_answers_leaves_an_error() {
    let mut ends = Ends::opened(7600, 0);
    assert_eq!(ends.write(0, &pattern(0, 100)), 100);
    let Ends { lanes, sockets } = ends;
    let [mut lane, other] = lanes;
    drop(other);
    let (fd, started) = (sockets[0].as_raw_fd(), Instant::now());
    lane.ask_back(fd, Need::All);
    while !lane.failed {
        lane.progress(fd);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
    assert!(!lane.is_back() && !lane.is_over());
}

#[test]
fn a_write_that_finds_the_stream_handed_back_takes_nothing() {
    let mut ends = Ends::opened(7606, 0);
    let more = pattern(0, 2 * MUCH);
    let written = ends.write(0, &more);
    assert!(written < more.len());
    // The peer's program reads some messages, which makes room, and gives the stream back.
    ends.check_alone(1, 8 * (MESSAGE_BYTES - HEADER_BYTES));
    let fd = ends.fd(1);
    ends.lanes[1].ask_back(fd, Need::All);
    ends.progress_until(1, |lane| lane.phase() == Phase::Told);
    let started = Instant::now();
    while started.elapsed() < Duration::from_millis(50) {
        ends.lanes[1].run(fd);
    }
    let fd = ends.fd(0);
    let taken = ends.lanes[0].write(fd, b"more", false);
    assert!(ends.lanes[0].is_back(), "{}", ends.lanes[0].describe());
    assert_eq!(taken, 0);
}

#[test]
fn a_writer_of_much_runs_the_device() {
    let mut ends = Ends::opened(7607, 0);
    for _ in 0..4 {
        assert_eq!(ends.write(0, &pattern(0, 40_000)), 40_000);
        assert!(ends.lanes[0].sending.unrun < RUN_EVERY);
    }
}

#[test]
fn what_another_thread_takes_wakes_a_read_that_waits() {
    let mut ends = Ends::opened(7608, 0);
    let fd = ends.fd(1);
    let is_readable = || {
        let mut entry = libc::pollfd {
            fd,
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one entry.
        unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
    };
    ends.lanes[1].settle_read_gate(fd);
    ends.lanes[1].set_awaited(true);
    assert_eq!(ends.write(0, b"one"), 3);
    ends.progress_until(1, |lane| !lane.is_quiet());
    assert!(!is_readable(), "the thread that waits takes it itself");
    assert_eq!(ends.read(1, 3), b"one");
    ends.lanes[1].set_awaited(true);
    assert_eq!(ends.write(0, b"two"), 3);
    let mut lane = std::sync::Mutex::new(ends);
    std::thread::scope(|scope| {
        let other = || {
            let mut ends = lane.lock().unwrap();
            ends.progress_until(1, |lane| !lane.is_quiet());
        };
        scope.spawn(other);
    });
    assert!(is_readable());
    assert_eq!(lane.get_mut().unwrap().read(1, 3), b"two");
    assert!(!is_readable());
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % below as u64) as usize
    }
}

#[test]
fn random_calls_and_a_hand_back_lose_nothing() {
    for seed in 0..40 {
        let mut random = Random(seed);
        let in_kernel = random.below(3000);
        let mut ends = Ends::opened(7601 + seed as u16, in_kernel);
        let (mut written, mut read) = ([in_kernel; 2], [0; 2]);
        for _ in 0..random.below(60) + 20 {
            let end = random.below(2);
            match random.below(9) {
                0..3 => {
                    let most = [16, 3000, 100_000][random.below(3)];
                    let bytes = 1 + random.below(most);
                    written[end] += ends.write(end, &pattern(written[end], bytes));
                }
                6..8 => ends.progress(),
                3..6 => {
                    let got = ends.read(end, 1 + random.below(150_000));
                    assert!(got == pattern(read[end], got.len()), "seed {seed}");
                    read[end] += got.len();
                }
                _ => {
                    let fd = ends.fd(end);
                    ends.lanes[end].ask_back(fd, Need::All);
                }
            }
        }
        for end in 0..2 {
            let (at, left) = (read[end], written[1 - end] - read[end]);
            ends.check(end, at, left);
        }
        let fd = ends.fd(0);
        ends.lanes[0].ask_back(fd, Need::All);
        ends.all_until(|lanes| lanes.iter().all(Lane::is_over));
    }
}

#[test]
fn what_a_lane_brought_is_read_before_its_end() {
    let mut ends = Ends::opened(7700, 0);
    let fd = ends.fd(1);
    assert!(!ends.lanes[1].notices_end(fd));
    assert_eq!(ends.write(0, &pattern(0, 1000)), 1000);
    tcp::abort(ends.fd(0));
    ends.progress_until(1, |lane| lane.readable() == 1000 && tcp::is_ended(fd));
    assert!(ends.lanes[1].notices_end(fd) && !ends.lanes[1].failed);
    ends.check(1, 0, 1000);
    assert!(ends.lanes[1].notices_end(fd) && ends.lanes[1].is_lost());
}

#[test]
fn a_lane_that_fails_while_it_opens_is_not_lost() {
    let mut ends = Ends::new(7643);
    ends.lanes[0].failed = true;
    assert!(ends.lanes[0].is_moving() && !ends.lanes[0].is_lost());
    ends.lanes[0].switched();
    assert!(ends.lanes[0].is_lost() && !ends.lanes[0].is_moving());
}

#[test]
fn what_was_sent_returns_to_an_end_that_nothing_wakes() {
    let mut ends = Ends::opened(7701, 0);
    let fd = ends.fd(1);
    let started = Instant::now();
    let is_late = || started.elapsed() > Duration::from_secs(10);
    // More than there is memory for, with time for the acknowledgements of each half of it.
    for number in 1..=3 * CONTROLS {
        ends.lanes[0].tell(Kind::Credits, 0, &[]);
        if number % (CONTROLS / 2) == 0 {
            let (mut runs, since) = (0, Instant::now());
            while runs < 200 || since.elapsed() < Duration::from_millis(50) {
                ends.lanes[1].run(fd);
                runs += 1;
            }
        }
    }
    assert!(!ends.lanes[0].failed);
    assert_eq!(ends.write(0, &pattern(0, 1000)), 1000);
    assert_eq!(ends.lanes[0].unsent(), 1000);
    ends.lanes[0].endpoint.run();
    while ends.lanes[1].readable() < 1000 && !is_late() {
        ends.lanes[1].run(fd);
    }
    while ends.lanes[0].unsent() > 0 {
        assert!(!is_late(), "it looks unsent for ever");
        ends.lanes[1].run(fd);
    }
}

#[test]
fn a_writer_that_tries_again_pays_for_the_gate_once() {
    let mut ends = Ends::opened(7649, 0);
    while ends.write(0, &[0; 4096]) == 4096 {}
    let paid = ends.lanes[0].sending.tokens;
    for _ in 0..3 {
        assert_eq!(ends.write(0, b"more"), 0);
    }
    assert_eq!(ends.lanes[0].sending.tokens, paid);
    assert!(!tcp::is_writable(ends.fd(0)));
}
