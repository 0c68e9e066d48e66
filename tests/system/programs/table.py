"""The table: every program, what is run of it, and what shows that it worked."""

from __future__ import annotations

from programs.connections import CONNECTIONS
from programs.line import Line
from programs.machines import MACHINES
from programs.messages import MESSAGES
from programs.middleware import MIDDLEWARE
from programs.sockets import SOCKETS

LINES: dict[str, list[Line]] = {
    "RDMA CM": CONNECTIONS,
    "rsockets": SOCKETS,
    "Messages": MESSAGES,
    "Middleware": MIDDLEWARE,
    "Machines and storage": MACHINES,
}
"""By section of docs/programs.md."""


def lines() -> list[Line]:
    """All of them, in the order of the document."""
    return [line for section in LINES.values() for line in section]


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
    "`ib_write_bw -R` to an IPv6 address": "perftest 4.5 asks for IPv4 addresses only",
}
"""What one would try -> why it does not run. Markdown."""
