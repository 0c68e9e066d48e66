"""Messages by datagrams, and what arrives of them: in `Lossy` not all of it."""

import asyncio
import os
import unittest

from common import PATIENCE_S, filled

import airdma

try:
    import numpy
except ImportError:
    numpy = None

LOSES = os.environ.get("AIRDMA_IMPAIR") is not None


class Scene(unittest.TestCase):
    def setUp(self) -> None:
        self.device = airdma.Device("127.0.0.1")
        self.target = self.device.datagram_endpoint()
        self.source = self.device.datagram_endpoint()
        self.shared = self.device.allocate(400_000).share(airdma.Rights.RECORD)
        self.remote = airdma.Remote(bytes(self.shared.remote_for_records()))
        self.to = airdma.DatagramAddress(bytes(self.target.address))

    def write(self, data: bytes, at: int = 0, immediate: int | None = None) -> None:
        region = filled(self.device, data)
        writing = self.source.write_record(region, self.to, self.remote, at, immediate=immediate)
        self.assertIs(writing.wait(PATIENCE_S), region)


@unittest.skipIf(LOSES, "packets are lost")
class Whole(Scene):
    def test_a_message_arrives_without_a_receive(self) -> None:
        data = bytes(range(256)) * 200
        self.write(data, 100, 7)
        record = self.target.record().wait(PATIENCE_S)
        self.assertEqual(bytes(record), data)
        self.assertEqual((len(record), record.offset, record.number, record.immediate), (51200, 100, 0, 7))
        self.assertEqual((record.source, record.source_number), ("127.0.0.1", self.source.address.number))
        self.assertEqual((record.ended, record.is_whole, record.valid_bytes), (airdma.Ended.WHOLE, True, 51200))
        self.assertEqual((record.valid, record.missing), ([(0, 51200)], []))
        self.assertEqual(record.mask(8), b"\x01" * 6400)
        self.assertGreater(record.unit, 1000)
        self.assertEqual(self.shared.copy_out(100, 4), data[:4])
        self.assertEqual(repr(record), "<airdma.Record 0 from 127.0.0.1, 51200 of 51200 bytes>")
        with memoryview(record) as view:
            self.assertTrue(view.readonly)
        record.release()
        self.assertEqual(bytes(record), data, "the copy stays")
        self.write(b"again")
        with self.target.record().wait(PATIENCE_S) as record:
            self.assertEqual((record.number, record.immediate), (1, None))
        with self.assertRaisesRegex(airdma.UsageError, "released"):
            bytes(record)

    def test_memory_of_a_peer_is_read(self) -> None:
        shared = filled(self.device, bytes(range(200))).share(airdma.Rights.RECORD_READ)
        remote = airdma.Remote(bytes(shared.remote_for_reads()))
        region = self.device.allocate(150)
        record = self.source.read_record(region, self.to, remote, 60, offset=10).wait(PATIENCE_S)
        self.assertEqual((record.ended, record.valid, record.offset), (airdma.Ended.WHOLE, [(0, 140)], 10))
        self.assertEqual(region[10:150], bytes(range(60, 200)))
        with self.assertRaisesRegex(airdma.UsageError, "in the region"):
            bytes(record)
        reading = self.source.read_record(region, self.to, shared.remote_for_reads("127.0.0.9"), length=1)
        with self.assertRaises(airdma.PeerError):
            reading.wait(PATIENCE_S)
        self.assertFalse(region.in_flight)
        for wrong in (-1, 0):
            with self.assertRaises(airdma.UsageError):
                self.source.read_record(region, self.to, remote, deadline=wrong).wait(PATIENCE_S)

    def test_members_of_a_group_get_a_message(self) -> None:
        group = airdma.DatagramAddress(bytes(airdma.DatagramAddress.of_group("239.1.2.3")))
        members, remote = [], None
        for device in (self.device, airdma.Device("127.0.0.1")):
            shared = device.allocate(5000).share(airdma.Rights.RECORD)
            remote = shared.remote_for_group(group, remote)
            members.append((device.group_endpoint(group), shared))
        assert remote is not None
        self.source.write_record(filled(self.device, b"to all"), group, remote, 1000).wait(PATIENCE_S)
        for member, shared in members:
            with member.record().wait(PATIENCE_S) as record:
                self.assertEqual((bytes(record), record.offset, record.group), (b"to all", 1000, "239.1.2.3"))
            self.assertEqual(shared.copy_out(1000, 6), b"to all")
        with self.assertRaises(airdma.UsageError):
            airdma.DatagramAddress.of_group("10.0.0.1")

    def test_an_iterator_ends_after_its_timeout(self) -> None:
        for number in range(5):
            self.write(b"x" * 10, 10 * number)
        self.assertEqual([record.offset for record in self.target.records(0.05)], [0, 10, 20, 30, 40])

    def test_records_that_are_dropped_are_released(self) -> None:
        for _ in range(300):
            self.write(b"x")
            # An endpoint has room for 128 of one host that are not.
            self.assertTrue(self.target.record().wait(PATIENCE_S).is_whole)

    def test_tasks_await_records(self) -> None:
        async def main() -> bytes:
            region = filled(self.device, b"for a task")
            writing = self.source.write_record(region, self.to, self.remote)
            record, _ = await asyncio.gather(self.target.record(), writing)
            return bytes(record)

        self.assertEqual(asyncio.run(main()), b"for a task")

    def test_mistakes_are_told(self) -> None:
        device, remote = self.device, self.remote
        self.write(b"12345")
        record = self.target.record().wait(PATIENCE_S)
        for size in (0, 2):
            with self.assertRaisesRegex(ValueError, "items of"):
                record.mask(size)
        closed = device.datagram_endpoint()
        with closed:
            waiting = closed.record()
        with self.assertRaises(airdma.ClosedError):
            waiting.wait(PATIENCE_S)
        for mistake in (
            lambda: self.source.write_record(device.allocate(8), self.to, remote, 399_993).wait(PATIENCE_S),
            lambda: self.source.write_record(device.allocate(8), self.to, remote, length=0).wait(PATIENCE_S),
            lambda: closed.write_record(device.allocate(8), self.to, remote),
            lambda: closed.record(),
            lambda: device.datagram_endpoint(open_max=0),
            lambda: device.datagram_endpoint(idle=-1),
            lambda: self.shared.remote_for_records("nonsense"),
            lambda: device.allocate(8).share(airdma.Rights.WRITE).remote_for_records(),
            lambda: airdma.DatagramAddress(b"28 bytes that are no address"),
        ):
            with self.assertRaises(airdma.UsageError):
                mistake()
        with self.assertRaises(OverflowError):
            self.source.write_record(device.allocate(8), self.to, remote, immediate=2**32)


@unittest.skipUnless(LOSES, "no packets are lost")
class Lossy(Scene):
    def test_a_mask_says_what_arrived(self) -> None:
        data = bytes([1, 2, 3, 4]) * 100_000
        self.write(data)
        record = self.target.record().wait(PATIENCE_S)
        self.assertFalse(record.is_whole)
        self.assertEqual(record.ended, airdma.Ended.IDLE)
        seen, mask = bytes(record), record.mask()
        self.assertEqual(sum(mask), record.valid_bytes)
        self.assertEqual(seen, bytes(a * b for a, b in zip(data, mask, strict=True)))
        for start, end in record.missing:
            self.assertEqual(mask[start:end], bytes(end - start))
        self.assertEqual(record.mask(4), bytes(min(mask[at : at + 4]) for at in range(0, len(mask), 4)))
        self.assertEqual(record.mask(400_000), b"\x00")

    def test_a_message_is_seen_while_it_arrives_and_ended(self) -> None:
        target = self.device.datagram_endpoint(idle=60, age=60)
        self.assertIsNone(target.peek_record(self.shared))
        region = filled(self.device, b"\x07" * 300_000)
        self.source.write_record(region, target.address, self.remote, 100).wait(PATIENCE_S)
        record = None
        while record is None:
            with self.assertRaises(TimeoutError):
                target.record().wait(0.01)
            record = target.peek_record(self.shared, 50_000)
        self.assertEqual((record.ended, record.offset, len(record)), (None, 100, 300_000))
        start, end = record.valid[0]
        self.assertEqual(self.shared.copy_out(100 + start, end - start), b"\x07" * (end - start))
        self.assertTrue(target.close_record(self.shared, 50_000))
        self.assertFalse(target.close_record(self.shared, 50_000))
        self.assertEqual(target.record().wait(PATIENCE_S).ended, airdma.Ended.ASKED)

    @unittest.skipUnless(numpy, "no numpy")
    def test_an_array_has_a_mask(self) -> None:
        values = numpy.arange(100_000, dtype=numpy.float32)
        self.write(values.tobytes())
        record = self.target.record().wait(PATIENCE_S)
        seen = numpy.frombuffer(record, numpy.float32)
        mask = numpy.frombuffer(record.mask(seen.itemsize), bool)
        self.assertTrue(0 < mask.sum() < len(mask))
        self.assertTrue((seen[mask] == values[mask]).all())
        self.assertFalse(seen[~mask].any())


if __name__ == "__main__":
    unittest.main()
