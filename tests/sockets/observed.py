"""One run of a C program of two ends, on trap.c: what both printed, and how they ended."""

from __future__ import annotations

import difflib
import os
import re
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome, Program

HERE = Path(__file__).resolve().parent
COMPILE = ["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
TIMEOUT_S = 40.0
AFTER_FAILURE_S = 1.0
POLL_S = 0.005
_LANES = re.compile(r"(\d+) (?:connections|ends of UDP) on a lane")


def compiled(source: Path, folder: Path) -> Path:
    """The program of a source that includes trap.h, compiled into the folder."""
    program = folder / source.stem
    if not program.exists():
        subprocess.run([*COMPILE, "-I", HERE, "-o", program, source, HERE / "trap.c", "-lpthread"], check=True)
    return program


def compiled_faults(folder: Path) -> Path:
    """The preload with faults."""
    faults = folder / "faults.so"
    if not faults.exists():
        subprocess.run([*COMPILE, "-shared", "-fPIC", "-o", faults, HERE / "faults.c"], check=True)
    return faults


@dataclass(frozen=True)
class Observed:
    """What both ends of a program printed, and how they ended."""

    server: Outcome
    client: Outcome

    @classmethod
    def of(
        cls,
        lab: Lab,
        program: Path,
        port: int,
        folder: Path,
        command: Callable[..., list[str]],
        timeout_s: float = TIMEOUT_S,
    ) -> Observed:
        """Runs the program between the hosts of a lab: host `a` has the server."""
        channel = folder / f"channel-{time.monotonic_ns()}"
        channel.mkdir()
        # Held open, so that a word which is said to an end that is not there yet is kept.
        held = []
        for direction in ("to-server", "to-client"):
            os.mkfifo(channel / direction)
            held.append(os.open(channel / direction, os.O_RDWR))
        ends: list[tuple[Host, Program]] = []
        for role, host, other in (("server", lab.a, lab.b), ("client", lab.b, lab.a)):
            argv = [str(program), role, *_addresses(host, other), str(port), str(channel)]
            ends.append((host, host.start(command(argv, server=role == "server"))))
        _wait_for_both(ends, timeout_s)
        outcomes = []
        for host, end in ends:
            outcomes.append(end.wait(0.0))
            host.forget(end)
        for fd in held:
            os.close(fd)
        return cls(*outcomes)

    @property
    def lanes(self) -> int:
        """Connections and ends of UDP that used RDMA, as the shim says when a process ends."""
        ends = self.server.stderr + self.client.stderr
        return sum(int(count) for count in _LANES.findall(ends))

    def complaints(self) -> list[str]:
        """What is wrong with a run that nothing is compared with."""
        said = [outcome.explain() for outcome in (self.server, self.client) if not _ended_well(outcome)]
        return ["an end failed", *said] if said else []

    def differences(self, plain: Observed) -> list[str]:
        """Lines that differ from the run without the shim, and what was said on standard error."""
        complaints: list[str] = []
        for role, here, there in (("server", self.server, plain.server), ("client", self.client, plain.client)):
            names = f"{role}, plain", f"{role}, here"
            complaints += difflib.unified_diff(_lines(there), _lines(here), *names, n=1, lineterm="")
        if complaints:
            complaints += [f"{outcome.explain()}" for outcome in (self.server, self.client) if outcome.stderr]
        return complaints


def _wait_for_both(ends: list[tuple[Host, Program]], timeout_s: float) -> None:
    """Until both have ended, or the time is up: little, once one of them has failed."""
    deadline = time.monotonic() + timeout_s
    while (left := [end for _, end in ends if not end.has_exited()]) and time.monotonic() < deadline:
        ended = [end for _, end in ends if end not in left]
        if ended and not ended[0].wait(0.0).ok:
            deadline = min(deadline, time.monotonic() + AFTER_FAILURE_S)
        time.sleep(POLL_S)


def _addresses(host: Host, other: Host) -> list[str]:
    return [host.ipv4, other.ipv4, host.ipv6, other.ipv6]


def _ended_well(outcome: Outcome) -> bool:
    return outcome.ok and outcome.stdout.endswith("end\n")


def _lines(outcome: Outcome) -> list[str]:
    end = "timed out" if outcome.timed_out else f"exit status {outcome.returncode}"
    return [*outcome.stdout.splitlines(), end]
