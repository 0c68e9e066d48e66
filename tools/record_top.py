#!/usr/bin/env python3
"""Records the screen of `airdma top` beside programs that run on a network for tests, as
docs/top.svg.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from airdma_lab import build, devices
from airdma_lab.lab import Lab
from airdma_lab.program import Program

PROGRAMS: tuple[tuple[list[str], str, dict[str, str]], ...] = (
    (["ib_write_bw", "-s", "65536", "-q", "2"], "18515", {}),
    (["ib_send_bw", "-s", "4096", "-r", "16"], "18516", {"AIRDMA_IMPAIR": "drop=0.2%"}),
)
"""Command, port at which both ends meet, environment: one of them loses packets."""
RUN_S = 8
_LIMIT_S = 30.0


def record() -> str:
    """The screen at the host of the clients."""
    with Lab() as lab:
        index = str(devices.gid_index(lab.b, 4))
        started: list[Program] = []
        for argv, port, environment in PROGRAMS:
            command = build.with_airdma([*argv, "-D", str(RUN_S), "-p", port, "-x", index])
            server = lab.b.start(command, environment)
            if not server.wait_listening(int(port), "tcp", _LIMIT_S):
                raise SystemExit(server.stop().explain())
            started += [server, lab.a.start([*command, lab.b.ipv4], environment)]
        time.sleep(RUN_S / 2)
        outcome = lab.a.run([str(build.binary()), "top", "--once", "--svg"])
        if not outcome.ok:
            raise SystemExit(outcome.explain())
        for program in started:
            program.wait(_LIMIT_S)
        return outcome.stdout


def main() -> None:
    """Writes the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=build.ROOT / "docs" / "top.svg")
    options = parser.parse_args()
    build.require()
    options.output.write_text(record())


if __name__ == "__main__":
    main()
