"""Tests of the parser of rdma-core's ping-pongs; crate `bench` has the others."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from airdma_lab import pingpong

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


if __name__ == "__main__":
    unittest.main()
