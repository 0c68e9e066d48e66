"""Runs a scenario under callgrind, and reads how many instructions each function took, and how many
of them were atomic.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path

SIDES = ("near", "far")
"""The functions `airdma_near` and `airdma_far` of the program: what runs in them is counted."""


@dataclass
class Profile:
    """What each function itself executed, without its callees."""

    instructions: Counter[str]
    locked: Counter[str]
    """Those that read and write memory in one (x86: with a lock prefix, or `xchg`): taking a lock
    is one, giving it back another, and so is each change of a count of references.
    """


@dataclass
class Counts:
    """What one scenario took, all repetitions together."""

    times: int
    packets: int
    cpu: str
    sides: dict[str, Profile]

    def total(self, side: str) -> int:
        return self.sides[side].instructions.total()

    def functions(self) -> Counter[str]:
        return sum((profile.instructions for profile in self.sides.values()), Counter())

    def locked(self) -> Counter[str]:
        return sum((profile.locked for profile in self.sides.values()), Counter())


def scenarios(program: Path) -> dict[str, str]:
    """Names, and what is done once."""
    listed = subprocess.run([program, "--list"], check=True, capture_output=True, text=True).stdout
    return dict(line.split("\t") for line in listed.splitlines())


def count(program: Path, scenario: str) -> Counts:
    """Each side in a run of its own, so that functions which both use are told apart."""
    sides = {}
    said = ""
    for side in SIDES:
        options = ["--dump-instr=yes", "--compress-pos=no", f"--toggle-collect=airdma_{side}"]
        said, profile = _run(program, scenario, options)
        sides[side] = by_function(profile, locked_addresses)
    facts = _facts(said)
    return Counts(int(facts["times"]), int(facts["packets"]), facts["cpu"], sides)


CACHES = {"D1": "49152,12,64", "I1": "32768,8,64", "LL": "1048576,16,64"}
"""Caches of a server of 2025; callgrind simulates the second level as the last."""


def cache_misses(program: Path, scenario: str) -> dict[str, float]:
    """Cache misses of both ends for one repetition, by callgrind's names of events."""
    options = ["--cache-sim=yes", *(f"--{cache}={size}" for cache, size in CACHES.items())]
    options += [f"--toggle-collect=airdma_{side}" for side in SIDES]
    said, profile = _run(program, scenario, options)
    events = re.findall(r"^events: (.*)$", profile, re.MULTILINE)[0].split()
    totals = re.findall(r"^totals: (.*)$", profile, re.MULTILINE)[0].split()
    times = int(_facts(said)["times"])
    return {event: int(total) / times for event, total in zip(events, totals, strict=True)}


def _run(program: Path, scenario: str, options: list[str]) -> tuple[str, str]:
    """What the program said, and callgrind wrote."""
    with tempfile.TemporaryDirectory(prefix="airdma-callgrind-") as folder:
        out = Path(folder, "out")
        valgrind = [shutil.which("valgrind") or "valgrind", "--tool=callgrind", "--error-exitcode=9"]
        command = [*_steady(), *valgrind, f"--callgrind-out-file={out}", *options, f"./{program.name}", scenario]
        done = subprocess.run(
            command, capture_output=True, text=True, env=_environment(), cwd=program.parent, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout, out.read_text()


def _facts(said: str) -> dict[str, str]:
    return dict(line.split(" ", 1) for line in said.splitlines())


def _environment() -> dict[str, str]:
    """The same for everybody, as is the name of the program: their length moves the stack, and
    copies go other ways for other places.
    """
    # Callgrind counts `rep movsb`, with which the C library would make its longest copies, once for
    # each byte.
    never = 1 << 40
    thresholds = [f"glibc.cpu.x86_rep_{name}_threshold={never}" for name in ("movsb", "stosb")]
    return {"PATH": "/usr/bin:/bin", "LANG": "C", "GLIBC_TUNABLES": ":".join(thresholds)}


def _steady() -> list[str]:
    """Makes a program's addresses the same in each run, where setarch can."""
    setarch = shutil.which("setarch")
    if setarch and subprocess.run([setarch, "-R", "true"], capture_output=True, check=False).returncode == 0:
        return [setarch, "-R"]
    return []


def by_function(profile: str, locked_in: Callable[[str], AbstractSet[int]]) -> Profile:
    """Reads callgrind's format 1, with addresses and lines, none of them relative, and one event.
    `locked_in` says where the atomic instructions of a file are.
    """
    functions: dict[str, str] = {}
    objects: dict[str, str] = {}
    counts = Profile(Counter(), Counter())
    function = ""
    locked: AbstractSet[int] = frozenset()
    of_callee = False
    for line in profile.splitlines():
        if line.startswith("fn="):
            function = _name(line[3:], functions)
        elif line.startswith("cfn="):
            _name(line[4:], functions)
        elif line.startswith("ob="):
            locked = locked_in(_name(line[3:], objects))
        elif line.startswith("cob="):
            _name(line[4:], objects)
        elif line.startswith("calls="):
            of_callee = True
        elif line.startswith("0x"):
            address, _, cost = line.split()
            if not of_callee:
                counts.instructions[function] += int(cost)
                if int(address, 16) in locked:
                    counts.locked[function] += int(cost)
            of_callee = False
    return counts


@functools.cache
def locked_addresses(file: str) -> AbstractSet[int]:
    """Where the atomic instructions of a program or library are; none, where they are called
    otherwise than on x86.
    """
    if not Path(file).is_file():
        return frozenset()
    command = ["objdump", "--disassemble", "--no-show-raw-insn", file]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return locked_in(listing)


def locked_in(listing: str) -> AbstractSet[int]:
    """The same of a listing of objdump's."""
    return frozenset(int(address, 16) for address in _LOCKED.findall(listing))


_LOCKED = re.compile(r"^ *([0-9a-f]+):\t(?:lock |xchg +[^\n]*\()", re.MULTILINE)


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
