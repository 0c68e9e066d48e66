"""System calls of programs with the library at one end alone, or of datagrams without a lane, as
`strace -c` counts them: those of the same program without it.

What a program does to start and to end is left out: each runs twice, with few messages and with
more, and the difference counts.
"""

from __future__ import annotations

import re
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build
from airdma_lab.lab import Lab
from airdma_lab.program import Outcome
from case import Tally
from entries import NGINX

TIMEOUT_S = 60.0
WRITTEN_MAX_S = 10.0
POLL_S = 0.02
START_S = 15.0
STRAY_MAX = 60
"""Calls of one kind that the longer run may make beyond the shorter: of event loops, which find
more or fewer messages at a time, and of the attempts to open a lane, after 8, 16, 32, ... calls.
"""
PER_MESSAGE = 0.02
"""Calls of one kind beyond those without the library, for each message more."""
BY_TIME = {"epoll_wait", "epoll_pwait", "futex", "clock_nanosleep", "restart_syscall", "rt_sigreturn"}
"""Calls that follow time, and not messages."""
SENDS = ("sendto", "sendmsg", "writev", "sendfile")
RECEIVES = ("recvfrom",)
LOST_MAX = 2
"""A message is one call of each kind, and an event loop finds some at a time: a half is seen."""
ALIKE = {"write": "sendto", "read": "recvfrom", "recvmsg": "recvfrom"}
"""Calls that are one to a socket: what the library makes of the program's."""

DATAGRAMS = """\
import socket, sys
role, host, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as end:
    end.bind((host if role == "serve" else "", 5307 if role == "serve" else 0))
    for _ in range(count):
        if role == "ask":
            end.sendto(b"question", (host, 5307))
        data, at = end.recvfrom(100)
        if role == "serve":
            end.sendto(data, at)
"""

CONNECTION = """\
import socket, sys, time
role, host, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if role == "serve":
    end = socket.create_server((host, 5308)).accept()[0]
else:
    end = socket.create_connection((host, 5308))
for number in range(count):
    if role == "ask" and number == 100:
        # By then the library has found out that the peer has none.
        time.sleep(2)
    if role == "ask":
        end.sendall(b"question")
    assert len(end.recv(8)) == 8
    if role == "serve":
        end.sendall(b"response")
"""


@dataclass(frozen=True)
class _Case:
    """Two programs of one count of messages."""

    name: str
    server: str
    ready: tuple[str, int]
    client: str
    few: int
    more: int
    ends: tuple[str, ...] = ("server", "client")
    """Those that are looked at, alone under the library."""


CASES = (
    _Case(
        "redis",
        "redis-server --port 6379 --bind 0.0.0.0 --protected-mode no --save '' --dir {home}",
        ("tcp", 6379),
        "redis-benchmark -h {server} -n {count} -c 10 -t get -q",
        4000,
        12000,
    ),
    _Case(
        "nginx and wget",
        "nginx -p {home} -e {home}/error.log -c {home}/nginx.conf",
        ("tcp", 8080),
        "for i in $(seq {count}); do echo http://{server}:8080/small; done | wget -q -O /dev/null -i -",
        500,
        2500,
        ("server",),
    ),
    _Case(
        "calls that wait for a connection",
        "/usr/bin/python3 {home}/connection.py serve {server} {count}",
        ("tcp", 5308),
        "/usr/bin/python3 {home}/connection.py ask {server} {count}",
        1000,
        5000,
        ("server",),
    ),
    _Case(
        "calls that wait for datagrams",
        "/usr/bin/python3 {home}/datagrams.py serve {server} {count}",
        ("udp", 5307),
        "/usr/bin/python3 {home}/datagrams.py ask {server} {count}",
        500,
        2500,
    ),
)


def run(lab: Lab, tally: Tally, folder: Path, match: str) -> None:
    """Counts the calls of each end of each case."""
    for case in CASES:
        for end in case.ends:
            name = f"calls of the {end} alone: {case.name}"
            if re.search(match, name):
                tally.attempt(name, _test(lab, case, end, folder))


def _test(lab: Lab, case: _Case, end: str, folder: Path) -> Callable[[], list[str]]:
    def test() -> list[str]:
        library = (str(build.binary()), "sockets", "--udp", "--")
        plain, shimmed = (_grown(lab, case, end, folder, shim) for shim in ((), library))
        grown = case.more - case.few
        most = STRAY_MAX + PER_MESSAGE * grown
        beyond = [name for name, count in shimmed.items() if count > plain[name] + most]
        messages = f"{grown} messages more cost"
        return [
            *(f"{messages} {name}: {shimmed[name]}, {plain[name]} without" for name in beyond),
            *_uncounted("without the library", plain, grown),
            *_uncounted("with it", shimmed, grown),
        ]

    return test


def _uncounted(what: str, counts: Counter[str], grown: int) -> list[str]:
    """A count without the messages compares nothing: strace followed another process, say."""
    few = [names for names in (SENDS, RECEIVES) if sum(counts[name] for name in names) < grown / LOST_MAX]
    seen = {name: count for name, count in counts.items() if count > 0}
    return [f"{grown} messages more, and {what} {seen}: hardly any of {', '.join(names)}" for names in few]


def _grown(lab: Lab, case: _Case, end: str, folder: Path, shim: tuple[str, ...]) -> Counter[str]:
    """The calls of an end for the messages that the longer run has more."""
    few, more = (_counted(lab, case, end, folder, shim, count) for count in (case.few, case.more))
    return Counter({name: count - few[name] for name, count in more.items() if name not in BY_TIME})


def _counted(lab: Lab, case: _Case, end: str, folder: Path, shim: tuple[str, ...], count: int) -> Counter[str]:
    with tempfile.TemporaryDirectory(dir=folder) as home:
        at = Path(home)
        at.chmod(0o755)
        (at / "nginx.conf").write_text(NGINX.format(home=home, files=home), encoding="ascii")
        (at / "small").write_bytes(b"x" * 1000)
        (at / "datagrams.py").write_text(DATAGRAMS, encoding="ascii")
        (at / "connection.py").write_text(CONNECTION, encoding="ascii")
        traced = ("strace", "-D", "-f", "-c", "-U", "calls,name", "-o", str(at / "calls"), *shim)
        words = {"server": lab.a.ipv4, "home": home, "count": count}
        server = lab.a.start([*(traced if end == "server" else ()), "sh", "-c", "exec " + case.server.format(**words)])
        try:
            if not server.wait_listening(case.ready[1], case.ready[0], START_S):
                raise AssertionError(server.stop().explain())
            argv = [*(traced if end == "client" else ()), "sh", "-c", case.client.format(**words)]
            outcome = lab.b.run(argv, timeout_s=TIMEOUT_S)
        finally:
            server.stop()
            lab.a.forget(server)
        return _read(at / "calls", outcome)


def _read(calls: Path, outcome: Outcome) -> Counter[str]:
    """What strace wrote, which ends a little after the program."""
    if not outcome.ok:
        raise AssertionError(outcome.explain())
    deadline = time.monotonic() + WRITTEN_MAX_S
    while "total" not in (said := calls.read_text(encoding="ascii")):
        if time.monotonic() > deadline:
            raise AssertionError(f"strace does not end: {said}")
        time.sleep(POLL_S)
    counts: Counter[str] = Counter()
    for line in said.splitlines():
        count, _, name = line.strip().partition(" ")
        if count.isdigit() and name.strip() != "total":
            counts[ALIKE.get(name.strip(), name.strip())] += int(count)
    return counts
