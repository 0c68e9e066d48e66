//! Interposition: what a library needs to stand between a program and the libraries that it calls.
//!
//! A preloaded function has the name of a function of the C library or of rdma-core, and any
//! program calls it at any time: before `main`, inside its `malloc`, in a signal handler, after
//! `fork(2)`, in a thread that is cancelled.
//!
//! | question | answer |
//! |---|---|
//! | Where is the function that this one replaces? | [`real!`] and [`Real`]; [`real()`] asks the C library's own `dlsym(3)` |
//! | What does a program get that asks `dlsym(3)` or `dlvsym(3)` for a function? | [`look_ups!`] and [`LookUps`] |
//! | What of a library that a program opens so that its own dependencies come first? | [`look_ups!`]: the flag is taken from `dlopen(3)` |
//! | May the function run inside itself? | Yes: finding a symbol neither allocates nor locks, and calls nothing interposed |
//! | Is this still the process that made the object? | [`Process`]; [`PerProcess`] is a table that a child does not inherit, [`WipedPage`] memory that it finds empty |
//! | What if the thread is cancelled, or ends? | [`Uncancelled`] defers it; [`blocking`] sleeps where it may happen |
//! | What if the body panics? | [`contained()`] answers in its place |
//! | What of `errno`? | [`errno`] |
//!
//! The crate exports no C symbol and runs no code when it is loaded: a library names the functions
//! that it replaces.
//!
//! With `--cfg loom` there is no such crate: `tests/loom.rs` builds [`PerProcess`] by itself.
#![cfg(not(loom))]

pub mod blocking;
mod cancellation;
mod contained;
pub mod errno;
#[cfg(target_arch = "x86_64")]
pub mod look_up;
#[cfg(target_arch = "x86_64")]
mod objects;
#[cfg(target_arch = "x86_64")]
pub mod opening;
mod per_process;
mod process;
mod real;
mod sync;
mod wiped_page;

pub use cancellation::Uncancelled;
pub use contained::contained;
pub use libc::ENOSYS;
#[cfg(target_arch = "x86_64")]
pub use look_up::LookUps;
#[cfg(target_arch = "x86_64")]
pub use objects::Object;
pub use per_process::PerProcess;
pub use process::Process;
pub use real::{Failure, Real, real};
pub use wiped_page::WipedPage;
