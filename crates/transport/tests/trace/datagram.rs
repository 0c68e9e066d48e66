//! Unreliable datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use airdma_transport::*;
use airdma_wire::*;

use crate::bench::*;

fn to(qkey: Qkey) -> Option<Datagram> {
    Some(Datagram {
        path: Path::default(),
        qpn: Qpn::new(0x33),
        qkey,
    })
}

fn from_peer(qkey: Qkey) -> impl FnOnce(&mut Headers) {
    move |h| {
        h.deth = Some(Deth {
            qkey,
            src_qpn: Qpn::new(0x44),
        })
    }
}

#[test]
fn a_datagram_is_done_when_it_has_left() {
    let mut b = Bench::datagram();
    b.post_with(Operation::Send, 100, |r| r.datagram = to(Qkey(5)));
    b.post_with(Operation::SendImm([1; 4]), 3, |r| {
        r.datagram = to(Qkey(0x8000_0000))
    });
    let first = b.sends_bytes().unwrap();
    let first = Packet::parse(&first).unwrap();
    assert_eq!(first.headers.bth.opcode, Opcode::UdSendOnly);
    assert_eq!(
        first.headers.deth,
        Some(Deth {
            qkey: Qkey(5),
            src_qpn: Qpn::new(QPN)
        })
    );
    let second = b.sends_bytes().unwrap();
    let second = Packet::parse(&second).unwrap();
    assert_eq!(
        second.headers.deth.unwrap().qkey,
        QKEY,
        "the controlled Q_Key is our own"
    );
    assert_eq!(second.headers.bth.psn, first.headers.bth.psn.add(1));
    assert_eq!(b.log(), ["send 0 Success", "send 1 Success"]);
}

#[test]
fn a_receive_begins_with_the_grh_area_and_its_ipv4_header() {
    let mut b = Bench::datagram();
    b.post_receive(1, 48);
    b.arrives(Opcode::UdSendOnly, 7, &[9; 8], from_peer(QKEY));
    assert_eq!(b.log(), ["recv 1 Success 48"]);
    let buffer = &b.host.received[&1];
    assert_eq!(buffer[..20], [0; 20]);
    assert_eq!(buffer[20], 0x45);
    assert_eq!(buffer[32..40], [10, 0, 0, 2, 10, 0, 0, 1]);
    let total = u16::from_be_bytes([buffer[22], buffer[23]]);
    assert_eq!(total, 20 + 8 + 12 + 8 + 8 + 4);
    assert_eq!(buffer[40..], [9; 8]);
}

#[test]
fn undeliverable_packets_are_counted_and_cost_no_receive() {
    let mut b = Bench::datagram();
    b.arrives(Opcode::UdSendOnly, 7, &[9; 8], from_peer(QKEY));
    assert_eq!(b.counted(Counter::DropNoReceive), 1);
    b.post_receive(1, 48);
    b.arrives(Opcode::UdSendOnly, 8, &[9; 8], from_peer(Qkey(1)));
    assert_eq!(b.counted(Counter::DropBadQkey), 1);
    b.arrives(Opcode::UdSendOnly, 9, &[9; 12], from_peer(QKEY));
    assert_eq!(b.counted(Counter::DropTooLong), 1);
    b.arrives(Opcode::UdSendOnly, 9, &[9; 260], from_peer(QKEY));
    assert_eq!(b.counted(Counter::DropMalformed), 1);
    assert_eq!(b.log(), [""; 0]);
    b.arrives(Opcode::UdSendOnly, 9, &[9; 8], from_peer(QKEY));
    assert_eq!(b.log(), ["recv 1 Success 48"]);
}

#[test]
fn a_bad_send_stops_the_send_queue_only_and_it_can_be_restarted() {
    let mut b = Bench::datagram();
    b.post_with(Operation::Send, 257, |r| r.datagram = to(QKEY));
    b.post_with(Operation::Send, 8, |r| r.datagram = to(QKEY));
    assert_eq!(b.sends(), [""; 0]);
    assert_eq!(b.log(), ["send 0 LocalLengthError", "send 1 WrFlushError"]);
    assert_eq!(b.qp.state(), QpState::SendQueueError);
    b.post_receive(1, 48);
    b.arrives(Opcode::UdSendOnly, 7, &[9; 8], from_peer(QKEY));
    assert_eq!(b.log(), ["recv 1 Success 48"]);
    b.modify(QpState::ReadyToSend);
    b.post_with(Operation::Send, 8, |r| r.datagram = to(QKEY));
    assert_eq!(b.sends().len(), 1);
}

#[test]
fn what_the_sender_marked_as_solicited_is_solicited() {
    let mut b = Bench::datagram();
    b.post_with(Operation::Send, 8, |r| {
        r.datagram = to(QKEY);
        r.solicited = true;
    });
    let sent = b.sends_bytes().unwrap();
    assert!(Packet::parse(&sent).unwrap().headers.bth.solicited);
    b.log();
    b.post_receive(1, 48);
    b.arrives(Opcode::UdSendOnlyImm, 7, &[9; 8], |h| {
        from_peer(QKEY)(h);
        h.bth.solicited = true;
        h.imm = Some([0, 0, 0, 6]);
    });
    assert_eq!(b.log(), ["recv 1 Success 48 imm=6 solicited"]);
}

#[test]
fn the_completion_has_the_sender_and_the_kind_of_header() {
    let v4 = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    let mapped = IpAddr::V6(Ipv4Addr::new(10, 0, 0, 2).to_ipv6_mapped());
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    for (source, destination, header, first) in [
        (v4, v4, GrhHeader::Ipv4, 0),
        (mapped, v4, GrhHeader::Ipv4, 0),
        (v6, v6, GrhHeader::Ipv6, 0x60),
        (v6, v4, GrhHeader::Ipv6, 0x60),
        (mapped, v6, GrhHeader::Ipv6, 0x60),
    ] {
        let mut b = Bench::datagram();
        b.post_receive(1, 48);
        (b.arrival.source, b.arrival.destination) = (source.into(), destination.into());
        b.arrives(Opcode::UdSendOnly, 7, &[9; 8], from_peer(QKEY));
        let completion = b.host.last.unwrap();
        assert_eq!(completion.grh, Some(header));
        assert_eq!(completion.src_qpn, Qpn::new(0x44));
        assert_eq!(completion.qpn, Qpn::new(QPN));
        assert_eq!(b.host.received[&1][0] & 0xf0, first);
    }
}

#[test]
fn an_empty_datagram_needs_no_memory() {
    let mut b = Bench::datagram();
    b.host.local_fault = true;
    b.post_with(Operation::Send, 0, |r| r.datagram = to(QKEY));
    assert_eq!(b.sends(), ["UdSendOnly 16777214"]);
    assert_eq!(b.log(), ["send 0 Success"]);
}
