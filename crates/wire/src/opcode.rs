//! Operation codes of the base transport header (IBTA table 39).
//!
//! ```text
//!   7 6 5   4 3 2 1 0
//!  +-------+-----------+
//!  | class | operation |     class: RC 000, UC 001, UD 011, XRC 101; CNP is 0x81 (IBTA A17.9.3)
//!  +-------+-----------+
//! ```
//!
//! The operations of the extended reliable connection (XRC, IBTA A14.3) are those of RC; FLUSH is
//! number 0x1c of both, ATOMIC WRITE 0x1d (IBTA A19.4.3).
//!
//! One table below holds everything that an opcode implies: name, transport service, position in a
//! message, extended headers.

use std::fmt;

/// Service that an opcode belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// Extended reliable connection.
    Xrc,
    /// Congestion notification of RoCEv2, addressed to a queue pair of any service.
    Cnp,
}

/// The byte is not an opcode that this crate knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown opcode {0:#04x}")]
pub struct UnknownOpcode(pub u8);

// What an opcode implies, as a set of bits.
const FIRST: u32 = 1 << 0;
const MIDDLE: u32 = 1 << 1;
const LAST: u32 = 1 << 2;
const ONLY: u32 = 1 << 3;
const SEND: u32 = 1 << 4;
const WRITE: u32 = 1 << 5;
const READ_RESPONSE: u32 = 1 << 6;
/// A request that is neither a send nor a write.
const ASKS: u32 = 1 << 7;
const DETH: u32 = 1 << 8;
const RETH: u32 = 1 << 9;
const ATOMIC_ETH: u32 = 1 << 10;
const AETH: u32 = 1 << 11;
const ATOMIC_ACK: u32 = 1 << 12;
const IMM: u32 = 1 << 13;
const IETH: u32 = 1 << 14;
const XRCETH: u32 = 1 << 15;
const FETH: u32 = 1 << 16;

/// Bits of an opcode that number the operation within its class.
const OPERATION: u8 = 0x1f;

macro_rules! opcodes {
    ($($variant:ident = $value:literal, $name:literal, $transport:ident, $implies:expr;)*) => {
        /// What a packet does: the first byte of its base transport header.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Opcode {
            $(#[doc = concat!("`", $name, "`, ", stringify!($value), ".")] $variant = $value,)*
        }

        impl Opcode {
            /// Every opcode, in ascending order of value.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$variant,)*];

            /// Name in the style of the specification, for display: `RC_SEND_ONLY`.
            pub const fn name(self) -> &'static str {
                match self { $(Opcode::$variant => $name,)* }
            }

            /// Service that this opcode belongs to.
            pub const fn transport(self) -> Transport {
                match self { $(Opcode::$variant => Transport::$transport,)* }
            }
        }

        /// Opcode and implications of every byte: a `match` would jump, since the values are
        /// sparse.
        const BY_BYTE: [(Option<Opcode>, u32); 256] = {
            let mut table = [(None, 0); 256];
            $(table[$value] = (Some(Opcode::$variant), $implies);)*
            table
        };
    };
}

opcodes! {
    RcSendFirst = 0x00, "RC_SEND_FIRST", Rc, SEND | FIRST;
    RcSendMiddle = 0x01, "RC_SEND_MIDDLE", Rc, SEND | MIDDLE;
    RcSendLast = 0x02, "RC_SEND_LAST", Rc, SEND | LAST;
    RcSendLastImm = 0x03, "RC_SEND_LAST_IMM", Rc, SEND | LAST | IMM;
    RcSendOnly = 0x04, "RC_SEND_ONLY", Rc, SEND | ONLY;
    RcSendOnlyImm = 0x05, "RC_SEND_ONLY_IMM", Rc, SEND | ONLY | IMM;
    RcWriteFirst = 0x06, "RC_WRITE_FIRST", Rc, WRITE | FIRST | RETH;
    RcWriteMiddle = 0x07, "RC_WRITE_MIDDLE", Rc, WRITE | MIDDLE;
    RcWriteLast = 0x08, "RC_WRITE_LAST", Rc, WRITE | LAST;
    RcWriteLastImm = 0x09, "RC_WRITE_LAST_IMM", Rc, WRITE | LAST | IMM;
    RcWriteOnly = 0x0a, "RC_WRITE_ONLY", Rc, WRITE | ONLY | RETH;
    RcWriteOnlyImm = 0x0b, "RC_WRITE_ONLY_IMM", Rc, WRITE | ONLY | RETH | IMM;
    RcReadRequest = 0x0c, "RC_READ_REQUEST", Rc, ASKS | RETH;
    RcReadResponseFirst = 0x0d, "RC_READ_RESPONSE_FIRST", Rc, READ_RESPONSE | FIRST | AETH;
    RcReadResponseMiddle = 0x0e, "RC_READ_RESPONSE_MIDDLE", Rc, READ_RESPONSE | MIDDLE;
    RcReadResponseLast = 0x0f, "RC_READ_RESPONSE_LAST", Rc, READ_RESPONSE | LAST | AETH;
    RcReadResponseOnly = 0x10, "RC_READ_RESPONSE_ONLY", Rc, READ_RESPONSE | ONLY | AETH;
    RcAcknowledge = 0x11, "RC_ACKNOWLEDGE", Rc, AETH;
    RcAtomicAcknowledge = 0x12, "RC_ATOMIC_ACKNOWLEDGE", Rc, AETH | ATOMIC_ACK;
    RcCompareSwap = 0x13, "RC_COMPARE_SWAP", Rc, ASKS | ATOMIC_ETH;
    RcFetchAdd = 0x14, "RC_FETCH_ADD", Rc, ASKS | ATOMIC_ETH;
    RcSendLastInvalidate = 0x16, "RC_SEND_LAST_INVALIDATE", Rc, SEND | LAST | IETH;
    RcSendOnlyInvalidate = 0x17, "RC_SEND_ONLY_INVALIDATE", Rc, SEND | ONLY | IETH;
    RcFlush = 0x1c, "RC_FLUSH", Rc, ASKS | FETH | RETH;
    RcAtomicWrite = 0x1d, "RC_ATOMIC_WRITE", Rc, ASKS | RETH;
    UcSendFirst = 0x20, "UC_SEND_FIRST", Uc, SEND | FIRST;
    UcSendMiddle = 0x21, "UC_SEND_MIDDLE", Uc, SEND | MIDDLE;
    UcSendLast = 0x22, "UC_SEND_LAST", Uc, SEND | LAST;
    UcSendLastImm = 0x23, "UC_SEND_LAST_IMM", Uc, SEND | LAST | IMM;
    UcSendOnly = 0x24, "UC_SEND_ONLY", Uc, SEND | ONLY;
    UcSendOnlyImm = 0x25, "UC_SEND_ONLY_IMM", Uc, SEND | ONLY | IMM;
    UcWriteFirst = 0x26, "UC_WRITE_FIRST", Uc, WRITE | FIRST | RETH;
    UcWriteMiddle = 0x27, "UC_WRITE_MIDDLE", Uc, WRITE | MIDDLE;
    UcWriteLast = 0x28, "UC_WRITE_LAST", Uc, WRITE | LAST;
    UcWriteLastImm = 0x29, "UC_WRITE_LAST_IMM", Uc, WRITE | LAST | IMM;
    UcWriteOnly = 0x2a, "UC_WRITE_ONLY", Uc, WRITE | ONLY | RETH;
    UcWriteOnlyImm = 0x2b, "UC_WRITE_ONLY_IMM", Uc, WRITE | ONLY | RETH | IMM;
    UdSendOnly = 0x64, "UD_SEND_ONLY", Ud, SEND | ONLY | DETH;
    UdSendOnlyImm = 0x65, "UD_SEND_ONLY_IMM", Ud, SEND | ONLY | DETH | IMM;
    Cnp = 0x81, "CNP", Cnp, 0;
    XrcSendFirst = 0xa0, "XRC_SEND_FIRST", Xrc, SEND | FIRST | XRCETH;
    XrcSendMiddle = 0xa1, "XRC_SEND_MIDDLE", Xrc, SEND | MIDDLE | XRCETH;
    XrcSendLast = 0xa2, "XRC_SEND_LAST", Xrc, SEND | LAST | XRCETH;
    XrcSendLastImm = 0xa3, "XRC_SEND_LAST_IMM", Xrc, SEND | LAST | IMM | XRCETH;
    XrcSendOnly = 0xa4, "XRC_SEND_ONLY", Xrc, SEND | ONLY | XRCETH;
    XrcSendOnlyImm = 0xa5, "XRC_SEND_ONLY_IMM", Xrc, SEND | ONLY | IMM | XRCETH;
    XrcWriteFirst = 0xa6, "XRC_WRITE_FIRST", Xrc, WRITE | FIRST | RETH | XRCETH;
    XrcWriteMiddle = 0xa7, "XRC_WRITE_MIDDLE", Xrc, WRITE | MIDDLE | XRCETH;
    XrcWriteLast = 0xa8, "XRC_WRITE_LAST", Xrc, WRITE | LAST | XRCETH;
    XrcWriteLastImm = 0xa9, "XRC_WRITE_LAST_IMM", Xrc, WRITE | LAST | IMM | XRCETH;
    XrcWriteOnly = 0xaa, "XRC_WRITE_ONLY", Xrc, WRITE | ONLY | RETH | XRCETH;
    XrcWriteOnlyImm = 0xab, "XRC_WRITE_ONLY_IMM", Xrc, WRITE | ONLY | RETH | IMM | XRCETH;
    XrcReadRequest = 0xac, "XRC_READ_REQUEST", Xrc, ASKS | RETH | XRCETH;
    XrcReadResponseFirst = 0xad, "XRC_READ_RESPONSE_FIRST", Xrc, READ_RESPONSE | FIRST | AETH;
    XrcReadResponseMiddle = 0xae, "XRC_READ_RESPONSE_MIDDLE", Xrc, READ_RESPONSE | MIDDLE;
    XrcReadResponseLast = 0xaf, "XRC_READ_RESPONSE_LAST", Xrc, READ_RESPONSE | LAST | AETH;
    XrcReadResponseOnly = 0xb0, "XRC_READ_RESPONSE_ONLY", Xrc, READ_RESPONSE | ONLY | AETH;
    XrcAcknowledge = 0xb1, "XRC_ACKNOWLEDGE", Xrc, AETH;
    XrcAtomicAcknowledge = 0xb2, "XRC_ATOMIC_ACKNOWLEDGE", Xrc, AETH | ATOMIC_ACK;
    XrcCompareSwap = 0xb3, "XRC_COMPARE_SWAP", Xrc, ASKS | ATOMIC_ETH | XRCETH;
    XrcFetchAdd = 0xb4, "XRC_FETCH_ADD", Xrc, ASKS | ATOMIC_ETH | XRCETH;
    XrcSendLastInvalidate = 0xb6, "XRC_SEND_LAST_INVALIDATE", Xrc, SEND | LAST | IETH | XRCETH;
    XrcSendOnlyInvalidate = 0xb7, "XRC_SEND_ONLY_INVALIDATE", Xrc, SEND | ONLY | IETH | XRCETH;
    XrcFlush = 0xbc, "XRC_FLUSH", Xrc, ASKS | FETH | RETH | XRCETH;
    XrcAtomicWrite = 0xbd, "XRC_ATOMIC_WRITE", Xrc, ASKS | RETH | XRCETH;
}

impl TryFrom<u8> for Opcode {
    type Error = UnknownOpcode;

    #[inline]
    fn try_from(value: u8) -> Result<Self, UnknownOpcode> {
        let (opcode, _implies) = BY_BYTE[usize::from(value)];
        opcode.ok_or(UnknownOpcode(value))
    }
}

impl Opcode {
    #[inline]
    const fn has(self, any_of: u32) -> bool {
        let (_opcode, implies) = BY_BYTE[self as usize];
        implies & any_of != 0
    }

    /// The same operation on another service, if it has it.
    #[inline]
    pub const fn on(self, transport: Transport) -> Option<Opcode> {
        let class = match transport {
            Transport::Rc => 0x00,
            Transport::Uc => 0x20,
            Transport::Ud => 0x60,
            Transport::Xrc => 0xa0,
            Transport::Cnp => return None,
        };
        let (opcode, _implies) = BY_BYTE[(class | self as u8 & OPERATION) as usize];
        opcode
    }

    /// The first of several packets of a message.
    #[inline]
    pub const fn is_first(self) -> bool {
        self.has(FIRST)
    }

    /// Neither the first nor the last of the packets of a message.
    #[inline]
    pub const fn is_middle(self) -> bool {
        self.has(MIDDLE)
    }

    /// The last of several packets of a message.
    #[inline]
    pub const fn is_last(self) -> bool {
        self.has(LAST)
    }

    /// A whole send, write or READ response.
    ///
    /// Opcodes that are not part of a segmented message (READ request, atomics, acknowledgements,
    /// CNP) are none of first, middle, last and only.
    #[inline]
    pub const fn is_only(self) -> bool {
        self.has(ONLY)
    }

    /// A send, with or without immediate data or a key to invalidate.
    #[inline]
    pub const fn is_send(self) -> bool {
        self.has(SEND)
    }

    /// An RDMA WRITE, with or without immediate data.
    #[inline]
    pub const fn is_write(self) -> bool {
        self.has(WRITE)
    }

    /// A response to an RDMA READ: carries its data.
    #[inline]
    pub const fn is_read_response(self) -> bool {
        self.has(READ_RESPONSE)
    }

    /// What a requester sends: sends, writes, READ requests and atomics of any service.
    ///
    /// Responses, acknowledgements and CNPs are not requests.
    #[inline]
    pub const fn is_request(self) -> bool {
        self.has(SEND | WRITE | ASKS)
    }

    /// Carries an extended header that RC and UC packets never do: one test on their path.
    #[inline]
    pub(crate) const fn has_deth_or_xrceth(self) -> bool {
        self.has(DETH | XRCETH)
    }

    /// Carries an XRC extended header: every request of an extended connection, and no response.
    #[inline]
    pub const fn has_xrceth(self) -> bool {
        self.has(XRCETH)
    }

    /// Carries a datagram extended header.
    #[inline]
    pub const fn has_deth(self) -> bool {
        self.has(DETH)
    }

    /// Carries an RDMA extended header.
    #[inline]
    pub const fn has_reth(self) -> bool {
        self.has(RETH)
    }

    /// Carries a FLUSH extended header, before its RDMA extended header.
    #[inline]
    pub const fn has_feth(self) -> bool {
        self.has(FETH)
    }

    /// Carries an atomic extended header.
    #[inline]
    pub const fn has_atomic_eth(self) -> bool {
        self.has(ATOMIC_ETH)
    }

    /// Carries an ACK extended header.
    #[inline]
    pub const fn has_aeth(self) -> bool {
        self.has(AETH)
    }

    /// Carries an atomic ACK extended header.
    #[inline]
    pub const fn has_atomic_ack(self) -> bool {
        self.has(ATOMIC_ACK)
    }

    /// Carries immediate data.
    #[inline]
    pub const fn has_imm(self) -> bool {
        self.has(IMM)
    }

    /// Carries an invalidate extended header.
    #[inline]
    pub const fn has_ieth(self) -> bool {
        self.has(IETH)
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests;
