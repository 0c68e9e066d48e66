//! The two extended headers of four bytes behind a send or write (IBTA 9.3.6 and 9.3.7).
//!
//! ```text
//!   0                   1                   2                   3
//!   0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//!  +---------------------------------------------------------------+
//!  |  ImmDt: four bytes that go to the receiver's completion       |
//!  +---------------------------------------------------------------+
//!  |  IETH:  remote key that the receiver invalidates              |
//!  +---------------------------------------------------------------+
//! ```
//!
//! Immediate data is four opaque bytes in the order of the wire, as `ibv_wc` has them; it is not a
//! number.

/// Length of immediate data in bytes.
pub const IMMEDIATE_LEN: usize = 4;

/// Length of the invalidate extended header in bytes.
pub const IETH_LEN: usize = 4;
