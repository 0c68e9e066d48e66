"""The drop-in directory: libibverbs.so.1 for LD_LIBRARY_PATH, without `airdma run`; and programs that ask for symbol versions."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from airdma_lab import build, devices
from airdma_lab.lab import Lab
from airdma_lab.pair import run_pair
from case import Tally
from output_checks import rounds_of

PORT = 18515
SOURCE = Path(__file__).resolve().with_name("dropin_reader.c")


def run(lab: Lab, tally: Tally, folder: Path) -> None:
    """Runs all of them; `folder` takes what is compiled."""
    reader = folder / "dropin_reader"
    flags = ["-O2", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["cc", *flags, "-o", str(reader), str(SOURCE), "-ldl"], check=True)
    tests: list[tuple[str, Callable[[], list[str]]]] = [
        ("the drop-in's symbols have their versions", lambda: _reads(lab, _dropin([str(reader)]))),
        ("dlvsym finds the preload's symbols", lambda: _reads(lab, build.with_airdma([str(reader)]))),
        ("ibv_rc_pingpong on the drop-in", lambda: _pingpong(lab)),
        ("perftest loads with the drop-in", lambda: _loads(lab)),
    ]
    for name, test in tests:
        started = time.monotonic()
        tally.record(name, test(), time.monotonic() - started)


def _dropin(argv: list[str]) -> list[str]:
    return ["env", f"LD_LIBRARY_PATH={build.dropin()}", *argv]


def _reads(lab: Lab, argv: list[str]) -> list[str]:
    outcome = lab.a.run(argv)
    found = outcome.ok and f"{devices.DEVICE}: MTU 1024" in outcome.stdout
    return [] if found else [outcome.explain()]


def _pingpong(lab: Lab) -> list[str]:
    argv = _dropin(["ibv_rc_pingpong", "-c", "-n", "500", "-g", str(devices.gid_index(lab.a, 4))])
    pair = run_pair(lab.a, lab.b, argv, [*argv, lab.a.ipv4], port=PORT, timeout_s=30)
    complaints = rounds_of(500)(pair)
    return [*complaints, pair.explain()] if complaints else []


def _loads(lab: Lab) -> list[str]:
    """perftest links hardware providers, which want symbols that only they use."""
    outcome = lab.a.run(_dropin(["ib_write_bw", "--version"]))
    return [] if "Version" in outcome.stdout else [outcome.explain()]
