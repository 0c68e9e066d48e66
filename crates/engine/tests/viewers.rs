//! Processes that look at a device: what they are told, what they cannot do, and that a device
//! without them has no thread for them.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::tap::{RECORD_HEADER_LEN, RecordHeader};
use airdma_engine::*;
use common::*;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(5);
/// More than a device serves.
const CROWD: usize = 40;

/// The loopback device, with a queue pair, so that it has its port.
fn bound() -> (Arc<Device>, End) {
    let all = all_devices().unwrap();
    let info = all.iter().find(|info| info.interface == "lo").unwrap();
    let device = Device::open_with(info, &DeviceConfig::default()).unwrap();
    let end = End::new(&device, QpType::Ud, 4096);
    (device, end)
}

fn names() -> Vec<String> {
    let list = fs::read_to_string("/proc/net/unix").unwrap();
    let names = list.lines().filter_map(|line| line.split_once('@'));
    let names = names.filter(|(_, name)| name.starts_with(VIEW_NAME_PREFIX));
    let mut names: Vec<_> = names.map(|(_, name)| name.to_owned()).collect();
    names.dedup();
    names
}

fn connect() -> UnixStream {
    let address = SocketAddr::from_abstract_name(&names()[0]).unwrap();
    let stream = UnixStream::connect_addr(&address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The answer to a request; empty if the connection is closed.
fn answer(mut stream: &UnixStream, request: &[u8]) -> String {
    let mut line = String::new();
    if stream.write_all(request).is_ok() {
        // A closed connection may be an error.
        let _ = BufReader::new(stream).read_line(&mut line);
    }
    line
}

fn threads() -> usize {
    let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.trim() == "airdma-viewer").count()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_device_is_seen_while_it_is_open_and_serves_few_at_a_time() {
    isolated(
        "a_device_is_seen_while_it_is_open_and_serves_few_at_a_time",
        "",
        || {
            let (device, end) = bound();
            assert_eq!((names().len(), threads()), (1, 0));
            let viewer = connect();
            let report = answer(&viewer, b"report\n");
            let number = end.qp.number().get();
            assert!(
                report.starts_with("{\"version\":1,\"airdma\":\"")
                    && report.contains(",\"interface\":1,"),
                "{report}"
            );
            assert!(
                report.contains(&format!("{{\"number\":{number},\"type\":\"UD\"")),
                "{report}"
            );
            let long = [b'x'; 1 << 16];
            for request in [
                &b"\n"[..],
                b"nonsense\n",
                b"capture snap=x\n",
                &long,
                b"\xff\xfe\n",
            ] {
                assert_eq!(answer(&connect(), request), "");
            }
            wait_until("odd requests end", || threads() == 1);
            let crowd: Vec<_> = (0..CROWD).map(|_| connect()).collect();
            let served = |stream: &&UnixStream| !answer(stream, b"report\n").is_empty();
            assert_eq!(crowd.iter().filter(served).count(), 7);
            assert!(answer(&viewer, b"report\n").starts_with('{'));
            drop(crowd);
            wait_until("threads end with their connections", || threads() == 1);
            drop((end, device));
            assert_eq!((names(), threads()), (Vec::new(), 0));
            assert_eq!(answer(&viewer, b"report\n"), "");
        },
    );
}

#[test]
fn a_process_that_must_not_be_traced_is_not_seen() {
    isolated("a_process_that_must_not_be_traced_is_not_seen", "", || {
        // SAFETY: plain integers.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0) };
        let _bound = bound();
        assert_eq!(names(), Vec::<String>::new());
    });
}

#[test]
fn a_process_that_must_no_longer_be_traced_admits_nobody() {
    isolated(
        "a_process_that_must_no_longer_be_traced_admits_nobody",
        "",
        || {
            let _bound = bound();
            // SAFETY: plain integers.
            let set_traceable = |value: libc::c_ulong| unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, value), 0);
            };
            set_traceable(0);
            assert_eq!(answer(&connect(), b"report\n"), "");
            set_traceable(1);
            assert!(answer(&connect(), b"report\n").starts_with('{'));
        },
    );
}

#[test]
fn a_report_counts_the_receives_that_are_posted() {
    isolated("a_report_counts_the_receives_that_are_posted", "", || {
        let (device, end) = bound();
        let pair = [(); 2].map(|()| End::new(&device, QpType::Rc, 4096));
        pair[0].connect(&pair[1]);
        for number in 0..3 {
            pair[0].recv(number, 0, 64);
        }
        let attributes = SrqAttributes {
            max_wr: 8,
            max_sge: 1,
            limit: 0,
        };
        let srq = end.pd.create_srq(attributes, None).unwrap();
        let sharing = [(); 2].map(|()| {
            let init = QpInit {
                qp_type: QpType::Rc,
                send_cq: Arc::clone(&end.cq),
                recv_cq: Arc::clone(&end.cq),
                srq: Some(Arc::clone(&srq)),
                caps: CAPS,
                signal_all: false,
            };
            end.pd.create_qp(init).unwrap()
        });
        for number in 0..5 {
            let sges = [end.memory.sge(0, 64)];
            let receive = RecvWr {
                wr_id: number,
                sges: &sges,
            };
            srq.begin_post().push(&receive).unwrap();
        }
        let viewer = connect();
        let report = answer(&viewer, b"report\n");
        let receives = |number: u32, what: &str| {
            let (_, row) = report
                .split_once(&format!("{{\"number\":{number},"))
                .unwrap();
            assert!(row.split_once('}').unwrap().0.contains(what), "{report}");
        };
        receives(
            pair[0].qp.number().get(),
            "\"receives\":3,\"shares_receives\":false",
        );
        for qp in &sharing {
            receives(qp.number().get(), "\"receives\":5,\"shares_receives\":true");
        }
        drop((sharing, srq, pair, end, device));
    });
}

#[test]
fn packets_are_copied_while_a_reader_is_connected() {
    isolated("packets_are_copied_while_a_reader_is_connected", "", || {
        let (device, end) = bound();
        let mut viewer = connect();
        assert_eq!(answer(&viewer, b"capture snap=64\n"), "capturing\n");
        let (left, right) = (
            End::new(&device, QpType::Rc, 4096),
            End::new(&device, QpType::Rc, 4096),
        );
        left.connect(&right);
        right.connect(&left);
        left.qp.post_send(&left.write(&right, 0, 4096)).unwrap();
        left.ok();
        // The end of the device sends what is left.
        drop((left, right, end, device));
        let mut bytes = Vec::new();
        viewer.read_to_end(&mut bytes).unwrap();
        let (mut rest, mut sent, mut received) = (&bytes[..], 0, 0);
        while let Some((header, after)) = rest.split_first_chunk::<RECORD_HEADER_LEN>() {
            let header = RecordHeader::parse(header).unwrap();
            assert_eq!((header.captured.min(64), header.lost), (header.captured, 0));
            (sent, received) = match header.is_sent {
                true => (sent + 1, received),
                false => (sent, received + 1),
            };
            rest = &after[header.captured as usize..];
        }
        assert!(rest.is_empty());
        // A packet and its acknowledgement at least. What left at the end was received by none.
        assert!(sent >= received && received >= 2, "{sent} {received}");
    });
}

#[test]
fn a_child_of_fork_does_not_keep_a_device_in_sight() {
    isolated(
        "a_child_of_fork_does_not_keep_a_device_in_sight",
        "",
        || {
            let (device, end) = bound();
            assert_eq!(names().len(), 1);
            // SAFETY: the child calls what a signal handler may, and nothing else.
            let child = unsafe {
                let child = libc::fork();
                if child == 0 {
                    libc::pause();
                    libc::_exit(0);
                }
                child
            };
            drop((end, device));
            wait_until("the name goes", || names().is_empty());
            // SAFETY: the child that was made above.
            unsafe {
                libc::kill(child, libc::SIGKILL);
                libc::waitpid(child, std::ptr::null_mut(), 0);
            }
        },
    );
}
