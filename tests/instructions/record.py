"""docs/benchmarks/instructions.json, the numbers that are kept, and the table beside it."""

from __future__ import annotations

import json
import platform
import re
import subprocess
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from callgrind import SIDES, Counts

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "docs" / "benchmarks" / "instructions.json"
TABLE = RECORD.with_suffix(".md")

SMALLEST_SHARE = 0.002
"""Share of the whole below which functions are kept as one entry."""
REST = "(all others)"

KINDS = {
    "sum": re.compile(r"^crc32fast::"),
    "copies": re.compile(r"^__?mem(cpy|move|set)|^mem(cpy|move|set)"),
    "wire": re.compile(r"airdma_port::sim::|SimPort|extend_desugared|vec_deque::drain"),
}
"""Parts of which the table tells the share: the sum of the ICRC; copies; the wire in memory, which
no program pays for.
"""
SHOWN = ("write_64", "write_64_list", "write_1m_mtu1024", "write_64k_sockets", "c_post_send")
"""Scenarios of which the table lists the functions."""
SHOWN_FUNCTIONS = 16
ALLOCATOR = re.compile(
    r"^(?:_int_|__libc_|__GI_|__rust_|__rdl_)*(?:malloc|calloc|realloc|free|alloc|alloc_zeroed|dealloc|memalign)$"
)
OVER_SOCKETS = "write_64k_sockets"

Record = dict[str, Any]


def environment(cpu: str) -> dict[str, str]:
    """What else the numbers depend on."""
    return {
        "rustc": _first(["rustc", "--version"]),
        "valgrind": _first(["valgrind", "--version"]),
        "C library": " ".join(platform.libc_ver()),
        "CPU that valgrind shows": cpu,
    }


def of(counts: Mapping[str, Counts], what: Mapping[str, str]) -> Record:
    """What is kept of a run: instructions for one time, by side and by function."""
    cpus = {found.cpu for found in counts.values()}
    return {
        "environment": environment(" / ".join(sorted(cpus))),
        "scenarios": {name: {"what": what[name], **_scenario(found)} for name, found in counts.items()},
    }


def _scenario(found: Counts) -> Record:
    sides = {side: round(found.total(side) / found.times, 2) for side in SIDES}
    functions: Counter[str] = Counter()
    whole = sum(found.total(side) for side in SIDES)
    for name, instructions in found.functions().items():
        is_small = instructions < SMALLEST_SHARE * whole
        functions[REST if is_small else name] += instructions
    return {
        **sides,
        "packets": round(found.packets / found.times, 3),
        "functions": {name: round(value / found.times, 1) for name, value in functions.most_common()},
        "allocator": round(
            sum(value for name, value in found.functions().items() if ALLOCATOR.search(name)) / found.times, 3
        ),
        "locked": {name: round(value / found.times, 3) for name, value in found.locked().most_common()},
    }


def read() -> Record | None:
    """What is kept, if anything."""
    return json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.exists() else None


def write(record: Record) -> None:
    """Keeps it."""
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    TABLE.write_text(render(record), encoding="utf-8")


def is_rendered() -> bool:
    """The table is that of the numbers."""
    kept = read()
    return kept is not None and TABLE.exists() and TABLE.read_text(encoding="utf-8") == render(kept)


def total(scenario: Record) -> float:
    """Instructions of both ends for one time."""
    return float(sum(scenario[side] for side in SIDES))


def locked(scenario: Record) -> float:
    """Atomic ones of both ends for one time."""
    return float(sum(scenario["locked"].values()))


def render(record: Record) -> str:
    """The table, as Markdown."""
    environment = ", ".join(f"{key} {value}" for key, value in record["environment"].items())
    parts = [
        "# Instructions",
        "Written by `make instructions-write` from `instructions.json`; `make instructions`, a part of `make test`, counts again and "
        "fails when anything takes more than 2 % more. Counted by callgrind in a release build, after warm-up: the same binary "
        "gives the same numbers, however busy the machine is. What is counted stands in `bench/callgrind`.",
        f"Counted with {environment}.",
        "What they do not say: system calls are not in them, nor what the kernel does, nor looks at the clock, which is moved by hand "
        "here; an instruction that waits for memory counts like any other. Valgrind has neither AVX-512 nor wide carry-less "
        "multiplication, so the sum of the ICRC goes its 128-bit way, half an instruction for a byte, which a newer CPU "
        "does not need. Copies are the C library's, 32 bytes at a time: a tenth of an instruction for a byte. It would make long ones "
        "by `rep movsb`, a single instruction that callgrind counts once for each byte: that is switched off.",
        "The wire in memory, between all devices but those on sockets, is part of no program: queues with a lock, and one more copy. "
        "Both ends poll and pay: the asking end posts and polls until its request completes, the other polls once for each "
        "time that it does.",
        "## For each message, and for each packet of the asking and the serving end together",
        _table(record["scenarios"]),
        "No packet and no message calls the allocator; that is checked, too.",
        "## Locks",
        _locks(record["scenarios"]),
        "## Where they go",
        "The functions themselves, without those that they call; what was inlined belongs to the function that it is in. "
        "`python3 tests/instructions/run.py --show NAME` lists any scenario.",
    ]
    for name in SHOWN:
        if scenario := record["scenarios"].get(name):
            parts += [f"### {scenario['what']}", functions_table(scenario, SHOWN_FUNCTIONS)]
    return "\n\n".join(parts) + "\n"


def _table(scenarios: Mapping[str, Record]) -> str:
    lines = [
        "| what | name | both ends | asking | serving | a packet | sum of the ICRC | copies | wire in memory | atomic |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, scenario in scenarios.items():
        both = total(scenario)
        a_packet = f"{both / scenario['packets']:,.0f}" if scenario["packets"] else ""
        shares = " | ".join(f"{_share(scenario, kind):.0%}" for kind in KINDS.values())
        lines.append(
            f"| {scenario['what']} | `{name}` | {both:,.0f} | {scenario['near']:,.0f} | {scenario['far']:,.0f} "
            f"| {a_packet} | {shares} | {locked(scenario):,.1f} |"
        )
    return "\n".join(lines)


def _locks(scenarios: Mapping[str, Record]) -> str:
    """What the atomic instructions say of locks."""
    text = (
        "The last column counts atomic instructions, of both ends: an uncontended lock costs two, one to take it and one to "
        "give it back. Locks are taken for each list that is posted (the queue's), for each poll (the completion queue's, twice when "
        "the first look finds nothing), and for each round of the worker (the device's); none for a packet, and none for a "
        "request of a list. The rest are fences and doorbells of the same rounds, and `pthread_setcancelstate`. The wire in memory has "
        "locks of its own."
    )
    sockets = scenarios.get(OVER_SOCKETS)
    if sockets is None:
        return text
    functions = ", ".join(f"`{name}` {value:g}" for name, value in sockets["locked"].items())
    return (
        f"{text} Over sockets, 64 KiB in {sockets['packets']:.0f} packets with the acknowledgement take {locked(sockets):.0f}, which is "
        f"{locked(sockets) / sockets['packets']:.2f} a packet: {functions}."
    )


def _share(scenario: Record, kind: re.Pattern[str]) -> float:
    counted = (value for name, value in scenario["functions"].items() if kind.search(name))
    return float(sum(counted)) / total(scenario)


def functions_table(scenario: Record, count: int) -> str:
    """The functions that take most, for one time and for one packet."""
    lines = ["| each time | each packet | function |", "| ---: | ---: | --- |"]
    for name, value in list(scenario["functions"].items())[:count]:
        a_packet = f"{value / scenario['packets']:,.1f}" if scenario["packets"] else ""
        lines.append(f"| {value:,.1f} | {a_packet} | `{name}` |")
    return "\n".join(lines)


def _first(command: list[str]) -> str:
    """The version in what a program says of itself."""
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    except OSError:
        return "missing"
    found = re.search(r"\d+\.\d+\S*", said)
    return found.group(0) if found else "unknown"
