"""The table of rdma-core's tests: results by group, and differences between two tables."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/rdma_core"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import expectations
from expectations import Group, Result

ROOT = Path(__file__).resolve().parents[2]

GROUPS = [
    Group("core", "everything", "pass", ("test_a.A.test_x", "test_a.A.test_y")),
    Group("machine", "luck", "skip", ("test_b.B.test_z",)),
    Group("vendor", "others", "not applicable", ("test_c.C.test_1", "test_c.C.test_2")),
]


def results(**changed: Result) -> dict[str, Result]:
    found = {test: Result("skip", "no") for group in GROUPS for test in group.tests}
    found |= {"test_a.A.test_x": Result("pass", ""), "test_a.A.test_y": Result("fail", "at 0x7f0012345678 | x\ny")}
    return found | {f"test_{name[0]}.{name[0].upper()}.test_{name[2]}": result for name, result in changed.items()}


class Expectations(unittest.TestCase):
    def test_the_file_has_each_test_once(self) -> None:
        groups = expectations.load(ROOT / "tests/rdma_core" / "expected.json")
        tests = [test for group in groups for test in group.tests]
        self.assertEqual(len(tests), 338)
        self.assertEqual(len(set(tests)), len(tests))

    def test_what_has_to_pass_and_does_not_is_told(self) -> None:
        told = [line for group in GROUPS for line in group.disappointments(results())]
        self.assertEqual(len(told), 1)
        self.assertIn("test_a.A.test_y: fail", told[0])

    def test_a_test_of_another_version_may_fail_and_not_die(self) -> None:
        groups = expectations.with_unlisted([], ["test_d.D.test_new"])
        self.assertEqual(groups[0].disappointments({"test_d.D.test_new": Result("fail", "")}), [])
        self.assertEqual(len(groups[0].disappointments({"test_d.D.test_new": Result("died", "")})), 1)

    def test_a_reason_is_one_cell_that_is_the_same_each_time(self) -> None:
        self.assertIn("at 0x... \\| x y", expectations.document(GROUPS, results()))

    def test_tables_differ_by_their_results_only(self) -> None:
        def changed(**change: Result) -> list[str]:
            before, after = (expectations.document(GROUPS, found) for found in (results(), results(**change)))
            return expectations.differences(GROUPS, before, after)

        self.assertEqual(changed(a_y=Result("fail", "otherwise")), [])
        self.assertEqual(changed(b_z=Result("pass", "")), [])
        self.assertEqual(len(changed(b_z=Result("died", "hung"))), 1)
        self.assertEqual(len(changed(a_y=Result("pass", ""))), 1)
        self.assertEqual(changed(c_1=Result("fail", "")), ["test_c.C: 2 skip in the table, now 1 skip, 1 fail"])

    def test_tests_of_another_version_get_a_group(self) -> None:
        groups = expectations.with_unlisted(GROUPS, [*results(), "test_d.D.test_new"])
        self.assertEqual(groups[-1].tests, ("test_d.D.test_new",))
        self.assertEqual(expectations.with_unlisted(GROUPS, results()), GROUPS)


if __name__ == "__main__":
    unittest.main()
