#!/usr/bin/env python3
"""Runs suites of the Makefile, in three lines beside each other: those that only compute
(`COMPUTING`), with what the others leave of the CPUs; those that mostly wait (`WAITING`); and the
others. A suite that fails does not keep the others from running, and the end of the output has the
seconds of each suite and the lines that say what failed, so that the last page of a long log is
enough.

  python3 tests/suites.py lint unit system
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

ROOT = Path(__file__).resolve().parents[1]
COMPUTING = {"worlds", "instructions", "loom", "air-virtual", "congestion", "records-virtual"}
"""Suites in virtual time, or that count: a busy machine changes nothing in what they find."""
WAITING = {"packages", "rdma-core-check", "sockets-short"}
"""Suites whose programs wait for each other more than they compute, with limits far above what they
take. Not `starve-short`: its loops would starve the others, too.
"""
GIVING_WAY = [
    "sh",
    "-c",
    '{ echo 19 > /proc/self/autogroup; } 2> /dev/null; exec setpriv --pdeathsig TERM nice -n 19 "$@"',
    "sh",
]
"""Runs a command with the lowest priority, among processes and among sessions where the kernel
groups by them (autogroup); it ends with this process.
"""
SKIPPED = "target/*-skipped"
"""Written by what needs something that the machine may lack (QEMU, Debian's archive): why it did
nothing.
"""
FAILURE = re.compile(
    r"FAIL(ED)?\b|[=-]{4} |test .* \.\.\. FAILED|thread '.*' .*panicked at"
    r"|error(\[|:)|Traceback|\S+Error:|make\[?\d*\]?: \*\*\*"
)
"""How lines begin that say what failed: of the project's own runners, libtest, cargo, Python and
make.
"""
AFTER = 4
"""Lines shown after one that says what failed: the reason."""
SHOWN_MAX = 120
"""Lines shown of a suite that failed."""


@dataclass
class Result:
    """How a suite ended."""

    suite: str
    passed: bool = False
    seconds: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of all its processes."""
    shown: list[str] = field(default_factory=list)
    """The lines that say what failed."""


def main() -> int:
    suites = sys.argv[1:]
    if not suites:
        print(__doc__, file=sys.stderr)
        return 2
    results = [Result(suite) for suite in suites]
    started = time.monotonic()
    lines = [
        threading.Thread(
            target=run_beside, args=([result for result in results if result.suite in kind], yielding), daemon=True
        )
        for kind, yielding in ((COMPUTING, True), (WAITING, False))
    ]
    for line in lines:
        line.start()
    for result in results:
        if result.suite not in COMPUTING | WAITING:
            print(f"==== {result.suite}", flush=True)
            run(result, sys.stdout)
    for line in lines:
        line.join()
    print("\nsuite                 seconds      CPU")
    for result in results:
        verdict = "ok" if result.passed else "FAILED"
        print(f"{result.suite:<20} {result.seconds:>8.0f} {result.cpu_s:>8.0f}  {verdict}")
    print(f"{'all':<20} {time.monotonic() - started:>8.0f} {sum(result.cpu_s for result in results):>8.0f}")
    for reason in sorted(ROOT.glob(SKIPPED)):
        print(reason.read_text(encoding="utf-8"), end="")
    failed = [result for result in results if not result.passed]
    for result in failed:
        print(f"==== what failed in {result.suite}", *result.shown, sep="\n")
    if failed:
        print(f"make test: FAILED: {', '.join(result.suite for result in failed)}")
        return 1
    print("make test: all passed")
    return 0


def run_beside(results: list[Result], yielding: bool) -> None:
    """Runs suites one after the other. The output of each is printed when it ends."""
    for result in results:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as output:
            run(result, output, yielding=yielding)
            output.seek(0)
            # One write: it is not mixed with the lines of the suite that runs meanwhile.
            print(f"==== {result.suite}, beside the others\n{output.read()}====", flush=True)


def run(result: Result, output: TextIO, *, yielding: bool = False) -> None:
    """Runs one suite, passes its output on and fills in its result. `yielding`: others come
    first.
    """
    started = time.monotonic()
    left = 0
    make = subprocess.Popen(
        [*(GIVING_WAY if yielding else []), "make", "--no-print-directory", result.suite],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=yielding,
    )
    assert make.stdout is not None
    with make.stdout:
        for line in make.stdout:
            output.write(line)
            output.flush()
            if FAILURE.match(line):
                left = 1 + AFTER
            if left > 0 and len(result.shown) < SHOWN_MAX:
                result.shown.append(line.rstrip())
            left -= 1
    _, status, usage = os.wait4(make.pid, 0)
    make.returncode = os.waitstatus_to_exitcode(status)
    result.passed = make.returncode == 0
    result.seconds = time.monotonic() - started
    result.cpu_s = usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    sys.exit(main())
