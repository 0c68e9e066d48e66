"""The dissector of tools/wireshark reads the messages that crates/wire writes."""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GSI_QKEY = 0x80010000


def frame(mad: bytes) -> bytes:
    """A management datagram to queue pair 1, in a frame of Ethernet."""
    bth = struct.pack(">BBHBBHI", 0x64, 0x40, 0xFFFF, 0, 0, 1, 7)
    deth = struct.pack(">II", GSI_QKEY, 1)
    return packet(bth + deth + mad)


def packet(transport: bytes) -> bytes:
    """A packet, BTH to pad, in a frame of Ethernet."""
    return frames(transport + bytes(4))[0]


def frames(datagram: bytes, mtu: int = 1500) -> list[bytes]:
    """A datagram in as many frames of Ethernet as it takes."""
    udp = struct.pack(">HHHH", 4791, 4791, 8 + len(datagram), 0)
    whole = udp + datagram
    most = (mtu - 20) // 8 * 8
    found = []
    for at in range(0, len(whole), most):
        part = whole[at : at + most]
        flags = (0x2000 if at + most < len(whole) else 0) | at // 8 if len(whole) > most else 0x4000
        ip = struct.pack(
            ">BBHHHBBH4s4s", 0x45, 0, 20 + len(part), 7, flags, 64, 17, 0, bytes([10, 0, 0, 1]), bytes([10, 0, 0, 2])
        )
        found.append(bytes(12) + b"\x08\x00" + ip + part)
    return found


def capture(frames: list[bytes]) -> bytes:
    """A pcap file."""
    header = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
    return header + b"".join(struct.pack("<IIII", 0, 0, len(one), len(one)) + one for one in frames)


@unittest.skipUnless(shutil.which("tshark"), "tshark is not installed")
class Dissector(unittest.TestCase):
    def fields(self, *names: str) -> list[list[str]]:
        lines = (ROOT / "crates/wire/tests/air.hex").read_text(encoding="ascii").splitlines()
        return self.fields_of([frame(bytes.fromhex(line)) for line in lines], *names)

    def fields_of(self, frames: list[bytes], *names: str) -> list[list[str]]:
        with tempfile.NamedTemporaryFile(suffix=".pcap") as file:
            file.write(capture(frames))
            file.flush()
            script = ROOT / "tools/wireshark/airdma.lua"
            command = ["tshark", "-X", f"lua_script:{script}", "-r", file.name, "-T", "fields", "-E", "separator=|"]
            for name in names:
                command += ["-e", f"airdma.{name}"]
            result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        self.assertNotIn("Lua", result.stderr)
        return [line.split("|") for line in result.stdout.splitlines()]

    def test_a_hello(self) -> None:
        hello = self.fields(
            "attribute",
            "receiver",
            "hello.asks",
            "hello.long_payload",
            "hello.selective",
            "sender",
            "instance",
            "hello.answers",
            "hello.nonce",
            "hello.echo",
            "hello.number",
        )[0]
        expected = ["1", "0x7f000000", "1", "1428", "1", "0x03000000", "0x0102030405060708", "0x1112131415161718"]
        expected += ["0x2122232425262728", "0x3132333435363738", str(0x41424344)]
        self.assertEqual(hello, expected)

    def test_a_report(self) -> None:
        names = ["number", "ping", "pong", "held_us", "received_bytes", "missed_packets", "marked_bytes"]
        names += ["socket_bytes", "socket_bytes_max", "application_bytes", "application_bytes_max", "at_us"]
        report = self.fields(*(f"report.{name}" for name in names), "sender", "instance", "report.from")[1]
        expected = ["1", "2", "3", "4", str(1 << 40), "5", "6", "7", "8", "10", "11", "12"]
        self.assertEqual(report, [*expected, "0x04000000", "0x0000000000000009", "0x5152535455565758"])

    def test_its_records(self) -> None:
        record = self.fields("record.qpn", "record.expected", "range.first", "range.packets")[1]
        self.assertEqual(record, ["0x000011,0xfffff0", "5,16777215", "16777215,77", "2,1193046"])

    def test_an_acknowledgement_that_says_what_is_missing(self) -> None:
        bth = struct.pack(">BBHII", 0x11, 0x40, 0xFFFF, 0x22, 100)
        aeth = bytes([0x1F, 0, 0, 7])
        plain = packet(bth + aeth)
        sack = packet(bth + aeth + bytes.fromhex("01020000" + "00000002" + "01020304"))
        rows = self.fields_of([plain, sack], "seth.first", "seth.packets")
        self.assertEqual(rows[-1], ["0,258", "2,772"])
        self.assertNotIn("airdma", "".join(rows[0]))

    def test_a_read_request_that_says_what_its_answers_carry(self) -> None:
        bth = struct.pack(">BBHII", 0x0C, 0x40, 0xFFFF, 0x22, 100)
        reth = struct.pack(">QII", 0x1000, 7, 65536)
        requests = [
            packet(bth + reth + bytes.fromhex(more)) for more in ("", "010005ac", "02000594", "030005ac", "00" * 8)
        ]
        rows = self.fields_of(requests, "version", "lreth.payload")
        self.assertEqual(rows, [["", ""], ["1", "1452"], ["2", "1428"], ["", ""], ["", ""]])

    def test_a_padded_packet(self) -> None:
        last = struct.pack(">BBHII", 0x08, 0x41, 0xFFFF, 0x22, 100)
        plain = struct.pack(">BBHII", 0x08, 0x40, 0xFFFF, 0x22, 100)
        body = bytes([1, 2, 3]) + bytes(3) + struct.pack(">H", 5)
        packets = [packet(last + body), packet(plain + body), packet(last + body[:-1] + bytes([9])), packet(last)]
        rows = self.fields_of(packets, "padding")
        self.assertEqual(rows, [["5"], [""], [""], [""]])

    def test_what_a_hello_offers(self) -> None:
        mads = [
            bytes.fromhex(line)
            for line in (ROOT / "crates/wire/tests/air.hex").read_text(encoding="ascii").splitlines()
        ]
        hellos = [frame(mads[0][:51] + bytes([1 << bit]) + mads[0][52:]) for bit in range(8)]
        names = ("selective", "buffers", "sack", "bundles", "long_reads", "reports", "pieces", "equal_lengths")
        rows = self.fields_of(hellos, *(f"hello.{name}" for name in names))
        self.assertEqual(rows, [["1" if bit == row else "0" for bit in range(8)] for row in range(8)])

    def test_a_half_of_an_exchange_of_keys(self) -> None:
        names = ["hello.asks", "key.has_keys", "key.sender", "key.receiver", "key.public", "key.seen"]
        offer = self.fields(*names)[2]
        self.assertEqual(offer, ["1", "0", "0x123456", "0x512345", bytes(range(32)).hex(), "07" * 32])

    def test_a_sealed_packet(self) -> None:
        bth = struct.pack(">BBHII", 0xDA, 0x40, 0xFFFF, 0x512345, 100)
        whole = bth + bytes(8) + struct.pack(">Q", 7) + bytes(range(16))
        rows = self.fields_of([packet(whole), packet(whole[:-8])], "bundle.qpn", "sealed.counter", "sealed.tag")
        self.assertEqual(rows[0], ["0x512345", "7", bytes(range(16)).hex()])
        self.assertEqual(rows[1], ["", "", ""], "too short")

    def test_the_pieces_of_a_packet(self) -> None:
        header = struct.pack(">BBHII", 0xDB, 0x40, 0xFFFF, 0x80512345, 0x80000009)
        padded = struct.pack(">BBHII", 0xDB, 0x41, 0xFFFF, 0x80512345, 0x80000009)
        names = ["bundle.qpn", "bundle.psn", "piece.opcode", "piece.last", "piece.offset", "piece.bytes", "padding"]
        first = packet(header + bytes([7, 0]) + struct.pack(">H", 0) + bytes(12))
        # A padded packet lends its version and its last bytes to its last piece.
        last = packet(padded + bytes([8, 0x80]) + struct.pack(">H", 12) + bytes(6) + struct.pack(">H", 5))
        rows = self.fields_of([first, last, packet(header + bytes([7, 0x80, 0, 0]))], *names)
        self.assertEqual(rows[0], ["0x512345", "9", "0x07", "0", "0", "12", ""])
        self.assertEqual(rows[1], ["0x512345", "9", "0x08", "1", "12", "8", ""])
        self.assertEqual(rows[2], [""] * 7, "no bytes of a packet")

    def test_a_probe_of_the_same_host(self) -> None:
        bth = struct.pack(">BBHII", 0xDC, 0, 0xFFFF, 0x512345, 0)
        token, nonce = bytes([7] * 16), bytes(range(16))
        probes = [packet(bth + token + nonce), packet(bth + token + nonce[1:]), packet(bth + token + nonce + token)]
        rows = self.fields_of(probes, "bundle.qpn", "probe.token", "probe.nonce")
        self.assertEqual(rows, [["0x512345", token.hex(), nonce.hex()], [""] * 3, [""] * 3])

    def test_packets_of_an_acknowledged_message_and_its_answer(self) -> None:
        bth = struct.pack(">BBHII", 0xC0, 0x40, 0xFFFF, 0x512345, 1 << 31 | 7)
        reth = struct.pack(">QII", 0x1000, 7, 5000)
        rceth = struct.pack(">IIHBB", 9, 1420, 1420, 0x17, 3)
        body = bth + struct.pack(">II", 0x11, 0x610002) + reth + rceth + bytes(range(8)) + b"imm!" + bytes(8)
        plain = body[:46] + b"\x11" + body[47:]
        answer = struct.pack(">BBHII", 0xC1, 0x40, 0xFFFF, 0x610002, 7) + struct.pack(">II", 0, 0x512345)
        answer += struct.pack(">IQI", 9, 77, 2) + bytes([0x12, 3, 0, 0]) + bytes(15) + b"\x02"
        names = ("write.id", "write.send", "write.round", "write.token", "write.imm", "answer", "answer.base")
        rows = self.fields_of([packet(one) for one in (body, plain, answer)], *names)
        self.assertEqual(rows[0], ["9", "1", "3", "0x0001020304050607", b"imm!".hex(), "", ""])
        self.assertEqual(rows[1], ["9", "0", "", "", bytes(range(4)).hex(), "", ""])
        self.assertEqual(rows[2], ["9", "", "3", "0x000000000000004d", "", "2", "2"])

    def test_the_answer_to_a_record_and_a_question(self) -> None:
        bth = struct.pack(">BBHII", 0xC2, 0x40, 0xFFFF, 0x22, 100)
        deth = struct.pack(">II", 0x1234, 0x33)
        numbers = struct.pack(">IIII", 7, 1416, 5000, 400000)
        flags = ("11000040", "10000000", "12000000")
        packets = [packet(bth + deth + numbers + bytes.fromhex(more)) for more in flags]
        rows = self.fields_of(packets, "write.id", "write.socket", "write.entries")
        self.assertEqual(rows, [["7", "5000", "64"], ["7", "5000", ""], ["7", "", ""]])

    def test_a_request_to_read_by_datagrams_and_what_it_brings(self) -> None:
        bth = struct.pack(">BBHII", 0xC3, 0x40, 0xFFFF, 0x512345, 7)
        reth = struct.pack(">QII", 0x1000, 7, 5000)
        request = bth + struct.pack(">II", 0x11, 0x610002) + reth + struct.pack(">IQQI", 9, 77, 0, 0x12)
        request += struct.pack(">HBB", 1408, 0x10, 2) + struct.pack(">IIII", 0, 2, 3, 1)
        challenge = request[:48] + struct.pack(">QI", 5, 0x12) + struct.pack(">HBB", 1408, 0x11, 0)
        rceth = struct.pack(">IIHBB", 9, 0, 1408, 0x18, 0)
        data = b"\xc0" + bth[1:] + struct.pack(">II", 0x11, 0x610002) + reth + rceth + struct.pack(">Q", 77) + bytes(8)
        names = ("read", "write.id", "write.nonce", "write.token", "read.first", "read.units")
        rows = self.fields_of([packet(one) for one in (request, challenge, data)], *names)
        nonce = "0x000000000000004d"
        self.assertEqual(rows[0], ["0", "9", nonce, "0x0000000000000000", "0,3", "2,1"])
        self.assertEqual(rows[1], ["1", "9", nonce, "0x0000000000000005", "", ""])
        self.assertEqual(rows[2], ["", "9", nonce, "", "", ""])

    def test_a_bundle_whole_and_in_fragments(self) -> None:
        packets = [struct.pack(">BBHII", 0x07, 0, 0xFFFF, 0x512345, 100 + number) + bytes(1028) for number in range(3)]
        packets[2] = packets[2][:100]
        bundle = bytes.fromhex("d9000410" + "03512345") + b"".join(packets)
        names = ["bundle.segment", "bundle.packets", "bundle.opcode", "bundle.qpn", "bundle.psn"]
        expected = ["1040", "3", "0x07,0x07,0x07", "0x512345,0x512345,0x512345", "100,101,102"]
        for mtu in (9000, 1500):
            rows = self.fields_of(frames(bundle, mtu), *names)
            self.assertEqual(rows[-1], expected, mtu)

    def test_what_only_looks_like_a_bundle(self) -> None:
        for header in (
            "d9000000" + "03512345",
            "d9010410" + "01512345",
            "d9000410" + "02512345",
            "d9000410" + "ff512345",
        ):
            rows = self.fields_of(frames(bytes.fromhex(header) + bytes(1000)), "bundle.packets")
            self.assertEqual(rows[-1], [""], header)


if __name__ == "__main__":
    unittest.main()
