"""Frames of many devices: blocks, arrays, and what frees them."""

import asyncio
import gc
import importlib.util
import signal
import threading
import time
import unittest
from concurrent.futures import ThreadPoolExecutor

from common import PATIENCE_S, Pair

import airdma

BYTES = 60


class Stream:
    """A sender and a receiver."""

    def __init__(self, *, blocks: int = 3, quota: int | None = None, checksums: bool = True) -> None:
        pair = Pair()
        self.sender = airdma.FrameSender(pair.here, blocks=8, frame_bytes=BYTES)
        opening = threading.Thread(target=self.sender.open, args=(pair.left,))
        opening.start()
        self.receiver = airdma.FrameReceiver(
            pair.there, pair.right, blocks=blocks, quota=quota, checksums=checksums
        )
        opening.join()
        self.sender.add(7)

    def send(self, data: bytes, device: int = 7) -> None:
        block = self.sender.block(device, len(data), PATIENCE_S)
        memoryview(block)[:] = data
        self.sender.send(block)

    def exchange(self, data: bytes, device: int = 7) -> airdma.Frame:
        """Sends a frame and takes one, in one thread, in the place of two programs."""
        self.send(data, device)
        return self.take()

    def take(self) -> airdma.Frame:
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.sender.flush(0)
            except TimeoutError:
                pass
            try:
                return self.receiver.next(0.01)
            except TimeoutError:
                if time.monotonic() > end:
                    raise


def wait_until_used(end: airdma.FrameSender | airdma.FrameReceiver) -> None:
    """Waits until a call of another thread has this end."""
    while True:
        try:
            end.counts()
        except airdma.UsageError:
            return
        time.sleep(0.001)


class Streams(unittest.TestCase):
    def test_frames_say_what_they_are(self) -> None:
        stream = Stream()
        stream.sender.set_format(7, "grey 3x4")
        before = time.time_ns()
        frame = stream.exchange(b"twelve bytes")
        self.assertEqual((frame.device, frame.sequence, frame.missing, len(frame)), (7, 0, 0, 12))
        self.assertEqual((bytes(frame), frame.format), (b"twelve bytes", "grey 3x4"))
        self.assertTrue(before <= frame.time_ns <= frame.arrived_ns <= time.time_ns())
        self.assertFalse(frame.is_end or frame.is_key or frame.deadline_ns)
        self.assertTrue(memoryview(frame).readonly)
        with self.assertRaises(TypeError):
            memoryview(frame)[0] = 1
        stream.sender.end(7)
        self.assertTrue(stream.take().is_end)
        self.assertEqual(stream.receiver.counts()[7]["frames"], 1)
        self.assertEqual(stream.sender.counts()[7]["offered"], 1)

    def test_a_frame_has_its_block_until_it_is_released(self) -> None:
        stream = Stream(blocks=2)
        first, second = stream.exchange(b"first"), stream.exchange(b"second")
        stream.send(b"third")
        # The receiver has no block for it.
        with self.assertRaises(TimeoutError):
            stream.receiver.next(0.05)
        view = memoryview(first)
        with self.assertRaises(BufferError):
            first.release()
        view.release()
        first.release()
        with self.assertRaises(BufferError):
            bytes(first)
        third = stream.take()
        self.assertEqual((bytes(second), bytes(third)), (b"second", b"third"))
        stream.send(b"fourth")
        with self.assertRaises(TimeoutError):
            stream.receiver.next(0.05)
        with second:
            pass
        self.assertEqual(bytes(stream.take()), b"fourth")

    @unittest.skipUnless(importlib.util.find_spec("numpy"), "no numpy")
    def test_an_array_keeps_the_block_and_its_end_frees_it(self) -> None:
        stream = Stream(blocks=1)
        array = stream.exchange(bytes(range(12))).array((3, 4))
        self.assertEqual((array.shape, array[2, 3], array.flags.writeable), ((3, 4), 11, False))
        stream.send(b"next")
        gc.collect()
        with self.assertRaises(TimeoutError):
            stream.receiver.next(0.05)
        part = array[1]
        del array
        with self.assertRaises(TimeoutError):
            stream.receiver.next(0.05)
        self.assertEqual(part.tolist(), [4, 5, 6, 7])
        del part
        self.assertEqual(bytes(stream.take()), b"next")

    def test_a_device_whose_frames_are_kept_leaves_blocks_to_others(self) -> None:
        stream = Stream(blocks=3, quota=1)
        stream.sender.add(8)
        kept = stream.exchange(b"kept")
        stream.send(b"dropped")
        self.assertEqual(bytes(stream.exchange(b"other", 8)), b"other")
        self.assertEqual(stream.receiver.counts()[7]["over_quota"], 1)
        kept.release()
        self.assertEqual(stream.exchange(b"again").missing, 1)

    def test_mistakes_are_told(self) -> None:
        stream = Stream()
        with self.assertRaises(airdma.UsageError):
            stream.sender.block(9, 5)
        with self.assertRaises(airdma.UsageError):
            stream.sender.block(7, BYTES + 100)
        with self.assertRaises(airdma.UsageError):
            stream.sender.add(7)
        block = stream.sender.block(7, 5)
        view = memoryview(block)
        with self.assertRaises(BufferError):
            stream.sender.send(block)
        view.release()
        stream.sender.send(block)
        with self.assertRaises(airdma.UsageError):
            stream.sender.send(block)
        while not stream.sender.counts()[7]["sent"]:
            stream.sender.flush(PATIENCE_S)
        blocks = [stream.sender.block(7, 5) for _ in range(3)]
        with self.assertRaises(TimeoutError):
            stream.sender.block(7, 5, 0.3)
        # A block that is not sent goes back.
        blocks.pop()
        stream.sender.block(7, 5, PATIENCE_S)
        stream.sender.close()
        with self.assertRaises(airdma.UsageError):
            stream.sender.flush()
        pair = Pair()
        pair.left.abort()
        with self.assertRaises(airdma.UsageError):
            airdma.FrameSender(pair.here).open(pair.left)

    def test_a_block_that_is_refused_is_sent_later(self) -> None:
        stream, other = Stream(blocks=1), Stream()
        kept, block = stream.exchange(b"first"), stream.sender.block(7, 5)
        memoryview(block)[:] = b"third"
        with self.assertRaisesRegex(airdma.UsageError, "another sender"):
            other.sender.send(block)
        # It waits for the receiver's block.
        stream.send(b"second")
        thread = threading.Thread(target=stream.sender.flush, args=(PATIENCE_S,))
        thread.start()
        wait_until_used(stream.sender)
        with self.assertRaisesRegex(airdma.UsageError, "another thread"):
            stream.sender.send(block)
        kept.release()
        second = stream.receiver.next(PATIENCE_S)
        thread.join()
        self.assertEqual(bytes(second), b"second")
        second.release()
        stream.sender.send(block)
        self.assertEqual(bytes(stream.take()), b"third")

    def test_close_ends_a_call_that_waits(self) -> None:
        for end in ("sender", "receiver"):
            stream = Stream(blocks=1)
            kept = stream.exchange(b"kept")
            stream.send(b"waits")
            used = getattr(stream, end)
            wait = stream.sender.flush if end == "sender" else stream.receiver.next
            with ThreadPoolExecutor(1) as beside:
                waiting = beside.submit(wait)
                wait_until_used(used)
                with used:
                    pass
                with self.assertRaises(airdma.UsageError):
                    waiting.result(PATIENCE_S)
            with self.assertRaisesRegex(airdma.UsageError, "closed"):
                used.counts()
            kept.release()

    def test_a_signal_handler_closes_what_waits(self) -> None:
        stream = Stream()
        former = signal.signal(signal.SIGALRM, lambda *_: stream.receiver.close())
        self.addCleanup(signal.signal, signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with self.assertRaisesRegex(airdma.UsageError, "closed"):
            stream.receiver.next(PATIENCE_S)

    def test_iteration_ends_with_the_sender(self) -> None:
        stream = Stream()

        def sends() -> None:
            for number in range(20):
                stream.send(str(number).encode())
            stream.sender.flush(PATIENCE_S)
            stream.sender.close()

        thread = threading.Thread(target=sends)
        thread.start()
        self.assertEqual([int(bytes(frame)) for frame in stream.receiver], list(range(20)))
        thread.join()
        with self.assertRaises(airdma.ClosedError):
            stream.receiver.next(PATIENCE_S)


class Tasks(unittest.IsolatedAsyncioTestCase):
    async def test_frames_are_awaited_while_other_tasks_run(self) -> None:
        stream = Stream()
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.005)

        def sends() -> None:
            for number in range(10):
                time.sleep(0.01)
                stream.send(str(number).encode())
            stream.sender.flush(PATIENCE_S)
            stream.sender.close()

        ticking = asyncio.ensure_future(tick())
        sending = asyncio.get_running_loop().run_in_executor(None, sends)
        async with asyncio.timeout(PATIENCE_S):
            numbers = [int(bytes(frame)) async for frame in stream.receiver]
            await sending
        ticking.cancel()
        self.assertEqual(numbers, list(range(10)))
        self.assertGreater(ticks, 5)


if __name__ == "__main__":
    unittest.main()
