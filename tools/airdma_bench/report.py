"""The measurement in words and tables."""

from __future__ import annotations

from airdma_lab import table

from . import units
from .measurement import Curve, Measurement

TCP = "tcp_cubic"
TCP_LATENCY = "sockperf_tcp"
TARGET_BYTES_MIN = 65536
LATENCY_TARGET_BYTES = 64


def markdown(measurement: Measurement, name: str) -> str:
    """The whole page; `name` is the stem of the plot's and the data's files."""
    parts = [
        f"# Benchmark: {name}",
        _how(measurement, name),
        f"![bandwidth, latency and their ratios to TCP by message size]({name}.svg)",
        "## Targets",
        table.markdown(targets(measurement)),
        "## Where airdma loses",
        _losses(measurement),
        "## Failed runs",
        _failures(measurement),
        "## Bandwidth, Gb/s",
        table.markdown(_rows(measurement, "bandwidth")),
        "Ratio of medians to iperf3 TCP CUBIC, more is better:",
        table.markdown(_ratios(measurement, ("send_bw", "write_bw", "read_bw"), TCP)),
        "## Latency, us",
        table.markdown(_rows(measurement, "latency")),
        "Ratio of medians to sockperf TCP, less is better (READ is a whole round trip and is not compared):",
        table.markdown(_ratios(measurement, ("send_lat", "write_lat"), TCP_LATENCY)),
        "## CPU seconds for 10^9 bytes, both ends together",
        "perftest polls: its two programs take two cores for as long as they run, whatever the load. Start-up counts.",
        table.markdown(_cpu(measurement)),
        "## Commands",
        *(f"- {curve.label}: `{curve.command}`" for curve in measurement.curves.values()),
    ]
    return "\n\n".join(parts).replace("\n\n- ", "\n- ") + "\n"


def targets(measurement: Measurement) -> list[list[str]]:
    """The goals of this version and whether this run reached them."""
    rows = [["target", "ratio", "reached"]]
    for size in measurement.sizes:
        ratio = measurement.ratio("write_bw", TCP, size)
        if size >= TARGET_BYTES_MIN and ratio is not None:
            rows.append([f"ib_write_bw of {units.size(size)} >= 1.0x TCP", f"{ratio:.2f}", _yes(ratio >= 1)])
    ratio = measurement.ratio("send_lat", TCP_LATENCY, LATENCY_TARGET_BYTES)
    if ratio is not None:
        rows.append([f"ib_send_lat of {LATENCY_TARGET_BYTES} B <= 1.0x sockperf TCP", f"{ratio:.2f}", _yes(ratio <= 1)])
    return rows


def _how(measurement: Measurement, name: str) -> str:
    machine = ", ".join(f"{key} {value}" for key, value in measurement.machine.items())
    versions = ", ".join(f"{key} {value}" for key, value in measurement.versions.items())
    return (
        f"Two network namespaces joined by a veth of MTU {measurement.mtu}, one core a side. Medians of "
        f"{measurement.runs} runs (smallest to largest in brackets); all programs take turns at each size. "
        "Bandwidth: perftest for one second, iperf3 for one second with writes of the given size, one stream. "
        "Latency: the median of each run, half a round trip, except READ. sockperf blocks in its receive call unless "
        "it says polling, perftest polls; sockperf sends at least 14 and at most 65,507 bytes.\n\n"
        f"Machine: {machine}. Versions: {versions}. All samples: [{name}.json]({name}.json)."
    )


def _losses(measurement: Measurement) -> str:
    lines = []
    for ours in ("send_bw", "write_bw", "read_bw"):
        lines += _lost(measurement, ours, ["tcp_cubic", "tcp_bbr"], higher_is_better=True)
    for ours in ("send_lat", "write_lat"):
        lines += _lost(measurement, ours, ["sockperf_tcp", "sockperf_udp", "sockperf_tcp_spin"], higher_is_better=False)
    return "\n".join(lines) or "Nowhere in this run."


def _failures(measurement: Measurement) -> str:
    lines = [
        f"- {curve.label}, {units.size(size)}: {len(texts)} of {measurement.runs}"
        for curve in measurement.curves.values()
        for size, texts in curve.failures.items()
    ]
    return "\n".join(lines) or "None."


def _lost(measurement: Measurement, ours: str, peers: list[str], higher_is_better: bool) -> list[str]:
    lines = []
    for peer in peers:
        ratios = {size: measurement.ratio(ours, peer, size) for size in measurement.sizes}
        known = {size: ratio for size, ratio in ratios.items() if ratio is not None}
        behind = [size for size, ratio in known.items() if (ratio < 1 if higher_is_better else ratio > 1)]
        if behind:
            cells = ", ".join(f"{units.size(size)} {known[size]:.2f}x" for size in behind)
            lines.append(f"- {measurement.curves[ours].label} against {measurement.curves[peer].label}: {cells}")
    return lines


def _rows(measurement: Measurement, kind: str) -> list[list[str]]:
    curves = [curve for curve in measurement.curves.values() if curve.kind == kind]
    rows = [["message", *(curve.label for curve in curves)]]
    for size in measurement.sizes:
        rows.append([units.size(size), *(_cell(curve, size) for curve in curves)])
    return rows


def _ratios(measurement: Measurement, ours: tuple[str, ...], peer: str) -> list[list[str]]:
    rows = [["message", *(measurement.curves[name].label for name in ours)]]
    for size in measurement.sizes:
        ratios = [measurement.ratio(name, peer, size) for name in ours]
        rows.append([units.size(size), *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios)])
    return rows


def _cpu(measurement: Measurement) -> list[list[str]]:
    curves = [curve for curve in measurement.curves.values() if curve.kind == "bandwidth"]
    rows = [["message", *(curve.label for curve in curves)]]
    for size in measurement.sizes:
        costs = [curve.cpu_s_per_gigabyte(size) for curve in curves]
        rows.append([units.size(size), *("-" if cost is None else units.three_digits(cost) for cost in costs)])
    return rows


def _cell(curve: Curve, size: int) -> str:
    median = curve.median(size)
    if median is None:
        return "-"
    low, high = curve.spread(size)
    return f"{units.three_digits(median)} ({units.three_digits(low)}-{units.three_digits(high)})"


def _yes(reached: bool) -> str:
    return "yes" if reached else "NO"
