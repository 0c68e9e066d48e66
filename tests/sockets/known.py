"""Faults of the shim that are known: tests that fail, and why. A test that no longer fails is
reported, so that its line is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from case import Tally

FAULTS: dict[str, str] = {}
"""By the name of the test: what the shim gets wrong."""


def attempt(tally: Tally, name: str, test: Callable[[], list[str]]) -> None:
    """Runs a test and records it. One with a known fault must fail."""
    reason = FAULTS.get(name)
    if reason is None:
        tally.attempt(name, test)
        return
    started = time.monotonic()
    complaints = [] if test() else [f"passes: remove it from tests/sockets/known.py ({reason})"]
    tally.record(f"{name}, which fails: {reason}", complaints, time.monotonic() - started)
