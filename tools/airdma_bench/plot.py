"""The measurement as a picture: bandwidth and latency by message size, and their ratios to TCP."""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from . import units
from .measurement import Measurement
from .report import TCP, TCP_LATENCY

COLOURS = {
    "send": "#1b6ca8",
    "write": "#d1495b",
    "read": "#2e8b57",
    "tcp_cubic": "#555555",
    "tcp_bbr": "#999999",
    "sockperf_tcp": "#555555",
    "sockperf_udp": "#999999",
    "sockperf_tcp_spin": "#bbaa66",
}


def save(measurement: Measurement, stem: Path) -> list[Path]:
    """Writes STEM.svg and STEM.png."""
    # The same measurement gives the same file.
    plt.rcParams.update({"svg.hashsalt": "airdma", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    figure, ((bandwidth, latency), (bandwidth_ratio, latency_ratio)) = plt.subplots(
        2, 2, figsize=(12, 7.5), sharex=True, height_ratios=[3, 2], constrained_layout=True
    )
    _curves(bandwidth, measurement, "bandwidth", f"Bandwidth, Gb/s (MTU {measurement.mtu}, one core a side)")
    _curves(latency, measurement, "latency", "Latency, us (half a round trip; READ: whole)")
    _ratios(bandwidth_ratio, measurement, ("send_bw", "write_bw", "read_bw"), TCP, "x TCP CUBIC (more is better)")
    _ratios(latency_ratio, measurement, ("send_lat", "write_lat"), TCP_LATENCY, "x sockperf TCP (less is better)")
    for axes in (bandwidth_ratio, latency_ratio):
        axes.set_xlabel("message size")
        axes.xaxis.set_major_locator(FixedLocator(measurement.sizes[:: 3 if len(measurement.sizes) > 8 else 1]))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(lambda size, _: units.size(int(size)))
    paths = [stem.with_suffix(suffix) for suffix in (".svg", ".png")]
    figure.savefig(paths[0], metadata={"Date": None})
    figure.savefig(paths[1], dpi=130, metadata={"Software": None})
    plt.close(figure)
    return paths


def _curves(axes: Axes, measurement: Measurement, kind: str, title: str) -> None:
    for name, curve in measurement.curves.items():
        if curve.kind != kind or not curve.values:
            continue
        sizes = sorted(curve.values)
        middle = [curve.median(size) for size in sizes]
        style = "--" if curve.peer else "-"
        axes.plot(sizes, middle, style, marker="o", markersize=3, color=_colour(name), label=curve.label)
        low, high = zip(*(curve.spread(size) for size in sizes), strict=True)
        axes.fill_between(sizes, low, high, color=_colour(name), alpha=0.12, linewidth=0)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(title)
    axes.legend(fontsize=8)


def _ratios(axes: Axes, measurement: Measurement, ours: tuple[str, ...], peer: str, title: str) -> None:
    axes.axhline(1.0, color="black", linewidth=1)
    for name in ours:
        points = [(size, measurement.ratio(name, peer, size)) for size in measurement.sizes]
        known = [(size, ratio) for size, ratio in points if ratio is not None]
        if known:
            axes.plot(*zip(*known, strict=True), marker="o", markersize=3, color=_colour(name))
    axes.set_ylim(bottom=0)
    axes.set_title(title)


def _colour(name: str) -> str:
    return COLOURS.get(name) or COLOURS[name.split("_")[0]]
