#!/usr/bin/env python3
"""Prints which lines and branches of `wire` and `transport` are reached by their own tests, those
of `sim`, and the replay of the fuzz corpora. Unit tests that stand in the file they test are
counted with it.

  python3 tests/coverage.py            the table
  python3 tests/coverage.py --missed   and the lines that nothing reaches, and conditions that never held or always did
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ("wire", "transport")
RUN = ("wire", "transport", "sim", "fuzz-bodies")
NEEDS = (
    (("cargo", "llvm-cov", "--version"), "cargo install cargo-llvm-cov"),
    (
        ("rustup", "run", "nightly", "cargo", "--version"),
        "rustup toolchain install nightly --component llvm-tools",
    ),
)


def main() -> int:
    missing = [advice for command, advice in NEEDS if not _runs(command)]
    if missing:
        print(f"coverage: {'; '.join(missing)}", file=sys.stderr)
        return 2
    files = measure()
    print(table(files))
    if "--missed" in sys.argv[1:]:
        for name, file in files:
            missed = [*map(str, missed_lines(file)), *one_sided_branches(file)]
            if missed:
                print(f"{name}: {', '.join(missed)}")
    return 0


def measure() -> list[tuple[str, dict[str, Any]]]:
    """Runs the tests, and returns what llvm-cov says of each source file."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        packages = [argument for crate in RUN for argument in ("-p", f"airdma-{crate}")]
        command = ["cargo", "+nightly", "llvm-cov", "--branch", "--json", "--output-path", str(report), *packages]
        subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        data = json.loads(report.read_text(encoding="utf-8"))["data"][0]
    folders = tuple(f"crates/{crate}/src/" for crate in MEASURED)
    named = [(str(Path(file["filename"]).relative_to(ROOT)), file) for file in data["files"]]
    return sorted((name, file) for name, file in named if name.startswith(folders) and not name.endswith("/tests.rs"))


def table(files: list[tuple[str, dict[str, Any]]]) -> str:
    """A row for each file, one for each crate, and the total."""
    rows = [(name.removeprefix("crates/"), [file["summary"]]) for name, file in files]
    for crate in MEASURED:
        of_crate = [file["summary"] for name, file in files if name.startswith(f"crates/{crate}/")]
        rows.append((f"all of {crate}", of_crate))
    rows.append(("total", [file["summary"] for _, file in files]))
    lines = [f"{'file':44} {'lines':>13} {'%':>6} {'branches':>13} {'%':>6}"]
    for name, summaries in rows:
        cells = [_cells(summaries, kind) for kind in ("lines", "branches")]
        lines.append(f"{name:44} " + " ".join(cells))
    return "\n".join(lines)


def _cells(summaries: list[dict[str, Any]], kind: str) -> str:
    covered = sum(summary[kind]["covered"] for summary in summaries)
    count = sum(summary[kind]["count"] for summary in summaries)
    percent = f"{100 * covered / count:6.1f}" if count else "     -"
    return f"{covered:6}/{count:<6} {percent}"


def missed_lines(file: dict[str, Any]) -> list[int]:
    """Lines where a region begins that was never entered."""
    segments = file["segments"]  # line, column, count, has count, begins a region, is a gap
    return sorted(
        {line for line, _, count, counted, begins, gap in segments if counted and begins and not gap and count == 0}
    )


def one_sided_branches(file: dict[str, Any]) -> list[str]:
    """Conditions that were evaluated, with one outcome. Each copy of a generic function counts, so
    the outcomes are summed.
    """
    outcomes: dict[tuple[int, int], tuple[int, int]] = {}
    for line, column, _, _, held, failed, *_ in file["branches"]:
        before = outcomes.get((line, column), (0, 0))
        outcomes[line, column] = (before[0] + held, before[1] + failed)
    return [
        f"{line}:{column} {'never' if held == 0 else 'always'}"
        for (line, column), (held, failed) in sorted(outcomes.items())
        if (held == 0) != (failed == 0)
    ]


def _runs(command: tuple[str, ...]) -> bool:
    try:
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
