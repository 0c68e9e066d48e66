"""Operations in tasks of asyncio."""

import asyncio
import gc
import os
import unittest
import weakref

from common import PATIENCE_S, Pair, filled

import airdma


class Tasks(unittest.IsolatedAsyncioTestCase):
    def setUp(self) -> None:
        self.pair = Pair()

    async def test_connections_and_messages_are_awaited(self) -> None:
        device = airdma.Device("127.0.0.1")
        with device.listen(7490) as listener:
            left, right = await asyncio.gather(device.connect("127.0.0.1:7490"), listener.accept())
        async with left:
            sent, message = await asyncio.gather(
                left.send(filled(device, b"task")), right.recv(device.allocate(8))
            )
            self.assertEqual((bytes(sent), bytes(message)), (b"task", b"task"))
        self.assertTrue(left.is_closed)
        with self.assertRaises(airdma.ClosedError):
            await right.recv(message.region)
        with self.assertRaises(KeyError):
            async with right:
                raise KeyError
        self.assertTrue(right.is_closed)

    async def test_many_tasks_wait_at_once_and_others_run_meanwhile(self) -> None:
        pair, count = self.pair, 100
        receiving = [asyncio.ensure_future(pair.right.recv(pair.there.allocate(8))) for _ in range(count)]
        # Nothing has come, and this task runs.
        await asyncio.sleep(0.05)
        self.assertFalse(any(task.done() for task in receiving))
        sending = [pair.left.send(filled(pair.here, str(number).encode())) for number in range(count)]
        async with asyncio.timeout(PATIENCE_S):
            messages = await asyncio.gather(*receiving)
            await asyncio.gather(*sending)
        self.assertEqual([int(bytes(message)) for message in messages], list(range(count)))

    async def test_a_task_that_is_cancelled_loses_no_message(self) -> None:
        pair = self.pair
        for _ in range(3):
            with self.assertRaises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await pair.right.recv(pair.there.allocate(8))
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(pair.right.recv(pair.there.allocate(8)), 0.02)
        await pair.left.send(filled(pair.here, b"kept"))
        message = await pair.right.recv(pair.there.allocate(8))
        self.assertEqual(bytes(message), b"kept")

    async def test_a_task_that_is_cancelled_cancels_its_operation(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        with self.assertRaises(TimeoutError):
            async with asyncio.timeout(0.02):
                await receiving
        with self.assertRaisesRegex(airdma.UsageError, "cancelled"):
            receiving.wait(0)

    async def test_one_task_awaits_an_operation_and_whoever_else_waits_is_told_at_once(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))

        async def take() -> bytes:
            return bytes(await receiving)

        first = asyncio.create_task(take())
        await asyncio.sleep(0.02)
        with self.assertRaisesRegex(airdma.UsageError, "task awaits"):
            await asyncio.wait_for(take(), PATIENCE_S)
        with self.assertRaisesRegex(airdma.UsageError, "task awaits"):
            await asyncio.to_thread(receiving.wait, 0.05)
        await self.pair.left.send(filled(self.pair.here, b"mine"))
        self.assertEqual(await asyncio.wait_for(first, PATIENCE_S), b"mine")

    async def test_a_task_cannot_await_what_a_thread_waits_for(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        waiting = asyncio.create_task(asyncio.to_thread(receiving.wait, PATIENCE_S))
        await asyncio.sleep(0.05)
        with self.assertRaisesRegex(airdma.UsageError, "another thread waits"):
            await receiving
        await self.pair.left.send(filled(self.pair.here, b"its"))
        self.assertEqual(bytes(await waiting), b"its")

    async def test_an_await_ends_when_another_task_cancels_its_operation(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        asyncio.get_running_loop().call_later(0.02, receiving.cancel)
        with self.assertRaisesRegex(airdma.UsageError, "cancelled"):
            async with asyncio.timeout(PATIENCE_S):
                await receiving

    async def test_a_wait_that_is_left_can_be_taken_up_again(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        left = receiving.__await__()
        left.send(None)
        left.close()
        await self.pair.left.send(filled(self.pair.here, b"again"))
        self.assertEqual(bytes(await receiving), b"again")

    async def test_an_operation_gives_its_result_once(self) -> None:
        operation = self.pair.left.send(self.pair.here.allocate(1))
        await self.pair.right.recv(self.pair.there.allocate(1))
        await operation
        with self.assertRaisesRegex(airdma.UsageError, "given its result already"):
            await operation


class Loops(unittest.TestCase):
    def test_loops_that_end_leave_no_descriptor_behind(self) -> None:
        pair = Pair()

        async def exchange() -> None:
            receiving = pair.right.recv(pair.there.allocate(8))
            with self.assertRaises(TimeoutError):
                await asyncio.wait_for(asyncio.sleep(1), 0.01)
            await asyncio.gather(receiving, pair.left.send(filled(pair.here, b"on")))

        asyncio.run(exchange())
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(20):
            asyncio.run(exchange())
        self.assertLessEqual(len(os.listdir("/proc/self/fd")), before + 1)

    def test_a_loop_closed_during_a_wait_is_collected(self) -> None:
        pair = Pair()

        async def receive() -> None:
            await pair.right.recv(pair.there.allocate(8))

        def close_in_the_middle() -> weakref.ref[asyncio.AbstractEventLoop]:
            loop = asyncio.new_event_loop()
            # It tells of the task that is lost, which is meant here.
            loop.set_exception_handler(lambda *_: None)
            task = loop.create_task(receive())
            loop.run_until_complete(asyncio.sleep(0.01))
            self.assertFalse(task.done())
            loop.close()
            return weakref.ref(loop)

        closed = [close_in_the_middle() for _ in range(3)]
        gc.collect()
        self.assertEqual([loop() for loop in closed], [None] * 3)


if __name__ == "__main__":
    unittest.main()
