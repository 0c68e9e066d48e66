"""perftest's tables (`ib_*_bw`, `ib_*_lat`) as numbers."""

from __future__ import annotations

import math

from .reading import read

PORT = 18515


def parse(output: str) -> list[dict[str, float]]:
    """One dictionary a line of the table, title -> value. Empty if the program printed no table.

    Titles are perftest's own: "#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]"
    (with --report_gbits), "MsgRate[Mpps]"; "t_min[usec]", "t_typical[usec]" (the median),
    "t_avg[usec]", "99% percentile[usec]", ... What perftest prints as "inf" or "nan" is NaN.
    """
    rows: list[dict[str, float | None]] = read("perftest", output) or []
    return [{title: math.nan if value is None else value for title, value in row.items()} for row in rows]


def has_no_clock(stderr: str) -> bool:
    """perftest could not measure the frequency of the cycle counter, for instance because the
    scheduler took the processor away meanwhile. With -F it goes on and divides by zero: every time
    and rate of its table is "inf" or "nan" (`get_cpu_mhz` in its get_clock.c).
    """
    return "Correlation coefficient r^2" in stderr


def bandwidth_gbps(output: str) -> dict[int, float]:
    """Message size in bytes -> average bandwidth in Gb/s, from a run with --report_gbits."""
    return {int(row["#bytes"]): row["BW average[Gb/sec]"] for row in parse(output)}


def latency_us(output: str) -> dict[int, float]:
    """Message size in bytes -> median latency in microseconds.

    Half a round trip; a whole one for READ and atomics.
    """
    return {int(row["#bytes"]): row["t_typical[usec]"] for row in parse(output)}
