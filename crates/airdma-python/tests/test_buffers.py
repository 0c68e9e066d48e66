"""Buffers that a peer fills, in air mode."""

import unittest

from common import PATIENCE_S, Pair

import airdma

PIECE = 1 << 20
FEW = PIECE // 16
BUFFER = 8 * PIECE
PIECES_MAX = 100
STOPPED_S = 0.5


class Buffers(unittest.TestCase):
    def test_a_full_buffer_stops_the_peer_until_there_is_room(self) -> None:
        pair = Pair()
        shared = pair.there.allocate(PIECE).share(airdma.Rights.WRITE)
        remote = shared.remote(pair.right)
        region = pair.here.allocate(PIECE)
        pair.right.tell_buffer(FEW, BUFFER)
        pair.left.write(region, remote).wait(PATIENCE_S)
        pair.right.tell_buffer(BUFFER, BUFFER)
        with self.assertRaises(TimeoutError):
            for _ in range(PIECES_MAX):
                writing = pair.left.write(region, remote)
                writing.wait(STOPPED_S)
        pair.right.tell_buffer(bytes=FEW, capacity=BUFFER)
        writing.wait(PATIENCE_S)

    def test_an_endpoint_that_is_closed_has_no_buffer(self) -> None:
        pair = Pair()
        pair.right.abort()
        with self.assertRaisesRegex(airdma.UsageError, "endpoint is closed"):
            pair.right.tell_buffer(0, 0)


if __name__ == "__main__":
    unittest.main()
