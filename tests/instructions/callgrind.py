"""Runs a scenario under callgrind, and reads how many instructions each function took."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SIDES = ("near", "far")
"""The functions `airdma_near` and `airdma_far` of the program: what runs in them is counted."""


@dataclass
class Counts:
    """What one scenario took, all repetitions together."""

    times: int
    packets: int
    cpu: str
    sides: dict[str, Counter[str]]
    """Instructions by function, callees not included, of each side."""

    def total(self, side: str | None = None) -> int:
        return sum(self.functions(side).values())

    def functions(self, side: str | None = None) -> Counter[str]:
        if side:
            return self.sides[side]
        return sum(self.sides.values(), Counter())


def scenarios(program: Path) -> dict[str, str]:
    """Names, and what is done once."""
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
    return dict(line.split("\t") for line in listed.splitlines())


def count(program: Path, scenario: str) -> Counts:
    """Each side in a run of its own, so that functions which both use are told apart."""
    sides = {}
    said = ""
    for side in SIDES:
        with tempfile.TemporaryDirectory(prefix="airdma-instructions-") as folder:
            out = Path(folder, "out")
            valgrind = ["valgrind", "--tool=callgrind", "--error-exitcode=9", f"--callgrind-out-file={out}"]
            command = [*_steady(), *valgrind, f"--toggle-collect=airdma_{side}", str(program), scenario]
            done = subprocess.run(command, capture_output=True, text=True, env=_environment())
            if done.returncode != 0:
                raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
            said = done.stdout
            sides[side] = by_function(out.read_text())
    facts = dict(line.split(" ", 1) for line in said.splitlines())
    return Counts(int(facts["times"]), int(facts["packets"]), facts["cpu"], sides)


def _environment() -> dict[str, str]:
    """The same for everybody: its length alone moves the stack, and copies go other ways for other places."""
    # Callgrind counts `rep movsb`, with which the C library would make its longest copies, once for each byte.
    never = 1 << 40
    thresholds = [f"glibc.cpu.x86_rep_{name}_threshold={never}" for name in ("movsb", "stosb")]
    return {"PATH": os.environ["PATH"], "LANG": "C", "GLIBC_TUNABLES": ":".join(thresholds)}


def _steady() -> list[str]:
    """Addresses that are the same each time, where that is to be had."""
    setarch = shutil.which("setarch")
    if setarch and subprocess.run([setarch, "-R", "true"], capture_output=True).returncode == 0:
        return [setarch, "-R"]
    return []


def by_function(profile: str) -> Counter[str]:
    """Instructions of each function, callees not included, from callgrind's format 1 with one event."""
    names: dict[str, str] = {}
    costs: Counter[str] = Counter()
    function = ""
    of_callee = False
    for line in profile.splitlines():
        if line.startswith(("fn=", "cfn=")):
            name = _name(line.split("=", 1)[1], names)
            if line.startswith("fn="):
                function = name
        elif line.startswith("calls="):
            of_callee = True
        elif line[:1].isdigit() or line[:1] in ("+", "-", "*"):
            if not of_callee:
                costs[function] += int(line.split()[1])
            of_callee = False
    return +costs


def _name(text: str, names: dict[str, str]) -> str:
    """Undoes the compression of names: `(3) main` the first time, `(3)` from then on."""
    match = re.fullmatch(r"\((\d+)\)(?: (.*))?", text)
    if not match:
        return text
    number, name = match.groups()
    if name is not None:
        # A recursive call is a function of its own there.
        names[number] = re.sub(r"'\d+$", "", name)
    return names[number]
