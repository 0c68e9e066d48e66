#!/usr/bin/env python3
"""Counts the instructions of the hot paths and compares them with
docs/benchmarks/instructions.json.

Fails when a scenario takes more than 2 % more than what is kept there, and says which functions
have grown. With another compiler, valgrind, C library or CPU it says so and shows the differences,
which then prove nothing; `--against REVISION` builds what was before with the same tools, and
compares with that. Needs `make build`.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import callgrind
import compare
import record
from airdma_lab import build, requirements


def main() -> int:
    arguments = _arguments()
    if arguments.check_table:
        return _check_table()
    requirements.ensure(["valgrind", "objdump"])
    build.require()
    program = build.binary().with_name("airdma-callgrind")
    wanted = arguments.show or arguments.caches or arguments.only
    what = {name: text for name, text in callgrind.scenarios(program).items() if re.search(wanted, name)}
    if arguments.caches:
        return _show_caches(program, list(what))
    now = _count(program, what)
    if arguments.show:
        return _show(now)
    if arguments.write:
        return _write(now, bool(wanted))
    kept = _count_revision(arguments.against, wanted) if arguments.against else record.read()
    if kept is None:
        print("instructions: nothing is kept to compare with: make instructions-write")
        return 1
    if wanted:
        kept = {**kept, "scenarios": {name: kept["scenarios"][name] for name in what if name in kept["scenarios"]}}
    return _judge(kept, now)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep the numbers instead of comparing with them")
    parser.add_argument("--only", default="", metavar="REGEX", help="only scenarios whose names match")
    parser.add_argument("--show", default="", metavar="REGEX", help="list the functions of these scenarios, and stop")
    parser.add_argument(
        "--caches", default="", metavar="REGEX", help="what these scenarios miss in simulated caches, and stop"
    )
    parser.add_argument(
        "--against", metavar="REVISION", help="compare with another revision, built for that, not with what is kept"
    )
    parser.add_argument(
        "--check-table", action="store_true", help="only whether instructions.md shows instructions.json"
    )
    return parser.parse_args()


def _count(program: Path, what: dict[str, str]) -> record.Record:
    started = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        counts = dict(zip(what, pool.map(lambda name: callgrind.count(program, name), what), strict=True))
    print(f"instructions: {len(counts)} scenarios counted in {time.monotonic() - started:.0f} s")
    return record.of(counts, what)


def _count_revision(revision: str, wanted: str) -> record.Record:
    """The same of another revision of this repository, built by the same compiler."""
    target = build.binary().parents[1] / "instructions-against"
    source = target / "source"
    git = ["git", "-C", str(record.ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--force", "--detach", str(source), revision], check=True)
    try:
        cargo = [os.environ.get("CARGO", "cargo"), "build", "--release", "--workspace", "--bin", "airdma-callgrind"]
        subprocess.run(cargo, cwd=source, env={**os.environ, "CARGO_TARGET_DIR": str(target)}, check=True)
        program = target / "release" / "airdma-callgrind"
        what = {name: text for name, text in callgrind.scenarios(program).items() if re.search(wanted, name)}
        return _count(program, what)
    finally:
        subprocess.run([*git, "remove", "--force", str(source)], check=False)


def _check_table() -> int:
    if record.is_rendered():
        return 0
    print(
        "instructions: docs/benchmarks/instructions.md does not show what instructions.json holds: "
        "make instructions-write"
    )
    return 1


def _show(now: record.Record) -> int:
    for name, scenario in now["scenarios"].items():
        sides = f"{scenario['near']:,.0f} where it is asked for, {scenario['far']:,.0f} where it is served"
        print(f"\n{name}: {scenario['what']}: {sides}, {scenario['packets']:g} packets")
        for function, value in scenario["functions"].items():
            a_packet = value / scenario["packets"] if scenario["packets"] else 0.0
            print(f"{value:14,.1f} {a_packet:10,.1f}  {function}")
    return 0


def _show_caches(program: Path, names: list[str]) -> int:
    """Not compared: where memory lies decides, and the next build puts it elsewhere."""
    print("each time, both ends                 I1    D1 read   D1 write    L2 read   L2 write")
    for name in names:
        misses = callgrind.cache_misses(program, name)
        print(f"{name:30}" + "".join(f" {misses[event]:10.1f}" for event in ("I1mr", "D1mr", "D1mw", "DLmr", "DLmw")))
    return 0


def _write(now: record.Record, is_part: bool) -> int:
    kept = record.read()
    if is_part and kept:
        if kept["environment"] != now["environment"]:
            print("instructions: a part can be kept only beside numbers of the same compiler, valgrind and CPU")
            return 2
        now = {**kept, "scenarios": {**kept["scenarios"], **now["scenarios"]}}
    record.write(now)
    print(f"instructions: wrote {record.RECORD.relative_to(record.ROOT)} and {record.TABLE.name}")
    return 0


def _judge(kept: record.Record, now: record.Record) -> int:
    promises = {
        "they grow with the number of queue pairs": compare.not_flat(now),
        "locks are taken for packets": compare.locks_per_packet(now),
        "memory is allocated after warm-up": compare.allocations(now),
    }
    for title, complaints in promises.items():
        if complaints:
            _say(title, complaints)
    verdict = compare.compare(kept, now)
    differences = [
        f"{key}: {now['environment'].get(key)}, kept were those of {value}"
        for key, value in kept["environment"].items()
        if now["environment"].get(key) != value
    ]
    if differences:
        _say("COUNTED, NOT COMPARED: the numbers that are kept come from elsewhere", differences)
    if verdict.grown:
        _say(f"more than {compare.TOLERANCE:.0%} more", verdict.grown)
    if verdict.shrunk:
        _say(f"more than {compare.TOLERANCE:.0%} less: keep that, by make instructions-write", verdict.shrunk)
    if verdict.other:
        _say("not the scenarios that are kept: make instructions-write", verdict.other)
    failed = any(promises.values()) or (not differences and bool(verdict.grown or verdict.other))
    print(f"instructions: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


def _say(title: str, lines: list[str]) -> None:
    print(f"instructions: {title}")
    for line in lines:
        print(f"  {line}")


if __name__ == "__main__":
    sys.exit(main())
