"""The table: every program, what is run of it, and what shows that it worked."""

from __future__ import annotations

from programs.connections import CONNECTIONS
from programs.line import Line
from programs.messages import MESSAGES

LINES: dict[str, list[Line]] = {"RDMA CM": CONNECTIONS, "Messages": MESSAGES}
"""By section of docs/programs.md."""


def lines() -> list[Line]:
    """All of them, in the order of the document."""
    return [line for section in LINES.values() for line in section]


NOT_YET: dict[str, str] = {
    "qperf SERVER -t 1 uc_lat uc_bw uc_rdma_write_lat ud_lat ud_bw": (
        "qperf names no GID, without which no RoCE device can reach its peer: a kernel's answers EINVAL as well"
    ),
    "rdma_xserver -c x": "`rdma_get_request` for extended reliable connections answers EINVAL",
}
"""Command -> why it does not run."""
