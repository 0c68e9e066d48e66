//! The datagrams of captured connection managers: each decodes to what the program asked for, and
//! encodes to the same bytes.

use std::net::Ipv4Addr;

use airdma_captures as captures;
use airdma_wire::cm::{
    About, CmMad, CmMessage, IpAddressing, PortSpace, Rej, RejReason, Req, ServiceId, SidrStatus,
    TransportService,
};
use airdma_wire::mad::MadError;
use airdma_wire::{Gid, Packet, PathMtu, Psn, Qkey, Qpn};

fn datagrams(name: &str) -> Vec<Vec<u8>> {
    let payload = |captured: captures::Captured| {
        let packet = Packet::parse(captured.transport()).unwrap();
        let general_services = packet.headers.bth.dest_qpn == Qpn::GSI;
        general_services.then(|| packet.payload.to_vec())
    };
    captures::packets(name)
        .into_iter()
        .filter_map(payload)
        .collect()
}

fn messages(name: &str) -> Vec<CmMessage> {
    let message = |bytes: &Vec<u8>| CmMad::parse(bytes).unwrap().message;
    datagrams(name).iter().map(message).collect()
}

fn names(name: &str) -> String {
    let names: Vec<_> = messages(name).iter().map(CmMessage::name).collect();
    names.join(" ")
}

#[test]
fn every_datagram_of_the_captures_is_written_back_byte_for_byte() {
    let mut seen = 0;
    for (name, _) in captures::CAPTURES {
        for bytes in datagrams(name) {
            assert_eq!(CmMad::parse(&bytes).unwrap().emit()[..], bytes, "{name}");
            seen += 1;
        }
    }
    assert_eq!(seen, 47);
}

#[test]
fn the_captures_hold_these_conversations() {
    assert_eq!(names("rxe-6.1/cm_rping"), "REQ REP RTU DREQ DREP");
    assert_eq!(names("rxe-6.1/cm_rping_v6"), "REQ REP RTU DREQ DREP");
    assert_eq!(names("rxe-6.1/cm_reject"), "REQ REJ");
    assert_eq!(names("rxe-6.1/cm_udaddy"), "SIDR_REQ SIDR_REP");
    assert_eq!(names("tap-cmreq"), "REQ REQ REJ");
    assert_eq!(
        names("rxe-6.1/cm_cmtime"),
        "REQ REQ REP REP RTU RTU DREQ DREQ DREP DREP"
    );
    assert_eq!(
        names("two-vm-rping"),
        "REQ REP RTU DREQ DREP REQ REP RTU DREQ DREP"
    );
}

#[test]
fn a_request_of_the_kernel_reads_field_by_field() {
    let [
        CmMessage::Req(req),
        CmMessage::Rep(rep),
        CmMessage::Rtu(rtu),
        CmMessage::Dreq(dreq),
        CmMessage::Drep(drep),
    ] = messages("rxe-6.1/cm_rping")[..]
    else {
        panic!("another conversation");
    };
    let (a, b) = (Ipv4Addr::new(10, 5, 0, 1), Ipv4Addr::new(10, 5, 0, 2));
    assert_eq!(req.local_id, 0x296b_ce89);
    assert_eq!(req.service_id, ServiceId::of_port(PortSpace::TCP, 7174));
    assert_eq!(req.ca_guid, 0xff_fe00_0501);
    assert_eq!((req.qpn, req.psn), (Qpn::new(0x11), Psn::new(0x7d_8b50)));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 1));
    assert_eq!(
        (req.remote_response_timeout, req.local_response_timeout),
        (20, 20)
    );
    assert_eq!(req.transport, TransportService::Rc);
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.cm_retries_max),
        (7, 7, 15)
    );
    assert_eq!(
        (req.pkey, req.path_mtu, req.srq),
        (0xffff, PathMtu::M1024, false)
    );
    let path = req.primary;
    assert_eq!(
        (path.local_gid, path.remote_gid),
        (Gid::from(a), Gid::from(b))
    );
    assert_eq!((path.local_lid, path.remote_lid), (0xffff, 0xffff));
    assert_eq!(
        (path.flow_label, path.hop_limit, path.ack_timeout),
        (0x22_1d1, 64, 19)
    );
    let (header, rest) = req.private_data.split_first_chunk().unwrap();
    let addressing = IpAddressing::V4 {
        src_port: 0x94d5,
        src: a,
        dst: b,
    };
    assert_eq!(IpAddressing::from_bytes(header), Ok(addressing));
    assert_eq!(rest, [0; Req::PRIVATE_DATA_LEN - IpAddressing::LEN]);

    assert_eq!((rep.local_id, rep.remote_id), (0x2a6b_ce89, req.local_id));
    assert_eq!((rep.qpn, rep.psn), (Qpn::new(0x11), Psn::new(0xbe_36f9)));
    assert_eq!((rep.responder_resources, rep.initiator_depth), (1, 1));
    assert_eq!(
        (rep.target_ack_delay, rep.rnr_retry_count, rep.srq),
        (15, 7, false)
    );
    assert_eq!(rep.ca_guid, 0xff_fe00_0502);
    let ids = (req.local_id, rep.local_id);
    assert_eq!((rtu.local_id, rtu.remote_id), ids);
    assert_eq!((dreq.local_id, dreq.remote_id), ids);
    assert_eq!(dreq.remote_qpn, rep.qpn);
    assert_eq!((drep.remote_id, drep.local_id), ids);
}

#[test]
fn refusals_and_resolutions_of_the_kernel_decode() {
    let [CmMessage::Req(req), CmMessage::Rej(rej)] = messages("rxe-6.1/cm_reject")[..] else {
        panic!("another conversation");
    };
    assert_eq!((rej.local_id, rej.remote_id), (0, req.local_id));
    assert_eq!(
        (rej.about, rej.reason),
        (About::Req, RejReason::INVALID_SERVICE_ID)
    );

    // The active side gives up; the reject carries the GUID of its adapter.
    let [.., CmMessage::Req(req), CmMessage::Rej(rej)] = messages("tap-cmreq")[..] else {
        panic!("another conversation");
    };
    assert_eq!((rej.local_id, rej.remote_id), (req.local_id, 0));
    assert_eq!((rej.about, rej.reason), (About::Other, RejReason::TIMEOUT));
    assert_eq!(rej.info_len, 8);
    assert_eq!(rej.info[..8], req.ca_guid.to_be_bytes());
    assert_eq!(rej.private_data, [0; Rej::PRIVATE_DATA_LEN]);

    let [CmMessage::SidrReq(request), CmMessage::SidrRep(response)] =
        messages("rxe-6.1/cm_udaddy")[..]
    else {
        panic!("another conversation");
    };
    assert_eq!(request.service_id, ServiceId::of_port(PortSpace::UDP, 7174));
    assert_eq!(request.pkey, 0xffff);
    assert_eq!(response.request_id, request.request_id);
    assert_eq!(response.service_id, request.service_id);
    assert_eq!(response.status, SidrStatus::VALID);
    assert_eq!(
        (response.qpn, response.qkey),
        (Qpn::new(0x15), Qkey(0x0123_4567))
    );
}

/// A REQ or REP carries the PSN that the other end starts with, and its sender learns its own from
/// the other's.
#[test]
fn each_end_starts_at_the_sequence_number_that_the_other_told() {
    let mut connections = 0;
    for (name, _) in captures::CAPTURES {
        let messages = messages(name);
        for message in &messages {
            let CmMessage::Rep(rep) = message else {
                continue;
            };
            let asked = messages.iter().find_map(|message| {
                let CmMessage::Req(req) = message else {
                    return None;
                };
                (req.local_id == rep.remote_id).then_some(req)
            });
            let req = asked.unwrap();
            let told = [
                (req.primary.local_gid, rep.qpn, rep.psn),
                (req.primary.remote_gid, req.qpn, req.psn),
            ];
            for (sender, qpn, psn) in told {
                let started = first_request(name, sender, qpn);
                assert!(started.is_none_or(|first| first == psn), "{name}");
                connections += usize::from(started.is_some());
            }
        }
    }
    // Both directions of four connections of rping and two of ucmatose; cmtime sends nothing.
    assert_eq!(connections, 12);
}

/// The sequence number of the first request from an address to a queue pair.
fn first_request(name: &str, sender: Gid, qpn: Qpn) -> Option<Psn> {
    captures::packets(name).iter().find_map(|captured| {
        let packet = Packet::parse(captured.transport()).unwrap();
        let bth = packet.headers.bth;
        let matches = Gid::from(captured.source()) == sender && bth.dest_qpn == qpn;
        (matches && bth.opcode.is_request()).then_some(bth.psn)
    })
}

#[test]
fn cut_or_damaged_datagrams_never_panic() {
    let (mut read, mut refused) = (0, 0);
    for (name, _) in captures::CAPTURES {
        for mut bytes in datagrams(name) {
            for len in 0..bytes.len() {
                assert_eq!(CmMad::parse(&bytes[..len]), Err(MadError::Length(len)));
            }
            let whole = CmMad::parse(&bytes).unwrap();
            for i in 0..8 * bytes.len() {
                bytes[i / 8] ^= 1 << (i % 8);
                match CmMad::parse(&bytes) {
                    Ok(damaged) => {
                        assert!(damaged == whole || damaged.emit() != whole.emit());
                        read += 1;
                    }
                    Err(_) => refused += 1,
                }
                bytes[i / 8] ^= 1 << (i % 8);
            }
        }
    }
    assert!(read > 0 && refused > 0);
}
