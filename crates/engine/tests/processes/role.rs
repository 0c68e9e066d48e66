//! A process of a test: it opens a device, and executes commands from its standard input.

use crate::common::*;
use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectionId, Event, IpAddressing, ListenerId, PortSpace, RejReason, Route,
    ServiceId, Takes, TransportService,
};
use airdma_engine::*;
use std::io::{BufRead, Read, Write};
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The memory has three parts: the source of writes, the target of reads, and the target of the
/// peer's writes.
const PART: usize = 1 << 17;

struct Role {
    device: Arc<Device>,
    end: End,
    channel: Arc<CmChannel>,
    listeners: Vec<ListenerId>,
    /// Address, key and length of the peer's memory.
    peer: Option<(u64, Rkey)>,
    groups: Option<End>,
}

/// Executes commands until the end of the input.
pub fn obey(interface: &str) {
    let found = devices().unwrap();
    let info = found.iter().find(|info| info.interface == interface);
    let device = Device::open(info.unwrap()).unwrap();
    let opened = std::panic::catch_unwind(|| End::new(&device, QpType::Rc, 3 * PART));
    let Ok(end) = opened else {
        return say("refused");
    };
    let path = end.path().gid.to_ip();
    say(&format!(
        "ready {} {path} {} {}",
        end.qp.number().get(),
        end.memory.address() + 2 * PART as u64,
        end.memory.mr.rkey().0
    ));
    let mut role = Role {
        device,
        end,
        channel: CmChannel::new().unwrap(),
        listeners: Vec::new(),
        peer: None,
        groups: None,
    };
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split_whitespace().collect();
        let answer = role.act(&words);
        say(&answer);
        if words[0] == "quit" {
            break;
        }
    }
    // In this order: the device is closed, and then the process ends.
    drop(role);
    say("gone");
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}

impl Role {
    fn act(&mut self, words: &[&str]) -> String {
        match words {
            ["connect", qpn, address, va, rkey] => {
                let address: IpAddr = address.parse().unwrap();
                let path = Path {
                    gid: Gid::from(address),
                    hop_limit: 64,
                    ..Path::default()
                };
                to_rtr(&self.end.qp, Qpn::new(qpn.parse().unwrap()), path);
                // Half a second before each of seven retries.
                to_rts(&self.end.qp, 17);
                self.peer = Some((va.parse().unwrap(), Rkey(rkey.parse().unwrap())));
                "connected".into()
            }
            ["run", millis] => self.run(Duration::from_millis(millis.parse().unwrap())),
            ["counter", name] => format!("{}", counter(&self.device, name)),
            ["listen", port] => {
                let service = ServiceId::of_port(PortSpace::TCP, port.parse().unwrap());
                match self
                    .device
                    .cm_listen(service, Takes::RC, None, 8, &self.channel, 1)
                {
                    Ok(listener) => {
                        self.listeners.push(listener);
                        "listening".into()
                    }
                    Err(error) => format!("errno {}", error.errno()),
                }
            }
            ["unlisten"] => {
                for listener in self.listeners.drain(..) {
                    self.device.cm_close(listener);
                }
                "closed".into()
            }
            ["refuse", name] => self.refuse(name),
            ["answer"] => self.answer(),
            ["call", address, port] => self.call(address.parse().unwrap(), port.parse().unwrap()),
            ["event"] => match self.next_event() {
                Some(Event::Disconnected { .. }) => "disconnected".into(),
                other => format!("{other:?}"),
            },
            ["dial", address, port] => self.dial(address.parse().unwrap(), port.parse().unwrap()),
            ["attach", group] => {
                let end = End::new(&self.device, QpType::Ud, 2048);
                datagram_to_rts(&end.qp, Qkey(0x11));
                end.recv(1, 0, 1024);
                let group: IpAddr = group.parse().unwrap();
                end.qp.attach_multicast(Gid::from(group)).unwrap();
                self.groups = Some(end);
                "attached".into()
            }
            ["cast", group] => {
                let end = End::new(&self.device, QpType::Ud, 2048);
                datagram_to_rts(&end.qp, Qkey(0x11));
                let group: IpAddr = group.parse().unwrap();
                let datagram = Datagram {
                    path: Path {
                        gid: Gid::from(group),
                        ..Path::default()
                    },
                    qpn: Qpn::MULTICAST,
                    qkey: Qkey(0x11),
                };
                let wr = SendWr {
                    datagram: Some(datagram),
                    ..signalled(Operation::Send, end.memory.sge(0, 64))
                };
                end.qp.post_send(&wr).unwrap();
                end.ok();
                "sent".into()
            }
            ["copies"] => {
                let end = self.groups.as_ref().unwrap();
                end.ok();
                std::thread::sleep(Duration::from_millis(50));
                let mut more = 1;
                end.cq.poll(16, |_| more += 1).unwrap();
                format!("{more}")
            }
            ["fork"] => {
                // The library's work in the child is done when `fork` returns there: until then its
                // parent's death must not be visible. So the child reports that it runs.
                // to be seen by anybody. So the child says when it is there.
                let (mut there, say) = std::io::pipe().unwrap();
                // SAFETY: the child only writes a byte and sleeps, until its input ends with the
                // test.
                let child = unsafe { libc::fork() };
                if child == 0 {
                    // SAFETY: one byte is read; no memory is touched otherwise.
                    unsafe {
                        libc::write(say.as_raw_fd(), b"1".as_ptr().cast(), 1);
                        libc::close(1);
                        libc::sleep(60);
                        libc::_exit(0);
                    }
                }
                there.read_exact(&mut [0]).unwrap();
                format!("{child}")
            }
            ["quit"] => "quitting".into(),
            other => panic!("{other:?}"),
        }
    }

    /// Writes to the peer and reads it back for this time; returns the number of rounds, or the
    /// error.
    fn run(&mut self, time: Duration) -> String {
        let (va, rkey) = self.peer.unwrap();
        let start = Instant::now();
        let mut rounds = 0_u32;
        // At least twice, however busy the machine is.
        while start.elapsed() < time || rounds < 2 {
            let data = pattern(PART, rounds as u8);
            self.end.memory.fill(0, &data);
            // Long messages, which leave in segments, and short ones.
            let (at, length) = if rounds.is_multiple_of(2) {
                (0, PART)
            } else {
                (PART / 2, 64)
            };
            let steps = [
                (Operation::Write { va, rkey }, at),
                (Operation::Read { va, rkey }, PART),
            ];
            for (operation, local) in steps {
                self.end.send(operation, local, length);
                let completion = self.end.complete();
                if completion.status != Status::Success {
                    return format!("failed after {rounds}: {:?}", completion.status);
                }
            }
            if self.end.memory.bytes(PART, length) != data[at..at + length] {
                return format!("damaged after {rounds}");
            }
            rounds += 1;
        }
        format!("ran {rounds}")
    }

    fn next_event(&self) -> Option<Event> {
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(10) {
            if let Some((_, CmNews::Event(event))) = self.channel.pop() {
                return Some(event);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        None
    }

    /// Rejects the next request with a name.
    fn refuse(&self, name: &str) -> String {
        match self.next_event() {
            Some(Event::ConnectRequest(request)) => {
                self.device
                    .cm_reject(request.id, RejReason::CONSUMER, name.as_bytes())
                    .unwrap();
                "refused".into()
            }
            other => format!("{other:?}"),
        }
    }

    /// Accepts the next request, and waits until there is a connection.
    fn answer(&self) -> String {
        let Some(Event::ConnectRequest(request)) = self.next_event() else {
            return "no request".into();
        };
        let with = Accept {
            qpn: self.end.qp.number(),
            psn: PSN,
            responder_resources: 4,
            initiator_depth: 4,
            rnr_retry_count: 7,
            srq: false,
            private_data: b"",
        };
        self.device.cm_accept(request.id, &with).unwrap();
        match self.next_event() {
            Some(Event::Established { .. }) => "established".into(),
            other => format!("{other:?}"),
        }
    }

    /// Connects to a process that answers.
    fn call(&self, address: IpAddr, port: u16) -> String {
        let id = self.ask(address, port);
        match self.next_event() {
            Some(Event::ConnectResponse(_)) => {
                self.device.cm_ready(id, &[]).unwrap();
                "established".into()
            }
            other => format!("{other:?}"),
        }
    }

    /// Requests a connection; returns which one rejected it.
    fn dial(&self, address: IpAddr, port: u16) -> String {
        self.ask(address, port);
        match self.next_event() {
            Some(Event::Rejected {
                reason,
                private_data,
                ..
            }) if reason == RejReason::CONSUMER => {
                let end = private_data.iter().position(|&byte| byte == 0).unwrap();
                format!(
                    "refused by {}",
                    String::from_utf8_lossy(&private_data[..end])
                )
            }
            Some(Event::Rejected { reason, .. }) => format!("refused: {}", reason.0),
            other => format!("{other:?}"),
        }
    }

    fn ask(&self, address: IpAddr, port: u16) -> ConnectionId {
        let local = self.end.path().gid;
        let remote = Gid::from(address);
        let wanted = Connect {
            route: Route {
                local,
                remote,
                traffic_class: 0,
            },
            service_id: ServiceId::of_port(PortSpace::TCP, port),
            transport: TransportService::Rc,
            qpn: self.end.qp.number(),
            psn: PSN,
            path_mtu: PathMtu::M1024,
            responder_resources: 4,
            initiator_depth: 4,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 14,
            flow_label: 0,
            addressing: IpAddressing::new(local.to_ip(), 4711, address),
            private_data: b"",
        };
        self.device.cm_connect(&wanted, &self.channel, 2).unwrap()
    }
}
