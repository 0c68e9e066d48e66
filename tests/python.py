#!/usr/bin/env python3
"""Runs ruff (format and rules) and mypy (strict) over the Python of packaging/, tools/, tests/ and
fuzz/. Part of `make lint`.

Both come from PyPI in the versions of tests/python-lint.txt, in a virtual environment in
target/python-lint, which is made when it is absent or holds other versions; afterwards no network
is needed. pyproject.toml has the rules.

  python3 tests/python.py          checks
  python3 tests/python.py --fix    rewrites what ruff can rewrite, then checks
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PINNED = ROOT / "tests" / "python-lint.txt"
ENVIRONMENT = ROOT / "target" / "python-lint"
PYTHON = ENVIRONMENT / "bin" / "python"
RUFF_PATHS = ["packaging", "tools", "tests", "fuzz"]
GROUPS = {
    "packaging": [],
    "tools": ["tests/system"],
    "tests": ["tools"],
    "tests/instructions": ["tools"],
    "tests/interop": ["tools", "tests/system"],
    "tests/lab": [
        "tools",
        "tests",
        *(f"tests/{name}" for name in ("system", "instructions", "interop", "mutants", "rdma_core", "starve")),
    ],
    "tests/mutants": ["tools"],
    "tests/packages": ["packaging", "tools"],
    "tests/rdma_core": ["tools"],
    "tests/sockets": ["tools", "tests/system"],
    "tests/starve": ["tools"],
    "tests/system": ["tools"],
    "fuzz": [],
}
"""Folder that mypy checks in one run -> folders that its files put on `sys.path`, besides their
own.

Several folders have a `run.py` and a `table.py`, which one run could not tell apart.
"""
FILES_ONLY = ("tests", "fuzz")
"""Folders of which only the files are checked: their subfolders are groups, or hold no Python."""


def main() -> int:
    fix = sys.argv[1:] == ["--fix"]
    if sys.argv[1:] and not fix:
        print(__doc__, file=sys.stderr)
        return 2
    if not _is_current() and not _make_environment():
        return 2
    if fix:
        _print_run([*_tool("ruff"), "check", "--fix", "--quiet", *RUFF_PATHS])
        _print_run([*_tool("ruff"), "format", "--quiet", *RUFF_PATHS])
    results = [
        _print_run([*_tool("ruff"), "format", "--check", "--quiet", *RUFF_PATHS]),
        _print_run([*_tool("ruff"), "check", "--output-format", "concise", "--quiet", *RUFF_PATHS]),
        _mypy(),
    ]
    return 0 if all(results) else 1


def _tool(name: str) -> list[str]:
    return [str(PYTHON), "-m", name]


def _is_current() -> bool:
    kept = ENVIRONMENT / PINNED.name
    return kept.exists() and kept.read_bytes() == PINNED.read_bytes()


def _make_environment() -> bool:
    """Makes the virtual environment anew. Where Python has no ensurepip (Debian's python3-venv),
    pip comes from PATH.
    """
    shutil.rmtree(ENVIRONMENT, ignore_errors=True)
    ENVIRONMENT.parent.mkdir(exist_ok=True)
    with_pip = importlib.util.find_spec("ensurepip") is not None
    pip = [str(PYTHON), "-m", "pip"] if with_pip else ["pip", "--python", str(PYTHON)]
    commands = [
        [sys.executable, "-m", "venv", *([] if with_pip else ["--without-pip"]), str(ENVIRONMENT)],
        [*pip, "install", "--quiet", "--disable-pip-version-check", "--requirement", str(PINNED)],
    ]
    for command in commands:
        try:
            succeeded = subprocess.run(command, check=False).returncode == 0
        except FileNotFoundError:
            succeeded = False
        if not succeeded:
            print(f"{' '.join(command)} failed: install python3-venv or python3-pip, and reach PyPI.", file=sys.stderr)
            return False
    shutil.copy(PINNED, ENVIRONMENT)
    return True


def _mypy() -> bool:
    """Checks all groups, as many at a time as there are cores."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return all(list(pool.map(_mypy_group, GROUPS)))


def _mypy_group(folder: str) -> bool:
    cache = ENVIRONMENT / "mypy" / folder.replace("/", "-")
    paths = map(str, sorted((ROOT / folder).glob("*.py"))) if folder in FILES_ONLY else [folder]
    environment = {**os.environ, "MYPYPATH": os.pathsep.join(GROUPS[folder])}
    command = [*_tool("mypy"), "--no-error-summary", "--cache-dir", str(cache), *paths]
    return _print_run(command, environment)


def _print_run(command: list[str], environment: dict[str, str] | None = None) -> bool:
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    print(done.stdout + done.stderr, end="", flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
