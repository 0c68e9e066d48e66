"""What was seen when the catalogue of real programs last ran, for docs/programs.md."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from airdma_lab import build
from entries import ENTRIES
from entry import Entry
from observed import HERE

SEEN = HERE / "seen.json"
"""Name of the entry -> what docs/programs.md says of it."""
_TABLE = build.ROOT / "tools" / "programs_table.py"
_LANES = (("TCP", re.compile(r"([1-9]\d*) connections on a lane")), ("UDP", re.compile(r"([1-9]\d*) ends of UDP on a")))


def lanes_of(said: str) -> set[str]:
    """Protocols of which a process says, when it ends, that they had lanes."""
    return {name for name, pattern in _LANES if pattern.search(said)}


class Seen:
    """Outcomes of this run."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, object]] = {}

    def add(self, entry: Entry, ends: list[str], lanes: set[str], passed: bool) -> None:
        """An entry has run, with the library at these `ends`."""
        self._rows[entry.name] = {
            "package": _package(entry.needs),
            "servers": [command for command, _ in entry.servers],
            "client": entry.client,
            "ends": ends,
            "lanes": sorted(lanes),
            "passed": passed,
        }

    def write(self) -> None:
        """Keeps what was seen, and writes docs/programs.md."""
        before = json.loads(SEEN.read_text(encoding="utf-8")) if SEEN.exists() else {}
        now = {**before, **self._rows}
        kept = {entry.name: now[entry.name] for entry in ENTRIES if entry.name in now}
        SEEN.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        subprocess.run([sys.executable, _TABLE], check=True)


def _package(needs: tuple[str, ...]) -> str:
    """The package of the first program, with its version."""
    path = (shutil.which(needs[0]) or needs[0]) if needs else "/usr/bin/python3"
    real = str(Path(path).resolve())
    # Packages from before /bin and /usr/bin were one name the former.
    names = [real, real.removeprefix("/usr")]
    owner = subprocess.run(["dpkg", "--search", *names], capture_output=True, text=True, check=False)
    name = owner.stdout.partition(":")[0]
    query = ["dpkg-query", "--show", "--showformat=${Version}", name]
    version = subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()
    return f"{name} {version}" if name else "-"
