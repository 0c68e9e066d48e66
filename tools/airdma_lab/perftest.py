"""perftest's tables (`ib_*_bw`, `ib_*_lat`) as numbers."""

from __future__ import annotations

import re

PORT = 18515

# "#bytes", "BW average[Gb/sec]", "99.9% percentile[usec]", and the only title with neither: "tps
# average".
_TITLE = re.compile(r"#\w+|tps average|[A-Za-z0-9.%_][A-Za-z0-9.%_ ]*?\[[^\]]+\]")
_ROW = re.compile(r"\s*\d+\s+\d+(\s+(-?[\d.]+|-?inf|-?nan))+\s*")


def parse(output: str) -> list[dict[str, float]]:
    """One dictionary a line of the table, title -> value. Empty if the program printed no table.

    Titles are perftest's own: "#bytes", "#iterations", "BW peak[Gb/sec]", "BW average[Gb/sec]"
    (with --report_gbits), "MsgRate[Mpps]"; "t_min[usec]", "t_typical[usec]" (the median),
    "t_avg[usec]", "99% percentile[usec]", ...
    """
    titles: list[str] = []
    rows: list[dict[str, float]] = []
    for line in output.splitlines():
        if line.lstrip().startswith("#bytes"):
            titles = [title.strip() for title in _TITLE.findall(line)]
        elif titles and _ROW.fullmatch(line):
            rows.append(dict(zip(titles, map(float, line.split()), strict=False)))
    return rows


def bandwidth_gbps(output: str) -> dict[int, float]:
    """Message size in bytes -> average bandwidth in Gb/s, from a run with --report_gbits."""
    return {int(row["#bytes"]): row["BW average[Gb/sec]"] for row in parse(output)}


def latency_us(output: str) -> dict[int, float]:
    """Message size in bytes -> median latency in microseconds: half a round trip; a whole one for
    READ and atomics.
    """
    return {int(row["#bytes"]): row["t_typical[usec]"] for row in parse(output)}
