#!/usr/bin/env python3
"""Holds the workspace to ARCHITECTURE.md: who depends on whom, which crates are free of unsafe code, no stray paths;
and what threads share to the table in docs/design/011-concurrency.md."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("crates", "testing", "bench")
PREFIX = "airdma-"
NORTH = "airdma"
"""The crate whose name has nothing behind the prefix."""
ONLY_FOR_TESTS = {"sim", "captures", "lab"}
"""Crates that any other may use in its tests."""

FORBIDS_UNSAFE = ("wire", "transport", "cm", "sim", "model", "captures", "files", "transfer")

# Paths of machines that this project was written on mean nothing to a reader. The first letter in brackets keeps this
# list from finding itself.
STRAY = re.compile(r"[/]work/|\.\.[/]shared|[/]root/|[/]home/\w+/|[/]tmp/(?:wt|target)-|\.[l]ibrary/")

SHARED = ROOT / "docs" / "design" / "011-concurrency.md"
ATOMIC = r"(?:Atomic(?:Bool|Ptr|[IU](?:8|16|32|64|size))|\bWord)\b"
FIELD = re.compile(rf"^ *(?:pub(?:\(\w+\))? )?(?:static )?(?:shared!\()?(\w+): [^=\n;(]*{ATOMIC}", re.MULTILINE)
TUPLE = re.compile(rf"struct (\w+)\([^)]*{ATOMIC}")
TESTS = re.compile(r"#\[cfg\((?:test|all\(test, not\(loom\)\))\)\]\nmod tests \{")


def main() -> int:
    complaints = [
        *dependency_complaints(_metadata(), _table()),
        *unsafe_complaints(),
        *stray_complaints(),
        *shared_complaints(),
    ]
    for complaint in complaints:
        print(f"architecture: {complaint}")
    print(f"architecture: {'FAILED' if complaints else 'ok'}")
    return 1 if complaints else 0


def dependency_complaints(metadata: dict[str, Any], allowed: dict[str, set[str]]) -> list[str]:
    """What `cargo metadata` says against the table: crate -> crates it may depend on."""
    complaints = []
    found = {_short(package["name"]): package["dependencies"] for package in metadata["packages"]}
    for crate, dependencies in sorted(found.items()):
        if crate not in allowed:
            complaints.append(f"crate {crate} is missing from the table in ARCHITECTURE.md")
            continue
        for dependency in dependencies:
            name = _short(dependency["name"])
            extra = ONLY_FOR_TESTS if dependency["kind"] == "dev" else set()
            is_ours = dependency["name"].startswith(PREFIX) or dependency["name"] == NORTH
            if is_ours and name not in allowed[crate] | extra:
                complaints.append(f"{crate} may not depend on {name} ({dependency['kind'] or 'normal'} dependency)")
    complaints += [f"the table names {crate}, which does not exist" for crate in sorted(allowed.keys() - found.keys())]
    return complaints


def parse_table(markdown: str) -> dict[str, set[str]]:
    """The rows below "| crate | may depend on |"."""
    allowed: dict[str, set[str]] = {}
    lines = iter(markdown.splitlines())
    for line in lines:
        if re.fullmatch(r"\|\s*crate\s*\|\s*may depend on\s*\|", line.strip()):
            break
    for line in lines:
        if not line.startswith("|"):
            break
        crate, may = (cell.strip() for cell in line.strip().strip("|").split("|"))
        if not set(crate) <= {"-", ":"}:
            allowed[crate] = {name.strip() for name in may.split(",") if name.strip()}
    return allowed


def unsafe_complaints() -> list[str]:
    """Crates that promise to contain no unsafe code must make the compiler enforce it."""
    sources = {crate: next(ROOT.glob(f"*/{crate}/src/lib.rs")) for crate in FORBIDS_UNSAFE}
    return [
        f"crate {crate} lacks #![forbid(unsafe_code)]"
        for crate, source in sources.items()
        if "#![forbid(unsafe_code)]" not in source.read_text(encoding="utf-8")
    ]


def stray_complaints() -> list[str]:
    """No file of the project names a path of the machine it was written on."""
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    files = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\0")
    complaints = []
    for file in filter(None, files):
        path = ROOT / file
        if path.is_file():
            found = STRAY.search(path.read_text(encoding="utf-8", errors="ignore"))
            complaints += [f"{file} contains {found.group()!r}"] if found else []
    return complaints


def shared_complaints() -> list[str]:
    """Whatever threads or processes share is in the table that says who writes it, and what checks that. `fuzz-bodies` is a test."""
    named = shared_names(SHARED.read_text(encoding="utf-8"))
    complaints = []
    sources = (path for folder in FOLDERS for path in ROOT.glob(f"{folder}/*/src/**/*.rs"))
    for path in sorted(sources):
        if "tests" not in (path.stem, *path.parts) and "fuzz-bodies" not in path.parts:
            missing = sorted(atomics(path.read_text(encoding="utf-8")) - named)
            complaints += [f"{path.relative_to(ROOT)}: `{name}` is not in {SHARED.name}" for name in missing]
    return complaints


def atomics(source: str) -> set[str]:
    """Fields, statics and tuple structs of a Rust source that hold atomics; its tests are their own business."""
    source = TESTS.split(source)[0]
    return {*FIELD.findall(source), *TUPLE.findall(source)} - {"_pad"}


def shared_names(markdown: str) -> set[str]:
    """The words in code below "## What is shared"."""
    table = markdown.partition("## What is shared")[2].partition("\n## ")[0]
    return {word for code in re.findall(r"`([^`]+)`", table) for word in re.findall(r"\w+", code)}


def _metadata() -> dict[str, Any]:
    command = ["cargo", "metadata", "--format-version", "1", "--no-deps"]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


def _table() -> dict[str, set[str]]:
    return parse_table((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))


def _short(name: str) -> str:
    return name.removeprefix(PREFIX)


if __name__ == "__main__":
    sys.exit(main())
