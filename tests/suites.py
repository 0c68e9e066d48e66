#!/usr/bin/env python3
"""Runs suites of the Makefile one after the other, and says at the end how long each took and which failed. One that fails does not
keep the others from running, so one run shows all that is wrong.

  python3 tests/suites.py lint unit system
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SKIPPED = "target/*-skipped"
"""Written by what needs something that the machine may lack (QEMU, Debian's archive): why it did nothing."""


def main() -> int:
    suites = sys.argv[1:]
    if not suites:
        print(__doc__, file=sys.stderr)
        return 2
    taken: dict[str, tuple[bool, float]] = {}
    for suite in suites:
        print(f"==== {suite}", flush=True)
        started = time.monotonic()
        passed = subprocess.run(["make", "--no-print-directory", suite], cwd=ROOT, check=False).returncode == 0
        taken[suite] = (passed, time.monotonic() - started)
    print("\nsuite                 seconds")
    for suite, (passed, seconds) in taken.items():
        print(f"{suite:<20} {seconds:>8.0f}  {'ok' if passed else 'FAILED'}")
    print(f"{'all':<20} {sum(seconds for _, seconds in taken.values()):>8.0f}")
    for reason in sorted(ROOT.glob(SKIPPED)):
        print(reason.read_text(encoding="utf-8"), end="")
    failed = [suite for suite, (passed, _) in taken.items() if not passed]
    if failed:
        print(f"make test: FAILED: {', '.join(failed)}")
        return 1
    print("make test: all passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
