//! The Wi-Fi model against tables, against theory, and against its own promises.

mod block_ack;
mod calibration;
mod contention;
mod medium;
mod network;
mod random_cells;
mod rate;
