#!/usr/bin/env python3
"""Writes docs/programs.md: the programs that run on airdma, from the table in tests/system/programs
and what was last seen.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests/system"))

from programs import record, table


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is not what would be written"
    )
    arguments = parser.parse_args()
    names = [line.name for line in table.lines()]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        print(f"twice in the table: {', '.join(sorted(twice))}", file=sys.stderr)
        return 1
    text = record.render()
    if not arguments.check:
        record.DOCUMENT.write_text(text, encoding="utf-8")
        return 0
    if record.DOCUMENT.exists() and record.DOCUMENT.read_text(encoding="utf-8") == text:
        return 0
    print("docs/programs.md is out of date: run `make programs`, or tools/programs_table.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
