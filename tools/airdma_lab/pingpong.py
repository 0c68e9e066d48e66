"""What rdma-core's `ibv_*_pingpong` print."""

from __future__ import annotations

import re
from dataclasses import dataclass

PORT = 18515

_BYTES = re.compile(r"(\d+) bytes in [\d.]+ seconds = ([\d.]+) Mbit/sec")
_ITERATIONS = re.compile(r"(\d+) iters in [\d.]+ seconds = ([\d.]+) usec/iter")


@dataclass(frozen=True)
class PingPong:
    """The summary of one end."""

    bytes: int
    """In both directions together."""
    gbps: float
    iterations: int
    round_trip_us: float


def parse(output: str) -> PingPong | None:
    """The summary, or nothing if the program did not get that far or found wrong data (`-c`)."""
    amount, rounds = _BYTES.search(output), _ITERATIONS.search(output)
    if not amount or not rounds or "invalid data" in output:
        return None
    return PingPong(int(amount.group(1)), float(amount.group(2)) / 1e3, int(rounds.group(1)), float(rounds.group(2)))
