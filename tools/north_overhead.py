#!/usr/bin/env python3
"""What the north API costs over raw verbs: its examples beside perftest, in turns, between two
hosts on this machine.

All run on the same engine, and all connect by address (RDMA CM); perftest calls the verbs, the
examples the crate `airdma`, or the Python package. The hosts are network namespaces with one core
each, joined by a veth. `cargo build --release --workspace --lib --bins --examples` comes first.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from airdma_lab import build, perftest, privileges, requirements, table
from airdma_lab.lab import Lab

ROCE_PORT = 4791
_PATIENCE_S = 15.0
_BEFORE_LISTENING_S = 0.5
DOCUMENT = build.ROOT / "docs" / "benchmarks" / "north.md"
PACKAGE = build.ROOT / "crates" / "airdma-python"


@dataclass(frozen=True)
class Comparison:
    """One thing that all can do."""

    name: str
    size: int
    raw: list[str]
    """perftest's command."""
    north: list[str]
    """The example, of the crate and of the package, and what its client is told."""
    is_latency: bool

    @property
    def unit(self) -> str:
        return "us" if self.is_latency else "Gb/s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="how often each is run (default 7)")
    parser.add_argument("--write", action="store_true", help=f"write {DOCUMENT.relative_to(build.ROOT)}")
    arguments = parser.parse_args()
    requirements.ensure([*requirements.LAB_TOOLS, *requirements.PERFTEST_TOOLS])
    build.require()
    privileges.enter()
    rows = [_titles()]
    with Lab() as lab, tempfile.TemporaryDirectory(prefix="airdma-python-") as site:
        _put_together(Path(site))
        for comparison in _comparisons():
            rows.append(_row(lab, comparison, arguments.rounds, site))
            print("  ".join(rows[-1]), file=sys.stderr, flush=True)
    load = " ".join(f"{value:.1f}" for value in os.getloadavg())
    print(table.aligned(rows))
    print(f"\nMedians of {arguments.rounds} runs in turns. Load of the machine at the end: {load}.")
    if arguments.write:
        DOCUMENT.write_text(_document(rows, arguments.rounds, load), encoding="utf-8")
    return 0


def _comparisons() -> list[Comparison]:
    latency = [
        Comparison(
            "message, half a round trip",
            size,
            ["ib_send_lat", "-R", "-F", "-n", "20000", "-s", str(size)],
            ["ping_pong", "measure", str(size), "20000"],
            True,
        )
        for size in (64, 4096)
    ]
    bandwidth = [
        Comparison(
            name,
            65536,
            [program, "-R", "-F", "--report_gbits", "-D", "2", "-f", "0", "-s", "65536"],
            ["bandwidth", verb, "65536", "2"],
            False,
        )
        for name, program, verb in (("messages", "ib_send_bw", "send"), ("one-sided writes", "ib_write_bw", "write"))
    ]
    return [*latency, *bandwidth]


def _titles() -> list[str]:
    overheads = ["raw verbs", "north API", "overhead", "Python", "overhead"]
    return ["what", "bytes", "unit", *overheads, "raw, all", "north, all", "Python, all"]


def _row(lab: Lab, comparison: Comparison, rounds: int, site: str) -> list[str]:
    taken: tuple[list[float], ...] = ([], [], [])
    for _ in range(rounds):
        for values, measure in zip(taken, (_raw, _north, _python), strict=True):
            values.append(measure(lab, comparison, site))
    raw, *others = (statistics.median(values) for values in taken)
    medians = [f"{raw:.2f}"]
    for median in others:
        overhead = median / raw - 1 if comparison.is_latency else raw / median - 1
        medians += [f"{median:.2f}", f"{overhead:+.1%}"]
    everything = [" ".join(f"{value:.2f}" for value in sorted(values)) for values in taken]
    return [comparison.name, str(comparison.size), comparison.unit, *medians, *everything]


def _raw(lab: Lab, comparison: Comparison, _: str) -> float:
    output = _run(lab, build.with_airdma(comparison.raw), build.with_airdma([*comparison.raw, lab.b.ipv4]))
    read = perftest.latency_us if comparison.is_latency else perftest.bandwidth_gbps
    return read(output)[comparison.size]


def _north(lab: Lab, comparison: Comparison, _: str) -> float:
    return _example(lab, comparison, [str(_built(comparison.north[0]))])


def _python(lab: Lab, comparison: Comparison, site: str) -> float:
    program = PACKAGE / "examples" / f"{comparison.north[0]}.py"
    return _example(lab, comparison, [sys.executable, str(program)], {"PYTHONPATH": site})


def _example(lab: Lab, comparison: Comparison, program: list[str], environment: dict[str, str] | None = None) -> float:
    verb, *rest = comparison.north[1:]
    output = _run(lab, [*program, "listen", lab.b.ipv4], [*program, verb, lab.b.ipv4, *rest], environment)
    titles, values = (line.split() for line in output.splitlines()[:2])
    return float(dict(zip(titles, values, strict=True))["median_us" if comparison.is_latency else "gbps"])


def _run(lab: Lab, server_argv: list[str], client_argv: list[str], environment: dict[str, str] | None = None) -> str:
    """What the client prints."""
    server = lab.b.start(server_argv, environment)
    if not server.wait_listening(ROCE_PORT, "udp", _PATIENCE_S) or not server.wait_idle(_PATIENCE_S):
        raise SystemExit(f"the server does not listen\n{server.stop().explain()}")
    # perftest binds the port some time before it listens, and nothing tells when it does.
    time.sleep(_BEFORE_LISTENING_S)
    client = lab.a.run(client_argv, environment, timeout_s=60)
    served = server.wait(_PATIENCE_S)
    lab.b.forget(server)
    if not client.ok or not served.ok:
        raise SystemExit(f"--- server\n{served.explain()}\n--- client\n{client.explain()}")
    return client.stdout


def _built(name: str) -> Path:
    path = build.binary().parent / "examples" / name
    if not path.exists():
        raise SystemExit(f"{path} does not exist: cargo build --release -p airdma --examples")
    return path


def _put_together(site: Path) -> None:
    """The Python package, as a wheel has it."""
    module = build.binary().with_name("lib_airdma.so")
    if not module.exists():
        raise SystemExit(f"{module} does not exist: cargo build --release -p airdma-python")
    shutil.copytree(PACKAGE / "python" / "airdma", site / "airdma")
    shutil.copy(module, site / "airdma" / "_airdma.abi3.so")


def _document(rows: list[list[str]], rounds: int, load: str) -> str:
    lines = [
        "# What the north API costs over raw verbs",
        "",
        f"`python3 tools/north_overhead.py --write`: medians of {rounds} runs in turns, between two network namespaces with one core each, joined by",
        "a veth of MTU 1500. Raw verbs: perftest under `airdma run`, connected by RDMA CM (`-R`), as the north API is. North API: the examples",
        "`ping_pong` and `bandwidth` of the crate; Python: those of the package. Overheads are over raw verbs; negative: better than those. In",
        "bandwidth the programs differ: the examples have 16 transfers under way, each with memory of its own, perftest 128 from one buffer.",
        "",
        f"Load of the machine at the end: {load} on {os.cpu_count()} cores. Above the number of cores, other programs were in the way, and",
        "only differences larger than the spread of the runs mean anything.",
        "",
        "| " + " | ".join(rows[0]) + " |",
        "|" + " --- |" * len(rows[0]),
        *("| " + " | ".join(row) + " |" for row in rows[1:]),
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
