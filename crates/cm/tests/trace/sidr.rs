//! Resolution of service ids.

use std::net::Ipv4Addr;

use airdma_cm::*;
use airdma_wire::cm::*;
use airdma_wire::{Gid, Qkey, Qpn};

use crate::bench::*;

const SERVICE_UDP: ServiceId = ServiceId::of_port(PortSpace::UDP, 7174);

fn resolve(b: &mut Bench) -> SidrId {
    let wanted = Resolve {
        route: b.route,
        service_id: SERVICE_UDP,
        addressing: b.wanted().addressing,
        private_data: &[1; 180],
    };
    b.manager.resolve(b.now, &wanted).unwrap()
}

fn response(id: SidrId, status: SidrStatus) -> SidrRep {
    SidrRep {
        request_id: id.0,
        status,
        info_len: 0,
        qpn: PEER_QPN,
        service_id: SERVICE_UDP,
        qkey: Qkey(5),
        info: [0; SidrRep::INFO_LEN],
        private_data: [0; SidrRep::PRIVATE_DATA_LEN],
    }
}

pub fn request(b: &Bench) -> SidrReq {
    let mut private_data = [0; SidrReq::PRIVATE_DATA_LEN];
    private_data[..IpAddressing::LEN].copy_from_slice(&b.req().private_data[..IpAddressing::LEN]);
    SidrReq {
        request_id: PEER,
        pkey: 0xffff,
        service_id: SERVICE_UDP,
        private_data,
    }
}

#[test]
fn a_resolution_is_request_and_response() {
    let mut b = Bench::new();
    let id = resolve(&mut b);
    assert_eq!(b.sends(), ["SIDR_REQ"]);
    assert_eq!(b.next_timer(), RESPONSE_MS);
    assert_eq!(b.sends(), ["SIDR_REQ"]);
    let stranger = Gid::from(Ipv4Addr::new(10, 0, 0, 3));
    b.arrives_from(stranger, response(id, SidrStatus::VALID));
    assert_eq!(b.counted(Counter::DropWrongPeer), 1);
    // An id is 24 bits, once the process is known; the transaction has 32 more.
    b.transaction ^= 1 << 40;
    b.arrives(response(id, SidrStatus::VALID));
    assert_eq!(b.counted(Counter::DropWrongId), 1);
    b.transaction ^= 1 << 40;
    b.arrives(response(id, SidrStatus::VALID));
    b.arrives(response(id, SidrStatus::VALID));
    assert_eq!(b.events(), ["SidrResponse 0 0x22"]);
    assert_eq!(b.counted(Counter::DropUnknownId), 1);
    assert!(b.manager.is_idle());
}

#[test]
fn a_resolution_that_nobody_answers_is_given_up() {
    let mut b = Bench::new();
    resolve(&mut b);
    for _ in 0..16 {
        b.next_timer();
    }
    assert_eq!(b.sends().len(), 16);
    assert_eq!(b.events(), ["SidrUnreachable"]);
    assert!(b.manager.is_idle());
    resolve(&mut b);
    let (_, mad) = b.manager.poll_transmit().unwrap();
    b.manager.unsendable(b.now, &mad);
    assert_eq!(b.events(), ["SidrUnreachable"]);
    assert!(b.manager.is_idle());
    let id = resolve(&mut b);
    b.manager.destroy_sidr(b.now, id);
    b.sends();
    assert!(b.manager.is_idle());
}

#[test]
fn a_request_is_answered_again_when_it_is_repeated() {
    let mut b = Bench::new();
    b.arrives(request(&b));
    assert_eq!(b.sends(), ["SIDR_REP 1 0x0 0"]);
    b.manager
        .listen(SERVICE_UDP, Takes::Datagrams, None, 1)
        .unwrap();
    b.arrives(request(&b));
    b.arrives(request(&b));
    let Some(Event::SidrRequest(asked)) = b.manager.poll_event() else {
        panic!("no request");
    };
    assert_eq!(asked.private_data.len(), 180);
    assert_eq!(asked.addressing.unwrap().src_port(), 99);
    let mut with = SidrAnswer {
        status: SidrStatus::VALID,
        qpn: Qpn::new(3),
        qkey: Qkey(4),
        private_data: &[0; 137],
    };
    let error = b.manager.answer(b.now, asked.id, &with);
    assert_eq!(error, Err(CmError::PrivateDataTooLong { max: 136 }));
    with.private_data = b"here";
    b.manager.answer(b.now, asked.id, &with).unwrap();
    let error = b.manager.answer(b.now, asked.id, &with);
    assert_eq!(error, Err(CmError::Unknown));
    b.arrives(request(&b));
    assert_eq!(b.sends(), ["SIDR_REP 0 0x3 4"; 2]);
    assert_eq!(b.events(), [""; 0]);
    b.next_timer();
    assert!(b.manager.is_idle());
}

#[test]
fn a_request_that_is_destroyed_is_refused() {
    let mut b = Bench::new();
    let listener = b
        .manager
        .listen(SERVICE_UDP, Takes::Datagrams, None, 1)
        .unwrap();
    b.arrives(request(&b));
    b.manager.close(b.now, listener);
    assert_eq!(b.sends(), ["SIDR_REP 2 0x0 0"]);
    assert_eq!(b.events(), [""; 0]);
}

#[test]
fn a_closed_listener_refuses_what_was_polled_and_not_taken() {
    for is_taken in [false, true] {
        let mut b = Bench::new();
        let listener = b
            .manager
            .listen(SERVICE_UDP, Takes::Datagrams, None, 1)
            .unwrap();
        b.arrives(request(&b));
        let Some(Event::SidrRequest(asked)) = b.manager.poll_event() else {
            panic!("no request");
        };
        if is_taken {
            b.manager.taken_sidr(asked.id).unwrap();
            // There is room for another.
            let mut other = request(&b);
            other.request_id = 8;
            b.arrives(other);
            assert_eq!(b.events(), ["SidrRequest"]);
        }
        b.manager.close(b.now, listener);
        assert_eq!(b.sends(), ["SIDR_REP 2 0x0 0"]);
        let taken = b.manager.taken_sidr(asked.id);
        assert_eq!(taken.is_ok(), is_taken);
    }
}

#[test]
fn a_request_that_names_other_addresses_is_dropped() {
    let mut b = Bench::new();
    b.manager
        .listen(SERVICE_UDP, Takes::Datagrams, None, 1)
        .unwrap();
    let mut forged = request(&b);
    forged.private_data[IpAddressing::LEN - 1] ^= 1;
    b.arrives(forged);
    assert_eq!(b.counted(Counter::DropWrongPeer), 1);
    assert_eq!(b.events(), [""; 0]);
    assert_eq!(b.sends(), [""; 0]);
}
