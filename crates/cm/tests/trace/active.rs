//! The active side.

use airdma_cm::*;
use airdma_wire::cm::*;
use airdma_wire::{Bth, PathMtu, Qpn};

use crate::bench::*;

#[test]
fn a_connection_is_request_reply_and_ready() {
    let mut b = Bench::new();
    b.connect();
    let mad = b.sent().unwrap();
    let CmMessage::Req(req) = mad.message else {
        panic!("{mad:?}");
    };
    assert_eq!(req.local_id, b.id.0);
    assert_eq!((req.service_id, req.ca_guid), (SERVICE, 0x1234));
    assert_eq!((req.qpn, req.psn.get()), (QPN, 5));
    assert_eq!((req.responder_resources, req.initiator_depth), (1, 2));
    assert_eq!(
        (req.retry_count, req.rnr_retry_count, req.srq),
        (7, 6, true)
    );
    assert_eq!(
        (req.path_mtu, req.pkey),
        (PathMtu::M1024, Bth::PKEY_DEFAULT)
    );
    assert_eq!((req.remote_response_timeout, req.cm_retries_max), (20, 15));
    assert_eq!(req.primary.local_gid, b.route.local);
    assert_eq!(req.primary.remote_gid, b.route.remote);
    assert_eq!(
        (req.primary.ack_timeout, req.primary.flow_label),
        (19, 0x12345)
    );
    assert_eq!(&req.private_data[IpAddressing::LEN..][..6], b"hello\0");
    b.arrives(b.rep());
    assert_eq!(b.events(), ["ConnectResponse 0x22 196"]);
    assert_eq!(b.sends(), [""; 0]);
    b.manager.ready(b.id, b"").unwrap();
    let rtu = b.sent().unwrap();
    assert_eq!(rtu.transaction, mad.transaction);
    assert_eq!(b.manager.poll_timeout(), None);
}

/// A NVIDIA NIC controls its rate by DCQCN, not by a scheme of its own, if REQ and REP name no
/// vendor.
#[test]
fn neither_request_nor_reply_names_a_vendor() {
    // Offsets behind the header of 24 bytes.
    let vendor_of_req = |bytes: &[u8]| [bytes[24 + 5], bytes[24 + 6], bytes[24 + 7]];
    let vendor_of_rep = |bytes: &[u8]| [bytes[24 + 15], bytes[24 + 19], bytes[24 + 23]];
    let modifier = |bytes: &[u8]| [bytes[20], bytes[21], bytes[22], bytes[23]];
    let mut b = Bench::new();
    b.connect();
    let req = b.sent().unwrap().emit();
    assert_eq!(req[16..18], [0, 0x10]);
    assert_eq!((vendor_of_req(&req), modifier(&req)), ([0; 3], [0; 4]));
    let mut b = Bench::requested();
    b.manager.accept(b.now, b.id, &accept()).unwrap();
    let rep = b.sent().unwrap().emit();
    assert_eq!(rep[16..18], [0, 0x13]);
    assert_eq!((vendor_of_rep(&rep), modifier(&rep)), ([0; 3], [0; 4]));
}

#[test]
fn a_tag_is_the_top_byte_of_every_id() {
    let mut b = Bench::with(|config| config.id_tag = Some(0xa7));
    let mut ids = Vec::new();
    for _ in 0..100 {
        b.connect();
        let CmMessage::Req(req) = b.sent().unwrap().message else {
            panic!("a request");
        };
        assert_eq!(req.local_id >> 24, 0xa7);
        assert!(!ids.contains(&req.local_id));
        ids.push(req.local_id);
    }
}

#[test]
fn a_request_is_repeated_fifteen_times_and_then_given_up() {
    let mut b = Bench::connecting();
    for _ in 0..15 {
        assert_eq!(b.next_timer(), RESPONSE_MS);
        assert_eq!(b.sends(), ["REQ us"]);
        assert_eq!(b.events(), [""; 0]);
    }
    b.next_timer();
    assert_eq!(b.sends(), ["REJ us 0 Other timeout (4)"]);
    assert_eq!(b.events(), ["Unreachable"]);
    assert!(b.manager.is_idle());
    assert_eq!(b.counted(Counter::Retransmits), 15);
}

#[test]
fn a_receipt_makes_the_request_wait_longer() {
    let mut b = Bench::connecting();
    b.arrives(b.mra(About::Req));
    assert_eq!(b.next_timer(), SERVICE_AND_RESPONSE_MS);
    assert_eq!(b.sends(), ["REQ us"]);
    assert_eq!(b.next_timer(), RESPONSE_MS);
    b.arrives(b.mra(About::Other));
    assert_eq!(b.counted(Counter::DropUnexpected), 1);
    // No message is put off twice.
    b.arrives(b.mra(About::Req));
    assert_eq!(b.counted(Counter::Duplicates), 1);
    assert_eq!(b.next_timer(), RESPONSE_MS);
}

#[test]
fn a_refusal_says_why_and_leaves_nothing() {
    let mut b = Bench::connecting();
    let mut rej = b.rej(RejReason::CONSUMER);
    b.arrives(rej);
    assert_eq!(b.events(), ["Rejected consumer (28) 148"]);
    assert!(b.manager.is_idle());

    // There is no listener: the refusal has 0 as the id of its sender.
    let mut b = Bench::connecting();
    rej = b.rej(RejReason::INVALID_SERVICE_ID);
    rej.local_id = 0;
    b.arrives(rej);
    assert_eq!(b.events(), ["Rejected invalid service id (8) 148"]);
    b.arrives(rej);
    assert_eq!(b.counted(Counter::DropUnknownId), 1);
}

#[test]
fn a_repeated_reply_gets_what_the_first_got() {
    let mut b = Bench::answered();
    b.arrives(b.rep());
    assert_eq!(b.sends(), ["MRA us 7 Rep 24"]);
    b.manager.ready(b.id, b"x").unwrap();
    b.sends();
    b.arrives(b.rep());
    assert_eq!(b.sends(), ["RTU us 7"]);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.manager.ready(b.id, b""), Err(CmError::InvalidState));
    let mut other = b.rep();
    other.local_id = 8;
    b.arrives(other);
    assert_eq!(b.counted(Counter::DropWrongId), 1);
    assert_eq!(b.sends(), [""; 0]);
}

#[test]
fn a_reply_for_nobody_is_refused() {
    let mut b = Bench::connecting();
    let mut rep = b.rep();
    rep.remote_id ^= 1;
    b.arrives(rep);
    let Some(CmMessage::Rej(rej)) = b.sent().map(|mad| mad.message) else {
        panic!("no REJ");
    };
    assert_eq!((rej.local_id, rej.remote_id), (rep.remote_id, PEER));
    assert_eq!(rej.reason, RejReason::INVALID_COMMUNICATION_ID);
    assert_eq!(b.counted(Counter::RejectedInvalidId), 1);
}

#[test]
fn a_reply_with_a_queue_pair_that_is_connected_is_stale() {
    let mut b = Bench::connected();
    let old = b.id.0;
    b.connect();
    b.sends();
    let mut rep = b.rep();
    rep.local_id = 8;
    b.arrives(rep);
    // The peer has lost the old connection.
    let dreq = format!("DREQ {old} 7 0x22");
    assert_eq!(
        b.sends(),
        ["REJ us 8 Rep stale connection (10)", dreq.as_str()]
    );
    assert_eq!(b.events(), ["Rejected stale connection (10) 0"]);
    rep.qpn = Qpn::new(0x23);
    b.arrives(rep);
    assert_eq!(b.sends(), ["REJ us 8 Rep stale connection (10)"]);
}

#[test]
fn a_response_that_is_rejected_stays_rejected() {
    let mut b = Bench::answered();
    b.manager
        .reject(b.now, b.id, RejReason::CONSUMER, b"no")
        .unwrap();
    assert_eq!(b.sends(), ["REJ us 7 Rep consumer (28)"]);
    b.arrives(b.rep());
    assert_eq!(b.sends(), ["REJ us 7 Rep consumer (28)"]);
    assert_eq!(b.manager.ready(b.id, b""), Err(CmError::Unknown));
    b.next_timer();
    assert!(b.manager.is_idle());
}

#[test]
fn too_much_private_data_is_the_callers_error() {
    let mut b = Bench::new();
    let long = [0; 200];
    let mut wanted = b.wanted();
    wanted.private_data = &long[..57];
    let error = |max| Err(CmError::PrivateDataTooLong { max });
    assert_eq!(b.manager.connect(b.now, &wanted), error(56));
    wanted.addressing = None;
    wanted.private_data = &long[..93];
    assert_eq!(b.manager.connect(b.now, &wanted), error(92));
    wanted.private_data = &long[..92];
    assert!(b.manager.connect(b.now, &wanted).is_ok());

    let mut b = Bench::requested();
    let mut with = accept();
    with.private_data = &long[..197];
    assert_eq!(
        b.manager.accept(b.now, b.id, &with),
        Err(CmError::PrivateDataTooLong { max: 196 })
    );
    let reason = RejReason::CONSUMER;
    assert_eq!(
        b.manager.reject(b.now, b.id, reason, &long[..149]),
        Err(CmError::PrivateDataTooLong { max: 148 })
    );
}
