"""`airdma devices -v` tells what the library did in all processes of a host."""

from __future__ import annotations

import re

from airdma_lab import build
from airdma_lab.lab import Host, Lab
from case import Tally
from ends import BOTH

PORT = 5304
SECONDS = "2"
"""A lane is open within a second."""
START_S = 15.0
TIMEOUT_S = 30.0
_COUNTER = re.compile(r"^ +(socket_\w+): +(\d+)$", re.MULTILINE)


def run(lab: Lab, tally: Tally) -> None:
    """Runs iperf3 with the library at both ends, and looks at the counters of both hosts."""
    tally.attempt("counters of lanes, and why they were handed back", lambda: _test(lab))


def _test(lab: Lab) -> list[str]:
    before = [_counters(host) for host in (lab.a, lab.b)]
    server = lab.a.start(BOTH.command(["iperf3", "-s", "-1", "-p", str(PORT)], server=True))
    try:
        if not server.wait_listening(PORT, "tcp", START_S):
            return [f"the server does not listen: {server.wait(0).explain()}"]
        client = ["iperf3", "-c", lab.a.ipv4, "-p", str(PORT), "-t", SECONDS]
        outcomes = [lab.b.run(BOTH.command(client, server=False), timeout_s=TIMEOUT_S), server.wait(TIMEOUT_S)]
    finally:
        lab.a.forget(server)
    complaints = []
    for host, then in zip((lab.a, lab.b), before, strict=True):
        now = _counters(host)
        grown = {name: now[name] - then.get(name, 0) for name in now}
        back = sum(count for name, count in grown.items() if name.startswith("socket_back_"))
        if not grown.get("socket_lanes") or back != grown["socket_lanes"] or grown["socket_lanes_lost"]:
            complaints.append(f"{host.namespace}: {grown}")
    return [*complaints, *(outcome.explain() for outcome in outcomes)] if complaints else []


def _counters(host: Host) -> dict[str, int]:
    said = host.run([str(build.binary()), "devices", "-v"]).stdout
    return {name: int(value) for name, value in _COUNTER.findall(said)}
