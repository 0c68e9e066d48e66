#!/usr/bin/env python3
"""Runs socket programs under `airdma sockets`, at both ends, at one, and without it, and compares
what they do.

Needs the release binaries (`make build`). Root, or unprivileged user namespaces.

  run.py                       all suites
  run.py --short               a few minutes of them: what `make test` runs
  run.py --only traps,faults   some of them
  run.py --match 'trap 7'      traps and programs whose name matches
  run.py --only machine --seed 100 --seeds 50 --steps 200
                               random sequences of calls, from a seed on
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "system"))

import busy
import calls
import counted
import cut
import datagrams
import frozen
import machine
import policy
import traps
import unmodified
from airdma_lab import build, privileges
from airdma_lab.lab import Lab
from case import Tally
from ends import BOTH, SHIMMED

SHORT = ("traps", "machine", "programs", "policy", "frozen", "counted")
SUITES = ("traps", "machine", "programs", "policy", "datagrams", "cut", "frozen", "busy", "counted", "calls", "faults")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"suites: {', '.join(SUITES)}")
    parser.add_argument("--short", action="store_true", help="with the shim at both ends alone, and no slow traps")
    parser.add_argument("--match", default="", help="regular expression on the names of traps and programs")
    parser.add_argument("--full", action="store_true", help="programs with the shim at each end alone, not in turns")
    parser.add_argument("--seed", type=int, help="first seed of the state machine")
    parser.add_argument("--seeds", type=int, default=1, help="how many, from --seed on")
    parser.add_argument("--record", action="store_true", help="write what was seen of programs to docs/programs.md")
    parser.add_argument("--steps", type=int, default=machine.STEPS, help="length of a sequence")
    arguments = parser.parse_args()
    only = set(arguments.only.split(",") if arguments.only else SHORT if arguments.short else SUITES)
    if unknown := only - set(SUITES):
        print(f"there is no suite {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    build.require()
    privileges.enter()
    tally = Tally()
    with Lab() as lab, tempfile.TemporaryDirectory() as at:
        folder = Path(at)
        folder.chmod(0o755)
        chosen = [trap for trap in traps.all_traps() if re.search(arguments.match, trap.name)]
        if arguments.short:
            chosen = [trap for trap in chosen if trap.number not in traps.SLOW]
        if "traps" in only:
            with tally.part("traps"):
                traps.run(lab, tally, folder, chosen, (BOTH,) if arguments.short else SHIMMED)
        if "machine" in only:
            seeds = machine.SEEDS if arguments.seed is None else range(arguments.seed, arguments.seed + arguments.seeds)
            with tally.part("machine"):
                machine.run(lab, tally, folder, seeds, arguments.steps)
        if "programs" in only:
            with tally.part("programs"):
                match, full, short = arguments.match, arguments.full, arguments.short
                outcomes = unmodified.run(lab, tally, folder, match, full=full, short=short)
                if arguments.record:
                    outcomes.write()
        if "policy" in only:
            with tally.part("policy"):
                policy.run(lab, tally, folder, arguments.match)
        if "datagrams" in only:
            with tally.part("datagrams"):
                datagrams.run(lab, tally, folder, arguments.match)
        if "cut" in only:
            with tally.part("cut"):
                cut.run(lab, tally, folder)
        if "frozen" in only:
            with tally.part("frozen"):
                frozen.run(lab, tally, folder)
        if "busy" in only:
            with tally.part("busy"):
                busy.run(lab, tally, folder)
        if "counted" in only:
            with tally.part("counted"):
                counted.run(lab, tally)
        if "calls" in only:
            with tally.part("calls"):
                calls.run(lab, tally, folder, arguments.match)
        if "faults" in only:
            with tally.part("faults"):
                traps.run_faults(lab, tally, folder, chosen)
                machine.run_faults(lab, tally, folder)
    for name, complaints in tally.failures.items():
        print(f"---- {name}\n{complaints}")
    print(tally.summary())
    print(tally.slowest())
    print(tally.closing_line())
    return 1 if tally.failures or not tally.passed else 0


if __name__ == "__main__":
    sys.exit(main())
