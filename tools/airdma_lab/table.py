"""A table in plain text or Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell: the first to the left, the others to the right. The
    first row is titles.
    """
    widths = _widths(rows)
    lines = [_line(row, widths, "  ").rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def markdown(rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """The same as a Markdown table, aligned in the source too; the first `left` columns are to the
    left.
    """
    widths = _widths(rows)
    lines = [f"| {_line(row, widths, ' | ', left)} |" for row in rows]
    rule = ["-" * width if column < left else "-" * (width - 1) + ":" for column, width in enumerate(widths)]
    lines.insert(1, f"| {' | '.join(rule)} |")
    return "\n".join(lines)


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(2, *map(len, column)) for column in zip(*rows, strict=True)]


def _line(row: Sequence[str], widths: list[int], separator: str, left: int = 1) -> str:
    cells = enumerate(zip(row, widths, strict=True))
    return separator.join(cell.ljust(width) if column < left else cell.rjust(width) for column, (cell, width) in cells)
