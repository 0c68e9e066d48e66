"""Rules of `airdma sockets --policy` decide which connections get a lane."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import Lab
from case import Tally

PORT = 5301
SECONDS = "2"
"""A lane is open within a second."""
TIMEOUT_S = 30.0
START_S = 15.0
_LANES = re.compile(r"(\d+) connections on a lane")


@dataclass(frozen=True)
class _Case:
    name: str
    server: str
    """Rules of the end that listens at `PORT`."""
    client: str
    lanes: bool


CASES = [
    _Case("no rules", "", "", lanes=True),
    _Case("rules about others", "kernel any 1-5300,5302-65535", "kernel 192.0.2.0/24 any", lanes=True),
    _Case("the listener's port kept by the listener", f"kernel any {PORT}", "", lanes=False),
    _Case("the listener's port kept by the client", "", f"lane any 1-5300\nkernel 10.0.0.0/8 {PORT}", lanes=False),
    _Case("a rule for the port before one for all", f"lane any {PORT}; kernel any any", "", lanes=True),
]


def run(lab: Lab, tally: Tally, folder: Path, match: str) -> None:
    """Runs iperf3 under each pair of policies."""
    for number, case in enumerate(CASES):
        name = f"policy: {case.name}"
        if re.search(match, name):
            tally.attempt(name, _test(lab, case, folder / f"policy-{number}"))


def _test(lab: Lab, case: _Case, home: Path) -> Callable[[], list[str]]:
    def test() -> list[str]:
        home.mkdir()
        files = {"server": home / "server", "client": home / "client"}
        files["server"].write_text(case.server, encoding="ascii")
        files["client"].write_text(case.client, encoding="ascii")

        def under(end: str, *argv: str) -> list[str]:
            return [str(build.binary()), "sockets", "-v", "--policy", str(files[end]), "--", "iperf3", *argv]

        server = lab.a.start(under("server", "-s", "-1", "-p", str(PORT)))
        try:
            if not server.wait_listening(PORT, "tcp", START_S):
                return ["the server does not listen", server.wait(0).explain()]
            client = lab.b.start(under("client", "-c", lab.a.ipv4, "-p", str(PORT), "-t", SECONDS, "-l", "16K"))
            outcomes = [client.wait(TIMEOUT_S), server.wait(TIMEOUT_S)]
            lab.b.forget(client)
        finally:
            lab.a.forget(server)
        said = [outcome.explain() for outcome in outcomes]
        lanes = [int(count) for outcome in outcomes for count in _LANES.findall(outcome.stderr)]
        if not all(outcome.ok for outcome in outcomes) or len(lanes) != len(outcomes):
            return ["an end failed", *said]
        if (sum(lanes) > 0) != case.lanes:
            return [f"{lanes} connections on a lane", *said]
        return []

    return test
