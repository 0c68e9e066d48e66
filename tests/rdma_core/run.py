#!/usr/bin/env python3
"""Runs rdma-core's own tests (Debian's python3-pyverbs), unmodified, on an airdma device, and keeps
their results.

Both ends of each test are on one device, whose packets the kernel loops back. Writes
docs/rdma-core-tests.md, the table of results; with --check compares with it instead. Fails if a
test that has to pass does not, or if the table differs. With --newest they are those of the newest
release, from Debian's unstable suite, with its interpreter: see newest.py; the table is
docs/rdma-core-tests-newest.md. Where that cannot be had, it says so and exits with 0. Needs release
binaries (`make build`). Root, or unprivileged user namespaces.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import expectations
import newest
import suite
from airdma_lab import archive, build, devices, privileges, requirements
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Outcome
from expectations import Result

HERE = Path(__file__).resolve().parent

TABLE = build.ROOT / "docs" / "rdma-core-tests.md"
TABLE_NEWEST = build.ROOT / "docs" / "rdma-core-tests-newest.md"
SKIPPED = build.ROOT / "target" / "rdma-core-newest-skipped"
"""Why the last run with --newest did nothing, or judged nothing; `make test` repeats it at its end.
"""
START_S = 60.0
"""What Python may take to start and to load the tests."""


def main() -> int:
    arguments = _arguments()
    requirements.ensure(requirements.LAB_TOOLS)
    release = None
    if arguments.newest:
        SKIPPED.unlink(missing_ok=True)
        try:
            release = newest.Newest()
        except archive.Unavailable as reason:
            SKIPPED.parent.mkdir(parents=True, exist_ok=True)
            SKIPPED.write_text(f"rdma-core's newest tests: SKIPPED: {reason}\n", encoding="utf-8")
            print(SKIPPED.read_text(encoding="utf-8"), end="")
            return 0
    else:
        requirements.ensure_pyverbs()
    build.require()
    privileges.enter()
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder:
        suite.unpack(Path(folder), release.root if release else Path("/"))
        with Lab() as lab:
            bench = Bench(lab.a, Path(folder), arguments.limit, release)
            tests = [test for test in bench.names() if re.search(arguments.only, test)]
            if release is not None:
                tests = [test for test in tests if not newest.VENDORS.match(test)]
            if arguments.list:
                print("\n".join(tests))
                return 0
            return _judge(_run(bench, tests), arguments, release)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="only tests whose name matches; leaves the table")
    parser.add_argument("--check", action="store_true", help="compare with the table instead of writing it")
    parser.add_argument("--newest", action="store_true", help="those of rdma-core's newest release")
    parser.add_argument("--list", action="store_true", help="print the tests' names and stop")
    parser.add_argument("--limit", type=float, default=20, metavar="SECONDS", help="for one test (default: 20)")
    return parser.parse_args()


@dataclass(frozen=True)
class Bench:
    """Where and how tests run."""

    host: Host
    folder: Path
    """Holds the unpacked tests, and the report of those that run."""
    limit_s: float
    """For one test."""
    release: newest.Newest | None
    """What they run in, if not the host itself."""

    def names(self) -> list[str]:
        """The names of all tests, in the order in which unittest runs them."""
        entries, outcome = self._start([], START_S)
        if not entries or not outcome.ok:
            raise RuntimeError(f"the tests cannot be loaded\n{outcome.explain()}")
        return [_name(entry) for entry in entries]

    def run(self, tests: list[str]) -> dict[str, Result]:
        """Runs tests in one process; after one that hangs or crashes it, the rest in another."""
        results: dict[str, Result] = {}
        while remaining := [test for test in tests if test not in results]:
            entries, outcome = self._start(remaining, START_S + self.limit_s * len(remaining))
            ends = {_name(entry): Result(entry["result"], entry["reason"]) for entry in entries if "result" in entry}
            begun = {_name(entry) for entry in entries}
            known = {test for test in remaining if test in begun}
            results |= {test: ends.get(test, Result("died", self._death(outcome))) for test in known}
            if not known:
                # The class as a whole failed, or there is nothing to run it with.
                whole = next(iter(ends.values()), Result("died", self._death(outcome)))
                results |= dict.fromkeys(remaining, whole)
        return results

    def _start(self, tests: list[str], timeout_s: float) -> tuple[list[dict[str, Any]], Outcome]:
        report = self.folder / "report"
        report.write_text("", encoding="ascii")
        options = ["--dev", devices.DEVICE, "--port", "1", "--gid", str(devices.gid_index(self.host, 4))]
        names = [f"tests.{test}" for test in tests]
        argv = [suite.PYTHON, str(HERE / "driver.py"), str(self.folder), str(report), str(self.limit_s), *options, "--"]
        command = build.with_airdma([*argv, *names])
        if self.release is not None:
            command = self.release.inside(command, [build.ROOT, self.folder, build.binary().parent])
        program = self.host.start(command)
        outcome = program.wait(timeout_s)
        self.host.forget(program)
        # Tests have children, which may outlive them; the session is theirs alone.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(program.pid, signal.SIGKILL)
        print(outcome.stdout + outcome.stderr, end="", flush=True)
        return [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()], outcome

    def _death(self, outcome: Outcome) -> str:
        if outcome.timed_out or "Timeout (" in outcome.stderr:
            return f"hung: killed after {self.limit_s:g} s"
        if outcome.returncode < 0:
            return f"took the process down: {signal.Signals(-outcome.returncode).name}"
        return f"took the process down: exit status {outcome.returncode}"


def _name(entry: dict[str, Any]) -> str:
    return str(entry["test"]).removeprefix("tests.")


def _run(bench: Bench, tests: list[str]) -> dict[str, Result]:
    """Class by class, so that what one leaves behind does not trouble another."""
    results: dict[str, Result] = {}
    for _, members in groupby(tests, key=lambda test: test.rpartition(".")[0]):
        started = time.monotonic()
        found = bench.run(list(members))
        for test, result in found.items():
            print(f"{result.outcome} {test}{f': {result.reason}' if result.reason else ''}")
        print(f"     ({time.monotonic() - started:.1f} s)", flush=True)
        results |= found
    return results


def _judge(results: dict[str, Result], arguments: argparse.Namespace, release: newest.Newest | None) -> int:
    groups = expectations.with_unlisted(expectations.load(HERE / "expected.json"), results)
    disappointments = [line for group in groups for line in group.disappointments(results)]
    source = (
        f"Debian's {suite.PACKAGE}" if release is None else f"release {release.upstream}, from Debian's unstable suite"
    )
    document = expectations.document(groups, results, source, "" if release is None else " --newest")
    print(f"\n{expectations.summary(groups, results)}")
    for line in disappointments:
        print(f"not as it should be: {line}")
    if arguments.only:
        return 1 if disappointments or not results else 0
    table = TABLE if release is None else TABLE_NEWEST
    if not arguments.check:
        table.write_text(document, encoding="utf-8")
        print(f"{table} is written")
        return 1 if disappointments else 0
    committed = table.read_text(encoding="utf-8") if table.exists() else ""
    if release is not None and source not in committed:
        # What Debian's archive has since then is no reason for a failure here.
        SKIPPED.write_text(
            f"rdma-core's newest tests: the table is not of {source}: write it again with --newest\n", encoding="utf-8"
        )
        print(SKIPPED.read_text(encoding="utf-8"), end="")
        return 0
    changes = expectations.differences(groups, committed, document)
    for line in changes:
        print(f"differs: {line}")
    return 1 if changes else 0


if __name__ == "__main__":
    sys.exit(main())
