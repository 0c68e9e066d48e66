//! Packet formats of RoCEv2: headers, the invariant CRC, the datagrams of connection management,
//! and nothing else.
//!
//! Everything here is a pure function of its arguments. Parsing borrows the payload from the
//! received bytes, emitting writes into a slice of the caller's; no header needs the heap, and no
//! input makes it panic.
//!
//! ```text
//!  Ethernet | IPv4 or IPv6 | UDP :4791 | BTH | extended headers | payload | pad 0..3 | ICRC
//!                                      |<------------- [`Packet`] ---------------->|
//! ```
//!
//! ```
//! use airdma_wire::{Aeth, Bth, Headers, Opcode, Packet, Psn, Qpn, Syndrome};
//!
//! let bth = Bth::new(Opcode::RcAcknowledge, Qpn::new(0x11), Psn::new(0x123456));
//! let mut headers = Headers::new(bth);
//! headers.aeth = Some(Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 });
//!
//! let mut bytes = [0; 16];
//! assert_eq!(headers.emit(&mut bytes), 16);
//! assert_eq!(Packet::parse(&bytes)?.headers, headers);
//! # Ok::<(), airdma_wire::ParseError>(())
//! ```
//!
//! Section and table numbers are those of the InfiniBand Architecture Specification, volume 1
//! (IBTA), and its annex A17 (RoCEv2).

#![forbid(unsafe_code)]

pub mod aeth;
pub mod air;
pub mod atomic;
pub mod bth;
pub mod bundle;
pub mod cm;
pub mod cnp;
pub mod deth;
pub mod feth;
mod field;
pub mod grh;
pub mod icrc;
pub mod id_space;
pub mod ids;
pub mod immediate;
pub mod ip;
pub mod local_probe;
pub mod lreth;
pub mod mad;
pub mod mtu;
pub mod neighbour;
pub mod opcode;
pub mod packet;
pub mod padded;
pub mod pfc;
pub mod piece;
pub mod record;
pub mod reth;
pub mod rnr;
pub mod sealed;
pub mod seth;
pub mod siphash;
pub mod udp;
pub mod xrceth;

pub use aeth::{Aeth, NakCode, Syndrome};
pub use atomic::{ATOMIC_ACK_LEN, AtomicEth};
pub use bth::Bth;
pub use deth::Deth;
pub use feth::Feth;
pub use grh::{GRH_LEN, grh_area};
pub use icrc::{ICRC_LEN, icrc, icrc_of_ip_packet};
pub use id_space::{IdSpace, IdSpaces};
pub use ids::{Gid, Lkey, Psn, Qkey, Qpn, Rkey};
pub use immediate::{IETH_LEN, IMMEDIATE_LEN};
pub use ip::IpPseudo;
pub use lreth::Lreth;
pub use mtu::{PathMtu, long_payload};
pub use neighbour::Neighbour;
pub use opcode::{Opcode, Transport, UnknownOpcode};
pub use packet::{HEADERS_LEN_MAX, Headers, Packet, ParseError, split_middle};
pub use pfc::Pfc;
pub use record::{
    READ_RANGES_MAX, RECORD_ACK_LEN, RECORD_ACK_OPCODE, RECORD_ECHO_LEN, RECORD_ECHO_OPCODE,
    RECORD_HEADERS_LEN, RECORD_OPCODE, RECORD_PAYLOAD_MAX, RECORD_READ_LEN, RECORD_READ_LEN_MAX,
    RECORD_READ_OPCODE, RECORD_TOKEN_LEN, Rceth, ReadRanges, RecordAck, RecordAnswer, RecordEcho,
    RecordHeaders, RecordPacket, RecordRead, RecordReadKind, UnitRange, record_payload,
};
pub use reth::Reth;
pub use rnr::{ack_timeout, rnr_timer};
pub use seth::{SETH_LEN_MAX, SETH_RANGES_MAX, Seth, SethRange, emit_seth};
pub use udp::ROCE_PORT;
pub use xrceth::XrcEth;
