"""The table: every program, what is run of it, and what shows that it worked."""

from __future__ import annotations

from programs.built import BUILT
from programs.connections import CONNECTIONS
from programs.line import Line
from programs.machines import MACHINES
from programs.messages import MESSAGES
from programs.middleware import MIDDLEWARE
from programs.registries import REGISTRIES
from programs.sockets import SOCKETS

LINES: dict[str, list[Line]] = {
    "RDMA CM": CONNECTIONS,
    "rsockets": SOCKETS,
    "Messages": MESSAGES,
    "Middleware": MIDDLEWARE,
    "From PyPI": REGISTRIES,
    "Built from sources": BUILT,
    "Machines and storage": MACHINES,
}
"""By section of docs/programs.md."""


def lines() -> list[Line]:
    """All of them, in the order of the document."""
    return [line for section in LINES.values() for line in section]


def ready_lines() -> list[Line]:
    """Those of programs that need not be built first."""
    return [line for line in lines() if line.version is None]


BY_HAND: list[tuple[str, str, str]] = [
    (
        "Ceph monitor 16.2.15 (Debian 12: `ceph-mon`, `ceph-common`)",
        "`ms type = async+rdma`, `ms async rdma device name = DEVICE`, `ms async rdma receive queue len = 1024`, `ms async rdma receive "
        "buffers = 2048`, `ms async rdma send buffers = 256`, cephx; `ceph-mon -i a -f` on the server, `ceph mon stat` on the client",
        "10 of 10 commands answered. Without cephx the monitor refuses some with EPERM, over TCP too",
    ),
    (
        "NIXL 1.5.1 (PyPI: `nixl`)",
        "`UCX_TLS=rc_verbs,ud_verbs:aux`, `UCX_NET_DEVICES=DEVICE:1`; two agents with the UCX backend, a READ of 8 MiB of DRAM",
        "data compared, the same. The interpreter ends with SIGSEGV behind the transfer, over TCP without airdma too",
    ),
    (
        "Mooncake 0.3.13 (PyPI: `mooncake-transfer-engine-non-cuda`)",
        '`TransferEngine.initialize(ADDRESS, "P2PHANDSHAKE", "rdma", "DEVICE")`; a WRITE of 8 MiB, and a READ of it',
        "data compared, the same",
    ),
    (
        "UCX 1.23 (`ucx_perftest` of Debian's unstable suite, 1.23.0~rc1, in a root of that suite, with the libraries of PyPI's `nixl-cu12` 1.5.1)",
        "on one host with `AIRDMA_LOOPBACK=1`, `UCX_TLS=rc_verbs,ud_verbs:aux`, `UCX_NET_DEVICES=airdma_lo:1`; `ucx_perftest -t ucp_get -s 65536 -n 100`, `-t ucp_put_bw`, `-t tag_lat -s 8`",
        "all ran to their end. They end with SIGSEGV behind the result, over TCP without airdma too",
    ),
    (
        "llama.cpp's RPC backend (ggml 0.25.3, in the sources of PyPI's `llama-cpp-python` 0.3.36; 26 November)",
        "`cmake -DGGML_RPC=ON vendor/llama.cpp`, which finds libibverbs, `ninja ggml-rpc-server`; `GGML_RPC_DEBUG=1 ggml-rpc-server -H "
        "SERVER -p 50052`; on the client a program of ggml's C interface (`ggml_backend_rpc_init`), which multiplies matrices of 1,024 x "
        "1,024 there and on its own CPU, three times",
        '"RDMA activated" at both ends, no difference',
    ),
]
"""What was run by hand, since it is too large for a test: program, how, what was seen. Markdown."""


DOES_NOT_RUN: dict[str, str] = {
    "`mpirun --mca pml ob1 --mca btl openib,self`": (
        "Debian's Open MPI 4.1.4 sets up connections of this kind by `udcm` only, which takes no RoCE device"
    ),
    "`rstream -f gid`": "connects by InfiniBand addresses (AF_IB), which no RoCE device has",
    "`rstream -T a` at the client": (
        "rstream takes POLLHUP for an error while the last bytes are unread: the server closes when it has handed them over"
    ),
    "`udpong` without `-b` at the server": "it listens at ::1 only, on any device",
    "`fio --ioengine=rdma` with `--rw=randrw`, `--rw=rw`, `--rw=randwrite`": (
        "fio 3.33 refuses them: its engine moves blocks from client to server, in order"
    ),
    "`ib_send_bw -R -c UC`, `ib_send_bw -R -c XRC`": "perftest 4.5 itself refuses them",
    "`server` and `client`, examples of async-rdma 0.5.0": (
        "the crate compares the flags of a completion with 3, which rxe sets (`IBV_WC_GRH` with RC too), and says that it is 2 on other "
        "devices: `set_imm_flag_in_wc(2)`"
    ),
    "`ib_write_bw -R` to an IPv6 address": "perftest 4.5 asks for IPv4 addresses only",
}
"""What one would try -> why it does not run. Markdown."""
