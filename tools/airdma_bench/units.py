"""Numbers as people read them."""

from __future__ import annotations


def size(count: int) -> str:
    """A message size: 64 B, 4 KiB, 1 MiB."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= factor:
            return f"{count // factor} {unit}"
    return f"{count} B"


def three_digits(value: float) -> str:
    """Three significant digits without an exponent."""
    digits = 3 if value < 1 else 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f}"
