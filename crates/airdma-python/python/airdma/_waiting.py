"""How tasks and iterators wait: one descriptor for each event loop wakes its waits."""

from __future__ import annotations

import asyncio
import itertools
import weakref
from collections.abc import AsyncIterator, Iterator
from typing import Any

from airdma._airdma import Bell, DatagramEndpoint, Endpoint, Frame, FrameReceiver, Operation, Record


class _Waits:
    """The waits of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.bell = Bell()
        self._numbers = itertools.count()
        self._woken: dict[int, asyncio.Future[None]] = {}
        loop.add_reader(self.bell.fileno(), self._ring)

    def enter(self, woken: asyncio.Future[None]) -> int:
        number = next(self._numbers)
        self._woken[number] = woken
        return number

    def leave(self, number: int) -> None:
        self._woken.pop(number, None)

    def _ring(self) -> None:
        for number in self.bell.take():
            woken = self._woken.pop(number, None)
            if woken is not None and not woken.done():
                woken.set_result(None)


_of_loops: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, weakref.ref[_Waits]] = (
    weakref.WeakKeyDictionary()
)
"""Weak in both directions: only the loop's reader keeps the waits, until the loop is closed."""


def _waits_of(loop: asyncio.AbstractEventLoop) -> _Waits:
    known = _of_loops.get(loop)
    waits = known() if known is not None else None
    if waits is None:
        waits = _Waits(loop)
        _of_loops[loop] = weakref.ref(waits)
    return waits


async def awaited(operation: Operation[Any]) -> Any:
    """What the operation gives. A task that is cancelled cancels the operation."""
    loop = asyncio.get_running_loop()
    waits = _waits_of(loop)
    operation._claim()
    try:
        while True:
            woken = loop.create_future()
            number = waits.enter(woken)
            try:
                done = operation._poll(waits.bell, number)
                if done is not None:
                    return done[0]
                await woken
            finally:
                waits.leave(number)
    except asyncio.CancelledError:
        operation.cancel()
        raise
    finally:
        operation._release()


async def entered(endpoint: Endpoint) -> Endpoint:
    """`async with endpoint`."""
    return endpoint


async def left(endpoint: Endpoint, kind: type[BaseException] | None) -> None:
    """Its end: closed in an orderly way, and at once after an error."""
    if kind is not None:
        endpoint.abort()
    if not endpoint.is_closed:
        await endpoint.close()


def records(endpoint: DatagramEndpoint, timeout: float | None) -> Iterator[Record]:
    """The records of an endpoint, until none came for `timeout` seconds."""
    while True:
        try:
            record = endpoint.record().wait(timeout)
        except TimeoutError:
            return
        yield record


async def frames(receiver: FrameReceiver) -> AsyncIterator[Frame]:
    """The frames of a receiver, until its sender has gone."""
    loop = asyncio.get_running_loop()
    waits = _waits_of(loop)
    while True:
        woken = loop.create_future()
        number = waits.enter(woken)
        try:
            frame = receiver._poll(waits.bell, number)
            if frame is None:
                await woken
                continue
        except StopAsyncIteration:
            return
        finally:
            waits.leave(number)
        yield frame
        # The frame that was yielded last frees its block with the caller's references.
        del frame
