"""Tests of how the system tests are chosen and summed up."""

from __future__ import annotations

import contextlib
import io
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/system"))

import catalogue
from case import SLOWEST_MAX, Tally


class Choice(unittest.TestCase):
    def test_names_choose_suites_in_the_order_of_the_catalogue(self) -> None:
        names = [suite.name for suite in catalogue.chosen("queue_service, explain")]
        self.assertEqual(names, ["explain", "queue_service"])

    def test_without_names_all_suites_run(self) -> None:
        self.assertEqual(catalogue.chosen(""), list(catalogue.SUITES))

    def test_an_unknown_name_is_an_error_that_lists_the_suites(self) -> None:
        with self.assertRaisesRegex(catalogue.UnknownSuiteError, "'queue'.*queue_service"):
            catalogue.chosen("explain,queue")

    def test_each_suite_has_one_name_one_way_to_run_and_a_summary(self) -> None:
        self.assertEqual(len({suite.name for suite in catalogue.SUITES}), len(catalogue.SUITES))
        for suite in catalogue.SUITES:
            on_lab = suite.net in (catalogue.Net.PROGRAMS, catalogue.Net.FILES)
            self.assertEqual(
                (suite.run is not None, suite.own_run is not None), (on_lab, suite.net is catalogue.Net.OWN)
            )
            self.assertTrue(suite.summary.endswith("."), suite.name)

    def test_each_module_with_tests_is_in_the_catalogue(self) -> None:
        folder = Path(__file__).resolve().parents[1] / "system"
        runs = {file.stem for file in folder.glob("*.py") if "\ndef run(" in file.read_text(encoding="utf-8")}
        self.assertEqual(runs - {suite.about.__name__ for suite in catalogue.SUITES}, set())


class Summary(unittest.TestCase):
    def test_only_the_slowest_tests_are_listed_in_order(self) -> None:
        tally = Tally()
        with contextlib.redirect_stdout(io.StringIO()):
            for number in range(SLOWEST_MAX + 5):
                tally.record(f"test {number}", ["wrong"] if number == 3 else [], float(number))
        lines = tally.slowest().splitlines()
        self.assertEqual(len(lines), SLOWEST_MAX)
        self.assertEqual(lines[0].split(), ["14.0", "s", "test", "14"])
        self.assertNotIn("test 3", tally.slowest())


if __name__ == "__main__":
    unittest.main()
