//! Messages of connection management: whatever the bytes are, and the same bytes made to look like
//! a message.

use airdma_wire::cm::{CmMad, CmMessage, IpAddressing, ServiceId};
use airdma_wire::mad::{MAD_LEN, MadHeader};

/// Attribute ids of the messages, REQ to SIDR_REP.
const ATTRIBUTES: std::ops::Range<u8> = 0x10..0x19;

/// Parses the bytes as they are, and again as a message of each kind.
pub fn run(data: &[u8]) {
    check(data);
    let mut mad = [0; MAD_LEN];
    let len = data.len().min(MAD_LEN);
    mad[..len].copy_from_slice(&data[..len]);
    for attribute in ATTRIBUTES {
        mad[..4].copy_from_slice(&[1, CmMad::CLASS, CmMad::CLASS_VERSION, 3]);
        mad[16..18].copy_from_slice(&[0, attribute]);
        check(&mad);
        let parsed = CmMad::parse(&mad).map(|mad| mad.message.attribute());
        assert!(parsed.is_err() || parsed == Ok(attribute.into()));
    }
}

fn check(data: &[u8]) {
    let header = MadHeader::parse(data);
    assert!(header.is_err() || data.len() == MAD_LEN);
    let Ok(mad) = CmMad::parse(data) else {
        return;
    };
    let emitted = mad.emit();
    // Reserved bits are gone, and nothing else is.
    assert_eq!(CmMad::parse(&emitted), Ok(mad));
    assert_eq!(mad.transaction.to_be_bytes(), data[8..16]);
    match mad.message {
        CmMessage::Req(req) => {
            check_service(req.service_id);
            check_addressing(&req.private_data);
        }
        CmMessage::SidrReq(request) => {
            check_service(request.service_id);
            check_addressing(&request.private_data);
        }
        CmMessage::SidrRep(response) => check_service(response.service_id),
        CmMessage::Mra(_)
        | CmMessage::Rej(_)
        | CmMessage::Rep(_)
        | CmMessage::Rtu(_)
        | CmMessage::Dreq(_)
        | CmMessage::Drep(_) => {}
    }
}

fn check_service(service: ServiceId) {
    if let Some((space, port)) = service.port() {
        assert_eq!(ServiceId::of_port(space, port), service);
    }
}

fn check_addressing(private_data: &[u8]) {
    let (field, _) = private_data
        .split_first_chunk()
        .expect("room for an addressing");
    if let Ok(addressing) = IpAddressing::from_bytes(field) {
        assert_eq!(
            IpAddressing::from_bytes(&addressing.to_bytes()),
            Ok(addressing)
        );
        assert_eq!(addressing.src().is_ipv4(), addressing.dst().is_ipv4());
    }
}
