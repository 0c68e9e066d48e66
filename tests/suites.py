#!/usr/bin/env python3
"""Runs suites of the Makefile one after the other. A suite that fails does not keep the others from
running, and the end of the output has the seconds of each suite and the lines that say what failed,
so that the last page of a long log is enough.

  python3 tests/suites.py lint unit system
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
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


def main() -> int:
    suites = sys.argv[1:]
    if not suites:
        print(__doc__, file=sys.stderr)
        return 2
    taken: dict[str, tuple[bool, float]] = {}
    shown: dict[str, list[str]] = {}
    for suite in suites:
        print(f"==== {suite}", flush=True)
        started = time.monotonic()
        passed, shown[suite] = run(suite)
        taken[suite] = (passed, time.monotonic() - started)
    print("\nsuite                 seconds")
    for suite, (passed, seconds) in taken.items():
        print(f"{suite:<20} {seconds:>8.0f}  {'ok' if passed else 'FAILED'}")
    print(f"{'all':<20} {sum(seconds for _, seconds in taken.values()):>8.0f}")
    for reason in sorted(ROOT.glob(SKIPPED)):
        print(reason.read_text(encoding="utf-8"), end="")
    failed = [suite for suite, (passed, _) in taken.items() if not passed]
    for suite in failed:
        print(f"==== what failed in {suite}", *shown[suite], sep="\n")
    if failed:
        print(f"make test: FAILED: {', '.join(failed)}")
        return 1
    print("make test: all passed")
    return 0


def run(suite: str) -> tuple[bool, list[str]]:
    """Runs one suite and passes its output on. Whether it passed, and the lines that say what
    failed.
    """
    shown: list[str] = []
    left = 0
    with subprocess.Popen(
        ["make", "--no-print-directory", suite],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as make:
        assert make.stdout is not None
        for line in make.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if FAILURE.match(line):
                left = 1 + AFTER
            if left > 0 and len(shown) < SHOWN_MAX:
                shown.append(line.rstrip())
            left -= 1
    return make.returncode == 0, shown


if __name__ == "__main__":
    sys.exit(main())
