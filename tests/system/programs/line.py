"""One line of the table: a program, its command line at each end, and what shows that it worked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

RDMA = "rdma"
"""`Line.ready`: the server listens by RDMA CM, which no table of the kernel shows, and sleeps until
a client comes.
"""

SPINS = "spins"
"""`Line.ready`: the same of a server that polls for clients."""

STAGGER_S = 0.3
"""Between clients: the event loop of rping loses all but the last of requests that come at once, on
any device.
"""


class Unavailable(Exception):
    """Why a line cannot be run here: what it needs cannot be fetched."""


@dataclass(frozen=True)
class Line:
    """What runs where. In commands and patterns, `{server}` is the server's IPv4 address,
    `{server6}` its IPv6 address, `{client}` and `{client6}` the client's, `{device}` the RDMA
    device, `{gid}` and `{gid6}` the indices of its IPv4 and IPv6 GIDs, and `{folder}` a folder that
    both see. Commands are split as a shell would, and run without one.
    """

    package: str
    """The Debian package that the program is from; "" for one that the test compiles."""
    server: str
    """"" if there is no server."""
    client: str
    says: tuple[str, ...]
    """Patterns: each must be found in what the client prints."""
    server_says: tuple[str, ...] = ()
    """The same of the server."""
    bytes_min: int = 1000
    """How much must have crossed the devices, by their own counters: payload and headers of both
    directions together.
    """
    setup: Mapping[str, str] = field(default_factory=dict)
    """Environment of both ends."""
    dropin: bool = False
    """On the drop-in libraries, in place of the preloaded one."""
    clients: int = 1
    """How many clients: each starts `STAGGER_S` after the one before, and they run at the same
    time.
    """
    ready: int | str = RDMA
    """When the server is ready: the TCP port that it listens at, "udp" and a UDP port, `RDMA`, or
    `SPINS`.
    """
    stays: bool = False
    """The server does not end by itself."""
    before: Callable[[Path], None] | None = None
    """Puts files into the folder."""
    after: Callable[[Path], list[str]] | None = None
    """Looks at them when all has run; returns complaints."""
    note: str = ""
    """What the reader of the table should know."""
    called: str = ""
    """The program that a script runs; "" where the client's command names it."""
    needs_device: bool = True
    """False: nothing crosses the wire."""
    timeout_s: float = 60
    version: Callable[[], str] | None = None
    """The version of a program that is built first, from a registry's sources: minutes, so `make
    test` leaves it out. Debian's package says it for all others.
    """

    @property
    def program(self) -> str:
        return self.called or (self.client or self.server).split()[0].rsplit("/", 1)[-1]

    @property
    def name(self) -> str:
        """Unlike that of any other line, and short enough for a report."""
        commands = [command for command in (self.server, self.client) if command]
        environment = [f"{name}={value}" for name, value in self.setup.items()]
        several = [f"x {self.clients}"] if self.clients > 1 else []
        dropin = ["on the drop-in"] if self.dropin else []
        return " ".join([" <- ".join(commands), *several, *environment, *dropin])
