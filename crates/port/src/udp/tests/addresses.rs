//! Addresses and groups that come and go.

use super::*;

const LOOPBACK: u32 = 1;
const NOW: Duration = Duration::ZERO;
const SOON: Duration = Duration::from_secs(60);

fn port_of(addresses: &[&str], port: u16) -> UdpPort {
    let addresses: Vec<_> = addresses.iter().map(|text| address(text)).collect();
    UdpPort::bind(&addresses, LOOPBACK, UdpConfig { port, ..config() }).unwrap()
}

fn send(port: &mut UdpPort, source_index: u8, target: &str, number: usize) {
    let mut batch = batch();
    let destination = Destination {
        source_index,
        ..to(target)
    };
    add(&mut batch, &packet(64, number), destination);
    port.transmit(&mut batch).unwrap();
}

/// Over IPv4; loopback has no routes to IPv6 groups, which the engine's tests try on another
/// interface.
#[test]
fn everybody_who_joined_a_group_gets_what_is_sent_to_it() {
    let group = "239.1.2.3";
    let mut left = port_of(&["127.0.0.31"], 0);
    let mut right = port_of(&["127.0.0.32"], left.port());
    for port in [&mut left, &mut right] {
        port.join(address(group).into()).unwrap();
        port.join(address(group).into()).unwrap();
    }
    send(&mut left, 0, group, 1);
    for port in [&mut left, &mut right] {
        assert!(readable(port, SOON));
        let arrived = receive(port, 1);
        assert_eq!(arrived[0].bytes, packet(64, 1));
        assert_eq!(arrived[0].destination, address(group).into());
        assert_eq!(port.counters().rx_id_recovered, 0);
    }
    right.leave(address(group).into());
    right.leave(address(group).into());
    send(&mut left, 0, group, 2);
    assert_eq!(receive(&mut left, 1)[0].bytes, packet(64, 2));
    assert!(!readable(&right, NOW));
}

#[test]
fn a_group_that_nobody_joined_is_not_heard() {
    let mut left = port_of(&["127.0.0.35"], 0);
    let mut right = port_of(&["127.0.0.36"], left.port());
    left.join(address("239.1.2.4").into()).unwrap();
    right.join(address("239.1.2.5").into()).unwrap();
    send(&mut right, 0, "239.1.2.4", 1);
    assert_eq!(receive(&mut left, 1)[0].bytes, packet(64, 1));
    assert!(!readable(&right, NOW));
}

#[test]
fn addresses_can_be_added_and_removed_later() {
    let mut left = port_of(&["127.0.0.37"], 0);
    let mut right = port_of(&["127.0.0.38"], left.port());
    right
        .set_address(2, Some(address("127.0.0.39").into()))
        .unwrap();
    send(&mut left, 0, "127.0.0.39", 1);
    assert!(readable(&right, SOON));
    assert_eq!(
        receive(&mut right, 1)[0].destination,
        address("127.0.0.39").into()
    );
    send(&mut right, 2, "127.0.0.37", 2);
    assert_eq!(
        receive(&mut left, 1)[0].source,
        address("127.0.0.39").into()
    );

    right.set_address(2, None).unwrap();
    send(&mut right, 2, "127.0.0.37", 3);
    // Its index never had an address.
    send(&mut right, 1, "127.0.0.37", 3);
    assert_eq!(right.counters().tx_errors, 2);
    assert!(!readable(&left, NOW));

    // Another takes its place, and others have not moved.
    right
        .set_address(2, Some(address("127.0.0.40").into()))
        .unwrap();
    send(&mut right, 2, "127.0.0.37", 4);
    send(&mut right, 0, "127.0.0.37", 5);
    let sources: Vec<_> = receive(&mut left, 2).iter().map(|p| p.source).collect();
    assert_eq!(
        sources,
        ["127.0.0.40", "127.0.0.38"].map(|text| address(text).into())
    );
}

#[test]
fn an_address_that_cannot_be_had_is_an_error_and_harms_nothing() {
    let mut port = port_of(&["127.0.0.41"], 0);
    let error = port
        .set_address(1, Some(address("192.0.2.1").into()))
        .expect_err("a documentation address");
    assert_eq!(error.raw_os_error(), Some(libc::EADDRNOTAVAIL));
    send(&mut port, 0, "127.0.0.41", 1);
    assert_eq!(receive(&mut port, 1)[0].bytes, packet(64, 1));
}

#[test]
fn a_port_says_which_address_could_not_send() {
    let mut port = port_of(&["127.0.0.42"], 0);
    port.set_address(1, Some(address("127.0.0.43").into()))
        .unwrap();
    assert_eq!(port.stopped_at(), None);
    let mut batch = batch();
    let destination = Destination {
        source_index: 1,
        ..to("127.0.0.44")
    };
    add(&mut batch, &packet(64, 1), destination);
    port.sender.refuse = Some(|_| Some(libc::EAGAIN));
    port.transmit(&mut batch).unwrap();
    let mut descriptors = Vec::new();
    port.wait_descriptors(&mut descriptors);
    assert_eq!(port.stopped_at(), Some(descriptors[1]));
    port.sender.refuse = None;
    port.transmit(&mut batch).unwrap();
    assert_eq!((batch.len(), port.stopped_at()), (0, None));
}
