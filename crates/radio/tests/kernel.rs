//! Readings of this machine's kernel, in network namespaces.
//!
//! One thread runs all tests: without root, the kernel lets only a process with a single thread
//! into a user namespace. `cargo test -p airdma-radio --test kernel -- --ignored` prints the cost
//! of readings.

#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use airdma_lab::{Cable, INTERFACE, Lab, Namespace, enter, interface};
use airdma_radio::*;

fn main() {
    // In the machine's own namespace, before leaving it.
    nobody_may_read();
    if let Err(error) = enter() {
        println!("skipped: {error}");
        return;
    }
    let tc = Command::new("tc").arg("-V").output();
    if tc.is_err() {
        println!("skipped: needs tc: install iproute2");
        return;
    }
    if std::env::args().any(|argument| argument == "--ignored") {
        return print_costs();
    }
    type Check = fn();
    let checks: [(&str, Check); 11] = [
        ("a_veth_has_no_queue", a_veth_has_no_queue),
        (
            "what_is_not_there_is_an_answer",
            what_is_not_there_is_an_answer,
        ),
        (
            "what_waits_below_htb_is_seen_at_the_root",
            what_waits_below_htb_is_seen_at_the_root,
        ),
        (
            "what_waits_three_levels_down_is_counted_once",
            what_waits_three_levels_down_is_counted_once,
        ),
        (
            "the_queues_of_mq_are_added_up_once",
            the_queues_of_mq_are_added_up_once,
        ),
        (
            "a_full_queue_counts_what_it_drops",
            a_full_queue_counts_what_it_drops,
        ),
        ("limits_are_as_they_were_set", limits_are_as_they_were_set),
        ("an_interface_may_vanish", an_interface_may_vanish),
        ("a_socket_says_what_it_holds", a_socket_says_what_it_holds),
        (
            "a_full_socket_counts_what_it_drops",
            a_full_socket_counts_what_it_drops,
        ),
        ("readings_do_not_allocate", readings_do_not_allocate),
    ];
    for (name, check) in checks {
        check();
        println!("test {name} ... ok");
    }
    println!("{} passed, 0 failed", checks.len() + 1);
}

/// Root drops all privileges for one thread; other users have none to drop.
fn nobody_may_read() {
    let read = || {
        if !become_nobody() {
            return false;
        }
        let mut reader = QueueReader::open(interface("lo").unwrap()).unwrap();
        assert!(reader.read().is_ok());
        assert_eq!(reader.tree().unwrap()[0].parent, Qdisc::ROOT);
        true
    };
    let read = thread::scope(|scope| scope.spawn(read).join()).unwrap();
    let result = if read {
        "ok"
    } else {
        "skipped: root cannot become nobody here"
    };
    println!("test nobody_may_read ... {result}");
}

/// Changes the calling thread only: the system calls do so, while the C library's functions change
/// all threads.
fn become_nobody() -> bool {
    // SAFETY: these calls take plain numbers.
    unsafe {
        libc::geteuid() != 0
            || libc::syscall(libc::SYS_setresgid, NOBODY, NOBODY, NOBODY) == 0
                && libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) == 0
    }
}

fn a_veth_has_no_queue() {
    let lab = Lab::new(Cable::default()).unwrap();
    on(&lab, || {
        let mut view = LinkView::open(interface(INTERFACE)?);
        let reading = view.read(Instant::now());
        assert_eq!(reading.queue.value, Ok(Queue::NoQueue));
        let reason = reading.wireless.value.unwrap_err();
        assert!(
            matches!(reason, Unreadable::NoNl80211 | Unreadable::NotWireless),
            "{reason:?}"
        );
        assert_eq!(reading.stations.value, Err(reason));
        assert_eq!(reading.survey.value, Err(reason));
        Ok(())
    });
}

fn what_is_not_there_is_an_answer() {
    let namespace = Namespace::new().unwrap();
    let work = || {
        let mut view = LinkView::open(9999);
        let reading = view.read(Instant::now());
        assert_eq!(reading.queue.value, Err(Unreadable::NoInterface));
        assert!(reading.wireless.value.is_err());
        assert_eq!(QueueReader::open(9999)?.tree(), Ok(vec![]));
        ip("link add down0 type veth peer name down1");
        let index = interface("down0")?;
        let mut reader = QueueReader::open(index)?;
        assert_eq!(reader.read(), Err(Unreadable::NeverUp));
        ip("link set down0 up");
        assert_eq!(reader.read(), Ok(Queue::NoQueue));
        Ok(())
    };
    namespace.within(work).unwrap();
}

fn what_waits_below_htb_is_seen_at_the_root() {
    let lab = slow_lab("pfifo limit 1000");
    on(&lab, || {
        let mut reader = QueueReader::open(interface(INTERFACE)?)?;
        let before = backlog(&mut reader);
        assert_eq!(before.kind.as_str(), "htb");
        send(&lab, 200);
        let after = backlog(&mut reader);
        // Sent minus what has left must be what waits, to the byte, however much the class passed
        // meanwhile.
        let left = after.sent_bytes - before.sent_bytes;
        let sent = u64::from(after.bytes) + left;
        assert!(
            (200 * FRAME..200 * FRAME + STRAY).contains(&sent),
            "{after:?}"
        );
        assert!(after.packets > 150, "{after:?}");
        assert_eq!(after.dropped, before.dropped);

        tc("class change dev eth0 parent 1: classid 1:1 htb rate 1gbit");
        let empty = until(&mut reader, |backlog| backlog.packets == 0);
        assert_eq!(empty.bytes, 0);
        let left = empty.sent_bytes - before.sent_bytes;
        assert!(
            (200 * FRAME..200 * FRAME + STRAY).contains(&left),
            "{empty:?}"
        );
        assert!(empty.sent_packets - before.sent_packets >= 200);
        Ok(())
    });
}

fn what_waits_three_levels_down_is_counted_once() {
    let lab = slow_lab("tbf rate 100gbit burst 20000 limit 1000000");
    on(&lab, || {
        tc("qdisc add dev eth0 parent 2:1 handle 3: pfifo limit 1000");
        let mut reader = QueueReader::open(interface(INTERFACE)?)?;
        send(&lab, 200);
        // A class this slow passes a packet every 83 ms: some list and root are of the same moment.
        let (tree, root) = loop {
            let root = backlog(&mut reader);
            let tree = reader.tree().unwrap();
            if backlog(&mut reader) == root {
                break (tree, root);
            }
        };
        assert!(root.packets > 150, "{root:?}");
        let waiting = |qdisc: &&Qdisc| qdisc.backlog.bytes == root.bytes;
        // HTB, TBF below it, and the pfifo at the end report the same.
        assert_eq!(tree.iter().filter(waiting).count(), 3, "{tree:#?}");
        assert_eq!(tree.len(), 3, "{tree:#?}");
        let roots = tree.iter().filter(|qdisc| qdisc.parent == Qdisc::ROOT);
        assert_eq!(roots.count(), 1);
        Ok(())
    });
}

fn the_queues_of_mq_are_added_up_once() {
    let namespace = Namespace::new().unwrap();
    let work = || {
        ip("link add eth0 numtxqueues 2 numrxqueues 2 type veth peer name eth1");
        ip("link set eth1 up");
        ip("link set eth0 up");
        ip("address add 10.77.0.1/24 dev eth0");
        // There is no host to answer, but packets have an address to go to.
        ip("neighbour add 10.77.0.2 lladdr 02:00:00:00:00:02 dev eth0");
        tc("qdisc add dev eth0 root handle 1: mq");
        for queue in 1..=2 {
            tc(&format!(
                "qdisc add dev eth0 parent 1:{queue} handle 1{queue}: tbf rate 8kbit burst 2000 limit 1000000"
            ));
        }
        // The queue of a flow depends on its ports.
        for _ in 0..20 {
            let socket = UdpSocket::bind("10.77.0.1:0")?;
            for _ in 0..10 {
                socket.send_to(&[0; PAYLOAD], "10.77.0.2:7")?;
            }
        }
        let mut reader = QueueReader::open(interface("eth0")?)?;
        let root = backlog(&mut reader);
        assert_eq!(root.kind.as_str(), "mq");
        let tree = reader.tree().unwrap();
        let leaves: Vec<Backlog> = tree
            .iter()
            .filter(|qdisc| qdisc.parent >> 16 == 1)
            .map(|qdisc| qdisc.backlog)
            .collect();
        assert_eq!(leaves.len(), 2, "{tree:#?}");
        assert!(leaves.iter().all(|leaf| leaf.packets > 0), "{leaves:?}");
        assert_eq!(root.bytes, leaves.iter().map(|leaf| leaf.bytes).sum());
        assert_eq!(root.packets, leaves.iter().map(|leaf| leaf.packets).sum());
        assert!((190..=200).contains(&root.packets), "{root:?}");
        Ok(())
    };
    namespace.within(work).unwrap();
}

fn a_full_queue_counts_what_it_drops() {
    let lab = slow_lab("pfifo limit 50");
    on(&lab, || {
        let mut reader = QueueReader::open(interface(INTERFACE)?)?;
        let before = backlog(&mut reader);
        send(&lab, 200);
        let after = backlog(&mut reader);
        assert!((45..=50).contains(&after.packets), "{after:?}");
        let left = after.sent_packets - before.sent_packets;
        let dropped = u64::from(after.dropped - before.dropped);
        let all = u64::from(after.packets) + left + dropped;
        assert!((200..220).contains(&all), "{after:?}");
        assert!(dropped >= 100, "{after:?}");
        Ok(())
    });
}

fn limits_are_as_they_were_set() {
    let lab = Lab::new(Cable::default()).unwrap();
    on(&lab, || {
        let mut reader = QueueReader::open(interface(INTERFACE)?)?;
        let known = [
            ("pfifo limit 77", Limit::Packets(77)),
            ("bfifo limit 7777", Limit::Bytes(7777)),
            ("tbf rate 1mbit burst 2000 limit 8888", Limit::Bytes(8888)),
            ("sfq limit 99", Limit::Packets(99)),
            ("codel limit 101", Limit::Packets(101)),
            ("fq_codel limit 102", Limit::Packets(102)),
            ("fq limit 103", Limit::Packets(103)),
            ("netem limit 104", Limit::Packets(104)),
        ];
        let mut seen = 0;
        for (kind, limit) in known {
            let words = format!("qdisc replace dev eth0 root {kind}");
            // A kernel has only the qdiscs it was built with.
            if run("tc", &words).is_err() {
                println!("     this kernel has no {kind}");
                continue;
            }
            let backlog = backlog(&mut reader);
            assert_eq!(backlog.kind.as_str(), kind.split(' ').next().unwrap());
            assert_eq!(backlog.limit, Some(limit), "{kind}");
            assert!(backlog.to_string().contains(" (at most "), "{backlog}");
            seen += 1;
        }
        assert!(seen >= 3);
        tc("qdisc replace dev eth0 root htb");
        assert_eq!(backlog(&mut reader).limit, None);
        Ok(())
    });
}

fn an_interface_may_vanish() {
    let namespace = Namespace::new().unwrap();
    let work = || {
        ip("link add gone0 type veth peer name gone1");
        ip("link set gone0 up");
        let mut view = LinkView::open(interface("gone0")?);
        let start = Instant::now();
        assert_eq!(view.read(start).queue.value, Ok(Queue::NoQueue));
        ip("link del gone0");
        // Within a millisecond the old reading is returned; after it, a new one.
        let soon = start + Duration::from_micros(999);
        assert_eq!(view.read_queue(soon).value, Ok(Queue::NoQueue));
        assert_eq!(view.read_queue(soon).age(soon), soon - start);
        let later = start + Duration::from_millis(1);
        assert_eq!(view.read(later).queue.value, Err(Unreadable::NoInterface));
        assert_eq!(view.read(later).queue.taken, Some(later));
        Ok(())
    };
    namespace.within(work).unwrap();
}

fn a_socket_says_what_it_holds() {
    let lab = slow_lab("pfifo limit 1000");
    let (sender, receiver) = sockets(&lab);
    let memory = |socket: &UdpSocket| SocketMemory::of(socket.as_fd()).unwrap();
    let empty = memory(&sender);
    assert_eq!((empty.send_bytes, empty.receive_bytes), (0, 0));
    for _ in 0..50 {
        sender.send_to(&[0; PAYLOAD], at(&lab)).unwrap();
    }
    let full = memory(&sender);
    let unsent = unsent_bytes(sender.as_fd()).unwrap();
    // What the class has passed so far is no longer counted.
    assert!(full.send_bytes as usize > 40 * PAYLOAD, "{full:?}");
    assert!(full.send_bytes < full.send_limit_bytes, "{full:?}");
    assert!(unsent <= full.send_bytes && unsent as usize > 40 * PAYLOAD);
    on(&lab, || {
        tc("class change dev eth0 parent 1: classid 1:1 htb rate 1gbit");
        Ok(())
    });
    wait(|| memory(&sender).send_bytes == 0);
    assert_eq!(unsent_bytes(sender.as_fd()).unwrap(), 0);

    wait(|| memory(&receiver).receive_bytes as usize > 50 * PAYLOAD);
    assert!(memory(&receiver).receive_bytes <= memory(&receiver).receive_limit_bytes);
    for _ in 0..50 {
        assert_eq!(receiver.recv(&mut [0; 2000]).unwrap(), PAYLOAD);
    }
    // The kernel releases memory of data that was read in portions of up to a quarter of the limit.
    let read = memory(&receiver);
    assert!(
        read.receive_bytes <= read.receive_limit_bytes / 4,
        "{read:?}"
    );
    assert_eq!(read.dropped, 0);
    let file = std::fs::File::open("/proc/self/stat").unwrap();
    let error = SocketMemory::of(file.as_fd()).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENOTSOCK));
    assert!(unsent_bytes(file.as_fd()).is_err());
}

fn a_full_socket_counts_what_it_drops() {
    let lab = Lab::new(Cable::default()).unwrap();
    let (sender, receiver) = sockets(&lab);
    receiver.set_nonblocking(true).unwrap();
    // More than the socket holds, and less than the kernel keeps for a busy processor
    // (net.core.netdev_max_backlog).
    let sent = 400;
    for _ in 0..sent {
        sender.send_to(&[0; PAYLOAD], at(&lab)).unwrap();
    }
    let dropped = || SocketMemory::of(receiver.as_fd()).unwrap().dropped;
    wait(|| dropped() > 0);
    let mut got = 0;
    wait(|| {
        while receiver.recv(&mut [0; 2000]).is_ok() {
            got += 1;
        }
        got + dropped() == sent
    });
    assert!(got > 20, "{got}");
}

fn readings_do_not_allocate() {
    let lab = slow_lab("pfifo limit 1000");
    on(&lab, || {
        let mut view = LinkView::open(interface(INTERFACE)?);
        let socket = UdpSocket::bind((lab.a.ipv4, 0))?;
        let mut now = Instant::now();
        view.read(now);
        let before = ALLOCATIONS.get();
        black_box(vec![0u8; 100]);
        assert_eq!(ALLOCATIONS.get(), before + 1);
        for _ in 0..1000 {
            now += Duration::from_millis(1);
            let taken = view.read(now).queue.taken;
            assert_eq!(taken, Some(now));
            SocketMemory::of(socket.as_fd())?;
        }
        assert_eq!(ALLOCATIONS.get(), before + 1);
        Ok(())
    });
}

fn print_costs() {
    let lab = slow_lab("pfifo limit 1000");
    on(&lab, || {
        let index = interface(INTERFACE)?;
        let mut reader = QueueReader::open(index)?;
        let socket = UdpSocket::bind((lab.a.ipv4, 0))?;
        cost("the root's backlog", || reader.read().map(drop).unwrap());
        for number in 0..50 {
            ip(&format!(
                "link add more{number} type veth peer name yet{number}"
            ));
            ip(&format!("link set more{number} up"));
            ip(&format!("link set yet{number} up"));
        }
        cost("the same beside a hundred other interfaces", || {
            reader.read().map(drop).unwrap();
        });
        cost("a socket's memory", || {
            SocketMemory::of(socket.as_fd()).map(drop).unwrap()
        });
        cost("a socket's unsent bytes", || {
            unsent_bytes(socket.as_fd()).map(drop).unwrap()
        });
        let mut view = LinkView::open(index);
        cost("a LinkView, asked again at once", || {
            view.read(Instant::now());
        });
        cost("nl80211, opened", || drop(Nl80211::open()));
        Ok(())
    });
}

fn cost(what: &str, mut read: impl FnMut()) {
    let mut times: Vec<Duration> = (0..5000)
        .map(|_| {
            let start = Instant::now();
            read();
            start.elapsed()
        })
        .collect();
    times.sort();
    let [half, most] = [times[2500], times[4950]].map(|time| time.as_secs_f64() * 1e6);
    println!("{what}: median {half:.2} us, 99 of 100 below {most:.2} us");
}

/// Two hosts; traffic of the first passes a class of 100 kb/s, 12 datagrams a second, with `leaf`
/// below it.
fn slow_lab(leaf: &str) -> Lab {
    let lab = Lab::new(Cable::default()).unwrap();
    // So that no neighbour has to be resolved later.
    let (sender, receiver) = sockets(&lab);
    sender.send_to(b"x", at(&lab)).unwrap();
    receiver.recv(&mut [0]).unwrap();
    on(&lab, || {
        tc("qdisc add dev eth0 root handle 1: htb default 1");
        tc("class add dev eth0 parent 1: classid 1:1 htb rate 100kbit burst 2000");
        tc(&format!("qdisc add dev eth0 parent 1:1 handle 2: {leaf}"));
        Ok(())
    });
    lab
}

fn on(lab: &Lab, work: impl FnOnce() -> io::Result<()> + Send) {
    lab.on_a(work).unwrap();
}

fn at(lab: &Lab) -> SocketAddr {
    SocketAddr::new(lab.b.ipv4, 7)
}

fn sockets(lab: &Lab) -> (UdpSocket, UdpSocket) {
    let sender = lab.on_a(|| UdpSocket::bind((lab.a.ipv4, 0)));
    let receiver = lab.on_b(|| UdpSocket::bind((lab.b.ipv4, 7)));
    (sender.unwrap(), receiver.unwrap())
}

/// Sends `datagrams` to the other host from several sockets, each of which holds at most 20.
fn send(lab: &Lab, datagrams: usize) {
    for _ in 0..datagrams / 20 {
        let socket = UdpSocket::bind((lab.a.ipv4, 0)).unwrap();
        for _ in 0..20 {
            socket.send_to(&[0; PAYLOAD], at(lab)).unwrap();
        }
    }
}

fn backlog(reader: &mut QueueReader) -> Backlog {
    match reader.read() {
        Ok(Queue::Backlog(backlog)) => backlog,
        other => panic!("{other:?}"),
    }
}

fn until(reader: &mut QueueReader, holds: impl Fn(&Backlog) -> bool) -> Backlog {
    wait(|| holds(&backlog(reader)));
    backlog(reader)
}

fn wait(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "not after ten seconds");
        thread::sleep(Duration::from_millis(1));
    }
}

fn ip(words: &str) {
    run("ip", words).unwrap();
}

fn tc(words: &str) {
    run("tc", words).unwrap();
}

fn run(program: &str, words: &str) -> Result<(), String> {
    let output = Command::new(program)
        .args(words.split(' '))
        .output()
        .unwrap();
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} {words}: {said}"))
}

const NOBODY: libc::c_long = 65534;
const PAYLOAD: usize = 1000;
/// A datagram with its UDP, IPv4 and Ethernet headers.
const FRAME: u64 = PAYLOAD as u64 + 8 + 20 + 14;
/// Bytes that the kernel itself may send meanwhile: neighbour and router solicitations, group
/// reports.
const STRAY: u64 = 2000;

/// Counts the allocations of the calling thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is forwarded to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;
