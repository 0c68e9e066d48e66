//! Messages between two devices.

use crate::counted::{begin, end, far, near};
use crate::ends::{Ends, Setup, Wire};
use crate::{Done, Scenario};
use airdma_engine::*;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

pub fn scenarios() -> Vec<Scenario> {
    macro_rules! scenario {
        ($name:literal, $what:literal, $run:expr) => {
            Scenario {
                name: $name,
                what: $what,
                run: || $run,
            }
        };
    }
    vec![
        scenario!(
            "write_64",
            "WRITE of 64 B, one at a time",
            small(Kind::Write, 1, 0)
        ),
        scenario!(
            "write_64_agreed",
            "WRITE of 64 B, one at a time, between agreed hosts",
            small_of(Setup::AGREED, Kind::Write, 1)
        ),
        scenario!(
            "write_64_list",
            "WRITE of 64 B, in lists of 16",
            small(Kind::Write, 16, 0)
        ),
        scenario!(
            "send_64",
            "SEND of 64 B, one at a time",
            small(Kind::Send, 1, 0)
        ),
        scenario!(
            "send_64_list",
            "SEND of 64 B, in lists of 16",
            small(Kind::Send, 16, 0)
        ),
        scenario!(
            "read_64",
            "READ of 64 B, one at a time",
            small(Kind::Read, 1, 0)
        ),
        scenario!(
            "fetch_add",
            "FETCH and ADD, one at a time",
            small(Kind::FetchAdd, 1, 0)
        ),
        scenario!(
            "write_1m_mtu1024",
            "WRITE of 1 MiB, path MTU 1,024",
            large(Kind::Write, PathMtu::M1024)
        ),
        scenario!(
            "write_1m_mtu4096",
            "WRITE of 1 MiB, path MTU 4,096",
            large(Kind::Write, PathMtu::M4096)
        ),
        scenario!(
            "send_1m_mtu1024",
            "SEND of 1 MiB, path MTU 1,024",
            large(Kind::Send, PathMtu::M1024)
        ),
        scenario!(
            "send_1m_mtu4096",
            "SEND of 1 MiB, path MTU 4,096",
            large(Kind::Send, PathMtu::M4096)
        ),
        scenario!(
            "read_1m_mtu1024",
            "READ of 1 MiB, path MTU 1,024",
            large(Kind::Read, PathMtu::M1024)
        ),
        scenario!(
            "read_1m_mtu4096",
            "READ of 1 MiB, path MTU 4,096",
            large(Kind::Read, PathMtu::M4096)
        ),
        scenario!(
            "write_8k",
            "WRITE of 8 KiB, in lists of 16, path MTU 1,024",
            lists(Setup::PLAIN, Kind::Write)
        ),
        scenario!(
            "read_8k",
            "READ of 8 KiB, in lists of 16, path MTU 1,024",
            lists(Setup::PLAIN, Kind::Read)
        ),
        scenario!(
            "write_8k_agreed",
            "WRITE of 8 KiB, in lists of 16, between agreed hosts",
            lists(Setup::AGREED, Kind::Write)
        ),
        scenario!(
            "read_8k_agreed",
            "READ of 8 KiB, in lists of 16, between agreed hosts",
            lists(Setup::AGREED, Kind::Read)
        ),
        scenario!(
            "send_8k_agreed",
            "SEND of 8 KiB, in lists of 16, between agreed hosts",
            lists(Setup::AGREED, Kind::Send)
        ),
        scenario!(
            "write_64k_sockets",
            "WRITE of 64 KiB, path MTU 1,024, over UDP sockets of the loopback interface",
            writes_64k(Setup {
                wire: Wire::Sockets,
                ..Setup::PLAIN
            })
        ),
        scenario!(
            "write_64k_agreed",
            "WRITE of 64 KiB between agreed hosts",
            writes_64k(Setup::AGREED)
        ),
        scenario!(
            "write_64k_sealed",
            "WRITE of 64 KiB between agreed hosts that share a secret",
            writes_64k(Setup::SEALED)
        ),
        scenario!(
            "idle_1",
            "WRITE of 64 B beside 1 idle queue pair",
            small(Kind::Write, 1, 1)
        ),
        scenario!(
            "idle_256",
            "WRITE of 64 B beside 256 idle queue pairs",
            small(Kind::Write, 1, 256)
        ),
        scenario!(
            "idle_4096",
            "WRITE of 64 B beside 4,096 idle queue pairs",
            small(Kind::Write, 1, 4096)
        ),
        scenario!(
            "busy_16",
            "WRITE of 64 B on one of 16 queue pairs after the other, 16 in flight",
            spread(Setup::PLAIN, 16)
        ),
        scenario!(
            "busy_256",
            "WRITE of 64 B on one of 256 queue pairs after the other, 16 in flight",
            spread(Setup::PLAIN, 256)
        ),
        scenario!(
            "busy_4096",
            "WRITE of 64 B on one of 4,096 queue pairs after the other, 16 in flight",
            spread(Setup::PLAIN, 4096)
        ),
        scenario!(
            "busy_4096_agreed",
            "WRITE of 64 B on one of 4,096 queue pairs after the other, 16 in flight, between agreed hosts",
            spread(Setup::AGREED, 4096)
        ),
        scenario!(
            "poll_empty",
            "poll of an empty completion queue",
            poll_empty()
        ),
        scenario!(
            "ack_received",
            "an ACK received: a poll in which an unsignalled WRITE is acknowledged",
            ack_received()
        ),
        scenario!(
            "post_list",
            "a request of a list of 16 posted behind others, which rings the doorbell",
            post_list()
        ),
    ]
}

#[derive(Clone, Copy)]
enum Kind {
    Write,
    Send,
    Read,
    FetchAdd,
}

impl Kind {
    fn operation(self, far: &crate::ends::End) -> Operation {
        let (va, rkey) = (far.address, far.mr.rkey());
        match self {
            Kind::Write => Operation::Write { va, rkey },
            Kind::Send => Operation::Send,
            Kind::Read => Operation::Read { va, rkey },
            Kind::FetchAdd => Operation::FetchAdd { va, rkey, add: 1 },
        }
    }
}

/// Posts a list, the last of which is signalled, and waits for it.
fn list(ends: &Ends, kind: Kind, length: usize, count: usize) {
    if matches!(kind, Kind::Send) {
        far(|| receive(ends, length, count));
    }
    near(|| post(ends, kind, length, count, true));
    ends.complete(1);
}

fn receive(ends: &Ends, length: usize, count: usize) {
    let sges = [ends.far.sge(length)];
    let mut post = ends.far.qp.begin_post_recv();
    for _ in 0..count {
        post.push(&RecvWr {
            wr_id: 1,
            sges: &sges,
        })
        .expect("room");
    }
}

fn post(ends: &Ends, kind: Kind, length: usize, count: usize, signalled: bool) {
    post_to(ends, &ends.near.qp, kind, length, count, signalled);
}

fn post_to(ends: &Ends, qp: &Qp, kind: Kind, length: usize, count: usize, signalled: bool) {
    let sges = [ends.near.sge(length)];
    let operation = kind.operation(&ends.far);
    let mut post = qp.begin_post_send();
    for index in 0..count {
        let flags = match signalled && index + 1 == count {
            true => SendFlags::SIGNALLED,
            false => SendFlags::empty(),
        };
        let wr = SendWr {
            wr_id: 1,
            operation,
            sges: &sges,
            flags,
            datagram: None,
            srqn: 0,
        };
        post.push(&wr).expect("room");
    }
}

/// Posts `warm` lists before it counts, and `times` while it does.
fn repeat(ends: &Ends, warm: u64, times: u64, per_time: u64, mut call: impl FnMut()) -> Done {
    for _ in 0..warm {
        call();
    }
    let before = ends.packets();
    begin();
    for _ in 0..times {
        call();
    }
    end();
    Done {
        times: times * per_time,
        packets: ends.packets() - before,
    }
}

fn small(kind: Kind, count: usize, others: usize) -> Done {
    let setup = Setup {
        others,
        ..Setup::PLAIN
    };
    small_of(setup, kind, count)
}

fn small_of(setup: Setup, kind: Kind, count: usize) -> Done {
    let length = if matches!(kind, Kind::FetchAdd) {
        8
    } else {
        64
    };
    let ends = Ends::new(setup);
    let times = 960 / count as u64;
    repeat(&ends, 100, times, count as u64, || {
        list(&ends, kind, length, count)
    })
}

fn lists(setup: Setup, kind: Kind) -> Done {
    const LIST: usize = 16;
    let ends = Ends::new(setup);
    repeat(&ends, 64, 32, LIST as u64, || {
        list(&ends, kind, 8 * KIB, LIST);
    })
}

fn large(kind: Kind, path_mtu: PathMtu) -> Done {
    let ends = Ends::new(Setup {
        path_mtu,
        bytes: MIB,
        ..Setup::PLAIN
    });
    repeat(&ends, 4, 4, 1, || list(&ends, kind, MIB, 1))
}

fn writes_64k(setup: Setup) -> Done {
    let ends = Ends::new(Setup {
        bytes: MIB,
        ..setup
    });
    repeat(&ends, 16, 64, 1, || list(&ends, Kind::Write, 64 * KIB, 1))
}

/// Requests in flight.
const SPREAD: usize = 16;

/// One request on each of some queue pairs, and all of their completions; then the next queue
/// pairs.
fn spread(setup: Setup, over: usize) -> Done {
    let ends = Ends::new(Setup {
        others: over,
        ..setup
    });
    let mut first = 0;
    let rounds = over / SPREAD;
    repeat(
        &ends,
        2 * rounds as u64,
        960 / SPREAD as u64,
        SPREAD as u64,
        || {
            for qp in &ends.near.others[first..first + SPREAD] {
                near(|| post_to(&ends, qp, Kind::Write, 64, 1, true));
            }
            ends.complete(SPREAD);
            first = (first + SPREAD) % over;
        },
    )
}

fn poll_empty() -> Done {
    let ends = Ends::new(Setup::PLAIN);
    // Once there was something, as in a program that polls all the time.
    list(&ends, Kind::Write, 64, 1);
    repeat(&ends, 100, 960, 1, || {
        ends.step();
        near(|| assert_eq!(ends.near.poll(), 0));
    })
}

fn ack_received() -> Done {
    let ends = Ends::new(Setup::PLAIN);
    let done = repeat(&ends, 100, 960, 1, || {
        post(&ends, Kind::Write, 64, 1, false);
        ends.step();
        ends.far.poll();
        near(|| assert_eq!(ends.near.poll(), 0));
    });
    Done {
        packets: done.times,
        ..done
    }
}

fn post_list() -> Done {
    let ends = Ends::new(Setup::PLAIN);
    let done = repeat(&ends, 100, 960 / 16, 16, || {
        // Posted first, so that the next requests wait for its answer.
        post(&ends, Kind::Write, 64, 1, false);
        near(|| post(&ends, Kind::Write, 64, 16, true));
        let mut count = 0;
        while count == 0 {
            ends.step();
            ends.far.poll();
            count = ends.near.poll();
        }
    });
    Done { packets: 0, ..done }
}
