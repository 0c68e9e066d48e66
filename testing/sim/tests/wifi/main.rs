//! The Wi-Fi model compared with tables and theory, and its invariants.

mod block_ack;
mod calibration;
mod contention;
mod medium;
mod network;
mod random_cells;
mod rate;
