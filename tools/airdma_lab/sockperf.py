"""sockperf ping-pong over TCP or UDP: the peer that latency is compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .lab import Host
from .pair import run_pair

PORT = 11111
BYTES_MIN = 14
"""sockperf's own header: it sends no shorter message."""
BYTES_MAX = 65507
"""The largest UDP payload, which sockperf keeps to for TCP as well."""

_PERCENTILE = re.compile(r"percentile ([\d.]+) =\s+([\d.]+)")


@dataclass(frozen=True)
class Latency:
    """One sockperf run; half round trips in microseconds."""

    median_us: float
    p99_us: float
    cpu_s: float
    """CPU seconds of both ends, sockperf's warm-up included."""
    command: str


def measure(server: Host, client: Host, protocol: str, message_bytes: int, *, spin: bool = False) -> Latency:
    """Ping-pong for one second; `protocol` is "tcp" or "udp".

    `spin` polls the socket without blocking, as RDMA programs poll their completion queue;
    sockperf's default blocks. Raises RuntimeError with both ends' output if it fails.
    """
    options = (["--tcp"] if protocol == "tcp" else []) + (["--nonblocked"] if spin else [])
    listen = ["sockperf", "server", "-i", "0.0.0.0", "-p", str(PORT), *options]
    argv = ["sockperf", "ping-pong", "-i", server.ipv4, "-p", str(PORT), "-m", str(message_bytes), "-t", "1", *options]
    pair = run_pair(server, client, listen, argv, port=PORT, protocol=protocol, server_stays=True)
    if pair.client is None or not pair.ok:
        raise RuntimeError(pair.explain())
    percentiles = parse(pair.client.stdout)
    return Latency(percentiles[50.0], percentiles[99.0], pair.cpu_s, " ".join(argv))


def parse(output: str) -> dict[float, float]:
    """Percentile -> half round trip in microseconds."""
    return {float(percent): float(value) for percent, value in _PERCENTILE.findall(output)}
