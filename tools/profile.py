#!/usr/bin/env python3
"""Where the time of a perftest program goes, at both ends: runs it on airdma between two hosts of
the lab, one core each, under `perf record`, and prints the parts by library and by function. Needs
perf, perftest and a release build.

    profile.py ib_write_bw -s 65536 -D 3
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from airdma_lab import build, perftest, privileges, requirements
from airdma_lab.lab import Lab
from airdma_lab.pair import run_pair


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mtu", type=int, default=1500)
    parser.add_argument("--top", type=int, default=12, help="functions of each end")
    parser.add_argument("program", nargs=argparse.REMAINDER, help="a program of perftest, with its options")
    options = parser.parse_args()
    if not options.program:
        parser.error("which program? For example: ib_write_bw -s 65536 -D 3")
    requirements.ensure(["perf", options.program[0]])
    build.require()
    privileges.enter()
    with tempfile.TemporaryDirectory(prefix="airdma-profile-") as folder, Lab(options.mtu) as lab:
        files = {end: Path(folder, end) for end in ("server", "client")}
        server, client = (
            [
                "perf",
                "record",
                "-q",
                "-e",
                "cpu-clock",
                "-F",
                "4000",
                "-o",
                str(file),
                "--",
                *build.with_airdma(options.program),
            ]
            for file in files.values()
        )
        pair = run_pair(lab.b, lab.a, server, [*client, lab.b.ipv4], port=perftest.PORT)
        if not pair.ok or pair.client is None:
            print(pair.explain(), file=sys.stderr)
            return 1
        numbers = (line for line in pair.client.stdout.splitlines() if line.strip()[:1].isdigit())
        print(*options.program, *numbers, sep="\n")
        for end, file in files.items():
            print(f"\n{end}")
            for by, rows in (("dso", 5), ("symbol", options.top)):
                print("\n".join(_report(file, by)[:rows]))
    return 0


def _report(file: Path, by: str) -> list[str]:
    command = ["perf", "report", "--stdio", "--sort", by, "-i", str(file)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = (line.removesuffix("-").rstrip(" -") for line in said.splitlines())
    return [line for line in lines if line.strip() and not line.startswith("#")]


if __name__ == "__main__":
    sys.exit(main())
