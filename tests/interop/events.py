"""What happens between two ends besides a program that does its work: refusals, sudden deaths,
returns.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from programs.end import End, Running
from programs.line import RDMA, Line
from programs.running import ROCE_PORT, START_S
from table import DIRECTIONS

if TYPE_CHECKING:
    from stand import Stand

_LINE = Line("rdmacm-utils", "", "", (), ready=RDMA)
_PATIENCE_S = 90.0
"""Time to wait for a peer that has ended: rping asks for the longest retries."""

Event = Callable[["Stand", End, End], list[str]]


def _start(end: End, command: str) -> Running:
    return end.start(_LINE, command.split(), {})


def _serve(end: End, command: str) -> Running:
    server = _start(end, command)
    if not server.wait_listening(ROCE_PORT, "udp", START_S) or not server.wait_idle(START_S):
        raise RuntimeError(f"{command} does not listen:\n{server.wait(0).explain()}")
    return server


def _ended(end: End, program: Running) -> str:
    """Kills a server, and returns what it has said, which explains a client's failure."""
    end.forget(program)
    return program.wait(0).explain()[-2000:]


def _client(client: End, server: End, count: int) -> Running:
    return _start(client, f"rping -c -a {server.ipv4} -V -v -C {count}")


def _works(client: End, server: End) -> list[str]:
    """A new client is served at once."""
    outcome = _client(client, server, 5).wait(START_S)
    return [] if outcome.ok and "rdma-ping-4" in outcome.stdout else ["a new client fails", outcome.explain()]


def _under_way(stand: Stand, client: End, server: End) -> list[str]:
    """Waits until the ends have exchanged a good deal."""
    del client, server
    before = stand.airdma.counters()["rx_packets"]
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        if stand.airdma.counters()["rx_packets"] > before + 100:
            return []
        time.sleep(0.02)
    return ["nothing moves"]


def _no_listener(stand: Stand, client: End, server: End) -> list[str]:
    del stand
    other = _serve(server, f"rping -s -a {server.ipv4} -p 7999 -P")
    outcome = _client(client, server, 1).wait(START_S)
    said = _ended(server, other)
    # 8: there is no such service.
    if re.search(r"RDMA_CM_EVENT_REJECTED, error 8\b", outcome.stdout + outcome.stderr):
        return []
    return ["not rejected for the right reason", outcome.explain(), said]


def _server_dies(stand: Stand, client: End, server: End) -> list[str]:
    first = _serve(server, f"rping -s -a {server.ipv4} -P")
    running = _client(client, server, 1_000_000)
    complaints = _under_way(stand, client, server)
    said = _ended(server, first)
    second = _serve(server, f"rping -s -a {server.ipv4} -P")
    complaints += _works(client, server)
    outcome = running.wait(_PATIENCE_S)
    # It is told that the connection is gone, or finds out; then rping ends, with status 0 in the
    # former case.
    if outcome.timed_out or not re.search("DISCONNECT EVENT|cq completion failed", outcome.stdout + outcome.stderr):
        complaints += ["the client of the dead server is stuck, or has not noticed", outcome.explain()[-2000:]]
    said += _ended(server, second)
    return [*complaints, said] if complaints else []


def _client_dies(stand: Stand, client: End, server: End) -> list[str]:
    serving = _serve(server, f"rping -s -a {server.ipv4} -P")
    running = _client(client, server, 1_000_000)
    complaints = _under_way(stand, client, server)
    client.forget(running)
    complaints += _works(client, server)
    said = _ended(server, serving)
    return [*complaints, said] if complaints else []


def _again_and_again(stand: Stand, client: End, server: End) -> list[str]:
    del stand
    serving = _serve(server, f"rping -s -a {server.ipv4} -P")
    complaints: list[str] = []
    for _ in range(10):
        complaints = complaints or _works(client, server)
    said = _ended(server, serving)
    return [*complaints, said] if complaints else []


_EVENTS: dict[str, Event] = {
    "rping to a port without a listener is rejected": _no_listener,
    "rping whose server is killed ends; its successor serves at once": _server_dies,
    "rping that is killed; the next is served at once": _client_dies,
    "rping connects 10 times, one after the other": _again_and_again,
}


def work() -> list[tuple[str, Callable[[Stand], None]]]:
    """Each in both directions, by name."""
    return [
        (f"{name} [{direction}]", partial(_run, f"{name} [{direction}]", event, direction))
        for name, event in _EVENTS.items()
        for direction in DIRECTIONS
    ]


def _run(name: str, event: Event, direction: str, stand: Stand) -> None:
    stand.set_mtu(1500)
    link = stand.wire()
    client, server = (link.ends[end] for end in direction.split(" -> "))
    stand.judge(link, name, lambda: event(stand, client, server))
