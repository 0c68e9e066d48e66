//! Socket programs over RDMA, unmodified: `airdma sockets -- CMD` preloads this library.
//!
//! **The program keeps its kernel sockets.** They are made, connected, accepted, polled, passed and
//! closed by the kernel. Beside an established TCP connection whose two ends have the library, a
//! [*lane*](lane) is opened, an RDMA connection that carries the stream from an agreed byte on. The
//! kernel's descriptor has the readiness of the lane by two [gates](tcp), so the kernel answers
//! what waits for it (epoll, poll, select). A connection that gets no lane is the kernel's.
//!
//! | module | has |
//! |---|---|
//! | [`entry`] | the C symbols |
//! | [`stream`], [`in_kernel`] | calls that move data: to the kernel, or to the lane |
//! | [`datagram`] | the same of UDP sockets, and their lanes |
//! | [`socket`], [`mode`] | the table of sockets, by descriptor; whether calls on one block |
//! | [`tcp`], [`address`] | what the kernel knows of a connection, and the gates; addresses |
//! | [`agent`], [`negotiation`], [`proof`] | how a lane comes to be, beside the program's threads |
//! | [`lane`], [`message`], [`regions`] | the lane, and its memory |
//! | [`hand_back`] | calls that need the kernel's socket, and get it |
//! | [`copying`] | `sendfile(2)`, and what a lane left behind for `splice(2)` |
//! | [`waiting`] | calls that wait for a connection |
//! | [`sleeping`], [`turn`] | calls that wait, and run the devices meanwhile |
//! | [`corking`] | bytes that are kept back for more of them |
//! | [`liveness`] | whether the peer lives |
//! | [`holding`] | calls that wait in a connection that is closed |
//! | [`closing`], [`process`] | the end of connections and processes, fork |
//! | [`policy`], [`hosts`] | which connections may have a lane, and which peers are worth an attempt |

mod address;
mod agent;
mod closing;
mod copying;
mod corking;
mod counters;
mod datagram;
mod descriptors;
mod entry;
mod hand_back;
mod holding;
mod hosts;
mod in_kernel;
mod inside;
mod lane;
mod liveness;
mod message;
mod mode;
mod negotiation;
mod next;
mod policy;
mod process;
mod proof;
mod regions;
mod sleeping;
mod socket;
mod stream;
mod tcp;
mod turn;
mod waiting;
