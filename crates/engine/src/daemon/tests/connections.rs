//! Requests about connections that are another client's.

use super::raw::Raw;
use super::{Running, in_network};
use crate::common::info_of;
use crate::control::{CmControl, ConnectionControl, Control, Reply};
use crate::remote::protocol::{EVENT_BYTES_MAX, Event};
use crate::{Error, PathMtu, Psn, Qpn};
use airdma_cm::{Accept, Connect, Event as CmEvent, ListenerId, Route, Takes};
use airdma_wire::cm::{IpAddressing, PortSpace, RejReason, ServiceId, TransportService};
use std::time::{Duration, Instant};

const SOON: Duration = Duration::from_secs(5);

fn service() -> ServiceId {
    ServiceId::of_port(PortSpace::TCP, 7471)
}

impl Raw {
    fn connection(&self, call: ConnectionControl<'_>) -> Result<Reply, Error> {
        self.ask(&Control::Connection { call }, &[])
    }

    fn listen(&self) -> Result<ListenerId, Error> {
        let info = info_of("veth1");
        let open = CmControl::Open {
            guid: 0,
            path_mtu: PathMtu::M1024,
            interface_index: info.interface_index,
        };
        self.ask(&Control::Cm { call: open }, &[])?;
        let call = CmControl::Listen {
            service: service(),
            takes: Takes::RC,
            local: None,
            backlog: usize::MAX,
            cookie: 5,
        };
        let Reply::Listener { id } = self.ask(&Control::Cm { call }, &[])? else {
            panic!("no listener");
        };
        Ok(id)
    }

    /// Asks the listener at the same address for a connection.
    fn connect_to(&self, qpn: Qpn) -> Result<Reply, Error> {
        let local = info_of("veth1").gids[0].gid;
        let wanted = Connect {
            route: Route {
                local,
                remote: local,
                traffic_class: 0,
            },
            service_id: service(),
            transport: TransportService::Rc,
            qpn,
            psn: Psn::new(1),
            path_mtu: PathMtu::M1024,
            responder_resources: 1,
            initiator_depth: 1,
            retry_count: 7,
            rnr_retry_count: 7,
            srq: false,
            ack_timeout: 14,
            flow_label: 0,
            addressing: IpAddressing::new(local.to_ip(), 4711, local.to_ip()),
            private_data: b"hello",
        };
        self.connection(ConnectionControl::Connect { wanted, cookie: 6 })
    }

    fn next_event(&self) -> CmEvent {
        let start = Instant::now();
        let mut packet = [0; EVENT_BYTES_MAX];
        loop {
            if let Ok(Some(got)) = self.events.receive(&mut packet, false) {
                match Event::decode(&packet[..got.length]) {
                    Some(Event::Cm(event)) => return event,
                    other => panic!("{other:?}"),
                }
            }
            assert!(start.elapsed() < SOON, "no event");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn errno_of(reply: Result<Reply, Error>) -> i32 {
    reply.unwrap_err().errno()
}

#[test]
fn a_request_is_answered_by_its_listener_alone() {
    in_network(
        "connections::a_request_is_answered_by_its_listener_alone",
        || {
            let running = Running::start("answers");
            let [asked, asks, other] = [(); 3].map(|()| running.raw("veth1"));
            let listener = asked.listen().unwrap();
            assert_eq!(other.listen().unwrap_err().errno(), libc::EADDRINUSE);
            let close = Control::Cm {
                call: CmControl::Close { listener },
            };
            assert_eq!(errno_of(other.ask(&close, &[])), libc::EINVAL);

            let cq = asked.create_cq(&asked.arena, 16).unwrap();
            let qp = asked
                .create_qp(&asked.arena, asked.domain(), &cq, 16)
                .unwrap();
            assert_eq!(errno_of(asks.connect_to(qp.number)), libc::EINVAL);
            asks.connect_to(Qpn::new(17)).unwrap();
            let CmEvent::ConnectRequest(request) = asked.next_event() else {
                panic!("no request");
            };
            let id = request.id;
            let with = Accept {
                qpn: Qpn::new(18),
                psn: Psn::new(1),
                responder_resources: 1,
                initiator_depth: 1,
                rnr_retry_count: 7,
                srq: false,
                private_data: &[],
            };
            let (reason, private_data) = (RejReason::CONSUMER, b"no");
            let calls = [
                ConnectionControl::Waits { id },
                ConnectionControl::HandOver { id, cookie: 1 },
                ConnectionControl::Accept { id, with },
                ConnectionControl::Reject {
                    id,
                    reason,
                    private_data,
                },
                ConnectionControl::Destroy { id },
            ];
            for call in calls {
                assert_eq!(errno_of(other.connection(call)), libc::EINVAL, "{call:?}");
            }
            let other_number = Accept {
                qpn: qp.number,
                ..with
            };
            asked
                .connection(ConnectionControl::HandOver { id, cookie: 1 })
                .unwrap();
            let call = ConnectionControl::Accept {
                id,
                with: other_number,
            };
            asked.connection(call).unwrap();
            assert!(matches!(asks.next_event(), CmEvent::ConnectResponse(_)));
            asked.connection(ConnectionControl::Destroy { id }).unwrap();
            assert!(matches!(asks.next_event(), CmEvent::Rejected { .. }));
            // It is over, and its number stands for nothing.
            assert_eq!(
                errno_of(asked.connection(ConnectionControl::Waits { id })),
                libc::EINVAL
            );
        },
    );
}

#[test]
fn requests_of_a_client_that_leaves_are_refused() {
    in_network(
        "connections::requests_of_a_client_that_leaves_are_refused",
        || {
            let running = Running::start("leaves");
            let [asked, asks] = [(); 2].map(|()| running.raw("veth1"));
            asked.listen().unwrap();
            for _ in 0..2 {
                asks.connect_to(Qpn::new(17)).unwrap();
            }
            let CmEvent::ConnectRequest(request) = asked.next_event() else {
                panic!("no request");
            };
            let id = request.id;
            asked
                .connection(ConnectionControl::HandOver { id, cookie: 1 })
                .unwrap();
            drop(asked);
            for _ in 0..2 {
                assert!(matches!(asks.next_event(), CmEvent::Rejected { .. }));
            }
            asks.listen().unwrap();
        },
    );
}
