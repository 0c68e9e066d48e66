"""What each of rdma-core's tests should say (expected.json), and the table of what they do say."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import table

OUTCOMES = ("pass", "skip", "fail", "died")
"""`skip`: the test found that the device lacks something. `died`: it hung, or took the process
down.
"""


@dataclass(frozen=True)
class Result:
    """What became of a test."""

    outcome: str
    """One of `OUTCOMES`."""
    reason: str


@dataclass(frozen=True)
class Group:
    """Tests that need the same of a device."""

    name: str
    about: str
    expect: str
    """"pass"; "skip": passes or is skipped, as the machine has it; "later": will have to pass; or
    "not applicable".
    """
    tests: tuple[str, ...]

    def disappointments(self, results: Mapping[str, Result]) -> list[str]:
        """The tests with results that are not as they should be."""
        survivors = tuple(outcome for outcome in OUTCOMES if outcome != "died")
        allowed = {"pass": ("pass",), "skip": ("pass", "skip"), "later": survivors, "not applicable": ("pass", "skip")}
        return [
            f"{test}: {results[test].outcome} ({results[test].reason})"
            for test in self.tests
            if test in results and results[test].outcome not in allowed[self.expect]
        ]


def load(file: Path) -> list[Group]:
    """Reads expected.json: group -> expectation and tests by class."""
    document = json.loads(file.read_text(encoding="utf-8"))
    groups = []
    for name, group in document.items():
        tests = tuple(f"{place}.{test}" for place, tests in group["tests"].items() for test in tests)
        groups.append(Group(name, group["about"], group["expect"], tests))
    return groups


def with_unlisted(groups: list[Group], tests: Iterable[str]) -> list[Group]:
    """The groups, and one more of tests that are in none: another version of rdma-core has them."""
    listed = {test for group in groups for test in group.tests}
    unlisted = tuple(test for test in tests if test not in listed)
    extra = Group("others", "not in expected.json: tests of another version of rdma-core", "later", unlisted)
    return [*groups, extra] if unlisted else groups


def document(
    groups: list[Group], results: Mapping[str, Result], source: str = "Debian's python3-pyverbs", options: str = ""
) -> str:
    """The table as Markdown, of tests from `source`; `options` of run.py make it."""
    parts = [
        "# rdma-core's own tests" + (", newest release" if options else ""),
        f"Results of rdma-core's test suite ({source}) on an airdma device, both ends of each test on "
        f"the same device. Written by `make rdma-core`; `python3 tests/rdma_core/run.py{options} --check` "
        "compares with it. A "
        "skipped test found that the device lacks a feature; one that died hung, or ended its process.",
        summary(groups, results),
    ]
    for group in groups:
        rows = _by_class(group, results) if group.expect == "not applicable" else _by_test(group, results)
        if rows:
            parts += [f"## {group.name}", table.markdown([("test", "result", "reason"), *rows], left=3)]
    return "\n\n".join(parts) + "\n"


def summary(groups: list[Group], results: Mapping[str, Result]) -> str:
    """How many tests of each group ended how, as Markdown."""
    rows = [_counts(group, results) for group in groups]
    return table.markdown([("group", "needs", "should", "tests", *OUTCOMES), *rows], left=3)


def differences(groups: list[Group], old: str, new: str) -> list[str]:
    """The rows of two tables whose results differ; reasons may, and tests that depend on the
    machine may be skipped.
    """
    before, after = _outcomes(old), _outcomes(new)
    fickle = {test for group in groups if group.expect == "skip" for test in group.tests}
    return [
        f"{test}: {before.get(test, 'not there')} in the table, now {after.get(test, 'not there')}"
        for test in sorted(before.keys() | after.keys())
        if before.get(test) != after.get(test)
        and not (test in fickle and {before.get(test), after.get(test)} == {"pass", "skip"})
    ]


def _counts(group: Group, results: Mapping[str, Result]) -> tuple[str, ...]:
    counts = Counter(results[test].outcome for test in group.tests if test in results)
    numbers = [counts[outcome] for outcome in OUTCOMES]
    return (group.name, group.about, group.expect, str(sum(numbers)), *map(str, numbers))


def _by_test(group: Group, results: Mapping[str, Result]) -> list[tuple[str, str, str]]:
    return [(test, results[test].outcome, _cell(results[test].reason)) for test in group.tests if test in results]


def _by_class(group: Group, results: Mapping[str, Result]) -> list[tuple[str, str, str]]:
    classes: dict[str, list[Result]] = {}
    for test in group.tests:
        if test in results:
            classes.setdefault(test.rpartition(".")[0], []).append(results[test])
    rows = []
    for name, members in classes.items():
        counts = Counter(result.outcome for result in members)
        outcome = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
        reasons = list(dict.fromkeys(_cell(result.reason) for result in members if result.reason))
        rows.append((name, outcome, reasons[0] if reasons else ""))
    return rows


def _cell(text: str) -> str:
    line = " ".join(text.split()).replace("|", "\\|")
    # What differs from run to run.
    line = re.sub(r"0x[0-9a-f]{6,}", "0x...", line)
    return line if len(line) <= _REASON_MAX else line[:_REASON_MAX] + "..."


def _outcomes(text: str) -> dict[str, str]:
    rows = (line.split(" | ") for line in text.splitlines() if line.startswith("| test_"))
    return {row[0].removeprefix("| ").strip(): row[1].strip() for row in rows}


_REASON_MAX = 140
