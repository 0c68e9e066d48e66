"""iperf3 over TCP: the peer that bandwidth is compared with."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .lab import Host
from .pair import Pair, run_pair

PORT = 5201


@dataclass(frozen=True)
class Throughput:
    """One iperf3 run."""

    gbps: float
    """What the receiver got."""
    retransmits: int
    moved_bytes: int
    cpu_s: float
    """CPU seconds of both ends."""
    command: str


def measure(
    server: Host, client: Host, *, write_bytes: int = 131072, seconds: int = 1, congestion_control: str | None = None
) -> Throughput:
    """One TCP stream from `client` to `server`; `write_bytes` is the size of each write (`-l`).

    Raises RuntimeError with both ends' output if it fails.
    """
    algorithm = ["-C", congestion_control] if congestion_control else []
    argv = ["iperf3", "-c", server.ipv4, "-t", str(seconds), "-l", str(write_bytes), "-J", *algorithm]
    pair = run_pair(server, client, ["iperf3", "-s", "-1"], argv, port=PORT, timeout_s=seconds + 20)
    return _throughput(pair, " ".join(argv))


def parse(report: str) -> tuple[float, int, int]:
    """(Gb/s received, bytes received, segments sent again) from the client's `-J` output."""
    end = json.loads(report)["end"]
    received = end["sum_received"]
    return received["bits_per_second"] / 1e9, received["bytes"], end["sum_sent"].get("retransmits", 0)


def _throughput(pair: Pair, command: str) -> Throughput:
    if pair.client is None or not pair.ok:
        raise RuntimeError(pair.explain())
    gbps, moved_bytes, retransmits = parse(pair.client.stdout)
    return Throughput(gbps, retransmits, moved_bytes, pair.cpu_s, command)
