"""The traps: C programs of two ends that print all that they observe of their sockets. Under the
shim, at either end or both, they print what they print without it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import known
from airdma_lab.lab import Lab
from case import Tally
from ends import BOTH, PLAIN, SHIMMED, Arrangement
from observed import HERE, Observed, compiled, compiled_faults

FAULT_TIMEOUT_S = 5.0
FAULT_WAIT_MS = 700
"""Under a fault what is waited for often does not come."""
LANELESS_MAX = 12
"""Traps without a lane of a process that ends by itself: of datagrams, of sockets alone, ..."""
SLOW = (32, 34)
"""Traps that take half a minute each: not in a short run."""
FIRST_PORT = 7000
PORTS = 100
"""Each trap has as many of its own."""


@dataclass(frozen=True)
class Trap:
    """One program."""

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


def run(
    lab: Lab, tally: Tally, folder: Path, traps: list[Trap], arrangements: tuple[Arrangement, ...] = SHIMMED
) -> None:
    """Runs each trap without the shim, and compares what it prints under it."""
    lanes: dict[str, int] = {}
    for trap in traps:
        program = compiled(trap.source, folder)
        plain = Observed.of(lab, program, trap.port, folder, PLAIN.command)
        tally.attempt(f"{trap.name} [{PLAIN.name}]", plain.complaints)
        for arrangement in arrangements:
            test = _compared(lab, trap, program, folder, plain, arrangement, lanes)
            known.attempt(tally, f"{trap.name} [{arrangement.name}]", test)
    without = [trap.name for trap in traps if not lanes[trap.name]]
    print(f"no lane in {len(without)} of {len(traps)}: {', '.join(without)}")
    if len(traps) > LANELESS_MAX:
        few = [f"{len(without)} traps use no lane, at most {LANELESS_MAX} should"]
        tally.record("the traps use lanes", few if len(without) > LANELESS_MAX else [], 0.0)


def _compared(
    lab: Lab,
    trap: Trap,
    program: Path,
    folder: Path,
    plain: Observed,
    arrangement: Arrangement,
    lanes: dict[str, int],
) -> Callable[[], list[str]]:
    def test() -> list[str]:
        here = Observed.of(lab, program, trap.port, folder, arrangement.command)
        if arrangement is BOTH:
            lanes[trap.name] = here.lanes
        return here.differences(plain)

    return test


def run_faults(lab: Lab, tally: Tally, folder: Path, traps: list[Trap]) -> None:
    """Runs each trap under a preload that gets this very thing wrong: the comparison must fail."""
    faults = compiled_faults(folder)
    for trap in traps:
        tally.attempt(f"{trap.name} shows its fault", _with_fault(lab, trap, folder, faults))


def _with_fault(lab: Lab, trap: Trap, folder: Path, faults: Path) -> Callable[[], list[str]]:
    def under(fault: int) -> Observed:
        prefix = ["env", f"LD_PRELOAD={faults}", f"FAULT={fault}", f"TRAP_WAIT_MS={FAULT_WAIT_MS}"]
        program = compiled(trap.source, folder)
        return Observed.of(lab, program, trap.port, folder, lambda argv, **_: [*prefix, *argv], FAULT_TIMEOUT_S)

    def test() -> list[str]:
        # The same but for the fault: nothing else makes the difference.
        return [] if under(trap.number).differences(under(0)) else ["the fault makes no difference"]

    return test
