//! RDMA for applications: connections, messages, and memory that peers read and write, on every
//! ordinary network interface.
//!
//! | noun | what it is | as sockets have it |
//! |---|---|---|
//! | [`Device`] | a network interface | |
//! | [`Listener`] | a port that peers connect to | a listening socket |
//! | [`Endpoint`] | one end of a connection | a connected socket, but with messages instead of a stream of bytes |
//! | [`Region`] | memory that the device sends from and receives into | a buffer |
//! | [`Shared`] | a region of yours that peers access directly | |
//! | [`Remote`] | a region of the peer's | |
//! | [`DatagramEndpoint`] | sends and takes [records](Record) without connections | a UDP socket |
//!
//! The verbs: [`connect`](Device::connect), [`accept`](Listener::accept), [`send`](Endpoint::send),
//! [`recv`](Endpoint::recv), [`write`](Endpoint::write), [`read`](Endpoint::read),
//! [`close`](Endpoint::close); and for words that many add to, [`fetch_add`](Endpoint::fetch_add)
//! and [`compare_swap`](Endpoint::compare_swap). Each begins at once and gives an
//! [`Operation`]: `.await` it with any executor, or `.wait()` for it.
//!
//! ```
//! use airdma::Device;
//!
//! # fn main() -> airdma::Result<()> {
//! let device = Device::open("127.0.0.1")?; // or "eth0"
//! let listener = device.listen(7471)?;
//! let connecting = device.connect("127.0.0.1:7471"); // two programs, mostly
//! let server = listener.accept().wait()?;
//! let client = connecting.wait()?;
//!
//! let mut region = device.allocate(4096)?;
//! region[..5].copy_from_slice(b"hello");
//! let sending = client.send(region, ..5); // the region is the device's now
//! let message = server.recv(device.allocate(4096)?, ..).wait()?;
//! assert_eq!(&message[..], b"hello");
//! let region = sending.wait()?; // and yours again
//! # drop(region);
//! # Ok(())
//! # }
//! ```
//!
//! **Records.** [`write_record`](DatagramEndpoint::write_record) writes into a region by datagrams:
//! without a connection, without a receive, and without waiting for what is lost. The target learns
//! which bytes arrived. It is for data that is worthless late.
//!
//! **Memory.** An operation takes a region and gives it back, nothing is copied on the way, and
//! what is in flight cannot be touched: that is what the types say. A peer reaches only what you
//! [`share`](Region::share) and tell it of.
//!
//! **Giving up.** [`Operation::wait_timeout`] waits no longer than you say; dropping an operation
//! gives it up. The memory of one that is on its way is kept until it has landed, and no message or
//! connection is lost by it.
//!
//! **Back-pressure.** A message without a receive yet waits at its sender. An endpoint's queues
//! are bounded; what you ask for beyond waits its turn with the region that you gave it, so your
//! regions are the bound of your memory.
//!
//! **Errors** say whose fault they are: [`Error::blame`]. A peer that dies, or a network that does,
//! ends what waits for it within seconds, and nothing waits for ever but a `recv` from a peer that
//! lives and has nothing to say.

mod arrived;
mod changes;
mod connection;
mod datagram_address;
mod datagrams;
mod device;
mod endpoint;
mod error;
mod fetched;
mod hub;
mod landing;
mod listening;
mod operation;
mod pages;
mod polling;
mod record;
mod region;
mod remote;
mod runner;
mod shared_driver;
mod waiting;
mod work;

pub use arrived::{Arrived, Ended};
pub use changes::Changes;
pub use datagram_address::DatagramAddress;
pub use datagrams::{DatagramEndpoint, Records};
pub use device::{Device, Interface};
pub use endpoint::{Endpoint, Message};
pub use error::{Blame, Error, Result};
pub use fetched::Fetched;
pub use listening::Listener;
pub use operation::Operation;
pub use record::Record;
pub use region::{Region, Rights, Shared};
pub use remote::Remote;
pub use runner::Runner;

#[doc(hidden)]
pub use airdma_engine::SocketCounter;

/// Tests the code of the book.
pub mod config {
    pub use airdma_engine::{
        Air, DeviceConfig, Impairment, PathMtu, PeerWindow, PortKind, RateControl, RecordConfig,
        Secret,
    };
}

/// The pieces of code in the book are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/api.md")]
struct ApiByExample;
