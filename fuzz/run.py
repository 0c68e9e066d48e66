#!/usr/bin/env python3
"""Runs the fuzz targets one after the other, and adds what was done to `executions.csv`: for each
target the seconds and the executions of all runs that were recorded, and the inputs that failed.
Seconds are of CPU time, so that an hour is an hour's work on a busy machine too.

  python3 fuzz/run.py                        every target for a minute
  python3 fuzz/run.py --seconds 3600 packet  one for an hour
"""

from __future__ import annotations

import argparse
import csv
import re
import resource
import subprocess
import sys
from pathlib import Path

FUZZ = Path(__file__).resolve().parent
RECORD = FUZZ / "executions.csv"
COLUMNS = ("target", "seconds", "executions", "failures")
LENGTH_MAX = 2048
"""Longest input in bytes. What a target decodes from as many is long enough to get anywhere, and
fast.
"""

UNSAFE = ("work_request", "world")
"""Targets with unsafe code below them: they run under AddressSanitizer, the others some five times
as fast without.
"""


def main() -> int:
    targets = sorted(source.stem for source in (FUZZ / "fuzz_targets").glob("*.rs"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(targets))
    parser.add_argument("--seconds", type=int, default=60, help="of CPU time, for each target")
    options = parser.parse_args()
    unknown = set(options.targets) - set(targets)
    if unknown:
        parser.error(f"there is no target {', '.join(sorted(unknown))}")
    if subprocess.run(["cargo", "+nightly", "fuzz", "--version"], capture_output=True, check=False).returncode != 0:
        print("fuzz: rustup toolchain install nightly; cargo install cargo-fuzz", file=sys.stderr)
        return 2
    failed = [target for target in options.targets or targets if not run(target, options.seconds)]
    for target in failed:
        print(f"fuzz: {target} failed, see fuzz/artifacts/{target}", file=sys.stderr)
    return 1 if failed else 0


def run(target: str, seconds: int) -> bool:
    """Runs one target until it has used `seconds` of CPU time, or an input failed: False then.
    libFuzzer's limit is on elapsed time, so what is left is run again.
    """
    sanitizer = ["--sanitizer", "address" if target in UNSAFE else "none"]
    build = ["cargo", "+nightly", "fuzz", "build", "--fuzz-dir", str(FUZZ), *sanitizer, target]
    if subprocess.run(build, cwd=FUZZ.parent, check=False).returncode != 0:
        return False
    left = seconds
    while left > 0:
        before = cpu_seconds()
        passed, executions = run_once(target, sanitizer, left)
        if executions is None:
            return False
        used = max(1, round(cpu_seconds() - before))
        add(target, used, executions, int(not passed))
        if not passed:
            return False
        left -= used
    return True


def run_once(target: str, sanitizer: list[str], seconds: int) -> tuple[bool, int | None]:
    """Runs one target for at most `seconds`, and shows what libFuzzer says: whether no input
    failed, and the executions, or None if it did not start.
    """
    found, corpus, regressions = (FUZZ / kind / target for kind in ("found", "corpus", "regressions"))
    for folder in (found, corpus, regressions):
        folder.mkdir(parents=True, exist_ok=True)
    options = ["--fuzz-dir", str(FUZZ), *sanitizer, target, str(found), str(corpus), str(regressions)]
    limits = [f"-max_total_time={seconds}", f"-max_len={LENGTH_MAX}", "-timeout=20", "-print_final_stats=1"]
    command = ["cargo", "+nightly", "fuzz", "run", *options, "--", *limits]
    executions = None
    interrupted = False
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, errors="replace", cwd=FUZZ.parent) as process:
        assert process.stderr is not None
        for line in process.stderr:
            sys.stderr.write(line)
            interrupted |= "libFuzzer: run interrupted" in line
            if line.startswith("INFO: Seed:"):
                executions = 0
            if number := re.match(r"stat::number_of_executed_units:\s+(\d+)", line):
                executions = int(number[1])
    return process.returncode == 0 or interrupted, executions


def cpu_seconds() -> float:
    """CPU time of every process that was started and has ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def add(target: str, seconds: int, executions: int, failures: int) -> None:
    """Adds a run to the totals of its target."""
    totals = recorded()
    before = totals.get(target, (0, 0, 0))
    totals[target] = (before[0] + seconds, before[1] + executions, before[2] + failures)
    with RECORD.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows((name, *numbers) for name, numbers in sorted(totals.items()))


def recorded() -> dict[str, tuple[int, int, int]]:
    """Target -> seconds, executions, failures of all runs."""
    if not RECORD.exists():
        return {}
    with RECORD.open(encoding="utf-8", newline="") as file:
        rows = [[row[column] for column in COLUMNS] for row in csv.DictReader(file)]
    return {target: (int(seconds), int(runs), int(failures)) for target, seconds, runs, failures in rows}


if __name__ == "__main__":
    sys.exit(main())
