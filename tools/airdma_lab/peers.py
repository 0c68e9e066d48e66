"""iperf3 and sockperf over TCP: the peers that bandwidth and latency are compared with."""

from __future__ import annotations

from .lab import Host
from .pair import Pair, run_pair
from .reading import read

IPERF_PORT = 5201
SOCKPERF_PORT = 11111


def bandwidth_gbps(server: Host, client: Host, *, write_bytes: int = 131072, seconds: int = 1) -> float:
    """Gb/s of one TCP stream from `client` to `server`; `write_bytes`: the size of each write.

    Raises RuntimeError with both ends' output if it fails.
    """
    argv = ["iperf3", "-c", server.ipv4, "-t", str(seconds), "-l", str(write_bytes), "-J"]
    pair = run_pair(server, client, ["iperf3", "-s", "-1"], argv, port=IPERF_PORT, timeout_s=seconds + 20)
    return _value("iperf3", pair)


def latency_us(server: Host, client: Host, message_bytes: int) -> float:
    """Median of half a round trip over TCP in one second of ping-pong, in microseconds.

    Raises RuntimeError with both ends' output if it fails.
    """
    to = ["-p", str(SOCKPERF_PORT), "--tcp"]
    listen = ["sockperf", "server", "-i", "0.0.0.0", *to]
    argv = ["sockperf", "ping-pong", "-i", server.ipv4, "-m", str(message_bytes), "-t", "1", *to]
    return _value("sockperf", run_pair(server, client, listen, argv, port=SOCKPERF_PORT, server_stays=True))


def _value(program: str, pair: Pair) -> float:
    reading = read(program, pair.client.stdout) if pair.client and pair.ok else None
    if reading is None:
        raise RuntimeError(pair.explain())
    return float(reading["value"])
