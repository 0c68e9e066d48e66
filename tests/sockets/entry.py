"""One entry of the catalogue of real programs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Entry:
    """In commands, which a shell runs, `{server}` and `{client}` are the hosts' IPv4 addresses,
    `{server6}` the server's IPv6 address, `{home}` a folder of the entry, and `{files}` the folder
    of the files `served` and `small`.
    """

    name: str
    needs: tuple[str, ...]
    """Programs or files without which it is skipped; of the first one the package is recorded."""
    servers: tuple[tuple[str, str], ...]
    """Command, and where it listens: a TCP port, or "udp" and a port. Started in this order."""
    client: str
    says: tuple[str, ...] = ()
    """Patterns that must be in the client's output."""
    never: tuple[str, ...] = ()
    """Patterns that must not."""
    same: bool = False
    """The client's standard output is the same in each run."""
    before: Callable[[Path], None] | None = None
    """Puts files into the entry's folder."""
    timeout_s: float = 30
    other_users: bool = False
    """A program that refuses to be root: it needs the users of the host."""
