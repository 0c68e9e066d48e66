#!/usr/bin/env python3
"""Measures bandwidth and latency by message size, 2 B to 1 MiB, for SEND, WRITE and READ beside iperf3 and sockperf.

Writes NAME.json (every sample), NAME.md, NAME.svg and NAME.png. Run it on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from airdma_bench import measurement, report
from airdma_bench.series import SIZES, all_series
from airdma_lab import build, privileges, requirements, table
from airdma_lab.lab import Lab

QUICK_SIZES = [64, 4096, 65536, 1048576]


def main() -> int:
    arguments = _arguments()
    requirements.ensure_modules()
    if arguments.render:
        _write(measurement.load(arguments.render), arguments.render.with_suffix(""))
        return 0
    requirements.ensure([*requirements.LAB_TOOLS, *requirements.PERFTEST_TOOLS, "iperf3", "sockperf"])
    build.require()
    privileges.enter()
    sizes, runs = (QUICK_SIZES, 3) if arguments.quick else (arguments.sizes, arguments.runs)
    with Lab(arguments.mtu) as lab:
        taken = measurement.take(lab, all_series(sizes), sizes, runs)
    stem = arguments.output or build.ROOT / ("target/bench/quick" if arguments.quick else "docs/benchmarks/step1")
    stem.parent.mkdir(parents=True, exist_ok=True)
    taken.save(stem.with_suffix(".json"))
    _write(taken, stem)
    print("\n" + table.aligned(report.targets(taken)))
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few sizes, three runs, to target/bench/quick.*")
    parser.add_argument("--runs", type=int, default=5, help="samples of everything (default 5)")
    parser.add_argument(
        "--sizes",
        type=lambda text: [int(size) for size in text.split(",")],
        default=SIZES,
        metavar="N,N,...",
        help="message sizes in bytes (default: all powers of two, half an hour)",
    )
    parser.add_argument("--mtu", type=int, default=1500, help="MTU of the link (default 1500)")
    parser.add_argument("--output", type=Path, metavar="STEM", help="files to write, without suffix")
    parser.add_argument("--render", type=Path, metavar="JSON", help="only write table and plots of this file again")
    return parser.parse_args()


def _write(taken: measurement.Measurement, stem: Path) -> None:
    from airdma_bench import plot  # matplotlib takes a second to load: not before the measurement, nor for --help

    stem.with_suffix(".md").write_text(report.markdown(taken, stem.name), encoding="utf-8")
    plots = plot.save(taken, stem)
    print("wrote", ", ".join(str(path) for path in (stem.with_suffix(".md"), *plots)))


if __name__ == "__main__":
    sys.exit(main())
