"""Tests of the parsers of rdma-core's ping-pongs and of perftest; crate `bench` has the others."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "system"))

import output_checks
from airdma_lab import pingpong
from airdma_lab.pair import Pair
from airdma_lab.program import Outcome

RC_PINGPONG = """\
  local address:  LID 0x0000, QPN 0x000011, PSN 0x5d3f6b, GID ::ffff:10.77.0.1
  remote address: LID 0x0000, QPN 0x000011, PSN 0x38cda6, GID ::ffff:10.77.0.2
8192000 bytes in 0.02 seconds = 3000.50 Mbit/sec
1000 iters in 0.02 seconds = 21.84 usec/iter
"""


class PingPong(unittest.TestCase):
    def test_summary(self) -> None:
        self.assertEqual(pingpong.parse(RC_PINGPONG), pingpong.PingPong(8192000, 3.0005, 1000, 21.84))

    def test_invalid_data_is_no_summary(self) -> None:
        self.assertIsNone(pingpong.parse("invalid data in page 3\n" + RC_PINGPONG))


class Perftest(unittest.TestCase):
    def test_a_table_without_a_measured_clock_is_told_from_nonsense(self) -> None:
        table = "#bytes t_typical[usec] t_avg[usec]\n2 inf -nan\n"
        check = output_checks.table_of([2])
        with mock.patch("airdma_lab.perftest.read", return_value=[{"#bytes": 2.0, "t_typical[usec]": None}]):
            self.assertEqual(check(_pair(table, "Correlation coefficient r^2: 0.43 < 0.9\n")), [])
            self.assertEqual(len(check(_pair(table, ""))), 1)


def _pair(stdout: str, stderr: str) -> Pair:
    outcome = Outcome(("ib_send_lat",), 0, stdout, stderr, 0.1, 0.1, False)
    return Pair(outcome, outcome)


if __name__ == "__main__":
    unittest.main()
