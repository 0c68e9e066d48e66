"""All samples of a benchmark run, and what follows from them."""

from __future__ import annotations

import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airdma_lab import machine
from airdma_lab.lab import Lab

from .series import Series


@dataclass
class Curve:
    """One series: raw values by message size, in the order they were taken."""

    label: str
    kind: str
    peer: bool
    command: str = ""
    """The client's command line at the largest size."""
    values: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    cpu_s: dict[int, list[float]] = field(default_factory=lambda: defaultdict(list))
    moved_bytes: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))
    failures: dict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    """What both ends printed in runs that gave no result."""

    def median(self, size: int) -> float | None:
        return statistics.median(self.values[size]) if self.values.get(size) else None

    def spread(self, size: int) -> tuple[float, float]:
        """(smallest, largest) sample."""
        return min(self.values[size]), max(self.values[size])

    def cpu_s_per_gigabyte(self, size: int) -> float | None:
        """CPU seconds of both ends for 10^9 bytes of payload; the median over the runs."""
        if not self.moved_bytes.get(size):
            return None
        pairs = zip(self.cpu_s[size], self.moved_bytes[size], strict=True)
        return statistics.median(cpu / (moved / 1e9) for cpu, moved in pairs)


@dataclass
class Measurement:
    """Everything `make bench` learned, as it stands in the JSON file."""

    mtu: int
    runs: int
    sizes: list[int]
    machine: dict[str, str]
    versions: dict[str, str]
    curves: dict[str, Curve]

    def ratio(self, ours: str, peer: str, size: int) -> float | None:
        """Median over median; more than 1 is faster for bandwidth, slower for latency."""
        if ours not in self.curves or peer not in self.curves:
            return None
        mine, theirs = self.curves[ours].median(size), self.curves[peer].median(size)
        return mine / theirs if mine is not None and theirs else None

    def save(self, path: Path) -> None:
        data = {**vars(self), "curves": {name: vars(curve) for name, curve in self.curves.items()}}
        path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def load(path: Path) -> Measurement:
    """Reads what `save` wrote."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    for name, curve in data["curves"].items():
        # JSON has only strings as keys.
        for by_size in ("values", "cpu_s", "moved_bytes", "failures"):
            curve[by_size] = {int(size): samples for size, samples in curve[by_size].items()}
        data["curves"][name] = Curve(**curve)
    return Measurement(**data)


def take(lab: Lab, all_series: Iterable[Series], sizes: list[int], runs: int) -> Measurement:
    """Runs everything `runs` times, all series in turn at each size: a slow spell of the machine hits them alike."""
    every = list(all_series)
    curves = {series.name: Curve(series.label, series.kind, series.peer) for series in every}
    started = time.monotonic()
    for run in range(runs):
        for size in sizes:
            for series in every:
                if size in series.sizes:
                    _add(curves[series.name], series, lab, size)
            print(f"  run {run + 1}/{runs}, {size} bytes ({time.monotonic() - started:.0f} s)", flush=True)
    curves = {name: curve for name, curve in curves.items() if curve.values or curve.failures}
    return Measurement(lab.mtu, runs, sizes, machine.describe(), machine.versions(), curves)


def _add(curve: Curve, series: Series, lab: Lab, size: int) -> None:
    try:
        sample = series.measure(lab, size)
    except RuntimeError as failure:
        # One failed run is part of the result; it must not cost the hundreds of others.
        curve.failures[size].append(str(failure))
        print(f"  FAILED: {series.label}, {size} bytes: {failure}", flush=True)
        return
    curve.command = sample.command
    curve.values[size].append(sample.value)
    curve.cpu_s[size].append(sample.cpu_s)
    if sample.moved_bytes:
        curve.moved_bytes[size].append(sample.moved_bytes)
