//! Threads that wait for events, handle them, and wait again, in virtual time.
#![allow(clippy::unwrap_used)]

mod common;

use airdma_engine::*;
use common::*;
use std::sync::Arc;
use std::time::Duration;

const CONNECTIONS: usize = 3;
/// Bytes of a message, and of its packet without the ICRC.
const MESSAGE: usize = 64;
const SEND: usize = 12 + MESSAGE;

/// Delivers all packets; how many of them are messages.
fn carry(from: &Host, to: &Host) -> usize {
    let frames: Vec<_> = std::iter::from_fn(|| from.carrier.take()).collect();
    let is_message = |bytes: &[u8]| bytes.len() >= SEND;
    let messages = frames.iter().filter(|frame| is_message(&frame.bytes));
    let messages = messages.count();
    for frame in frames {
        to.carrier.give(frame);
    }
    messages
}

/// A server, with a request on each connection that its thread has been told of by `wait`.
struct Server {
    a: Host,
    b: Host,
    ends: Vec<End>,
    _peers: Vec<End>,
}

impl Server {
    fn after(wait: impl FnOnce(&Arc<Channel>) -> ChannelWait) -> Self {
        let (a, b) = (host("a", LEFT), host("b", RIGHT));
        let end = |host: &Host| End::new(host.device.device(), QpType::Rc, 4096);
        let peers: Vec<_> = (0..CONNECTIONS).map(|_| end(&a)).collect();
        let ends: Vec<_> = (0..CONNECTIONS).map(|_| end(&b)).collect();
        for (peer, end) in peers.iter().zip(&ends) {
            peer.connect(end);
            end.connect(peer);
            end.recv(0, 0, MESSAGE);
            end.cq.arm(false).unwrap();
            peer.send(Operation::Send, 0, MESSAGE);
        }
        a.device.run(Duration::ZERO);
        assert_eq!(carry(&a, &b), CONNECTIONS);
        let mut wait = wait(&ends[0].channel);
        assert_eq!(wait.step().unwrap(), Some(42));
        drop(wait);
        carry(&b, &a);
        a.device.run(Duration::ZERO);
        for end in &ends {
            end.cq.arm(false).unwrap();
        }
        Server {
            a,
            b,
            ends,
            _peers: peers,
        }
    }

    /// A reply on each connection; how many leave at each.
    fn reply(&self) -> Vec<usize> {
        let reply = |end: &End| {
            end.send(Operation::Send, 0, MESSAGE);
            carry(&self.b, &self.a)
        };
        self.ends.iter().map(reply).collect()
    }
}

#[test]
fn replies_of_an_event_loop_leave_together() {
    let server = Server::after(ChannelWait::of_event_loop);
    assert_eq!(server.reply(), [1, 0, 0], "the first leaves at once");
    server.b.device.device().flush();
    assert_eq!(carry(&server.b, &server.a), CONNECTIONS - 1);
    server.b.device.device().flush();
    assert_eq!(carry(&server.b, &server.a), 0);
}

#[test]
fn events_of_one_round_wake_no_other_thread() {
    let (a, b) = (host("a", LEFT), host("b", RIGHT));
    let (peer, end) = (
        End::new(a.device.device(), QpType::Rc, 4096),
        End::new(b.device.device(), QpType::Rc, 4096),
    );
    peer.connect(&end);
    end.connect(&peer);
    // Another queue with events in the same channel.
    let other = Arc::clone(&end.channel);
    let other = b.device.device().create_cq(16, Some((other, 43))).unwrap();
    let qp = create_qp(&end.pd, &other, QpType::Rc, CAPS);
    let (there, path) = (End::new(a.device.device(), QpType::Rc, 4096), end.path());
    connect(&there.qp, qp.number(), path);
    connect(&qp, there.qp.number(), peer.path());
    let sges = [end.memory.sge(0, MESSAGE)];
    for (qp, cq) in [(&end.qp, &end.cq), (&qp, &other)] {
        qp.post_recv(&RecvWr {
            wr_id: 0,
            sges: &sges,
        })
        .unwrap();
        cq.arm(false).unwrap();
    }
    peer.send(Operation::Send, 0, MESSAGE);
    there.send(Operation::Send, 0, MESSAGE);
    a.device.run(Duration::ZERO);
    assert_eq!(carry(&a, &b), 2);
    let mut wait = ChannelWait::of_event_loop(&end.channel);
    assert!(wait.step().unwrap().is_some());
    assert!(!is_readable(end.channel.fd()));
    assert!(wait.take_more().is_some());
    assert_eq!(wait.take_more(), None);
}

fn is_readable(fd: std::os::fd::RawFd) -> bool {
    let mut entry = libc::pollfd {
        fd,
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut entry, 1, 0) == 1 }
}

#[test]
fn replies_of_an_event_loop_leave_with_its_next_wait() {
    let server = Server::after(ChannelWait::of_event_loop);
    server.reply();
    let mut wait = ChannelWait::of_event_loop(&server.ends[0].channel);
    assert_eq!(wait.step().unwrap(), None);
    assert_eq!(carry(&server.b, &server.a), CONNECTIONS - 1);
}

#[test]
fn a_poll_in_between_lets_no_reply_leave_alone() {
    let server = Server::after(ChannelWait::of_event_loop);
    let reply = |end: &End| {
        end.cq.poll(16, |_| ()).unwrap();
        end.send(Operation::Send, 0, MESSAGE);
        carry(&server.b, &server.a)
    };
    assert_eq!(reply(&server.ends[0]), 1);
    assert_eq!(reply(&server.ends[1]), 0);
}

#[test]
fn replies_of_a_thread_that_may_sleep_elsewhere_leave_at_once() {
    let server = Server::after(ChannelWait::out_of_sight);
    assert_eq!(server.reply(), [1, 1, 1]);
}
