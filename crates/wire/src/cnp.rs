//! Congestion notification packet (IBTA A17.9.3): a receiver that saw congestion marks asks a
//! sender to slow down.
//!
//! ```text
//!  +-----------------------------------+-----------------------------+
//!  | BTH: opcode 0x81, BECN set, PSN 0 |  16 reserved bytes, zero    |
//!  +-----------------------------------+-----------------------------+
//! ```

use crate::{Bth, Headers, Opcode, Psn, Qpn};

/// Reserved bytes behind the base transport header.
pub const CNP_RESERVED_LEN: usize = 16;

/// Length in bytes of a CNP, without the ICRC.
pub const CNP_LEN: usize = Bth::LEN + CNP_RESERVED_LEN;

/// A CNP to a queue pair, ready for its ICRC.
pub fn cnp(dest_qpn: Qpn) -> [u8; CNP_LEN] {
    let mut bth = Bth::new(Opcode::Cnp, dest_qpn, Psn::new(0));
    // As ConnectX hardware sends it.
    bth.migreq = false;
    bth.becn = true;
    let mut bytes = [0; CNP_LEN];
    Headers::new(bth).emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Packet;

    #[test]
    fn a_cnp_is_the_one_of_a_captured_connectx() {
        let mut captured = [0; CNP_LEN];
        captured[..12].copy_from_slice(&[0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
        assert_eq!(cnp(Qpn::new(0x118)), captured);

        let packet = Packet::parse(&captured).unwrap();
        assert_eq!(packet.headers.bth.opcode, Opcode::Cnp);
        assert!(packet.headers.bth.becn && !packet.headers.bth.fecn);
        assert_eq!(packet.payload, [0; CNP_RESERVED_LEN]);
    }
}
