"""Which ends of a test run under the shim, and how a command is put there."""

from __future__ import annotations

from dataclasses import dataclass

from airdma_lab import build


@dataclass(frozen=True)
class Arrangement:
    """Which ends are under the shim."""

    name: str
    server: bool
    client: bool

    def command(self, argv: list[str], *, server: bool) -> list[str]:
        """The command that runs `argv` at one end."""
        return under(argv) if (self.server if server else self.client) else argv


PLAIN = Arrangement("plain", server=False, client=False)
BOTH = Arrangement("both ends", server=True, client=True)
SERVER = Arrangement("server only", server=True, client=False)
CLIENT = Arrangement("client only", server=False, client=True)
SHIMMED = (BOTH, SERVER, CLIENT)
"""Each must give what `PLAIN` gives."""


def under(argv: list[str]) -> list[str]:
    """The command that runs `argv` under the shim."""
    return [str(build.binary()), "sockets", "-v", "--udp", "--", *argv]
