//! Two hosts joined by a cable, for measurements: network namespaces, a veth pair, and programs in
//! them.
//!
//! [`enter`] must come first, before any thread: it gives the process a network namespace of its
//! own, with root or else in a user namespace. A [`Lab`] then makes the two hosts. The namespaces
//! have no names and last as long as a descriptor or process holds them, so nothing is left behind,
//! not even after SIGKILL. Programs die with the thread that started them.

mod error;
mod hold;
mod host;
mod interrupts;
mod loss;
mod named;
mod namespace;
mod netlink;
mod pair;
mod privileges;
mod program;
mod runtime_dir;
mod soft_interrupts;
mod topology;

pub use error::LabError;
pub use host::Host;
pub use interrupts::Interrupts;
pub use named::{NAMED, Named, lab_name, remove_abandoned, unname};
pub use namespace::Namespace;
pub use netlink::Route;
pub use pair::{Listening, Pair, Server};
pub use privileges::enter;
pub use program::{Outcome, Program, exec, memory_file};
pub use topology::{Cable, INTERFACE, Lab, configure, cores, interface, wait_up};
