"""Tests of what judges the runs against rxe: captures, and the names of the scenarios."""

from __future__ import annotations

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/interop"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/system"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

import captures
import events
import stand
import table
import wifi

ROOT = Path(__file__).resolve().parents[2]

VECTORS = ROOT / "testing" / "captures" / "vectors"
REQUESTER = {
    "rc_send.pcap": "10.5.0.1",
    "rc_ipv6.pcap": "fd05::1",
    "rc_mtu4096.pcap": "10.5.0.1",
    "ud_ipv6.pcap": "fd05::1",
}


class Captures(unittest.TestCase):
    def test_what_rxe_sent_is_right(self) -> None:
        for name, address in REQUESTER.items():
            found = captures.Findings()
            for number, frame in enumerate(captures.frames(_vector(name)), 1):
                captures.inspect_frame(frame, address, number, found)
            self.assertGreater(found.packets, 3, name)
            self.assertEqual(found.bad, [], name)

    def test_a_flipped_bit_is_seen_wherever_it_is(self) -> None:
        frame = next(captures.frames(_vector("rc_send.pcap")))
        # Routers may change the reserved bits behind the BTH's key, and rxe's packets have no UDP
        # checksum.
        masked = 14 + 20 + 8 + 4
        for position in range(14 + 20, len(frame)):
            damaged = bytearray(frame)
            damaged[position] ^= 0x10
            found = captures.Findings()
            captures.inspect_frame(bytes(damaged), "10.5.0.1", 1, found)
            self.assertEqual(bool(found.bad), position != masked, position)

    def test_packets_of_others_do_not_count(self) -> None:
        found = captures.Findings()
        captures.inspect_frame(next(captures.frames(_vector("rc_send.pcap"))), "10.5.0.9", 1, found)
        self.assertEqual((found.packets, found.bad), (0, []))


class Netem(unittest.TestCase):
    SEEN = "qdisc netem 8001: root\n Sent 9 bytes {0} pkt (dropped {1}, overlimits 0 requeues 0)\n"

    def test_one_that_did_its_work_is_no_complaint(self) -> None:
        seen = self.SEEN.format(30_000, 30) + self.SEEN.format(20, 0)
        self.assertEqual(stand.idle_netem(seen, "loss 1%"), [])

    def test_one_that_did_nothing_is(self) -> None:
        one, none = self.SEEN.format(30_000, 0), self.SEEN.format(0, 0)
        for seen, arguments in (
            (one + none, "delay 5ms"),
            (one, "delay 5ms"),
            ("", "delay 5ms"),
            (one + one, "loss 1%"),
        ):
            self.assertEqual(len(stand.idle_netem(seen, arguments)), 1, (seen, arguments))


class Counters(unittest.TestCase):
    def test_one_that_stands_still_at_either_end_is_a_complaint(self) -> None:
        grown = {"server": {"agreed": 1, "sent": 5}, "client": {"agreed": 0, "sent": 5}}
        self.assertEqual(stand.stood_still(grown, ["sent"]), [])
        self.assertEqual(stand.stood_still(grown, ["agreed", "sent"]), ["agreed of client did not rise"])

    def test_air_mode_is_asked_of_what_uses_it(self) -> None:
        names = [stand.short_name(line) for line in wifi.AIR_LINES]
        self.assertEqual(len(names), 10, names)
        quick = [stand.short_name(line) for line in wifi.AIR_LINES_QUICK]
        self.assertEqual(quick, ["ib_write_bw -n 40"])


class Names(unittest.TestCase):
    def test_each_has_its_own(self) -> None:
        for quick in (False, True):
            names = [name for name, _ in [*table.work(quick, "6.12"), *events.work(), *wifi.work(quick)]]
            self.assertEqual(len(names), len(set(names)))

    def test_make_test_runs_some_of_everything(self) -> None:
        names = {name for name, _ in table.work(True, "6.1")}
        for wanted in ("verbs_check [", "IPv6", "rping", "netem loss", "mtu4200", "refusals", "cmtime"):
            self.assertTrue(any(wanted in name for name in names), wanted)

    def test_atomic_writes_need_a_newer_rxe(self) -> None:
        for kernel, count in (("6.1", 0), ("6.12", 4)):
            names = [name for name, _ in table.work(False, kernel)]
            self.assertEqual(sum("services" in name and " atomic " in name for name in names), count, kernel)


def _vector(name: str) -> Path:
    return next(VECTORS.rglob(name))


if __name__ == "__main__":
    unittest.main()
