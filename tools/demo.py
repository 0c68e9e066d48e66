#!/usr/bin/env python3
"""Shows RDMA programs, unmodified, between two hosts that have no RDMA NIC, beside TCP on the same
link and cores.

The hosts are network namespaces on this machine. Nothing is left behind, and root is not needed.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass

from airdma_lab import build, peers, perftest, pingpong, privileges, requirements, table
from airdma_lab.lab import Lab
from airdma_lab.pair import run_pair

BANDWIDTH_BYTES = 65536
LATENCY_BYTES = 64
ROUND_TRIPS = "2000"
"""Enough for a median. On a machine that is busy, a program that spins on its memory needs
milliseconds for each.
"""


@dataclass(frozen=True)
class Show:
    """One program of the demo and how its output reads."""

    argv: list[str]
    size: int
    unit: str
    """"Gb/s", "us" (half a round trip), "us round trip" or "Mops"."""
    read: Callable[[str], float | None]


def main() -> int:
    arguments = _arguments()
    requirements.ensure([*requirements.LAB_TOOLS, *requirements.PERFTEST_TOOLS, *requirements.PINGPONG_TOOLS])
    requirements.ensure(["iperf3", "sockperf"])
    build.require()
    privileges.enter()
    with Lab(mtu=arguments.mtu) as lab:
        print(f"Two hosts, {lab.a.ipv4} and {lab.b.ipv4}, one core each, joined by a veth of MTU {arguments.mtu}.")
        print(_devices(lab), flush=True)
        return _run(lab)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mtu", type=int, default=1500, help="MTU of the link (default 1500)")
    return parser.parse_args()


def _devices(lab: Lab) -> str:
    outcome = lab.a.run(build.with_airdma(["ibv_devices"]))
    if not outcome.ok:
        raise SystemExit(outcome.explain())
    return "$ airdma run -- ibv_devices\n" + outcome.stdout.rstrip()


def _run(lab: Lab) -> int:
    tcp_gbps = peers.bandwidth_gbps(lab.b, lab.a, seconds=2)
    tcp_us = peers.latency_us(lab.b, lab.a, LATENCY_BYTES)
    rows = [["program", "bytes", "result", "unit", "better is", "beside TCP"]]
    rows.append(["iperf3 (TCP)", "131072", f"{tcp_gbps:.2f}", "Gb/s", "more", "1.00"])
    rows.append(["sockperf ping-pong (TCP)", str(LATENCY_BYTES), f"{tcp_us:.1f}", "us", "less", "1.00"])
    failures = []
    for show in _programme():
        print(f"  {' '.join(show.argv)}", file=sys.stderr, flush=True)
        server, client = build.with_airdma(show.argv), build.with_airdma([*show.argv, lab.b.ipv4])
        pair = run_pair(lab.b, lab.a, server, client, port=perftest.PORT)
        value = show.read(pair.client.stdout) if pair.client and pair.ok else None
        if value is None:
            failures.append(pair.explain())
        rows.append([" ".join(show.argv), str(show.size), *_cells(show, value, tcp_gbps, tcp_us)])
    print("\n" + table.aligned(rows))
    print("\nus: half a round trip (median); READ and atomics wait for a whole one.")
    print("beside TCP: the result divided by TCP's on the same link and cores, and which of the two is better.")
    for failure in failures:
        print(f"\nFAILED\n{failure}", file=sys.stderr)
    return 1 if failures else 0


def _cells(show: Show, value: float | None, tcp_gbps: float, tcp_us: float) -> list[str]:
    more = not show.unit.startswith("us")
    better = "more" if more else "less"
    if value is None:
        return ["FAILED", show.unit, better, "-"]
    ratio = {"Gb/s": value / tcp_gbps, "us": value / tcp_us}.get(show.unit)
    digits = 2 if show.unit == "Gb/s" else 3 if show.unit == "Mops" else 1
    return [f"{value:.{digits}f}", show.unit, better, _verdict(ratio, more) if ratio is not None else "-"]


def _verdict(ratio: float, more: bool) -> str:
    """Differences that are no more than noise are none."""
    if abs(ratio - 1) < 0.05:
        return f"{ratio:.2f}: equal"
    return f"{ratio:.2f}: {'airdma' if (ratio > 1) == more else 'TCP'} is better"


def _programme() -> list[Show]:
    # RoCE has no LIDs: the ping-pongs want to be told a GID, here the IPv4 address. perftest finds
    # it by itself.
    shows = [
        Show(["ibv_rc_pingpong", "-c", "-g", "0"], 4096, "us round trip", _round_trip),
        Show(["ibv_rc_pingpong", "-c", "-e", "-g", "0"], 4096, "us round trip", _round_trip),
        Show(["ibv_ud_pingpong", "-c", "-g", "0", "-s", "1024"], 1024, "us round trip", _round_trip),
    ]
    for name in ("ib_send_bw", "ib_write_bw", "ib_read_bw"):
        argv = [name, "-F", "--report_gbits", "-D", "2", "-f", "0", "-s", str(BANDWIDTH_BYTES)]
        shows.append(Show(argv, BANDWIDTH_BYTES, "Gb/s", _bandwidth(BANDWIDTH_BYTES)))
    shows.append(Show(["ib_atomic_bw", "-F", "-n", "20000"], 8, "Mops", _rate))
    for name in ("ib_send_lat", "ib_write_lat", "ib_read_lat"):
        unit = "us round trip" if name == "ib_read_lat" else "us"
        argv = [name, "-F", "-n", ROUND_TRIPS, "-s", str(LATENCY_BYTES)]
        shows.append(Show(argv, LATENCY_BYTES, unit, _latency(LATENCY_BYTES)))
    shows.append(Show(["ib_send_lat", "-F", "-c", "UD", "-n", ROUND_TRIPS, "-s", "64"], 64, "us", _latency(64)))
    shows.append(Show(["ib_atomic_lat", "-F", "-n", ROUND_TRIPS], 8, "us round trip", _latency(8)))
    return shows


def _round_trip(output: str) -> float | None:
    found = pingpong.parse(output)
    return found.round_trip_us if found else None


def _bandwidth(size: int) -> Callable[[str], float | None]:
    return lambda output: perftest.bandwidth_gbps(output).get(size)


def _latency(size: int) -> Callable[[str], float | None]:
    return lambda output: perftest.latency_us(output).get(size)


def _rate(output: str) -> float | None:
    rows = perftest.parse(output)
    return rows[0]["MsgRate[Mpps]"] if rows else None


if __name__ == "__main__":
    sys.exit(main())
