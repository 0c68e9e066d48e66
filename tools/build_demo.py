#!/usr/bin/env python3
"""Builds what `make demo` needs, and says how far it is: minutes without a word look like a machine
that hangs.
"""

from __future__ import annotations

import json
import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ["airdma-verbs", "airdma-cli"]
"""libairdma.so, and the command that runs programs on it."""
SAY_EVERY_S = 10.0


def main() -> int:
    if "AIRDMA_BINARY" in os.environ:
        # What is built elsewhere is run.
        return 0
    cargo = shlex.split(os.environ.get("CARGO", "cargo"))
    chosen = [option for package in PACKAGES for option in ("--package", package)]
    total = _count(cargo, chosen)
    started = time.monotonic()
    build = [*cargo, "build", "--release", "--quiet", "--message-format=json-render-diagnostics", *chosen]
    child = subprocess.Popen(build, cwd=ROOT, stdout=subprocess.PIPE, text=True, encoding="utf-8")
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_read, args=(child, lines), daemon=True).start()
    built: set[str] = set()
    name, said = "", 0.0
    while True:
        line = None
        try:
            line = lines.get(timeout=SAY_EVERY_S)
            if line is None:
                break
            message = json.loads(line)
            if message.get("reason") == "compiler-artifact":
                built.add(message["package_id"])
                name = message["target"]["name"]
        except queue.Empty:
            pass
        elapsed = time.monotonic() - started
        # Where all is there already, nothing is said.
        if elapsed - said >= SAY_EVERY_S:
            said = elapsed
            print(f"building airdma: {len(built)} of {total} crates after {elapsed:.0f} s (last: {name})", flush=True)
    status = child.wait()
    if status == 0 and said:
        print(f"built in {time.monotonic() - started:.0f} s", flush=True)
    return status


def _count(cargo: list[str], chosen: list[str]) -> int:
    """Crates that the packages consist of, themselves included."""
    tree = [*cargo, "tree", "--quiet", "--edges", "normal,build", "--prefix", "none", "--no-dedupe", *chosen]
    listed = subprocess.run(tree, cwd=ROOT, capture_output=True, text=True, check=False).stdout
    return len({" ".join(line.split()[:2]) for line in listed.splitlines() if line.strip()})


def _read(child: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if child.stdout:
        for line in child.stdout:
            lines.put(line)
    lines.put(None)


if __name__ == "__main__":
    sys.exit(main())
