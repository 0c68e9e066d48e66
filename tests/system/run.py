#!/usr/bin/env python3
"""Runs unmodified RDMA programs on airdma, over every kind of link, and the tests of the commands.

Needs release binaries (`make build`). Root, or unprivileged user namespaces.

  run.py                            all suites
  run.py --list                     names of the suites, and what each tests
  run.py --only queue_service       one suite; several with commas
  run.py --only pairs --match READ  pairs of programs whose name matches
"""

from __future__ import annotations

import argparse
import contextlib
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import catalogue
import failing_disks
import file_transfer
import host_programs
import matrix
import odd_disks
import planted_journal
import replayed_packets
import runner
from airdma_lab import build, privileges, requirements
from airdma_lab.lab import Lab
from case import Case, Tally
from catalogue import HOST_PROGRAMS, PAIRS, Net, Suite
from programs import record, running, table

HERE = Path(__file__).resolve().parent
SKIPPED = build.ROOT / "target" / "system-skipped"
"""What the last run could not do, and why; `make test` repeats it at its end."""


def main() -> int:
    arguments = _arguments()
    if arguments.list or arguments.only == "list":
        print(catalogue.listing(catalogue.SUITES))
        return 0
    try:
        suites = catalogue.chosen(arguments.only)
    except catalogue.UnknownSuiteError as error:
        print(f"system tests: {error}", file=sys.stderr)
        return 2
    if arguments.list_pairs:
        print("\n".join(case.name for case in _cases(Path("verbs_check"), arguments)))
        return 0
    requirements.ensure([*requirements.LAB_TOOLS, *requirements.PERFTEST_TOOLS, *requirements.PINGPONG_TOOLS])
    requirements.ensure(requirements.PROGRAMS)
    requirements.ensure(["nft", "cc", "make", "iperf3", "sockperf", "cmtime", "rping", "rstream", "strace"])
    requirements.ensure(odd_disks.TOOLS)
    requirements.ensure_headers()
    build.require()
    privileges.enter()
    if arguments.programs:
        return _programs(arguments.match)
    if arguments.files:
        return _files(arguments.files, arguments.seed)
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
        return _run(suites, arguments, Path(folder))


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=formatter)
    parser.add_argument("--only", default="", metavar="SUITES", help="these suites only, by name, separated by commas")
    parser.add_argument("--list", action="store_true", help="print the suites and stop")
    parser.add_argument("--match", default="", metavar="REGEX", help="only pairs, or lines, with such a name")
    parser.add_argument("--list-pairs", action="store_true", help="print the pairs' names and stop")
    parser.add_argument(
        "--full", action="store_true", help="every program on every link with every impairment, both ways"
    )
    parser.add_argument("--programs", action="store_true", help="run the lines of docs/programs.md and write it again")
    parser.add_argument(
        "--files", type=int, metavar="KILLS", help="`airdma send` alone, each side killed at KILLS random moments"
    )
    parser.add_argument("--seed", type=int, help="with --files: the moments of an earlier run")
    return parser.parse_args()


def _cases(verbs_check: Path, arguments: argparse.Namespace) -> list[Case]:
    cases = matrix.cases(str(verbs_check), arguments.full)
    return [case for case in cases if re.search(arguments.match, case.name)]


def _compile(verbs_check: Path) -> None:
    source = HERE / "verbs_check.c"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(verbs_check), str(source), "-libverbs"], check=True)


def _run(suites: list[Suite], arguments: argparse.Namespace, folder: Path) -> int:
    tally = Tally()
    started = time.monotonic()
    if PAIRS in suites or HOST_PROGRAMS in suites:
        _run_on_links(suites, arguments, tally, folder)
    for net in (Net.PROGRAMS, Net.FILES):
        on_net = [suite for suite in suites if suite.net is net]
        with Lab() if on_net else contextlib.nullcontext() as lab:
            for suite in on_net:
                assert lab is not None
                assert suite.run is not None
                with tally.part(suite.name):
                    suite.run(lab, tally, folder)
    for suite in suites:
        if suite.own_run is not None:
            with tally.part(suite.name):
                suite.own_run(tally, folder)
    return _close(tally, started)


def _run_on_links(suites: list[Suite], arguments: argparse.Namespace, tally: Tally, folder: Path) -> None:
    """Pairs and `host_programs`, grouped by link."""
    verbs_check = folder / "verbs_check"
    _compile(verbs_check)
    for (mtu, segment_offload), group in runner.by_link(_cases(verbs_check, arguments)):
        with Lab(mtu, segment_offload) as lab:
            if segment_offload and HOST_PROGRAMS in suites:
                with tally.part(HOST_PROGRAMS.name):
                    host_programs.run(lab, tally)
            if PAIRS in suites:
                with tally.part(PAIRS.name):
                    for case in group:
                        runner.run_case(lab, case, tally)


def _programs(match: str) -> int:
    """Runs the lines of the table whose names match, and writes what was seen."""
    tally = Tally()
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder, Lab() as lab:
        lines = [line for line in table.lines() if re.search(match, line.name)]
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
    print(f"\nslowest tests:\n{tally.slowest()}")
    SKIPPED.unlink(missing_ok=True)
    if tally.skipped:
        lines = (f"system tests: SKIPPED: {name}: {reason}\n" for name, reason in tally.skipped.items())
        SKIPPED.write_text("".join(lines), encoding="utf-8")
    print(f"\nsystem tests: {time.monotonic() - started:.0f} s")
    print(tally.closing_line())
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
