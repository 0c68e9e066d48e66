//! Connections by RDMA CM of programs whose devices are in a daemon.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::cm_protocol::{
    Accept, Connect, ConnectionId, Event, PortSpace, ServiceId, Takes,
};
use airdma_engine::*;
use common::*;
use std::path::{Path as FilePath, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROCESS: &str = "in_a_process";
/// Bound of what must be noticed soon: a second on a machine that has nothing else to do.
const SOON: Duration = Duration::from_secs(5);

/// Not a test: the processes of the others run this.
#[test]
fn in_a_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let socket = PathBuf::from(std::env::var_os(SOCKET).unwrap());
    match role.as_str() {
        "daemon" => serve(&socket),
        "listener" => {
            let listening = Listening::new(Some(&socket));
            say("ready");
            let _id = listening.accept();
            loop {
                std::thread::park();
            }
        }
        other => panic!("no such role: {other}"),
    }
}

fn service() -> ServiceId {
    ServiceId::of_port(PortSpace::TCP, 7471)
}

/// A program that listens at 10.9.1.1.
struct Listening {
    end: End,
    channel: Arc<CmChannel>,
}

impl Listening {
    fn new(daemon: Option<&FilePath>) -> Self {
        let end = End::new(&open("veth1", daemon), QpType::Rc, 4096);
        let channel = CmChannel::new().unwrap();
        let (device, takes) = (&end.device, Takes::RC);
        device
            .cm_listen(service(), takes, None, 8, &channel, 1)
            .unwrap();
        Listening { end, channel }
    }

    /// Accepts the connection that is asked for next.
    fn accept(&self) -> ConnectionId {
        let (cookie, Event::ConnectRequest(request)) = next_event(&self.channel) else {
            panic!("no request");
        };
        assert_eq!((cookie, &request.private_data[..5]), (1, &b"hello"[..]));
        let device = &self.end.device;
        device.cm_hand_over(request.id, &self.channel, 3).unwrap();
        let path = Path {
            gid: request.route.remote,
            hop_limit: 64,
            ..Path::default()
        };
        connect(&self.end.qp, request.qpn, path);
        let with = Accept {
            qpn: self.end.qp.number(),
            psn: PSN,
            responder_resources: 4,
            initiator_depth: 4,
            rnr_retry_count: 7,
            srq: false,
            private_data: b"welcome",
        };
        device.cm_accept(request.id, &with).unwrap();
        let established = next_event(&self.channel);
        assert!(
            matches!(established, (3, Event::Established { .. })),
            "{established:?}"
        );
        request.id
    }
}

/// A program at 10.9.0.1 that asks.
struct Asking {
    end: End,
    channel: Arc<CmChannel>,
}

impl Asking {
    fn new(daemon: Option<&FilePath>) -> Self {
        Asking {
            end: End::new(&open("veth0", daemon), QpType::Rc, 4096),
            channel: CmChannel::new().unwrap(),
        }
    }

    fn ask(&self) -> ConnectionId {
        let remote = info_of("veth1").gids[0].gid;
        let wanted = Connect {
            private_data: b"hello",
            ..request_from(&self.end, remote, service())
        };
        let device = &self.end.device;
        device.cm_connect(&wanted, &self.channel, 2).unwrap()
    }

    /// Completes the connection that was accepted.
    fn complete(&self, id: ConnectionId) {
        let (2, Event::ConnectResponse(response)) = next_event(&self.channel) else {
            panic!("no response");
        };
        assert_eq!(&response.private_data[..7], b"welcome");
        let path = Path {
            gid: info_of("veth1").gids[0].gid,
            hop_limit: 64,
            ..Path::default()
        };
        connect(&self.end.qp, response.qpn, path);
        self.end.device.cm_ready(id, &[]).unwrap();
    }

    fn next(&self) -> Event {
        next_event(&self.channel).1
    }
}

#[test]
fn programs_connect_through_daemons_and_without() {
    isolated(
        "programs_connect_through_daemons_and_without",
        TWO_INTERFACES,
        || {
            let running = Running::start_by(PROCESS, "connect");
            let daemon = Some(running.socket.as_path());
            for (ours, theirs) in [(daemon, daemon), (None, daemon), (daemon, None)] {
                let (listening, asking) = (Listening::new(theirs), Asking::new(ours));
                std::thread::scope(|scope| {
                    let accepting = scope.spawn(|| listening.accept());
                    let id = asking.ask();
                    asking.complete(id);
                    let accepted = accepting.join().unwrap();
                    listening.end.recv(1, 0, 8);
                    asking.end.send(Operation::Send, 0, 8);
                    asking.end.ok();
                    listening.end.ok();
                    asking.end.device.cm_disconnect(id, b"bye").unwrap();
                    assert!(matches!(asking.next(), Event::Disconnected { .. }));
                    let (3, Event::Disconnected { private_data, .. }) =
                        next_event(&listening.channel)
                    else {
                        panic!("no end");
                    };
                    assert_eq!(&private_data[..3], b"bye");
                    listening.end.device.cm_destroy(accepted);
                });
            }
        },
    );
}

#[test]
fn peers_of_a_killed_client_are_told_and_its_port_is_free() {
    isolated(
        "peers_of_a_killed_client_are_told_and_its_port_is_free",
        TWO_INTERFACES,
        || {
            let running = Running::start_by(PROCESS, "killed-client");
            let mut listener = Process::start(PROCESS, "listener", &running.socket);
            assert_eq!(listener.line(), "ready");
            let asking = Asking::new(None);
            let id = asking.ask();
            asking.complete(id);
            let refused = Asking::new(None);
            refused.ask();
            // The request is there, and no answer comes.
            std::thread::sleep(Duration::from_millis(100));
            let start = Instant::now();
            listener.kill();
            assert!(matches!(asking.next(), Event::Disconnected { .. }));
            assert!(matches!(refused.next(), Event::Rejected { .. }));
            assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
            drop(Listening::new(Some(&running.socket)));
        },
    );
}

#[test]
fn connections_end_with_the_daemon() {
    isolated("connections_end_with_the_daemon", TWO_INTERFACES, || {
        let mut running = Running::start_by(PROCESS, "killed");
        let asking = Asking::new(Some(&running.socket));
        let listening = Listening::new(None);
        let pending = Asking::new(Some(&running.socket));
        std::thread::scope(|scope| {
            scope.spawn(|| listening.accept());
            let id = asking.ask();
            asking.complete(id);
        });
        pending.ask();
        let start = Instant::now();
        running.daemon.kill();
        assert!(matches!(asking.next(), Event::Disconnected { .. }));
        assert!(matches!(asking.next(), Event::TimewaitExit { .. }));
        assert!(matches!(pending.next(), Event::Unreachable { .. }));
        assert!(start.elapsed() < SOON, "{:?}", start.elapsed());
    });
}
