"""The traps: C programs of two ends that print all that they observe of their sockets. Under the
shim, at either end or both, they print what they print without it.
"""

from __future__ import annotations

import difflib
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import known
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome, Program
from case import Tally
from ends import PLAIN, SHIMMED, Arrangement

HERE = Path(__file__).resolve().parent
COMPILE = ["cc", "-std=gnu17", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror"]
TIMEOUT_S = 40.0
AFTER_FAILURE_S = 1.0
POLL_S = 0.005
FAULT_TIMEOUT_S = 5.0
FAULT_WAIT_MS = 700
"""Under a fault what is waited for often does not come."""
FIRST_PORT = 7000
PORTS = 100
"""Each trap has as many of its own."""


@dataclass(frozen=True)
class Trap:
    """One program. `number` is that of the trap in the list of docs/design."""

    number: int
    name: str
    source: Path

    @property
    def port(self) -> int:
        return FIRST_PORT + PORTS * self.number


def all_traps() -> list[Trap]:
    """The programs in the folder `traps`, by their numbers."""
    found = []
    for source in sorted((HERE / "traps").glob("t*.c")):
        number, _, name = source.stem[1:].partition("_")
        found.append(Trap(int(number), f"trap {int(number)}: {name.replace('_', ' ')}", source))
    return found


def run(lab: Lab, tally: Tally, folder: Path, traps: list[Trap]) -> None:
    """Runs each trap without the shim, and compares what it prints under it."""
    for trap in traps:
        program = compiled(trap, folder)
        plain = Observed.of(lab, trap, program, folder, PLAIN.command)
        tally.attempt(f"{trap.name} [{PLAIN.name}]", plain.complaints)
        for arrangement in SHIMMED:
            name = f"{trap.name} [{arrangement.name}]"
            known.attempt(tally, name, _compared(lab, trap, program, folder, plain, arrangement))


def _compared(
    lab: Lab, trap: Trap, program: Path, folder: Path, plain: Observed, arrangement: Arrangement
) -> Callable[[], list[str]]:
    return lambda: Observed.of(lab, trap, program, folder, arrangement.command).differences(plain)


def run_faults(lab: Lab, tally: Tally, folder: Path, traps: list[Trap]) -> None:
    """Runs each trap under a preload that gets this very thing wrong: the comparison must fail."""
    faults = folder / "faults.so"
    subprocess.run([*COMPILE, "-shared", "-fPIC", "-o", faults, HERE / "faults.c"], check=True)
    for trap in traps:
        tally.attempt(f"{trap.name} shows its fault", _with_fault(lab, trap, folder, faults))


def _with_fault(lab: Lab, trap: Trap, folder: Path, faults: Path) -> Callable[[], list[str]]:
    prefix = ["env", f"LD_PRELOAD={faults}", f"FAULT={trap.number}", f"TRAP_WAIT_MS={FAULT_WAIT_MS}"]

    def test() -> list[str]:
        program = compiled(trap, folder)
        plain = Observed.of(lab, trap, program, folder, PLAIN.command)
        spoiled = Observed.of(lab, trap, program, folder, lambda argv, **_: [*prefix, *argv], FAULT_TIMEOUT_S)
        return [] if spoiled.differences(plain) else ["the fault makes no difference"]

    return test


def compiled(trap: Trap, folder: Path) -> Path:
    """The program, compiled into the folder."""
    program = folder / trap.source.stem
    if not program.exists():
        subprocess.run([*COMPILE, "-o", program, trap.source, HERE / "trap.c", "-lpthread"], check=True)
    return program


@dataclass(frozen=True)
class Observed:
    """What both ends of a trap printed, and how they ended."""

    server: Outcome
    client: Outcome

    @classmethod
    def of(
        cls,
        lab: Lab,
        trap: Trap,
        program: Path,
        folder: Path,
        command: Callable[..., list[str]],
        timeout_s: float = TIMEOUT_S,
    ) -> Observed:
        """Runs the trap between the hosts of a lab: host `a` has the server."""
        channel = folder / f"channel-{time.monotonic_ns()}"
        channel.mkdir()
        # Held open, so that a word which is said to an end that is not there yet is kept.
        held = []
        for direction in ("to-server", "to-client"):
            os.mkfifo(channel / direction)
            held.append(os.open(channel / direction, os.O_RDWR))
        ends: list[tuple[Host, Program]] = []
        for role, host, other in (("server", lab.a, lab.b), ("client", lab.b, lab.a)):
            argv = [str(program), role, *_addresses(host, other), str(trap.port), str(channel)]
            ends.append((host, host.start(command(argv, server=role == "server"))))
        _wait_for_both(ends, timeout_s)
        outcomes = []
        for host, end in ends:
            outcomes.append(end.wait(0.0))
            host.forget(end)
        for fd in held:
            os.close(fd)
        return cls(*outcomes)

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
