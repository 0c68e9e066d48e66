"""Which long datagrams of `airdma sockets --udp` get a lane."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import Lab
from case import Tally

PORT = 5302
SECONDS = "3"
"""A lane is open within a second."""
BYTES = "8000"
TIMEOUT_S = 30.0
START_S = 15.0
_SENT = re.compile(r"(\d+) datagrams sent")


@dataclass(frozen=True)
class _Case:
    name: str
    server: tuple[str, ...]
    """Options of the end that receives."""
    client: tuple[str, ...]
    rules: str
    """The policy of the end that receives."""
    lanes: bool


CASES = [
    _Case("a lane", ("--udp",), ("--udp",), "", lanes=True),
    _Case("off without the option of the receiver", (), ("--udp",), "", lanes=False),
    _Case("off without the option of the sender", ("--udp",), (), "", lanes=False),
    _Case("the receiver's port kept by its rules", ("--udp",), ("--udp",), f"kernel any {PORT}", lanes=False),
]


def run(lab: Lab, tally: Tally, folder: Path, match: str) -> None:
    """Runs iperf3 twice against one server: its second socket has the port of the first."""
    for number, case in enumerate(CASES):
        name = f"datagrams: {case.name}"
        if re.search(match, name):
            tally.attempt(name, _test(lab, case, folder / f"datagrams-{number}"))


def _test(lab: Lab, case: _Case, home: Path) -> Callable[[], list[str]]:
    def test() -> list[str]:
        home.mkdir()
        rules = home / "rules"
        rules.write_text(case.rules, encoding="ascii")
        command = [str(build.binary()), "sockets", "-v"]
        policy = ["--policy", str(rules)]
        server = lab.a.start([*command, *case.server, *policy, "--", "iperf3", "-s", "-p", str(PORT)])
        try:
            if not server.wait_listening(PORT, "tcp", START_S):
                return ["the server does not listen", server.stop().explain()]
            words = ["iperf3", "-u", "-c", lab.a.ipv4, "-p", str(PORT), "-t", SECONDS, "-b", "10M", "-l", BYTES]
            runs = [lab.b.run([*command, *case.client, "--", *words], timeout_s=TIMEOUT_S) for _ in range(2)]
        finally:
            ended = server.stop()
            lab.a.forget(server)
        said = [outcome.explain() for outcome in (*runs, ended)]
        if not all(outcome.ok for outcome in runs):
            return ["a client failed", *said]
        sent = [sum(int(count) for count in _SENT.findall(outcome.stderr)) for outcome in runs]
        if any((count > 0) != case.lanes for count in sent):
            return [f"{sent} datagrams sent by lanes", *said]
        return []

    return test
