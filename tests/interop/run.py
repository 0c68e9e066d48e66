#!/usr/bin/env python3
"""Runs airdma against the rxe of a stock Debian kernel, booted in QEMU, in both directions, and
prints what came of it.

Needs release binaries (`make build`), QEMU, and root or unprivileged user namespaces. Each failure
leaves its capture and what both ends said in target/interop. Without --quick, what was seen goes to
docs/interop.md.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/system"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import disks
import dmabuf
import document
import events
import image
import prepare
import table
import wifi
from airdma_lab import build, privileges
from airdma_lab.lab import Lab, LabError
from ends import RxeEnd
from guest import BootError, Guest, GuestError
from programs.end import AirdmaEnd
from stand import KEPT, Stand

HERE = Path(__file__).resolve().parent

PROGRAMS = {"verbs_check": ["-libverbs"], "verbs_services": ["-libverbs"], "cm_check": ["-lrdmacm", "-libverbs"]}
"""Those of tests/system that are compiled here, and what they are linked with."""
SKIPPED = build.ROOT / "target" / "interop-skipped"
"""Why the last run with --or-skip did nothing; `make test` repeats it at its end."""


def main() -> int:
    arguments = _arguments()
    work = _work(arguments.quick, re.compile(arguments.only), arguments.kernel)
    if arguments.list:
        print(*(name for name, _ in work), sep="\n")
        return 0
    SKIPPED.unlink(missing_ok=True)
    try:
        return _run(arguments, work)
    except (prepare.Missing, BootError) as error:
        if not arguments.or_skip:
            print(f"interop: {error}", file=sys.stderr)
            return 2
        SKIPPED.parent.mkdir(parents=True, exist_ok=True)
        SKIPPED.write_text(f"interop: SKIPPED: {error}\n", encoding="utf-8")
        print(SKIPPED.read_text(encoding="utf-8"), end="", file=sys.stderr)
        return 0


def _run(arguments: argparse.Namespace, work: list[tuple[str, Callable[[Stand], None]]]) -> int:
    kernel = prepare.image_of(arguments.kernel, any(disks.is_one(name) for name, _ in work))
    privileges.enter()
    started = time.monotonic()
    shutil.rmtree(KEPT, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="airdma-tests-") as folder, Lab() as lab, Guest(lab, kernel) as guest:
        print(f"guest {kernel.release} is up after {time.monotonic() - started:.1f} s", flush=True)
        stand = _stand(lab, guest, Path(folder))
        try:
            for _, run in work:
                run(stand)
        except GuestError as error:
            stand.give_up(str(error))
    if not arguments.quick:
        whole = not arguments.only
        document.write_scenarios(kernel.release, [vars(row) for row in stand.rows], whole)
    return stand.close(kernel.release, time.monotonic() - started)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernel", choices=list(image.KERNELS), default="6.1")
    parser.add_argument("--quick", action="store_true", help="what `make test` runs")
    parser.add_argument("--or-skip", action="store_true", help="exit with 0 where it cannot be run, and say why")
    parser.add_argument("--only", default="", metavar="REGEX", help="only what has a name that matches")
    parser.add_argument("--list", action="store_true", help="print the names and stop")
    return parser.parse_args()


def _work(quick: bool, only: re.Pattern[str], kernel: str) -> list[tuple[str, Callable[[Stand], None]]]:
    """All scenarios, by name."""
    every = [*table.work(quick, kernel), *events.work(), *wifi.work(quick)]
    if not quick:
        every += [*dmabuf.work(kernel), *disks.work(kernel)]
    return [(name, run) for name, run in every if only.search(name)]


def _stand(lab: Lab, guest: Guest, folder: Path) -> Stand:
    programs = guest.folder / "bin"
    programs.mkdir()
    for name, libraries in PROGRAMS.items():
        source = HERE.parent / "system" / f"{name}.c"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
        subprocess.run(["cc", *flags, "-o", str(programs / name), str(source), *libraries], check=True)
    rxe = RxeEnd(guest)
    rxe.set_up()
    return Stand(guest, AirdmaEnd(lab.a, programs), rxe, folder)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (LabError, GuestError) as error:
        print(f"interop: {error}", file=sys.stderr)
        sys.exit(1)
