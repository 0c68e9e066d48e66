"""The state machine: random sequences of all calls on several connections, drawn by both ends from
one seed. No byte is lost, doubled or out of order, and what calls return is what they return
without the shim.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import known
from airdma_lab.lab import Lab
from case import Tally
from ends import PLAIN, SHIMMED, Arrangement
from observed import HERE, Observed, compiled, compiled_faults

SEEDS = range(1, 6)
"""The seeds that `make sockets` runs."""
STEPS = 80
PORT = 6900
LOSES_A_BYTE, DOUBLES_BYTES, SWAPS_BYTES = 26, 27, 28
"""Faults of faults.c."""
FAULTS = {LOSES_A_BYTE: "a lost byte", DOUBLES_BYTES: "a doubled byte", SWAPS_BYTES: "swapped bytes"}
FAULT_SEED = 1
FAULT_TIMEOUT_S = 10.0
_COMPLAINT = re.compile("wrong byte|receive:|nothing is ready|PEEK and recv differ|the connection does not work")
_STEP = re.compile(r"step (\d+):", re.MULTILINE)


def run(lab: Lab, tally: Tally, folder: Path, seeds: range, steps: int) -> None:
    """Runs each seed without the shim, and compares what it prints under it."""
    program = compiled(HERE / "machine.c", folder)
    for seed in seeds:
        plain = _observed(lab, program, folder, seed, steps, PLAIN.command)
        tally.attempt(f"seed {seed} [{PLAIN.name}]", plain.complaints)
        for arrangement in SHIMMED:
            test = _compared(lab, program, folder, (seed, steps), plain, arrangement)
            known.attempt(tally, f"seed {seed} [{arrangement.name}]", test)


def run_faults(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs a seed under preloads that damage a stream: the program must end with a complaint."""
    program, faults = compiled(HERE / "machine.c", folder), compiled_faults(folder)
    for number, name in FAULTS.items():
        prefix = ["env", f"LD_PRELOAD={faults}", f"FAULT={number}"]

        def test(prefix: list[str] = prefix) -> list[str]:
            def command(argv: list[str], *, server: bool) -> list[str]:
                return [*prefix, *argv] if server else argv

            spoiled = _observed(lab, program, folder, FAULT_SEED, STEPS, command, FAULT_TIMEOUT_S)
            found = _COMPLAINT.search(spoiled.client.stdout)
            return [] if found or spoiled.client.timed_out else ["the fault is not found", spoiled.client.explain()]

        tally.attempt(f"seed {FAULT_SEED} shows {name}", test)


def _compared(
    lab: Lab, program: Path, folder: Path, sequence: tuple[int, int], plain: Observed, arrangement: Arrangement
) -> Callable[[], list[str]]:
    def test() -> list[str]:
        here = _observed(lab, program, folder, *sequence, arrangement.command)
        differences = here.differences(plain)
        if differences:
            seed, _ = sequence
            differences.insert(0, f"replay: --only machine --seed {seed} --steps {failing_prefix(here, plain)}")
        return differences

    return test


def failing_prefix(here: Observed, plain: Observed) -> int:
    """How many steps it takes until something differs."""
    reached = []
    for mine, others in ((here.server.stdout, plain.server.stdout), (here.client.stdout, plain.client.stdout)):
        mine_lines, other_lines = mine.splitlines(), others.splitlines()
        same = 0
        while same < min(len(mine_lines), len(other_lines)) and mine_lines[same] == other_lines[same]:
            same += 1
        if same < max(len(mine_lines), len(other_lines)):
            steps = _STEP.findall("\n".join(mine_lines[: same + 1]))
            reached.append(int(steps[-1]) + 1 if steps else 1)
    return min(reached, default=STEPS)


def _observed(
    lab: Lab,
    program: Path,
    folder: Path,
    seed: int,
    steps: int,
    command: Callable[..., list[str]],
    timeout_s: float = 40.0,
) -> Observed:
    sequence = ["env", f"MACHINE_SEED={seed}", f"MACHINE_STEPS={steps}"]
    return Observed.of(
        lab, program, PORT, folder, lambda argv, *, server: [*sequence, *command(argv, server=server)], timeout_s
    )
