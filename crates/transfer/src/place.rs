//! The place of an address: the network where it holds.

use airdma_files::session::{NetworkName, Place};
use airdma_radio::Network;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::Duration;

/// Most checks whether the kernel has resolved the gateway, which answers within milliseconds if at
/// all.
const LOOKS_MAX: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Name of the network of a host's own addresses. Other networks have an `@` in their names.
const HOST: &str = "host";

/// The place of an address; `None` if the network that leads there cannot be told from others.
pub(crate) fn place_of(address: IpAddr) -> Option<Place> {
    for _ in 0..LOOKS_MAX {
        match Network::towards(address) {
            Ok(Network::Host) => return NetworkName::new(HOST).map(Place::Network),
            Ok(Network::Named(name)) => return NetworkName::new(&name).map(Place::Network),
            Ok(Network::Unresolved(gateway)) => {
                wake(gateway);
                std::thread::sleep(LOOK_EVERY);
            }
            Ok(Network::Nameless) | Err(_) => return None,
        }
    }
    None
}

/// Sends an empty datagram, which makes the kernel resolve the link-layer address.
fn wake(gateway: SocketAddr) {
    let any: IpAddr = match gateway {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    // If it cannot be sent, the address stays unresolved, which is a valid result.
    let _ = UdpSocket::bind((any, 0)).and_then(|socket| socket.send_to(&[], gateway));
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::isolated::isolated;

    fn place(name: &str) -> Option<Place> {
        Some(Place::Network(NetworkName::new(name).unwrap()))
    }

    #[test]
    fn a_network_is_told_by_its_gateway() {
        isolated(
            "place::tests::a_network_is_told_by_its_gateway",
            "ip link add near type veth peer name far
            ip addr add 192.168.1.2/24 dev near
            ip addr add fd00::2/64 dev near nodad
            ip link set near up
            ip link set far up address 02:00:00:00:00:01
            ip neigh add 192.168.1.1 dev near lladdr 02:00:00:00:00:01",
            || {
                let sh = |script: &str| {
                    let mut command = std::process::Command::new("sh");
                    assert!(command.args(["-ec", script]).status().unwrap().success());
                };
                let of = |address: &str| place_of(address.parse().unwrap());
                assert_eq!(of("192.168.1.2"), place("host"));
                assert_eq!(of("192.168.1.5"), place("near@192.168.1.0/24"));
                assert_eq!(of("fd00::5"), place("near@fd00::/64"));
                assert_eq!(of("10.0.0.5"), None, "nothing leads there");
                sh("ip route add default via 192.168.1.1");
                let home = place("02:00:00:00:00:01@192.168.1.0/24");
                assert_eq!(of("192.168.1.5"), home);
                assert_eq!(of("10.0.0.5"), home);
                let by_six = place("02:00:00:00:00:01@fd00::/64");
                assert_eq!(of("fd00::5"), by_six);
                // The same addresses on another network.
                sh("ip neigh replace 192.168.1.1 dev near lladdr 02:00:00:00:00:02");
                let cafe = place("02:00:00:00:00:02@192.168.1.0/24");
                assert_eq!(of("192.168.1.5"), cafe);
                // A gateway that does not answer.
                sh("ip neigh del 192.168.1.1 dev near");
                assert_eq!(of("192.168.1.5"), None);
                // A tunnel, whose ends have no link-layer addresses.
                sh("ip route del default; ip tuntap add tunnel mode tun
                    ip addr add 10.1.0.2/24 dev tunnel; ip link set tunnel up");
                assert_eq!(of("10.1.0.5"), None);
            },
        );
    }
}
