#!/usr/bin/env python3
"""Runs unmodified RDMA programs between two hosts on a machine that is starved, and counts which of
them fail.

Nothing that is alive may be declared dead: each program must end as on an idle machine. `--short`
is the part that `make test` runs. `--record` adds the runs to `runs.csv` and makes only those that
it lacks, so that hours of runs can be made in parts, and by several processes at once (`--only`).

Needs release binaries (`make build`); root, or unprivileged user namespaces. CPU quotas need root.
"""

from __future__ import annotations

import argparse
import math
import random
import re
import sys
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import hardships
import tallies
from airdma_lab import build, privileges, requirements, table
from airdma_lab.lab import Host, Lab
from airdma_lab.program import Program
from hardships import Hardship
from tallies import Tally

RUN_S = 120.0
"""A run that takes longer hangs."""
LISTEN_S = 60.0
SHOWN_MAX = 3
"""Failures of a line that are printed whole."""
RECORDED_RUNS = 5
"""Runs of a line that are recorded together, at most: what an interruption loses."""


@dataclass(frozen=True)
class Pair:
    """A server and its client. `port` is the TCP port of the server; 0: it listens by RDMA CM."""

    name: str
    argv: list[str]
    count: str
    """The option for the number of repetitions; `short` and `long` hold that of a short run and of
    one that a hardship strikes in the middle.
    """
    short: int
    long: int
    port: int
    server_only: tuple[str, ...] = ()
    client_only: tuple[str, ...] = ()
    address: tuple[str, ...] = ()
    """The option before the server's address; rping's server wants it, too."""
    environment: tuple[tuple[str, str], ...] = ()
    sleeps: bool = False
    """It sleeps until something comes; others spin."""

    def commands(self, host: Host, long: bool) -> tuple[list[str], list[str]]:
        argv = [*self.argv, self.count, str(self.long if long else self.short)]
        to = [*self.address, host.ipv4]
        server = [*argv, *self.server_only, *(to if self.port == 0 else [])]
        return build.with_airdma(server), build.with_airdma([*argv, *self.client_only, *to])


PAIRS = [
    Pair("ibv_rc_pingpong", ["ibv_rc_pingpong", "-c", "-g", "0"], "-n", 100, 60000, 18515),
    Pair("ibv_rc_pingpong -e", ["ibv_rc_pingpong", "-c", "-e", "-g", "0"], "-n", 100, 40000, 18515, sleeps=True),
    Pair("rping", ["rping", "-V"], "-C", 50, 12000, 0, ("-s",), ("-c",), ("-a",), sleeps=True),
    Pair("ib_write_bw", ["ib_write_bw", "-F", "-s", "65536"], "-n", 100, 20000, 18515),
    Pair(
        "ucx_perftest",
        ["ucx_perftest", "-t", "tag_lat", "-s", "1024", "-p", "13337"],
        "-n",
        100,
        60000,
        13337,
        environment=(("UCX_TLS", "rc_v"), ("UCX_IB_GID_INDEX", "0")),
    ),
]


def main() -> int:
    arguments = _arguments()
    requirements.ensure([*requirements.LAB_TOOLS, "cc", "ib_write_bw", "ibv_rc_pingpong", "rping", "ucx_perftest"])
    build.require()
    privileges.enter()
    if arguments.short:
        arguments.runs = 1
    rows = [["hardship", "program", "runs", "failed", "longest"]]
    total = Tally()
    for hardship in hardships.all_of(arguments.short):
        if arguments.list or (reason := hardship.impossible()):
            print(hardship.name if arguments.list else f"skipped: {hardship.name}: {reason}", flush=True)
            continue
        for pair in PAIRS:
            # Two programs that spin on a starved machine take minutes for a hundred round trips:
            # the scheduler's time, not airdma's.
            if arguments.short and not (hardship.strikes or pair.sleeps):
                continue
            name = f"{hardship.name}: {pair.name}"
            runs = math.ceil(arguments.runs / hardship.of_a_kind)
            if arguments.record:
                runs -= tallies.recorded().get((hardship.name, pair.name), Tally()).runs
            if runs > 0 and re.search(arguments.only, name):
                tally = _line(pair, hardship, runs, arguments.record)
                total += tally
                rows.append([hardship.name, pair.name, str(tally.runs), str(tally.failed), f"{tally.longest_s:.1f} s"])
                print(f"{name}: {tally.failed} of {tally.runs} failed, {tally.longest_s:.1f} s at most", flush=True)
    print("\n" + table.aligned(rows))
    print(f"starve: {total.runs - total.failed} passed, {total.failed} failed")
    return 1 if total.failed else 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="of each program in each kind of hardship (default 200)")
    parser.add_argument("--record", action="store_true", help="add the runs to runs.csv, and make those that it lacks")
    parser.add_argument("--only", default="", metavar="REGEX", help='only "HARDSHIP: PROGRAM" that match')
    parser.add_argument("--short", action="store_true", help="once each, and of each kind of hardship one")
    parser.add_argument("--list", action="store_true", help="print the hardships and stop")
    return parser.parse_args()


def _line(pair: Pair, hardship: Hardship, runs: int, is_recorded: bool) -> Tally:
    total = Tally()
    with Lab() as lab, hardship.imposed(lab):
        while total.runs < runs:
            part = Tally()
            for number in range(total.runs, min(total.runs + RECORDED_RUNS, runs)):
                started = time.monotonic()
                complaint = _run(lab, pair, hardship)
                part += Tally(1, int(bool(complaint)), time.monotonic() - started)
                if complaint and total.failed + part.failed <= SHOWN_MAX:
                    print(
                        f"FAILED {hardship.name}: {pair.name}, run {number}\n{complaint}", file=sys.stderr, flush=True
                    )
            total += part
            if is_recorded:
                tallies.add(hardship.name, pair.name, part)
    return total


def _run(lab: Lab, pair: Pair, hardship: Hardship) -> str:
    """What went wrong; "" if all went well."""
    commands = pair.commands(lab.b, hardship.strikes)
    environment = dict(pair.environment)
    argv = [hardship.wrap(command, side) for command, side in zip(commands, "ba", strict=True)]
    server = lab.b.start(argv[0], environment, own_session=False)
    client = None
    try:
        hardship.admit(server, "b")
        if not _is_ready(server, pair.port):
            return f"the server does not listen\n{server.wait(0).explain()}"
        client = lab.a.start(argv[1], environment, own_session=False)
        hardship.admit(client, "a")
        hardship.strike(server, client, random.uniform(0.2, 0.4))
        if hardship.strikes and client.has_exited() and client.wait(0).ok:
            return "it ended before the hardship did: more repetitions are needed"
        outcomes = [client.wait(RUN_S), server.wait(10.0)]
    finally:
        for program in filter(None, (server, client)):
            (lab.b if program is server else lab.a).forget(program)
    return "" if all(outcome.ok for outcome in outcomes) else "\n".join(outcome.explain() for outcome in outcomes)


def _is_ready(server: Program, port: int) -> bool:
    if port:
        return server.wait_listening(port, "tcp", LISTEN_S)
    # rping's server sleeps when it listens.
    return server.wait_idle(LISTEN_S)


if __name__ == "__main__":
    sys.exit(main())
