"""Regions as buffers, who has them when, and the memory of peers."""

import ctypes
import gc
import os
import unittest

from common import PATIENCE_S, Pair, filled

import airdma

try:
    import numpy
except ImportError:
    numpy = None


class Regions(unittest.TestCase):
    def setUp(self) -> None:
        self.device = airdma.Device("127.0.0.1")

    def test_a_region_is_a_writable_buffer_of_zeroed_bytes(self) -> None:
        region = self.device.allocate(6)
        self.assertEqual((len(region), bytes(region)), (6, bytes(6)))
        with memoryview(region) as view:
            self.assertEqual((view.nbytes, view.format, view.readonly), (6, "B", False))
            view[1] = 7
        region[3:5] = b"ab"
        self.assertEqual(region[1], 7)
        self.assertEqual(bytes(region), b"\0\7\0ab\0")
        with self.assertRaises(IndexError):
            region[6]
        with self.assertRaises(ValueError):
            region[:2] = b"three"

    def test_an_open_device_refuses_variables_that_changed(self) -> None:
        os.environ["AIRDMA_MTU"] = "512"
        try:
            with self.assertRaisesRegex(airdma.UsageError, r"another configuration \(AIRDMA_MTU\)"):
                airdma.Device("127.0.0.1")
        finally:
            del os.environ["AIRDMA_MTU"]
        self.assertEqual(airdma.Device("127.0.0.1").name, self.device.name)

    def test_a_view_keeps_the_memory_of_a_region_that_is_gone(self) -> None:
        view = memoryview(filled(self.device, b"alive"))
        gc.collect()
        self.assertEqual(bytes(view), b"alive")

    def test_a_region_without_bytes_or_with_too_many_is_refused(self) -> None:
        with self.assertRaisesRegex(airdma.UsageError, "at least one"):
            self.device.allocate(0)
        with self.assertRaises(airdma.HostError):
            self.device.allocate(1 << 60)
        with self.assertRaises(OverflowError):
            self.device.allocate(-1)

    def test_what_is_cut_in_two_is_there_in_parts(self) -> None:
        region = filled(self.device, b"headtail")
        with self.assertRaisesRegex(airdma.UsageError, "a cut at 9"):
            region.split_at(9)
        head, tail = region.split_at(4)
        self.assertEqual((bytes(head), bytes(tail)), (b"head", b"tail"))
        with self.assertRaisesRegex(BufferError, "use its parts"):
            memoryview(region)
        self.assertEqual(repr(region), "<airdma.Region of 8 bytes, away>")


class Ownership(unittest.TestCase):
    def setUp(self) -> None:
        self.pair = Pair()

    def test_memory_in_flight_has_no_views_and_cannot_be_reused(self) -> None:
        pair = self.pair
        region = pair.there.allocate(8)
        receiving = pair.right.recv(region)
        self.assertTrue(region.in_flight)
        for touch in (memoryview, bytes, lambda it: it[0], lambda it: it.__setitem__(0, 1)):
            with self.assertRaisesRegex(BufferError, "in flight"):
                touch(region)
        for use in (pair.right.recv, pair.right.send, lambda it: it.share(airdma.Rights.READ)):
            with self.assertRaisesRegex(airdma.UsageError, "in flight"):
                use(region)
        pair.left.send(filled(pair.here, b"8 bytes.")).wait(PATIENCE_S)
        receiving.wait(PATIENCE_S)
        self.assertFalse(region.in_flight)
        self.assertEqual(bytes(region), b"8 bytes.")

    def test_memory_with_views_does_not_go_in_flight(self) -> None:
        pair = self.pair
        region = pair.here.allocate(8)
        whole, part = memoryview(region), region[2:4]
        for use in (pair.left.send, pair.left.recv, lambda it: it.share(airdma.Rights.READ), lambda it: it.split_at(1)):
            with self.assertRaisesRegex(BufferError, "views .* alive .*, 2 of them"):
                use(region)
        whole.release()
        with self.assertRaisesRegex(BufferError, "views .* alive .*, 1 of them"):
            pair.left.send(region)
        del part
        sending = pair.left.send(region)
        pair.right.recv(pair.there.allocate(8)).wait(PATIENCE_S)
        sending.wait(PATIENCE_S)

    def test_a_message_is_gone_when_its_region_is_used_again(self) -> None:
        pair = self.pair
        sending = pair.left.send(filled(pair.here, b"one"))
        message = pair.right.recv(pair.there.allocate(8)).wait(PATIENCE_S)
        sending.wait(PATIENCE_S)
        view = memoryview(message)
        with self.assertRaisesRegex(BufferError, "views .* alive .*, 1 of them"):
            pair.right.recv(message.region)
        view.release()
        receiving = pair.right.recv(message.region)
        sending = pair.left.send(filled(pair.here, b"two"))
        self.assertEqual(bytes(receiving.wait(PATIENCE_S)), b"two")
        sending.wait(PATIENCE_S)
        with self.assertRaisesRegex(BufferError, "used again"):
            bytes(message)

    def test_a_range_beyond_a_region_is_a_usage_error(self) -> None:
        region = self.pair.here.allocate(8)
        for length, offset in ((9, 0), (1, 8), (None, 9), (2**64 - 1, 2**64 - 1)):
            with self.assertRaisesRegex(airdma.UsageError, "stay within it"):
                self.pair.left.send(region, length, offset=offset).wait(PATIENCE_S)
            self.assertFalse(region.in_flight)

    def test_a_view_that_is_refused_has_no_owner(self) -> None:
        """As PEP 3118 demands: a C extension releases what it did not get."""
        message_region = self.pair.there.allocate(8)
        self.pair.left.send(filled(self.pair.here, b"x"))
        message = self.pair.right.recv(message_region).wait(PATIENCE_S)
        receiving = self.pair.right.recv(message_region)
        for refused in (message_region, message):
            view = (ctypes.c_void_p * 16)(*[0x5A5A5A5A] * 16)
            with self.assertRaises(BufferError):
                ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(refused), view, 0)
            self.assertIsNone(view[1], "the field obj")
        del receiving

    def test_a_region_of_another_device_is_refused(self) -> None:
        region = self.pair.there.allocate(8)
        with self.assertRaisesRegex(airdma.UsageError, "another device"):
            self.pair.left.send(region).wait(PATIENCE_S)

    @unittest.skipUnless(numpy, "no numpy")
    def test_an_array_is_a_view_without_a_copy(self) -> None:
        pair = self.pair
        region = pair.here.allocate(4 * 6)
        array = numpy.frombuffer(region, numpy.float32).reshape(2, 3)
        array[:] = [[1, 2, 3], [4, 5, 6]]
        self.assertTrue(array.flags.writeable)
        with self.assertRaises(BufferError):
            pair.left.send(region)
        del array
        sending = pair.left.send(region)
        message = pair.right.recv(pair.there.allocate(64)).wait(PATIENCE_S)
        sending.wait(PATIENCE_S)
        got = numpy.frombuffer(message, numpy.float32)
        self.assertEqual(got.tolist(), [1, 2, 3, 4, 5, 6])
        message.region[0:4] = bytes(4)
        self.assertEqual(got[0], 0, "the same memory")


class OfPeers(unittest.TestCase):
    def setUp(self) -> None:
        self.pair = Pair()

    def test_one_sided_writes_and_reads_need_no_call_of_the_peer(self) -> None:
        pair = self.pair
        every = airdma.Rights.READ | airdma.Rights.WRITE | airdma.Rights.ATOMIC
        region = pair.there.allocate(64)
        shared = region.share(every)
        with self.assertRaisesRegex(BufferError, "shared with peers"):
            memoryview(region)
        remote = airdma.Remote(bytes(shared.remote(pair.right)))
        self.assertEqual(remote, shared.remote(pair.right))
        self.assertEqual((len(remote), len(bytes(remote))), (64, airdma.Remote.BYTES))
        pair.left.write(filled(pair.here, b"..one side.."), remote, 10, 8, offset=2).wait(PATIENCE_S)
        self.assertEqual(shared.copy_out(10, 8), b"one side")
        shared.copy_in(20, bytearray(b"other"))
        got = pair.left.read(pair.here.allocate(5), remote, 20).wait(PATIENCE_S)
        self.assertEqual(bytes(got), b"other")
        self.assertEqual(pair.left.fetch_add(remote, 0, 5).wait(PATIENCE_S), 0)
        self.assertEqual(pair.left.compare_swap(remote, 0, 5, 2**64 - 1).wait(PATIENCE_S), 5)
        self.assertEqual(shared.word(0), 2**64 - 1)
        withdrawn = shared.withdraw()
        self.assertEqual(bytes(withdrawn[10:18]), b"one side")
        with self.assertRaisesRegex(airdma.UsageError, "withdrawn"):
            shared.word(0)
        with self.assertRaises(airdma.PeerError):
            pair.left.write(pair.here.allocate(8), remote).wait(PATIENCE_S)

    def test_mistakes_with_the_memory_of_peers_are_told(self) -> None:
        pair = self.pair
        other = Pair()
        other.right.abort()
        shared = pair.there.allocate(64).share(airdma.Rights.ATOMIC)
        self.assertEqual(shared.copy_out(64), b"")
        for mistake in (
            lambda: shared.copy_out(60, 5),
            lambda: shared.copy_out(65),
            lambda: shared.copy_out(1, 2**64 - 1),
            lambda: shared.copy_in(60, b"12345"),
            lambda: shared.word(4),
            lambda: shared.word(64),
            lambda: pair.left.fetch_add(shared.remote(pair.right), 4, 1).wait(PATIENCE_S),
            lambda: pair.left.write(pair.here.allocate(8), shared.remote(pair.right), 60).wait(PATIENCE_S),
            lambda: airdma.Remote(b"24 bytes that are no remote"),
            lambda: pair.there.allocate(8).share(64),
            lambda: pair.there.allocate(8).share(airdma.Rights.READ).remote(other.left),
            lambda: shared.remote(other.right),
        ):
            with self.assertRaises(airdma.UsageError):
                mistake()
        for mistake in (lambda: airdma.Remote("text"), lambda: shared.copy_in(0, "text")):
            with self.assertRaises((TypeError, BufferError)):
                mistake()


if __name__ == "__main__":
    unittest.main()
