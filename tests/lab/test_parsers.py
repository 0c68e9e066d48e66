"""The parsers read what the programs really print."""

from __future__ import annotations

import json
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from airdma_lab import iperf, perftest, pingpong, sockperf

BANDWIDTH = """\
---------------------------------------------------------------------------------------
                    RDMA_Write BW Test
 Dual-port       : OFF\t\tDevice         : airdma_eth0
 Number of qps   : 1\t\tTransport type : IB
---------------------------------------------------------------------------------------
 local address: LID 0000 QPN 0x0011 PSN 0x4f0c6 RKey 0x000200 VAddr 0x007f0000000000
 GID: 00:00:00:00:00:00:00:00:00:00:255:255:10:77:00:01
---------------------------------------------------------------------------------------
 #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]
 2          100              0.05               0.04   \t\t   2.512345
 65536      100             41.02              40.87  \t\t   0.077954
---------------------------------------------------------------------------------------
"""

# perftest pads its lines with blanks, as here.
LATENCY = """\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec] 
 64      1000          7.51           40.10        8.02     	       8.20        	0.91   		11.50   		33.10  
"""

RC_PINGPONG = """\
  local address:  LID 0x0000, QPN 0x000011, PSN 0x5d3f6b, GID ::ffff:10.77.0.1
  remote address: LID 0x0000, QPN 0x000011, PSN 0x38cda6, GID ::ffff:10.77.0.2
8192000 bytes in 0.02 seconds = 3000.50 Mbit/sec
1000 iters in 0.02 seconds = 21.84 usec/iter
"""

SOCKPERF = """\
sockperf: [2;35mTotal 28971 observations[0m; each percentile contains 289.71 observations
sockperf: ---> <MAX> observation =  297.348
sockperf: ---> percentile 99.900 =   16.009
sockperf: ---> percentile 99.000 =   13.309
sockperf: ---> percentile 50.000 =    9.154
sockperf: ---> <MIN> observation =    8.349
"""


class Perftest(unittest.TestCase):
    def test_bandwidth_table_gives_average_by_size(self) -> None:
        self.assertEqual(perftest.bandwidth_gbps(BANDWIDTH), {2: 0.04, 65536: 40.87})

    def test_rows_carry_every_column_of_the_title(self) -> None:
        self.assertEqual(
            perftest.parse(BANDWIDTH)[1],
            {
                "#bytes": 65536,
                "#iterations": 100,
                "BW peak[Gb/sec]": 41.02,
                "BW average[Gb/sec]": 40.87,
                "MsgRate[Mpps]": 0.077954,
            },
        )

    def test_latency_table_gives_the_median(self) -> None:
        self.assertEqual(perftest.latency_us(LATENCY), {64: 8.02})
        self.assertEqual(perftest.parse(LATENCY)[0]["99.9% percentile[usec]"], 33.10)

    def test_output_without_a_table_has_no_rows(self) -> None:
        self.assertEqual(perftest.parse(" Unable to init the socket connection\n"), [])


class PingPong(unittest.TestCase):
    def test_summary(self) -> None:
        self.assertEqual(pingpong.parse(RC_PINGPONG), pingpong.PingPong(8192000, 3.0005, 1000, 21.84))

    def test_invalid_data_is_no_summary(self) -> None:
        self.assertIsNone(pingpong.parse("invalid data in page 3\n" + RC_PINGPONG))


class Peers(unittest.TestCase):
    def test_sockperf_percentiles(self) -> None:
        self.assertEqual(sockperf.parse(SOCKPERF), {99.9: 16.009, 99.0: 13.309, 50.0: 9.154})

    def test_iperf_counts_what_the_receiver_got(self) -> None:
        end = {
            "sum_sent": {"bits_per_second": 9e9, "retransmits": 3},
            "sum_received": {"bits_per_second": 8e9, "bytes": 1000},
        }
        self.assertEqual(iperf.parse(json.dumps({"end": end})), (8.0, 1000, 3))


if __name__ == "__main__":
    unittest.main()
