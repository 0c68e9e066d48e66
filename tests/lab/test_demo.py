"""The table of `make demo`, and what is said while it builds."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import demo

ROOT = Path(__file__).resolve().parents[2]

CARGO = """#!/bin/sh
if [ "$1" = tree ]; then printf 'one v1.0.0\\ntwo v0.1.0 (/there)\\ntwo v0.1.0 (/there)\\n'; exit 0; fi
echo '{"reason":"compiler-artifact","package_id":"one","target":{"name":"one"}}'
sleep 1
echo '{"reason":"build-finished","success":true}'
exit STATUS
"""


class Table(unittest.TestCase):
    def test_each_row_says_what_is_better(self) -> None:
        def cells(unit: str, value: float | None) -> list[str]:
            show = demo.Show([], 64, unit, lambda _: None)
            return demo._cells(show, value, 10.0, 10.0)

        self.assertEqual(cells("Gb/s", 20.0), ["20.00", "Gb/s", "more", "2.00: airdma is better"])
        self.assertEqual(cells("Gb/s", 5.0), ["5.00", "Gb/s", "more", "0.50: TCP is better"])
        self.assertEqual(cells("us", 5.0), ["5.0", "us", "less", "0.50: airdma is better"])
        self.assertEqual(cells("us", 20.0), ["20.0", "us", "less", "2.00: TCP is better"])
        self.assertEqual(cells("us", 10.1), ["10.1", "us", "less", "1.01: equal"])
        self.assertEqual(cells("us round trip", 10.0), ["10.0", "us round trip", "less", "-"])
        self.assertEqual(cells("Mops", None), ["FAILED", "Mops", "more", "-"])


class Building(unittest.TestCase):
    def _build(self, status: int, every_s: str) -> tuple[int, str]:
        with tempfile.TemporaryDirectory() as folder:
            cargo = Path(folder, "cargo")
            cargo.write_text(CARGO.replace("STATUS", str(status)), encoding="ascii")
            cargo.chmod(0o755)
            script = f"import build_demo, sys; build_demo.SAY_EVERY_S = {every_s}; sys.exit(build_demo.main())"
            outcome = subprocess.run(
                [sys.executable, "-c", script],
                cwd=ROOT / "tools",
                env={**os.environ, "CARGO": str(cargo)},
                capture_output=True,
                text=True,
                check=False,
            )
        return outcome.returncode, outcome.stdout + outcome.stderr

    def test_a_build_that_takes_time_says_how_far_it_is(self) -> None:
        status, said = self._build(0, "0.2")
        self.assertEqual(status, 0, said)
        self.assertIn("building airdma: 1 of 2 crates after 0 s (last: one)", said)
        self.assertIn("built in", said)

    def test_one_that_has_nothing_to_do_says_nothing(self) -> None:
        self.assertEqual(self._build(0, "30"), (0, ""))

    def test_one_that_fails_fails(self) -> None:
        self.assertEqual(self._build(101, "30")[0], 101)


if __name__ == "__main__":
    unittest.main()
