"""What each program must have printed."""

from __future__ import annotations

import math

from airdma_lab import perftest, pingpong
from airdma_lab.pair import Pair
from case import Check

ALL_SIZES = [2**power for power in range(1, 24)]
"""What perftest's -a runs: 2 bytes to 8 MiB."""


def table_of(sizes: list[int], *, largest: int | None = None) -> Check:
    """The client's table has exactly these message sizes (up to `largest`), each with finite
    positive numbers where perftest could measure the processor's clock.
    """
    wanted = [size for size in sizes if largest is None or size <= largest]

    def check(pair: Pair) -> list[str]:
        rows = perftest.parse(pair.client.stdout) if pair.client else []
        found = [int(row["#bytes"]) for row in rows]
        if found != wanted:
            return [f"the table has sizes {found}, not {wanted}"]
        if pair.client and perftest.has_no_clock(pair.client.stderr):
            return []
        return [f"nonsense in the table: {row}" for row in rows if not _is_sound(row)]

    return check


def rounds_of(iterations: int) -> Check:
    """Both ends of a ping-pong finished all rounds, and neither saw wrong data."""

    def check(pair: Pair) -> list[str]:
        complaints = []
        for side, outcome in (("server", pair.server), ("client", pair.client)):
            summary = pingpong.parse(outcome.stdout) if outcome else None
            if summary is None:
                complaints.append(f"{side}: no summary, or invalid data")
            elif summary.iterations != iterations:
                complaints.append(f"{side}: {summary.iterations} iterations, not {iterations}")
        return complaints

    return check


def says(text: str) -> Check:
    """Both ends printed `text`."""

    def check(pair: Pair) -> list[str]:
        ends = (("server", pair.server), ("client", pair.client))
        return [f"{side} does not say {text!r}" for side, end in ends if end is None or text not in end.stdout]

    return check


def client_says(text: str) -> Check:
    """The client printed `text`."""

    def check(pair: Pair) -> list[str]:
        said = pair.client is not None and text in pair.client.stdout
        return [] if said else [f"the client does not say {text!r}"]

    return check


def _is_sound(row: dict[str, float]) -> bool:
    # perftest itself prints "nan" as the standard deviation of some runs.
    if not all(math.isfinite(value) for title, value in row.items() if not title.startswith("t_stdev")):
        return False
    # Very short runs round down to a bandwidth or rate of 0.00, so only the latency must be
    # positive.
    return row.get("t_typical[usec]", 1.0) > 0
