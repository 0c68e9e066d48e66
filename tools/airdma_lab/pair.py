"""A server on one host and its client on the other."""

from __future__ import annotations

from dataclasses import dataclass

from .lab import Host
from .program import Outcome

_START_S = 15.0
_LINGER_S = 15.0


@dataclass(frozen=True)
class Pair:
    """What became of both ends. There is no client if the server never listened."""

    server: Outcome
    client: Outcome | None

    @property
    def ok(self) -> bool:
        return self.server.ok and self.client is not None and self.client.ok

    @property
    def cpu_s(self) -> float:
        """CPU seconds of both ends together."""
        return self.server.cpu_s + (self.client.cpu_s if self.client else 0.0)

    def explain(self) -> str:
        client = self.client.explain() if self.client else "not started: the server does not listen"
        return f"--- server\n{self.server.explain()}\n--- client\n{client}"


def run_pair(
    server_host: Host,
    client_host: Host,
    server_argv: list[str],
    client_argv: list[str],
    *,
    port: int,
    protocol: str = "tcp",
    timeout_s: float = 60,
    environment: dict[str, str] | None = None,
    server_stays: bool = False,
) -> Pair:
    """Starts the server, waits until it listens on `port`, then runs the client to its end.

    A server normally ends by itself after its client; one that stays (sockperf) is ended here, and
    that counts as its success.
    """
    server = server_host.start(server_argv, environment)
    client = None
    if server.wait_listening(port, protocol, _START_S):
        client = client_host.run(client_argv, environment, timeout_s)
    # Without its client a server waits for ever, and that of a failed client may.
    linger_s = _LINGER_S if client and client.ok else 1.0 if client else 0.0
    outcome = server.stop() if server_stays else server.wait(linger_s)
    server_host.forget(server)
    return Pair(outcome, client)
