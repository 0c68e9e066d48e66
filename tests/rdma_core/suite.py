"""rdma-core's tests as Debian ships them: gzipped, among the documentation of python3-pyverbs."""

from __future__ import annotations

import gzip
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = "python3-pyverbs"
FOLDER = Path("usr/share/doc/rdma-core/tests")
PYTHON = "/usr/bin/python3"
"""Debian's interpreter, which the package is for."""


def unpack(to: Path, root: Path = Path("/")) -> None:
    """Puts the tests of the package that is installed in `root` in `to`/tests. Leaves with exit
    code 2 and says what to do if they cannot be had.
    """
    source = root / FOLDER
    if not any(source.glob("base.py*")):
        # Images often leave documentation out when they install packages (dpkg's path-exclude).
        source = _from_archive(to) / FOLDER
    tests = to / "tests"
    tests.mkdir()
    for entry in source.iterdir():
        if entry.suffix == ".gz":
            (tests / entry.stem).write_bytes(gzip.decompress(entry.read_bytes()))
        elif entry.suffix == ".py":
            shutil.copy(entry, tests)


def version() -> str:
    """Version of the installed package."""
    query = ["dpkg-query", "--show", "--showformat", "${Version}", PACKAGE]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout.strip()


def _from_archive(to: Path) -> Path:
    package, unpacked = to / "package", to / "unpacked"
    package.mkdir()
    # The tests go with the very version of the module that they call.
    fetch = ["apt-get", "download", f"{PACKAGE}={version()}"]
    result = subprocess.run(fetch, cwd=package, capture_output=True, text=True, check=False)
    archives = list(package.glob("*.deb"))
    if result.returncode != 0 or not archives:
        print(
            f"rdma-core's tests are not in /{FOLDER}: dpkg was told to leave documentation out (see path-exclude in "
            f"/etc/dpkg/dpkg.cfg.d), and `{' '.join(fetch)}` failed:\n{result.stderr.strip()}\n"
            f"Allow that folder (path-include=/{FOLDER}/*) and run: apt-get install --reinstall {PACKAGE}",
            file=sys.stderr,
        )
        sys.exit(2)
    subprocess.run(["dpkg", "-x", str(archives[0]), str(unpacked)], check=True)
    return unpacked
