"""Connections and messages, by threads."""

import contextlib
import gc
import os
import signal
import threading
import time
import unittest

from common import PATIENCE_S, Pair, filled

import airdma


class Messages(unittest.TestCase):
    def setUp(self) -> None:
        self.pair = Pair()

    def test_a_message_arrives_whole_and_its_region_comes_back(self) -> None:
        pair = self.pair
        region = filled(pair.here, b"..hello..")
        sending = pair.left.send(region, 5, offset=2)
        target = pair.there.allocate(16)
        message = pair.right.recv(target, offset=3).wait(PATIENCE_S)
        self.assertEqual(bytes(message), b"hello")
        self.assertEqual((len(message), message.offset), (5, 3))
        self.assertIs(message.region, target)
        self.assertIs(sending.wait(PATIENCE_S), region)
        self.assertEqual(bytes(region), b"..hello..")

    def test_the_end_of_a_connection_comes_after_its_last_message(self) -> None:
        pair = self.pair
        with pair.left:
            pair.left.send(filled(pair.here, b"last"))
            receiving = pair.right.recv(pair.there.allocate(8))
        self.assertTrue(pair.left.is_closed)
        self.assertEqual(bytes(receiving.wait(PATIENCE_S)), b"last")
        region = pair.there.allocate(8)
        with self.assertRaises(EOFError) as caught:
            pair.right.recv(region).wait(PATIENCE_S)
        self.assertIsInstance(caught.exception, airdma.ClosedError)
        self.assertIsInstance(caught.exception, ConnectionError)
        self.assertFalse(region.in_flight, "an error gives the region back")
        with self.assertRaisesRegex(airdma.UsageError, "endpoint is closed"):
            pair.left.send(region)
        self.assertFalse(region.in_flight, "what did not begin has not taken the region")

    def test_an_error_in_a_with_block_ends_the_connection_at_once(self) -> None:
        pair = self.pair
        sending = None
        with self.assertRaises(KeyError):
            with pair.left:
                # It is not received: an orderly end would wait.
                sending = pair.left.send(filled(pair.here, b"lost"))
                raise KeyError
        with self.assertRaises(airdma.ClosedError):
            sending.wait(PATIENCE_S)

    def test_a_wait_ends_in_time_and_the_operation_goes_on(self) -> None:
        pair = self.pair
        receiving = pair.right.recv(pair.there.allocate(8))
        for timeout in (0, 0.05, 0.25):
            start = time.monotonic()
            with self.assertRaisesRegex(TimeoutError, "goes on"):
                receiving.wait(timeout)
            self.assertLess(time.monotonic() - start, timeout + 1)
        for wrong in (-1, float("nan")):
            with self.assertRaisesRegex(ValueError, "seconds from 0 on"):
                receiving.wait(wrong)
        pair.left.send(filled(pair.here, b"late")).wait(PATIENCE_S)
        self.assertEqual(bytes(receiving.wait(float("inf"))), b"late")
        with self.assertRaisesRegex(airdma.UsageError, "given its result already"):
            receiving.wait()

    def test_giving_up_loses_no_message(self) -> None:
        pair = self.pair
        kept = pair.there.allocate(8)
        given_up = pair.right.recv(kept)
        given_up.cancel()
        given_up.cancel()
        with self.assertRaisesRegex(airdma.UsageError, "cancelled"):
            given_up.wait()
        with self.assertRaisesRegex(BufferError, "allocate another"):
            memoryview(kept)
        dropped = pair.there.allocate(8)
        pair.right.recv(dropped)
        gc.collect()
        with self.assertRaisesRegex(airdma.UsageError, "allocate another"):
            pair.right.recv(dropped)
        pair.left.send(filled(pair.here, b"kept")).wait(PATIENCE_S)
        message = pair.right.recv(pair.there.allocate(8)).wait(PATIENCE_S)
        self.assertEqual(bytes(message), b"kept")

    def test_other_threads_run_while_exactly_one_waits(self) -> None:
        pair = self.pair
        receiving = pair.right.recv(pair.there.allocate(8))
        got = []

        def wait() -> None:
            while not got:
                # Until it has its turn: this thread is "another" one to the other.
                with contextlib.suppress(airdma.UsageError):
                    got.append(bytes(receiving.wait(PATIENCE_S)))

        waiting = threading.Thread(target=wait)
        waiting.start()
        with self.assertRaisesRegex(airdma.UsageError, "another thread waits"):
            while True:
                # It is free for a moment between two looks at signals, too.
                try:
                    receiving.wait(0)
                except TimeoutError:
                    pass
        pair.left.send(filled(pair.here, b"thread")).wait(PATIENCE_S)
        waiting.join()
        self.assertEqual(got, [b"thread"])

    def test_a_wait_that_is_cancelled_by_another_thread_ends(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        threading.Timer(0.2, receiving.cancel).start()
        with self.assertRaisesRegex(airdma.UsageError, "cancelled"):
            receiving.wait(PATIENCE_S)

    def test_ctrl_c_interrupts_a_wait(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        with self.assertRaises(KeyboardInterrupt):
            receiving.wait(PATIENCE_S)
        self.pair.left.send(filled(self.pair.here, b"on")).wait(PATIENCE_S)
        self.assertEqual(bytes(receiving.wait(PATIENCE_S)), b"on")

    def test_a_handler_that_cancels_what_it_interrupts_is_heard(self) -> None:
        receiving = self.pair.right.recv(self.pair.there.allocate(8))

        def interrupt(*_: object) -> None:
            receiving.cancel()
            raise KeyboardInterrupt

        self.addCleanup(signal.signal, signal.SIGINT, signal.signal(signal.SIGINT, interrupt))
        threading.Timer(0.2, os.kill, [os.getpid(), signal.SIGINT]).start()
        with self.assertRaises(KeyboardInterrupt):
            receiving.wait(PATIENCE_S)


class Mistakes(unittest.TestCase):
    def test_a_device_that_is_not_there_is_your_mistake(self) -> None:
        with self.assertRaisesRegex(ValueError, "no device .eth77.: there is") as caught:
            airdma.Device("eth77")
        self.assertIsInstance(caught.exception, airdma.UsageError)

    def test_nobody_listening_is_the_peers(self) -> None:
        device = airdma.Device("127.0.0.1")
        with self.assertRaises(airdma.PeerError):
            device.connect("127.0.0.1:7999").wait(PATIENCE_S)

    def test_an_address_that_is_none_is_yours(self) -> None:
        device = airdma.Device("127.0.0.1")
        for wrong in ("nonsense", ("", 1), ("::g", 1)):
            with self.assertRaises(airdma.UsageError, msg=wrong):
                device.connect(wrong).wait(PATIENCE_S)
        for wrong in (7, ("127.0.0.1", 70000), ("127.0.0.1",)):
            with self.assertRaises((TypeError, OverflowError), msg=wrong):
                device.connect(wrong)

    def test_a_port_that_is_taken_is_the_hosts(self) -> None:
        device = airdma.Device("127.0.0.1")
        with device.listen(7477) as listener:
            with self.assertRaises(OSError) as caught:
                device.listen(7477)
            self.assertNotIsInstance(caught.exception, airdma.PeerError)
            self.assertEqual(listener.port, 7477)
        with self.assertRaisesRegex(airdma.UsageError, "listener is closed"):
            listener.accept()
        device.listen(7477).close()

    def test_an_overlong_message_is_an_error_at_both_ends(self) -> None:
        pair = Pair()
        receiving = pair.right.recv(pair.there.allocate(4))
        sending = pair.left.send(pair.here.allocate(8))
        with self.assertRaises(airdma.PeerError):
            sending.wait(PATIENCE_S)
        with self.assertRaises(airdma.Error):
            receiving.wait(PATIENCE_S)


if __name__ == "__main__":
    unittest.main()
