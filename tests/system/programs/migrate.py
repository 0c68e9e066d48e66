#!/usr/bin/env python3
"""QEMU's live migration over RDMA, with memory that is compared. The guest has no disk: its
firmware runs, and a file lies in its memory.

migrate.py FOLDER receive ADDRESS migrate.py FOLDER send ADDRESS [CAPABILITY...]
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PORT = 4444
PATTERN_AT = 0x200_0000
LIMIT_S = 40.0
MACHINE = [
    "qemu-system-x86_64",
    "-machine",
    "pc,accel=tcg",
    "-m",
    "64",
    "-nodefaults",
    "-display",
    "none",
    "-qmp",
    "stdio",
]


class Monitor:
    """A machine of QEMU's, driven by QMP."""

    def __init__(self, *options: str) -> None:
        self.process = subprocess.Popen([*MACHINE, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._read()
        self.ask("qmp_capabilities")

    def ask(self, execute: str, **arguments: object) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"execute": execute, "arguments": arguments}) + "\n")
        self.process.stdin.flush()
        while True:
            said = self._read()
            if "error" in said:
                raise SystemExit(f"{execute}: {said['error']['desc']}")
            if "return" in said:
                returned: dict[str, Any] = said["return"]
                return returned

    def wait(self, execute: str, *wanted: str) -> str:
        deadline = time.monotonic() + LIMIT_S
        while (status := str(self.ask(execute).get("status", "none"))) not in wanted:
            if time.monotonic() > deadline:
                raise SystemExit(f"{execute}: still {status}")
            time.sleep(0.05)
        return status

    def _read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            # QEMU's migration prints there, too.
            if line.startswith("{"):
                said: dict[str, Any] = json.loads(line)
                return said
            print(line, end="")
        raise SystemExit(f"QEMU ended: {self.process.wait()}")

    def quit(self) -> None:
        self.ask("quit")
        if code := self.process.wait(10):
            raise SystemExit(f"QEMU ended: {code}")


def receive(folder: Path, address: str) -> None:
    monitor = Monitor("-incoming", f"rdma:{address}:{PORT}")
    monitor.wait("query-status", "running")
    received = folder / "received_memory"
    monitor.ask("pmemsave", val=PATTERN_AT, size=(folder / "memory").stat().st_size, filename=str(received))
    monitor.quit()
    if received.read_bytes() != (folder / "memory").read_bytes():
        raise SystemExit("the memory differs")
    print("the memory is the same")


def send(folder: Path, address: str, *capabilities: str) -> None:
    monitor = Monitor("-device", f"loader,file={folder / 'memory'},addr={PATTERN_AT:#x},force-raw=on")
    wanted = [{"capability": name, "state": True} for name in capabilities]
    monitor.ask("migrate-set-capabilities", capabilities=wanted)
    monitor.ask("migrate", uri=f"rdma:{address}:{PORT}")
    status = monitor.wait("query-migrate", "completed", "failed")
    monitor.quit()
    print(f"the migration has {status}")


if __name__ == "__main__":
    commands = {"receive": receive, "send": send}
    commands[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
