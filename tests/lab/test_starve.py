"""The record of runs on starved machines."""

from __future__ import annotations

import sys
import tempfile
import threading
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "starve"))

import tallies
from tallies import Tally


class RecordTest(unittest.TestCase):
    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name, "runs.csv")

    def test_runs_add_up_over_processes(self) -> None:
        tallies.add("stopped", "rping", Tally(5, 0, 2.04), self.path)
        tallies.add("stopped", "rping", Tally(3, 1, 1.0), self.path)
        tallies.add("a quota", "rping", Tally(1, 0, 9.0), self.path)
        of_all = tallies.recorded(self.path)
        self.assertEqual(of_all["stopped", "rping"], Tally(8, 1, 2.0))
        self.assertEqual(of_all["a quota", "rping"], Tally(1, 0, 9.0))

    def test_nothing_is_lost_when_several_add_at_once(self) -> None:
        threads = [
            threading.Thread(target=tallies.add, args=("stopped", f"program {number % 4}", Tally(1, 0, 1.0), self.path))
            for number in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual([tally.runs for tally in tallies.recorded(self.path).values()], [10] * 4)


if __name__ == "__main__":
    unittest.main()
