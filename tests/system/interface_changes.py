"""An interface that changes while a program watches its device."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from airdma_lab import build, devices
from airdma_lab.lab import INTERFACE, Host, Lab
from airdma_lab.program import Program
from case import Tally

_OPEN_S = 10.0
_EVENT_S = 1.5
"""The kernel tells interfaces at most once a second that their carrier changed."""


def run(tally: Tally) -> None:
    """Runs all of them."""
    started = time.monotonic()
    with Lab() as lab:
        complaints = asyncwatch_sees_the_interface_change(lab)
    tally.record("asyncwatch_sees_the_interface_change", complaints, time.monotonic() - started)


def asyncwatch_sees_the_interface_change(lab: Lab) -> list[str]:
    """The unmodified ibv_asyncwatch, which creates no queue pair, prints each change; a later
    listing has the new GID.
    """
    program = lab.a.start(build.with_airdma(["ibv_asyncwatch", "-d", devices.DEVICE]))
    complaints = [] if _has_opened(program) else ["ibv_asyncwatch does not open the device"]
    for change in ("address add 10.77.0.77/32 dev", "link set down dev", "link set up dev"):
        _ip(lab.a, change)
        time.sleep(_EVENT_S)
    outcome = program.stop()
    lab.a.forget(program)
    complaints += _missing(outcome.stdout, ["GID_CHANGE", "PORT_ERR", "PORT_ACTIVE"])
    if "10.77.0.77" not in str(devices.describe(lab.a)["gids"]):
        complaints.append("the new address has no GID")
    return [*complaints, outcome.explain()] if complaints else []


def _missing(output: str, events: list[str]) -> list[str]:
    """What of the events, in this order, is not in the output."""
    for event in events:
        _, found, output = output.partition(f"IBV_EVENT_{event} ")
        if not found:
            return [f"no {event}, or not in its turn"]
    return []


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except FileNotFoundError:  # closed meanwhile
        return ""


def _has_opened(program: Program) -> bool:
    deadline = time.monotonic() + _OPEN_S
    while time.monotonic() < deadline:
        links = [_target(fd) for fd in Path("/proc", str(program.pid), "fd").iterdir()]
        # One of the device's helper, and then that of its events.
        if links.count("anon_inode:[eventpoll]") >= 2:
            # It blocks in ibv_get_async_event a moment later; what changes before that waits for
            # it.
            return True
        time.sleep(0.01)
    return False


def _ip(host: Host, change: str) -> None:
    subprocess.run(["ip", "-n", host.namespace, *change.split(), INTERFACE], check=True)
