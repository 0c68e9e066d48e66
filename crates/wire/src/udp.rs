//! Fields of the UDP header that RoCEv2 fixes (IBTA A17.3.2).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +-------------------------------+-------------------------------+
//!  |  source port: any, for ECMP   |    destination port: 4791     |
//!  +-------------------------------+-------------------------------+
//!  |  length: 8 + BTH .. ICRC      |    checksum: 0 is allowed     |
//!  +-------------------------------+-------------------------------+
//! ```

/// UDP destination port of every RoCEv2 packet.
pub const ROCE_PORT: u16 = 4791;

/// Length of the UDP header in bytes.
pub const UDP_LEN: usize = 8;
