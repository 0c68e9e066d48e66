#!/usr/bin/env python3
"""Makes the packages, looks at what is in them, and runs what they install.

`make test` runs the short part: the package is unpacked into a folder and used from there. With
`--roots` it is installed into fresh Debian systems (debootstrap; needs root and Debian's archive),
used between two hosts there, removed while programs run, and everything that is left is named.

  python3 tests/packages/run.py [--built FOLDER] [--roots bookworm,trixie]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "packaging"))

import contents
import deb
import fresh
import image_check
import python_package
import relatives
import release_files
import stage
from said import Failure, Skipped


def main() -> int:
    parser = argparse.ArgumentParser(description="tests the packages")
    parser.add_argument("--built", type=Path, default=stage.BUILT, help="folder of the binaries (`make build dropin`)")
    parser.add_argument("--wheel", metavar="PROFILE", help="make the wheel by this profile, too (release, dev)")
    parser.add_argument("--roots", default="", help="Debian releases to install into: bookworm,trixie")
    options = parser.parse_args()
    # Packed fast: how small it becomes is no question here.
    package = deb.build(options.built, deb.OUTPUT, "gzip")
    print(f"{package}: {package.stat().st_size / 2**20:.1f} MiB")
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch) / "root"
        passed = [run(check.__doc__, partial(check, package, root)) for check in contents.CHECKS]
        passed.append(run("The package for Fedora is right:", partial(relatives.check, options.built, root)))
    passed.append(run("The container image is right:", partial(image_check.check, options.built)))
    if options.wheel:
        passed.append(run("The wheel for Python works:", partial(python_package.check, options.wheel)))
    if options.roots:
        passed.append(run("A release is the same twice:", partial(release_files.check, options.built)))
    for release in filter(None, options.roots.split(",")):
        passed.append(run(f"Fresh {release}:", partial(fresh.check, package, release)))
        passed.append(run(f"The action on {release}:", partial(fresh.action, package, release)))
    print(f"packages: {sum(passed)} of {len(passed)} passed")
    return 0 if all(passed) else 1


def run(name: str | None, check: Callable[[], str]) -> bool:
    """Prints the outcome of one check, which returns what it saw."""
    started = time.monotonic()
    try:
        seen, passed = f"ok{check()}", True
    except Skipped as reason:
        seen, passed = f"skipped: {reason}", True
    except Failure as failure:
        seen, passed = f"FAILED: {failure}", False
    print(f"{name} {seen} ({time.monotonic() - started:.1f} s)", flush=True)
    return passed


if __name__ == "__main__":
    sys.exit(main())
