//! librdmacm's C ABI: connections by IP address and port, over the engine's connection manager.
//!
//! - [`id`]: identifiers (`rdma_cm_id`), what they own, and their phases;
//! - [`channel`]: event channels; [`event`]: what the engine says, as events of C;
//! - [`resolve`]: addresses, ports and routes; [`resolver`]: waiting for neighbours; [`devices`]:
//!   the devices behind them;
//! - [`connect`]: listen, connect, accept, reject, disconnect; [`arrivals`]: listening at
//!   interfaces that come later;
//! - [`queue_pair`]: the queue pairs of identifiers;
//! - [`multicast`]: groups; [`endpoint`], [`addrinfo`]: `rdma_create_ep(3)` and what belongs to it;
//! - [`mod@option`] and [`ports`]: `rdma_set_option(3)`, and ports that are taken.
//!
//! As in rdma-core's library, queue pairs move in the thread that fetches the event or makes the
//! call: no thread of ours does.

pub mod abi;
pub mod address;
pub mod addrinfo;
pub mod addrinfo_event;
pub mod arrivals;
pub mod channel;
pub mod connect;
pub mod devices;
pub mod endpoint;
pub mod event;
pub mod id;
pub mod multicast;
pub mod option;
pub mod ports;
pub mod queue_pair;
pub mod removal;
pub mod resolve;
pub mod resolver;
