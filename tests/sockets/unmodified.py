"""Real programs: servers on one host and a client on the other, under the shim at both ends, at
one, and without it. The client's output has what it must have, and where it is the same in each
run, it is compared.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import known
import seen
from airdma_lab.lab import Lab
from airdma_lab.program import Outcome, Program
from case import Tally
from ends import BOTH, CLIENT, PLAIN, SERVER, SHIMMED, Arrangement
from entries import ENTRIES
from entry import Entry

START_S = 15.0
FILE_BYTES = 3_000_017
SHORT = (
    "iperf3 of four streams, both ways",
    "sockperf by UDP",
    "nginx and curl",
    "nginx and wrk",
    "redis: commands",
    "redis-benchmark",
    "memcached",
    "asyncio",
    "socat",
    "netcat",
)
"""Programs of a short run: event loops, threads, processes, and blocking calls."""


def run(lab: Lab, tally: Tally, folder: Path, match: str, *, full: bool = False, short: bool = False) -> seen.Seen:
    """Runs each entry of the catalogue whose name matches: with the shim at both ends, and at one
    of them in turns, or at each if `full`; few entries, with the shim at both ends, if `short`.
    """
    outcomes = seen.Seen()
    (folder / "served").write_bytes(bytes((i * 2654435761 >> 13 ^ i) & 0xFF for i in range(FILE_BYTES)))
    (folder / "small").write_bytes(b"x" * 1000)
    for number, entry in enumerate(ENTRIES):
        if not re.search(match, entry.name) or (short and entry.name not in SHORT):
            continue
        if reason := _obstacle(entry):
            if os.environ.get("CI") == "true":
                tally.record(entry.name, [reason], 0.0)
            else:
                tally.skip(entry.name, reason)
            continue
        home = folder / re.sub(r"\W", "-", entry.name)
        home.mkdir()
        if entry.before:
            entry.before(home)
        said: list[str] = []
        lanes: set[str] = set()
        tally.attempt(f"{entry.name} [{PLAIN.name}]", _test(lab, entry, home, PLAIN, said, lanes))
        one_end = () if short or not entry.servers else ((SERVER, CLIENT)[number % 2],)
        chosen = SHIMMED if full and entry.servers else (BOTH, *one_end)
        for arrangement in chosen:
            test = _test(lab, entry, home, arrangement, said, lanes)
            known.attempt(tally, f"{entry.name} [{arrangement.name}]", test)
        passed = not any(name.startswith(f"{entry.name} [") for name in tally.failures)
        outcomes.add(entry, [arrangement.name for arrangement in chosen], lanes, passed)
    return outcomes


_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ALL_USERS = re.compile(r"^\s*0\s+0\s+4294967295$")


def _obstacle(entry: Entry) -> str:
    """Why an entry cannot run here, if it cannot."""
    is_here = {need: Path(need).exists() if need.startswith("/") else bool(_which(need)) for need in entry.needs}
    if missing := [need for need, here in is_here.items() if not here]:
        return f"there is no {', '.join(missing)}"
    if entry.other_users and not _ALL_USERS.match(Path("/proc/self/uid_map").read_text(encoding="ascii").rstrip()):
        return "there is no other user than root in this user namespace"
    return ""


def _which(program: str) -> str | None:
    return shutil.which(program, path=_PATH)


def _test(
    lab: Lab, entry: Entry, home: Path, arrangement: Arrangement, said: list[str], lanes: set[str]
) -> Callable[[], list[str]]:
    """`said` takes the output of the first run, with which the others are compared; `lanes` the
    protocols that had lanes.
    """

    def test() -> list[str]:
        words = {"server": lab.a.ipv4, "client": lab.b.ipv4, "server6": lab.a.ipv6, "home": str(home)}
        words["files"] = str(home.parent)
        servers: list[Program] = []
        try:
            for command, ready in entry.servers:
                argv = ["sh", "-c", f"exec {_filled(command, words)}"]
                servers.append(lab.a.start(arrangement.command(argv, server=True), {"PATH": _PATH}))
                protocol, _, port = ready.rpartition(" ")
                if not servers[-1].wait_listening(int(port), protocol or "tcp", START_S):
                    return [f"{command} does not listen", servers[-1].stop().explain()]
            argv = ["sh", "-c", _filled(entry.client, words)]
            outcome = lab.b.run(arrangement.command(argv, server=False), {"PATH": _PATH}, entry.timeout_s)
        finally:
            ends = [_ended(lab, server) for server in reversed(servers)]
        for end in (outcome, *ends):
            lanes.update(seen.lanes_of(end.stderr))
        complaints = _complaints(entry, outcome, said)
        return [*complaints, outcome.explain(), *(end.explain() for end in ends)] if complaints else []

    return test


def _filled(command: str, words: dict[str, str]) -> str:
    for name, word in words.items():
        command = command.replace(f"{{{name}}}", word)
    return command


def _ended(lab: Lab, server: Program) -> Outcome:
    outcome = server.stop()
    lab.a.forget(server)
    return outcome


def _complaints(entry: Entry, outcome: Outcome, said: list[str]) -> list[str]:
    complaints = [] if outcome.ok else ["the client failed"]
    text = outcome.stdout + outcome.stderr
    complaints += [
        f"the client does not say {pattern}" for pattern in entry.says if not re.search(pattern, text, re.MULTILINE)
    ]
    complaints += [f"the client says {bad}" for bad in entry.never if re.search(bad, text, re.MULTILINE)]
    if entry.same:
        if not said:
            said.append(outcome.stdout)
        if outcome.stdout != said[0]:
            complaints.append("the output is not that of the first run:")
            lines = said[0].splitlines(), outcome.stdout.splitlines()
            complaints += difflib.unified_diff(*lines, "first", "here", n=1, lineterm="")
    return complaints
