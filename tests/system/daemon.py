"""Unmodified programs whose device is in a daemon (AIRDMA_DAEMON), at both ends and at one; and
what becomes of them when the daemon is killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import sealed
from airdma_lab import build, perftest
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Program
from case import Tally
from sealed import Run

RUNS = [
    Run(["ibv_rc_pingpong", "-c", "-n", "1000"]),
    Run(["ibv_rc_pingpong", "-c", "-e", "-n", "1000", "-s", "8192"]),
    Run(["ibv_uc_pingpong", "-c", "-n", "1000"]),
    Run(["ibv_ud_pingpong", "-c", "-n", "1000", "-s", "1024"]),
    Run(["ib_send_bw", "-s", "65536", "-n", "1000"]),
    Run(["ib_send_bw", "-e", "-s", "65536", "-n", "500"]),
    Run(["ib_write_bw", "-q", "8", "-s", "65536", "-n", "500"]),
    Run(["ib_write_bw", "-s", "1048576", "-n", "20"]),
    Run(["ib_read_bw", "-s", "65536", "-n", "500"]),
    Run(["ib_atomic_bw", "-n", "500"]),
    Run(["ib_send_lat", "-s", "64", "-n", "1000"]),
    Run(["ib_send_lat", "-e", "-s", "64", "-n", "500"]),
    Run(["ib_write_lat", "-s", "64", "-n", "500"]),
    Run(["ib_send_lat", "-c", "UD", "-s", "512", "-n", "500"]),
]
CONNECTED = [
    Run(["rping", "-C", "20", "-S", "4096", "-V"], by_address=True),
    Run(["ucmatose", "-c", "4", "-C", "20", "-S", "3000"], by_address=True),
    Run(["udaddy", "-c", "2", "-C", "20", "-S", "900"], by_address=True),
]
"""By RDMA CM, and its datagram services. Not perftest with `-R`: its second request is now and then
refused (docs/design/034-daemon.md).
"""
REFUSED = Run(["ibv_srq_pingpong", "-c", "-n", "100"])
"""Shared receive queues, which a daemon does not carry."""
_LIMIT_S = 60.0
_READY_S = 10.0
_SOON_S = 5.0
"""In which a program must learn that its daemon was killed: a second on a machine that has nothing
else to do.
"""


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """All of them, with one daemon for each host, and some of them otherwise."""
    with _daemon(lab.a, folder / "a") as (daemon, at_a), _daemon(lab.b, folder / "b") as (_, at_b):
        for one in RUNS:
            _record(tally, f"two daemons: {one.name}", partial(_works, lab, one, at_b, at_a))
        for one in CONNECTED:
            _record(tally, f"two daemons: {one.name}", partial(_works, lab, one, at_b, at_a))
        for one in (RUNS[0], RUNS[4], RUNS[6], RUNS[10], *CONNECTED):
            _record(tally, f"a process and a daemon: {one.name}", partial(_works, lab, one, {}, at_a))
            _record(tally, f"a daemon and a process: {one.name}", partial(_works, lab, one, at_b, {}))
        _record(tally, "what a daemon does not carry is refused", partial(_is_refused, lab, at_b, at_a))
        _record(tally, "the programs used the daemon, and left nothing", lambda: _was_used(daemon))
    missing = {"AIRDMA_DAEMON": str(folder / "missing")}
    _record(tally, "a program without its daemon is told so", partial(_is_told, lab, missing))
    _record(tally, "where the devices are, and why", partial(_says_where, lab, folder / "where", missing))
    _record(tally, "a daemon serves though its log is full", partial(_serves_without_log, lab, folder / "full"))
    for name, argv in (
        ("polls", ["ib_write_bw", "-D", "20", "-s", "65536"]),
        ("sleeps", ["ib_send_bw", "-e", "-n", "1000000", "-s", "65536"]),
    ):
        check = partial(_ends_with_its_daemon, lab, Run(argv), folder / name)
        _record(tally, f"a daemon is killed while a program {name}", check)


def _record(tally: Tally, name: str, check: Callable[[], list[str]]) -> None:
    started = time.monotonic()
    tally.record(name, check(), time.monotonic() - started)


@contextmanager
def _daemon(host: Host, path: Path) -> Iterator[tuple[Program, dict[str, str]]]:
    """A daemon at a host, and the environment of its programs."""
    daemon = host.start([str(build.binary()), "daemon", "--socket", str(path)])
    deadline = time.monotonic() + _READY_S
    while not path.exists() and time.monotonic() < deadline and not daemon.has_exited():
        time.sleep(0.01)
    try:
        yield daemon, {"AIRDMA_DAEMON": str(path)}
    finally:
        if not daemon.has_exited():
            daemon.stop()
        host.forget(daemon)


def _works(lab: Lab, one: Run, ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    ended = sealed.both(lab, one, ours, theirs, _LIMIT_S)
    return [] if all(outcome.ok for outcome in ended) else [outcome.explain() for outcome in ended]


def _was_used(daemon: Program) -> list[str]:
    """What the daemon said of its clients, when it ends as it is told to."""
    outcome = daemon.stop()
    used, left = (outcome.stderr.count(words) for words in ("uses airdma_", "has ended: "))
    complaints = [] if used >= len(RUNS) else [f"{used} clients"]
    complaints += [] if left == used else [f"{left} of {used} clients have ended"]
    return complaints if not complaints else [*complaints, outcome.explain()]


def _is_refused(lab: Lab, ours: dict[str, str], theirs: dict[str, str]) -> list[str]:
    served, asked = sealed.both(lab, REFUSED, ours, theirs, 10)
    is_clear = asked.returncode != 0 and not asked.timed_out and served.returncode != 0
    return [] if is_clear else [served.explain(), asked.explain()]


def _is_told(lab: Lab, missing: dict[str, str]) -> list[str]:
    outcome = lab.a.run(build.with_airdma(["ibv_devinfo"]), missing)
    is_told = "start `airdma daemon`" in outcome.stdout + outcome.stderr
    return [] if outcome.returncode != 0 and is_told else [outcome.explain()]


def _says_where(lab: Lab, path: Path, missing: dict[str, str]) -> list[str]:
    airdma = str(build.binary())
    complaints: list[str] = []

    def says(argv: list[str], environment: dict[str, str], words: str, ok: bool = True) -> None:
        outcome = lab.a.run([airdma, *argv], environment)
        if outcome.ok != ok or words not in outcome.stdout:
            complaints.extend([f"airdma {' '.join(argv)} does not say {words!r}", outcome.explain()])

    explain = ["run", "--explain", "ibv_devices"]
    with _daemon(lab.a, path) as (_, environment):
        for argv in (["devices"], ["devices", "-v"], explain):
            says(argv, environment, f"in the daemon at {path}")
            says(argv, {}, "because AIRDMA_DAEMON is not set")
            says(argv, {"AIRDMA_DAEMON": "off"}, "because AIRDMA_DAEMON=off")
        says(["devices", "--json"], environment, f'"daemon": "{path}"')
    says(["devices"], missing, "start `airdma daemon`")
    says(explain, missing, "start `airdma daemon`", ok=False)
    return complaints


def _serves_without_log(lab: Lab, path: Path) -> list[str]:
    daemon = lab.a.start(["sh", "-c", 'exec "$0" daemon --socket "$1" 2> /dev/full', str(build.binary()), str(path)])
    deadline = time.monotonic() + _READY_S
    while not path.exists() and time.monotonic() < deadline and not daemon.has_exited():
        time.sleep(0.01)
    outcome = lab.a.run(build.with_airdma(["ibv_devinfo"]), {"AIRDMA_DAEMON": str(path)})
    lives = not daemon.has_exited()
    ended = daemon.stop()
    lab.a.forget(daemon)
    return [] if outcome.ok and lives else [outcome.explain(), ended.explain()]


def _ends_with_its_daemon(lab: Lab, one: Run, path: Path) -> list[str]:
    server = lab.b.start(sealed.server(lab.b, one))
    with _daemon(lab.a, path) as (daemon, environment):
        if not server.wait_listening(perftest.PORT, "tcp", _READY_S):
            return [server.stop().explain()]
        client = lab.a.start(sealed.client(lab, one), environment)
        time.sleep(1)
        is_there = not client.has_exited()
        os.kill(daemon.pid, signal.SIGKILL)
        outcome = client.wait(_SOON_S)
        lab.a.forget(client)
    server.stop()
    lab.b.forget(server)
    # The program notices: it does not hang, and does not count as done.
    is_told = is_there and outcome.returncode != 0 and not outcome.timed_out
    return [] if is_told else [outcome.explain()]
