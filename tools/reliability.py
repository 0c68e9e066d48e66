#!/usr/bin/env python3
"""Writes docs/reliability.md: what was tried to break airdma, how often, and what that found.

Runs of worlds leave a record in docs/reliability/worlds.json, runs of fuzz targets in
fuzz/executions.csv, runs of programs on starved machines in tests/starve/runs.csv; the page adds
them up. What they found is listed by hand in
docs/reliability/findings.json, each with the test that fails without the fix; a test that is not
there is an error.

    reliability.py worlds [--hours H | --count N]   runs random worlds, and keeps the record
    reliability.py write                            writes the page
    reliability.py check                            writes nothing; fails if the page is not what would be written
"""

from __future__ import annotations

import argparse
import csv
import datetime
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "reliability.md"
RECORDS = ROOT / "docs" / "reliability" / "worlds.json"
EXECUTIONS = ROOT / "fuzz" / "executions.csv"
STARVED = ROOT / "tests" / "starve" / "runs.csv"
FINDINGS = ROOT / "docs" / "reliability" / "findings.json"
MUTANTS = ROOT / "docs" / "reliability" / "mutants.md"

Record = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    worlds = commands.add_parser("worlds", help="run random worlds")
    worlds.add_argument("--hours", type=float)
    worlds.add_argument("--count", type=int, default=20_000)
    worlds.add_argument("--first", type=int, help="the first seed (default: one that no run had before)")
    commands.add_parser("write", help="write the page")
    commands.add_parser("check", help="fail if the page is out of date")
    arguments = parser.parse_args()
    return {"worlds": run_worlds, "write": write, "check": check}[arguments.command](arguments)


def run_worlds(arguments: argparse.Namespace) -> int:
    now = datetime.datetime.now(datetime.UTC)
    first = arguments.first if arguments.first is not None else int(now.timestamp()) * 1_000_000
    work = ["--hours", str(arguments.hours)] if arguments.hours else ["--worlds", str(arguments.count)]
    command = ["target/release/airdma", "sim", *work, "--first", str(first), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    *failures, counts = done.stdout.splitlines() or [""]
    print("\n".join([*failures, counts]))
    if not counts.startswith("{"):
        print(done.stderr, file=sys.stderr)
        return 1
    keep({"command": " ".join(command), **json.loads(counts)})
    return done.returncode


def keep(record: Record) -> None:
    when = {"date": datetime.datetime.now(datetime.UTC).date().isoformat(), "commit": commit()}
    kept = [*load(RECORDS), {**when, **record}]
    RECORDS.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join("  " + json.dumps(record) for record in kept)
    RECORDS.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def load(path: Path) -> list[Record]:
    return json.loads(path.read_text("utf-8")) if path.exists() else []


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def current() -> str:
    """The page of all records."""
    return page(load(RECORDS), rows_of(EXECUTIONS), rows_of(STARVED), load(FINDINGS))


def write(_: argparse.Namespace) -> int:
    PAGE.write_text(current(), encoding="utf-8")
    return 0


def check(_: argparse.Namespace) -> int:
    missing = [finding["test"] for finding in load(FINDINGS) if not has_test(finding["test"])]
    for test in missing:
        print(f"docs/reliability/findings.json: there is no test {test}", file=sys.stderr)
    if not missing and PAGE.exists() and PAGE.read_text("utf-8") == current():
        return 0
    print("docs/reliability.md is out of date: run tools/reliability.py write", file=sys.stderr)
    return 1


def has_test(test: str) -> bool:
    """`path/of/file.rs: name_of_test`."""
    path, _, name = test.partition(": ")
    file = ROOT / path
    return file.exists() and (
        not name or re.search(rf"\b{re.escape(name)}\b", file.read_text("utf-8", "replace")) is not None
    )


WORLDS = {
    "worlds": "worlds",
    "actions": "actions of programs",
    "requests": "send requests",
    "receives": "receives",
    "completions": "completions judged",
    "failed_completions": "of them unsuccessful",
    "events": "completion events",
    "packets": "packets delivered",
    "packets_lost_or_damaged": "packets lost or damaged",
    "packets_delivered_damaged": "damaged packets that the IP layer let through",
    "hosts_killed": "hosts killed",
    "datagrams_forged": "datagrams forged by an attacker",
    "failures": "worlds that failed",
}


def page(
    worlds: list[Record], fuzz: list[dict[str, str]], starved: list[dict[str, str]], findings: list[Record]
) -> str:
    parts = [
        "# What was tried to break airdma\n",
        "Written by `tools/reliability.py` from the records that runs leave: [reliability/worlds.json](reliability/worlds.json), "
        "each with its date, its commit and its command, `fuzz/executions.csv` and `tests/starve/runs.csv`. "
        "Only the list of findings is written by hand.\n",
        "## Random worlds\n",
        "Hosts of the real engine, a simulated network, random programs, and the reference model (`testing/model`) as judge: "
        "`make worlds` runs the first 20,000 seeds, `make soak HOURS=n` others. `airdma sim --seed N --trace` replays one.\n",
        table(["what", "count"], [[words, total(worlds, name)] for name, words in WORLDS.items()]),
        f"{len(worlds)} recorded runs, {hours(sum(record['seconds'] for record in worlds))}.\n",
        "## Fuzzing\n",
        "Coverage-guided bytes (`make fuzz`, `fuzz/README.md`); `cargo test` replays the kept inputs.\n",
        table(["target", "executions", "time", "inputs that failed in these runs"], [fuzz_row(row) for row in fuzz]),
        "## Starved machines\n",
        "Unmodified programs between two hosts that get little of the CPU, or of which one is stopped for a while "
        "(`make starve`, `tests/starve/hardships.py`): each must end as on an idle machine.\n",
        table(["hardship", "program", "runs", "failed", "longest run"], [starved_row(row) for row in starved]),
        "## Threads\n",
        "`make loom` checks every interleaving of shared state, `make tsan` runs the engine under ThreadSanitizer: "
        "[design/011-concurrency.md](design/011-concurrency.md) lists which check covers which state.\n",
        "## Planted faults\n",
        planted(),
        "## What was found\n",
        table(["found by", "fault", "test that fails without the fix"], [finding_row(finding) for finding in findings]),
    ]
    return "\n".join(parts)


def planted() -> str:
    """The sentence of `make mutants` about all of them."""
    if not MUTANTS.exists():
        return "Not recorded yet.\n"
    result = next(line for line in MUTANTS.read_text("utf-8").splitlines() if "mutants were run" in line)
    return f"`make mutants` plants faults and counts those that a test detects: [reliability/mutants.md](reliability/mutants.md).\n{result}\n"


def total(records: list[Record], name: str) -> str:
    return f"{sum(record.get(name, 0) for record in records):,}"


def fuzz_row(row: dict[str, str]) -> list[str]:
    return [f"`{row['target']}`", f"{int(row['executions']):,}", hours(int(row["seconds"])), row["failures"]]


def starved_row(row: dict[str, str]) -> list[str]:
    return [row["hardship"], f"`{row['program']}`", row["runs"], row["failed"], f"{row['longest_s']} s"]


def finding_row(finding: Record) -> list[str]:
    path, _, name = finding["test"].partition(": ")
    return [finding["by"], finding["what"], f"`{path}`" + (f" `{name}`" if name else "")]


def hours(seconds: float) -> str:
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds / 60:.0f} min"


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
