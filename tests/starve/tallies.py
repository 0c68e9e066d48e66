"""How often each program has run in each hardship, over all runs that were recorded."""

from __future__ import annotations

import csv
import fcntl
from dataclasses import dataclass, replace
from pathlib import Path

RECORD = Path(__file__).with_name("runs.csv")
COLUMNS = ("hardship", "program", "runs", "failed", "longest_s")


@dataclass(frozen=True)
class Tally:
    """The runs of one program in one hardship."""

    runs: int = 0
    failed: int = 0
    longest_s: float = 0.0

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.runs + other.runs, self.failed + other.failed, max(self.longest_s, other.longest_s))


def recorded(path: Path = RECORD) -> dict[tuple[str, str], Tally]:
    """Hardship and program -> what was recorded of them."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {
            (row["hardship"], row["program"]): Tally(int(row["runs"]), int(row["failed"]), float(row["longest_s"]))
            for row in csv.DictReader(file)
        }


def add(hardship: str, program: str, tally: Tally, path: Path = RECORD) -> None:
    """Adds to what was recorded. Several processes may do so at once."""
    with path.with_suffix(".lock").open("w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        of_all = recorded(path)
        before = of_all.get((hardship, program), Tally())
        total = before + replace(tally, longest_s=round(tally.longest_s, 1))
        of_all[hardship, program] = total
        new = path.with_suffix(".new")
        with new.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows((*key, one.runs, one.failed, one.longest_s) for key, one in sorted(of_all.items()))
        new.replace(path)
