//! How two shims prove to each other that both hold the kernel connection.
//!
//! The secret is the initial sequence number of the end that connected: its kernel chose it, the
//! other end has it in the SYN (`TCP_SAVED_SYN`), and each process can read it on its own socket
//! only. Other users of the two hosts see byte counters (`ss -i`), but no sequence number; a host
//! that reads the packets between them reads the connection as well. 32 bits would not survive a
//! search offline, so they go into a SPAKE2 exchange: each attempt tests one number, and there is
//! one attempt for each connection.

use std::net::{IpAddr, SocketAddr};

use spake2::{Ed25519Group, Identity, Password, Spake2};

/// Bytes of an element of the exchange.
pub const ELEMENT_BYTES: usize = 33;
/// Bytes of a confirmation.
pub const CONFIRMATION_BYTES: usize = 32;

/// What both ends know of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Secret {
    /// The end that connected.
    pub active: SocketAddr,
    /// The end that accepted.
    pub passive: SocketAddr,
    /// Initial sequence number of the end that connected.
    pub sequence: u32,
}

/// An exchange that one end has begun.
pub struct Exchange(Spake2<Ed25519Group>);

/// A finished exchange: what each end sends to show that it had the same secret.
pub struct Confirmations {
    /// The confirmation of the end that connected.
    pub active: [u8; CONFIRMATION_BYTES],
    /// The confirmation of the end that accepted.
    pub passive: [u8; CONFIRMATION_BYTES],
}

impl Secret {
    /// Begins the exchange; `active`: at the end that connected. Returns the element to send.
    pub fn begin(&self, active: bool) -> (Exchange, Vec<u8>) {
        let password = Password::new(self.bytes());
        let (a, b) = (
            Identity::new(b"airdma sockets, active"),
            Identity::new(b"airdma sockets, passive"),
        );
        let (state, element) = if active {
            Spake2::<Ed25519Group>::start_a(&password, &a, &b)
        } else {
            Spake2::<Ed25519Group>::start_b(&password, &a, &b)
        };
        (Exchange(state), element)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.sequence.to_be_bytes().to_vec();
        for end in [self.active, self.passive] {
            let ip = match end.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes.extend(ip.octets());
            bytes.extend(end.port().to_be_bytes());
        }
        bytes
    }
}

impl Exchange {
    /// Finishes it with the peer's element; `None` if that is not one.
    pub fn finish(self, element: &[u8]) -> Option<Confirmations> {
        let key = self.0.finish(element).ok()?;
        let confirmation = |role: &str| {
            let key = blake3::derive_key("airdma sockets 2026-11 confirmation", &key);
            *blake3::keyed_hash(&key, role.as_bytes()).as_bytes()
        };
        Some(Confirmations {
            active: confirmation("active"),
            passive: confirmation("passive"),
        })
    }
}

/// Whether a received confirmation is the expected one, in constant time.
pub fn confirms(expected: &[u8; CONFIRMATION_BYTES], received: &[u8]) -> bool {
    <[u8; CONFIRMATION_BYTES]>::try_from(received)
        .is_ok_and(|received| blake3::Hash::from_bytes(*expected) == received)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn secret(sequence: u32) -> Secret {
        Secret {
            active: "10.0.0.1:40000".parse().unwrap(),
            passive: "10.0.0.2:80".parse().unwrap(),
            sequence,
        }
    }

    fn exchange(active: Secret, passive: Secret) -> (Confirmations, Confirmations) {
        let (a, to_b) = active.begin(true);
        let (b, to_a) = passive.begin(false);
        assert_eq!(to_a.len(), ELEMENT_BYTES);
        (a.finish(&to_a).unwrap(), b.finish(&to_b).unwrap())
    }

    #[test]
    fn ends_of_one_connection_confirm_each_other() {
        let (a, b) = exchange(secret(7), secret(7));
        assert!(confirms(&a.passive, &b.passive) && confirms(&b.active, &a.active));
    }

    #[test]
    fn a_stranger_that_guesses_the_number_confirms_nothing() {
        let (a, b) = exchange(secret(7), secret(8));
        assert!(!confirms(&a.passive, &b.passive) && !confirms(&b.active, &a.active));
        let other = Secret {
            active: "10.0.0.1:40001".parse().unwrap(),
            ..secret(7)
        };
        let (a, b) = exchange(secret(7), other);
        assert!(!confirms(&a.passive, &b.passive));
        assert!(!confirms(&a.passive, &a.active) && !confirms(&a.passive, &[]));
    }
}
