//! What the page says.

/// What comes before the figures.
pub const INTRODUCTION: &str = "Written by `airdma bench daemon`. Two network namespaces joined by a veth of MTU 1500; perftest, unmodified, with airdma in its \
process at both ends, and with `airdma daemon` at both ends, in turns. One core a side, which the program and the daemon of that side share; \
series *on two cores* have two cores a side, and are left out on a machine with fewer than four.\n\n\
perftest's buffers are private memory, which the daemon reads and writes by a call of the kernel's: one more copy of each byte. \
*Latency*: SENDs of 64 bytes wait for completions; WRITEs of 64 bytes spin on the memory that the peer writes, with the thread that does so and airdma's on one core or on two. \
A program that polls and its daemon take turns on one core, by the kernel's slices of time, which are milliseconds; in a process the poll does the daemon's work. \
*Stopped*: the target of `ib_write_bw` has a daemon, its peer has none; the target is stopped (`SIGSTOP`) for the given time in the middle of a run that is 3 s longer, or is not stopped. The rate is that of the whole run.";
