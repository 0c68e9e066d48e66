#!/usr/bin/env python3
"""Runs unmodified RDMA programs on airdma, over links of every kind, and checks what they say, send
and count.

Needs release binaries (`make build`). Root, or unprivileged user namespaces.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import benchmark
import controller_box
import dropin
import explain
import failing_disks
import file_transfer
import host_programs
import interface_changes
import ip_layer
import matrix
import odd_disks
import planted_journal
import processes
import queue_service
import replayed_packets
import runner
import scenarios
import sealed
import system_calls
import traffic_class
import wireless_link
from airdma_lab import build, privileges, requirements
from airdma_lab.lab import Lab
from case import Case, Tally
from programs import record, running, table

HERE = Path(__file__).resolve().parent


SKIPPED = build.ROOT / "target" / "system-skipped"
"""What the last run could not do, and why; `make test` repeats it at its end."""


def main() -> int:
    arguments = _arguments()
    requirements.ensure([*requirements.LAB_TOOLS, *requirements.PERFTEST_TOOLS, *requirements.PINGPONG_TOOLS])
    requirements.ensure(requirements.PROGRAMS)
    requirements.ensure(["nft", "cc", "make", "iperf3", "sockperf", "rping", "rstream", "strace"])
    requirements.ensure(odd_disks.TOOLS)
    requirements.ensure_headers()
    build.require()
    privileges.enter()
    if arguments.programs:
        return _programs(arguments.only)
    if arguments.files:
        return _files(arguments.files, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
        verbs_check = Path(folder, "verbs_check")
        cases = [
            case for case in matrix.cases(str(verbs_check), arguments.full) if re.search(arguments.only, case.name)
        ]
        if arguments.list:
            print("\n".join(case.name for case in cases))
            return 0
        _compile(verbs_check)
        return _run(cases, arguments.pairs_only, Path(folder))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--full", action="store_true", help="every program on every link with every impairment, both ways"
    )
    parser.add_argument(
        "--only", default="", metavar="REGEX", help="only pairs, or lines of --programs, whose name matches"
    )
    parser.add_argument("--pairs-only", action="store_true", help="only pairs of programs, no tests of the tools")
    parser.add_argument(
        "--programs", action="store_true", help="only docs/programs.md: run its lines and write it again"
    )
    parser.add_argument(
        "--files", type=int, metavar="KILLS", help="only `airdma send`, each side killed at so many random moments"
    )
    parser.add_argument("--seed", type=int, help="of --files: the moments of an earlier run")
    parser.add_argument("--list", action="store_true", help="print the pairs' names and stop")
    return parser.parse_args()


def _compile(verbs_check: Path) -> None:
    source = HERE / "verbs_check.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(verbs_check), str(source), "-libverbs"], check=True)


def _run(cases: list[Case], pairs_only: bool, folder: Path) -> int:
    tally = Tally()
    started = time.monotonic()
    for (mtu, segment_offload), group in runner.by_link(cases):
        with Lab(mtu, segment_offload) as lab:
            if segment_offload and not pairs_only:
                with tally.part("host_programs"):
                    host_programs.run(lab, tally)
            with tally.part("pairs"):
                for case in group:
                    runner.run_case(lab, case, tally)
    if not pairs_only:
        _run_parts(tally, folder)
    return _close(tally, started)


def _run_parts(tally: Tally, folder: Path) -> None:
    """The tests that are no pairs of programs: some share a lab, some make their own networks."""

    def part(module: ModuleType, *arguments: object) -> None:
        with tally.part(module.__name__):
            module.run(*arguments)

    with Lab() as lab:
        part(processes, lab, tally)
        part(dropin, lab, tally, folder)
        part(explain, lab, tally, folder)
        part(ip_layer, lab, tally)
        part(system_calls, lab, tally)
        part(traffic_class, lab, tally)
        part(sealed, lab, tally, folder)
        part(running, lab, tally, table.lines(), folder)
    with Lab() as lab:
        part(file_transfer, lab, tally)
        part(failing_disks, lab, tally)
        part(odd_disks, lab, tally)
        part(planted_journal, lab, tally)
        part(replayed_packets, lab, tally)
        part(queue_service, lab, tally, folder)
    part(benchmark, tally, folder)
    part(wireless_link, tally, folder)
    part(controller_box, tally, folder)
    part(interface_changes, tally)
    part(scenarios, tally)


def _programs(only: str) -> int:
    """Runs the lines of the table whose names match, and writes what was seen."""
    tally = Tally()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder, Lab() as lab:
        lines = [line for line in table.lines() if re.search(only, line.name)]
        record.write(running.run(lab, tally, lines, Path(folder)))
    return _close(tally, started)


def _files(kills: int, seed: int | None) -> int:
    tally = Tally()
    started = time.monotonic()
    with Lab() as lab:
        file_transfer.run(lab, tally, kills, seed)
        failing_disks.run(lab, tally)
        odd_disks.run(lab, tally)
        planted_journal.run(lab, tally)
        replayed_packets.run(lab, tally)
    return _close(tally, started)


def _close(tally: Tally, started: float) -> int:
    for name, explanation in tally.failures.items():
        print(f"\n==== {name}\n{explanation}")
    if tally.parts:
        print(f"\n{tally.summary()}")
    SKIPPED.unlink(missing_ok=True)
    if tally.skipped:
        lines = (f"system tests: SKIPPED: {name}: {reason}\n" for name, reason in tally.skipped.items())
        SKIPPED.write_text("".join(lines), encoding="utf-8")
    print(f"\nsystem tests: {time.monotonic() - started:.0f} s")
    print(tally.closing_line())
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
