//! The north API for C. `include/airdma.h` says what each call does; here each is mapped to the crate `airdma`, and no panic leaves
//! this library.

mod calls;
mod failure;
mod handle;
mod operation;
