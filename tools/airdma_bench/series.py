"""What is measured: one series is one program whose result depends on the message size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from airdma_lab import build, iperf, machine, perftest, sockperf
from airdma_lab.lab import Lab
from airdma_lab.pair import run_pair

SIZES = [2**power for power in range(1, 21)]
"""2 bytes to 1 MiB, the x-axis of W-RDMA's figure 4."""

_LATENCY_RUN_US = 400_000


@dataclass(frozen=True)
class Sample:
    """One run of one series at one size."""

    value: float
    """Gb/s, or microseconds (median of the run)."""
    cpu_s: float
    """CPU seconds of both programs, start-up included."""
    moved_bytes: int | None
    """Payload moved, where the program says."""
    command: str
    """The client's command line."""


@dataclass(frozen=True)
class Series:
    """`measure(lab, size)` takes one sample."""

    name: str
    label: str
    kind: str
    """"bandwidth" or "latency"."""
    sizes: list[int]
    measure: Callable[[Lab, int], Sample]
    peer: bool = False
    """One of those that airdma is compared with."""


def all_series(sizes: list[int]) -> list[Series]:
    """Every series, over those of `sizes` that its program can do; peers stand beside what they are compared with."""
    bandwidth = [
        _tcp("cubic", sizes),
        *(_perftest_bandwidth(operation, sizes) for operation in ("send", "write", "read")),
    ]
    if "bbr" in machine.congestion_controls():
        bandwidth.append(_tcp("bbr", sizes))
    latency = [
        _sockperf("tcp", sizes),
        *(_perftest_latency(operation, sizes) for operation in ("send", "write", "read")),
        _sockperf("udp", sizes),
        _sockperf("tcp", [size for size in sizes if size == 64], spin=True),
    ]
    return bandwidth + latency


def _perftest_bandwidth(operation: str, sizes: list[int]) -> Series:
    def measure(lab: Lab, size: int) -> Sample:
        argv = [f"ib_{operation}_bw", "-F", "--report_gbits", "-D", "1", "-f", "0", "-s", str(size)]
        output, cpu_s, command = _run(lab, argv)
        row = perftest.parse(output)[0]
        # Below 1 Gb/s two digits are too few: the message rate has six.
        gbps = row["MsgRate[Mpps]"] * size * 8 / 1e3
        return Sample(gbps, cpu_s, int(row["#iterations"]) * size, command)

    return Series(f"{operation}_bw", f"airdma {operation.upper()}", "bandwidth", sizes, measure)


def _perftest_latency(operation: str, sizes: list[int]) -> Series:
    def measure(lab: Lab, size: int) -> Sample:
        # A guess of the round trip is enough to give every size about the same time.
        iterations = max(200, min(10_000, int(_LATENCY_RUN_US / (30 + size / 250))))
        argv = [f"ib_{operation}_lat", "-F", "-n", str(iterations), "-s", str(size)]
        output, cpu_s, command = _run(lab, argv)
        return Sample(perftest.latency_us(output)[size], cpu_s, None, command)

    whole = " (whole round trip)" if operation == "read" else ""
    return Series(f"{operation}_lat", f"airdma {operation.upper()}{whole}", "latency", sizes, measure)


def _tcp(algorithm: str, sizes: list[int]) -> Series:
    def measure(lab: Lab, size: int) -> Sample:
        run = iperf.measure(lab.b, lab.a, write_bytes=size, congestion_control=algorithm)
        return Sample(run.gbps, run.cpu_s, run.moved_bytes, run.command)

    name = {"cubic": "CUBIC", "bbr": "BBR"}[algorithm]
    return Series(f"tcp_{algorithm}", f"iperf3 TCP {name}", "bandwidth", sizes, measure, peer=True)


def _sockperf(protocol: str, sizes: list[int], spin: bool = False) -> Series:
    def measure(lab: Lab, size: int) -> Sample:
        run = sockperf.measure(lab.b, lab.a, protocol, min(size, sockperf.BYTES_MAX), spin=spin)
        return Sample(run.median_us, run.cpu_s, None, run.command)

    possible = [size for size in sizes if sockperf.BYTES_MIN <= size <= sockperf.BYTES_MAX + 29]
    suffix = ", polling" if spin else ""
    name = f"sockperf_{protocol}{'_spin' if spin else ''}"
    return Series(name, f"sockperf {protocol.upper()}{suffix}", "latency", possible, measure, peer=True)


def _run(lab: Lab, argv: list[str]) -> tuple[str, float, str]:
    client = [*argv, lab.b.ipv4]
    pair = run_pair(lab.b, lab.a, build.with_airdma(argv), build.with_airdma(client), port=perftest.PORT)
    if pair.client is None or not pair.ok or not perftest.parse(pair.client.stdout):
        raise RuntimeError(pair.explain())
    return pair.client.stdout, pair.cpu_s, "airdma run -- " + " ".join(client)
