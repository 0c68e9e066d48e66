//! What the page says.

/// What comes before the figures.
pub const INTRODUCTION: &str = "Written by `airdma bench sockets`. Two network namespaces joined by a veth of MTU 1500, one core a side; \
unmodified programs with `libairdma_sockets.so` at both ends, at one, and at none, in turns. With it at one end alone there is no lane, \
and the difference is what the library costs. Each sample includes the time before a lane opens, half a second of three.\n\n\
*Bandwidth*: iperf3, one stream of writes of 128 KiB, CUBIC. *Latency*: sockperf's ping-pong over TCP that blocks, half a round trip. \
*Objects*: wrk with 16 connections that are kept alive, nginx with one process and `sendfile`. *GET* and *SET*: redis-benchmark with 50 clients and no pipeline. \
*Answer*: SIPp, 20 calls a second, by UDP with a socket each, by TCP with one connection; its datagrams fit a frame, so they are the kernel's. \
*Memory*: SIPp's clients while all are in a call, with a socket each (too few messages for a lane), both processes (Pss) and the kernel's sockets (slabs); it needs root. \
*Loss* is by nftables at both ends, each packet alone: segmentation is off on that link.";
